"""Accounts of attempts before a modification, and an index of runs that lack their use"""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"

LACKS_USE = sa.text(
    "started IS NOT NULL AND ended IS NOT NULL AND native_id IS NOT NULL AND cpu_seconds IS NULL"
)


def upgrade() -> None:
    op.add_column("attempt", sa.Column("account", sa.Text()))
    op.create_index(
        "ix_attempt_lacks_use",
        "attempt",
        ["cluster", "ended", "job", "task_index", "number"],
        sqlite_where=LACKS_USE,
        postgresql_where=LACKS_USE,
    )


def downgrade() -> None:
    op.drop_index("ix_attempt_lacks_use", "attempt")
    op.drop_column("attempt", "account")
