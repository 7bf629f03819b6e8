"""A candidate policy beside the one in force, and its decisions"""

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "shadow",
        sa.Column("number", INTEGER, autoincrement=False, nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("end", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_shadow")),
    )
    op.create_table(
        "shadow_decision",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("shadow", INTEGER, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("job", INTEGER, nullable=False),
        sa.Column("task_index", INTEGER, nullable=False),
        sa.Column("user_class", sa.Text(), nullable=False),
        sa.Column("deadline", sa.Boolean(), nullable=False),
        sa.Column("eligible", INTEGER, nullable=False),
        sa.Column("live_priority", INTEGER, nullable=False),
        sa.Column("priority", INTEGER, nullable=False),
        sa.Column("live_cluster", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shadow_decision")),
    )


def downgrade() -> None:
    op.drop_table("shadow_decision")
    op.drop_table("shadow")
