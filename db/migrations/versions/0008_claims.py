"""Claims of attempts, and that they were revoked"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    with op.batch_alter_table("attempt", schema=None) as batch_op:
        batch_op.add_column(sa.Column("fence", sa.Text(), server_default="", nullable=False))
        for name in ("revoking", "revoked"):
            batch_op.add_column(
                sa.Column(name, sa.Boolean(), server_default=sa.false(), nullable=False)
            )
