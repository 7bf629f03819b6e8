"""What ended tasks and leases used, by day; the jobs that are stored are counted"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from metasched.db.daily_use import count_history

revision = "0031"
down_revision = "0030"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KEY = ("cluster", "user", "account", "user_group", "user_class")


def key_columns() -> list[sa.Column[Any]]:
    day: sa.Column[Any] = sa.Column("day", INTEGER, autoincrement=False, nullable=False)
    return [day, *(sa.Column(name, sa.Text(), nullable=False) for name in KEY)]


def integers(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, INTEGER, nullable=False) for name in names]


def floats(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Float(), nullable=False) for name in names]


def upgrade() -> None:
    op.add_column("attempt", sa.Column("elapsed", sa.Float()))
    op.add_column("attempt", sa.Column("alloc_cpus", INTEGER))
    op.create_table(
        "daily_use",
        *key_columns(),
        *integers("jobs", "completed", "failed", "timed_out", "cancelled"),
        *floats("elapsed", "cpu_allocated", "cpu_used", "cpu_measured", "node_seconds"),
        *floats("gpu_seconds", "cpu_outside"),
        *integers("starts"),
        *floats("wait", "max_wait", "slowdown"),
        *integers("deadlines", "met", "missed"),
        *floats("lateness", "max_lateness"),
        sa.Column("waits", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("day", *KEY, name=op.f("pk_daily_use")),
    )
    op.create_index("ix_daily_use_user", "daily_use", ["user", "day"])
    op.create_table(
        "daily_licence_use",
        *key_columns(),
        sa.Column("licence", sa.Text(), nullable=False),
        *integers("leases"),
        *floats("token_seconds", "wait", "max_wait"),
        sa.PrimaryKeyConstraint("day", *KEY, "licence", name=op.f("pk_daily_licence_use")),
    )
    op.create_index("ix_daily_licence_use_user", "daily_licence_use", ["user", "day"])
    op.create_table(
        "daily_licence_peak",
        sa.Column("day", INTEGER, autoincrement=False, nullable=False),
        sa.Column("licence", sa.Text(), nullable=False),
        *integers("peak", "last", "total"),
        sa.PrimaryKeyConstraint("day", "licence", name=op.f("pk_daily_licence_peak")),
    )
    # of the tables as they are at this revision: a later one that changes them, or columns that
    # it reads, needs a copy of this function as it is now
    count_history(op.get_bind())


def downgrade() -> None:
    for table in ("daily_licence_peak", "daily_licence_use", "daily_use"):
        op.drop_table(table)
    op.drop_column("attempt", "alloc_cpus")
    op.drop_column("attempt", "elapsed")
