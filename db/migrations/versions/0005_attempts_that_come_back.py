"""Attempts that come back, and those that a manager has restarted"""

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Int64

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    with op.batch_alter_table("attempt", schema=None) as batch_op:
        batch_op.add_column(sa.Column("rival", Int64, nullable=True))
        batch_op.add_column(sa.Column("restarts", Int64, server_default="0", nullable=False))
        batch_op.add_column(
            sa.Column("begun", sa.Boolean(), server_default=sa.false(), nullable=False)
        )
    op.execute("UPDATE attempt SET begun = true WHERE started IS NOT NULL")
