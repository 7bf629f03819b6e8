"""Attempts have the hosts that could not begin them"""

import sqlalchemy as sa
from alembic import op

revision = "s0005"
down_revision = "s0004"


def upgrade() -> None:
    op.add_column("attempt", sa.Column("unbegun_on", sa.Text()))


def downgrade() -> None:
    op.drop_column("attempt", "unbegun_on")
