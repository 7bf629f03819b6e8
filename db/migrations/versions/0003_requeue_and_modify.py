"""Jobs that run again or are modified"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("job", sa.Column("changed", sa.Text()))
    op.add_column("task", sa.Column("forgiven", sa.Integer(), server_default="0", nullable=False))
