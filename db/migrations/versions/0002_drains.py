"""Clusters that operators keep closed"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "drain",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("keep_pending", sa.Boolean(create_constraint=False), nullable=False),
        sa.PrimaryKeyConstraint("cluster", name=op.f("pk_drain")),
    )
