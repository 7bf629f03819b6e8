"""Checkpoints, and what makes pruning quick"""

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Int64

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "checkpoint",
        sa.Column("event", Int64, autoincrement=False, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("event", name=op.f("pk_checkpoint")),
    )
    op.create_index("ix_change_event", "change", ["event"])
    op.create_index("ix_job_environment", "job", ["environment"])
    op.create_index("ix_job_script", "job", ["script"])
