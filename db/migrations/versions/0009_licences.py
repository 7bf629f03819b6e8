"""Licences and their leases"""

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Int64

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "licence",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("total", Int64, nullable=False),
        sa.Column("leased", Int64, nullable=False),
        sa.Column("excess", Int64, nullable=False),
        sa.Column("chosen", Int64),
        sa.Column("outside", Int64, nullable=False),
        sa.Column("observed", sa.Float()),
        sa.CheckConstraint("leased >= 0 AND excess >= 0", name=op.f("ck_licence_counts")),
        sa.CheckConstraint("leased <= total + excess", name=op.f("ck_licence_within_total")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_licence")),
    )
    op.create_table(
        "lease",
        sa.Column("id", Int64, nullable=False),
        sa.Column("licence", sa.Text(), nullable=False),
        sa.Column("job", Int64, nullable=False),
        sa.Column("task_index", Int64, nullable=False),
        sa.Column("attempt", Int64, nullable=False),
        sa.Column("tokens", Int64, nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.Column("until", sa.Float()),
        sa.Column("why", sa.Text()),
        sa.Column("lingers", sa.Float()),
        sa.CheckConstraint("tokens > 0", name=op.f("ck_lease_tokens")),
        sa.CheckConstraint("(until IS NULL) = (why IS NULL)", name=op.f("ck_lease_ended")),
        sa.ForeignKeyConstraint(["licence"], ["licence.name"], name=op.f("fk_lease_licence")),
        sa.ForeignKeyConstraint(
            ["job", "task_index", "attempt"],
            ["attempt.job", "attempt.task_index", "attempt.number"],
            name="fk_lease_attempt",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lease")),
    )
    op.create_index("ix_lease_job", "lease", ["job", "task_index"])
    op.create_index("ix_lease_lingers", "lease", ["lingers"])
    held = sa.text("until IS NULL")
    op.create_index(
        "ix_lease_one_live",
        "lease",
        ["licence", "job", "task_index"],
        unique=True,
        sqlite_where=held,
        postgresql_where=held,
    )
