"""How many lives of a daemon have begun"""

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Whole

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    made = op.create_table(
        "epoch",
        sa.Column("number", Whole, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_epoch")),
    )
    op.bulk_insert(made, [{"number": 0}])
