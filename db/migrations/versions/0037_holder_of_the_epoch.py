"""Which process was the last active daemon: the next one asks whether it may still run"""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"


def upgrade() -> None:
    op.add_column("epoch", sa.Column("holder", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("epoch", "holder")
