"""State and changes of the self-optimising classification"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "tuning",
        sa.Column("parameter", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("parameter", name=op.f("pk_tuning")),
    )
    op.create_table(
        "tuning_change",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("event", INTEGER, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("job", INTEGER),
        sa.Column("parameter", sa.Text(), nullable=False),
        sa.Column("change", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tuning_change")),
    )
    op.create_index("ix_tuning_change_event", "tuning_change", ["event"])


def downgrade() -> None:
    op.drop_table("tuning_change")
    op.drop_table("tuning")
