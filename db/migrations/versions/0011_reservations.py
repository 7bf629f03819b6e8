"""Advance reservations"""

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Int64

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "reservation",
        sa.Column("id", Int64, autoincrement=False, nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("start", sa.Float(), nullable=False),
        sa.Column("end", sa.Float(), nullable=False),
        sa.Column("size", Int64, nullable=False),
        sa.Column("cpus", Int64, nullable=False),
        sa.Column("made", sa.Float(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("placed", sa.Text(), nullable=False),
        sa.Column("held", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("tries", Int64, nullable=False),
        sa.Column("closed", sa.Float()),
        sa.Column("offers", sa.Text(), nullable=False),
        sa.CheckConstraint('start < "end"', name=op.f("ck_reservation_window")),
        sa.CheckConstraint("size > 0 AND cpus >= size", name=op.f("ck_reservation_size")),
        sa.CheckConstraint(
            "state IN ('active', 'bound', 'broken', 'cancelled', 'confirmed', 'ended', "
            "'requested')",
            name=op.f("ck_reservation_state"),
        ),
        sa.CheckConstraint(
            "(state IN ('broken', 'cancelled', 'ended')) = (closed IS NOT NULL)",
            name=op.f("ck_reservation_closed"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservation")),
    )
    open = sa.text("closed IS NULL OR held")
    op.create_index(
        "ix_reservation_open",
        "reservation",
        ["cluster", "start"],
        sqlite_where=open,
        postgresql_where=open,
    )
