"""How many lives of a daemon have begun"""

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Int64

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    made = op.create_table(
        "epoch",
        sa.Column("number", Int64, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_epoch")),
    )
    op.bulk_insert(made, [{"number": 0}])
