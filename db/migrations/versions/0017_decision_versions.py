"""The version of the core's decisions that follow each checkpoint"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    # every older release counts as version 1
    version = sa.Column("decisions", sa.Integer(), nullable=False, server_default="1")
    op.add_column("checkpoint", version)


def downgrade() -> None:
    op.drop_column("checkpoint", "decisions")
