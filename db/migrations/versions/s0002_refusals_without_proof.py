"""Refusals without proof"""

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Int64

revision = "s0002"
down_revision = "s0001"


def upgrade() -> None:
    op.add_column("attempt", sa.Column("sentence", sa.Text()))
    op.create_table(
        "strike",
        sa.Column("job", Int64, autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("count", Int64, nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("delay", sa.Float(), nullable=False),
        sa.Column("retry_at", sa.Float(), nullable=False),
        sa.CheckConstraint("count >= 0", name=op.f("ck_strike_count")),
        sa.PrimaryKeyConstraint("job", "cluster", name=op.f("pk_strike")),
    )


def downgrade() -> None:
    op.drop_table("strike")
    op.drop_column("attempt", "sentence")
