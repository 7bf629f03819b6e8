"""Figures of licences over time"""

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "licence_sample",
        sa.Column("licence", sa.Text(), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("total", INTEGER, nullable=True),
        sa.Column("leased", INTEGER, nullable=False),
        sa.Column("outside", INTEGER, nullable=False),
        sa.Column("free", INTEGER, nullable=True),
        sa.Column("waiting", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("licence", "time", name=op.f("pk_licence_sample")),
    )
    op.create_index(op.f("ix_licence_sample_time"), "licence_sample", ["time"])


def downgrade() -> None:
    op.drop_table("licence_sample")
