"""Use of closed periods, summed up; the daemon sums what is stored within an hour"""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
COUNTS = ("jobs", "completed", "failed", "timed_out", "cancelled")
AMOUNTS = ("elapsed", "cpu_allocated", "cpu_used", "cpu_measured", "node_seconds")


def upgrade() -> None:
    op.create_table(
        "period_use",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("period", INTEGER, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("first_day", INTEGER, nullable=False),
        *(sa.Column(name, INTEGER, nullable=False) for name in COUNTS),
        *(sa.Column(name, sa.Float(), nullable=False) for name in AMOUNTS),
        *(sa.Column(name, sa.Float(), nullable=False) for name in ("gpu_seconds", "cpu_outside")),
        *(sa.Column(name, INTEGER, nullable=False) for name in ("deadlines", "met", "missed")),
        *(sa.Column(name, sa.Float(), nullable=False) for name in ("lateness", "max_lateness")),
        sa.PrimaryKeyConstraint("key", "period", "name", name=op.f("pk_period_use")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("period_use")
