"""Which of a job's alternative generic resources and licences an attempt has"""

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Int64

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.add_column("attempt", sa.Column("gres_choice", Int64))
    op.add_column("attempt", sa.Column("licence_choice", Int64))


def downgrade() -> None:
    op.drop_column("attempt", "licence_choice")
    op.drop_column("attempt", "gres_choice")
