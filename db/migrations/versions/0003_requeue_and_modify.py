"""Jobs that run again or are modified"""

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Int64

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("job", sa.Column("changed", sa.Text()))
    op.add_column("task", sa.Column("forgiven", Int64, server_default="0", nullable=False))
