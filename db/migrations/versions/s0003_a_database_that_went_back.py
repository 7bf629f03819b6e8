"""A database that went back"""

import secrets

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Int64
from metasched.db.store import StoreError

revision = "s0003"
down_revision = "s0002"
LIVE = "('dispatching', 'pending', 'running', 'suspended', 'unknown')"


def upgrade() -> None:
    for name in ("first_job", "first_reservation"):
        op.add_column("instance", sa.Column(name, Int64, server_default="0", nullable=False))
    op.add_column("instance", sa.Column("went_back", sa.Text(), server_default="", nullable=False))
    op.create_table(
        "tag_key",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("first_dispatch", Int64, nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_tag_key")),
    )
    # dispatches of before have tags without a digest
    op.execute(
        sa.text(
            "INSERT INTO tag_key (key, first_dispatch) SELECT :key, COALESCE(MAX(number), 0) FROM ("
            "SELECT MAX(dispatch_id) + 1 AS number FROM attempt "
            "UNION ALL SELECT MAX(first_dispatch) FROM instance) AS numbers"
        ).bindparams(key=secrets.token_hex(16))
    )


def downgrade() -> None:
    dispatched = op.get_bind().scalar(
        sa.text(
            "SELECT COUNT(*) FROM attempt, tag_key "
            f"WHERE attempt.dispatch_id >= tag_key.first_dispatch AND attempt.state IN {LIVE}"
        )
    )
    if dispatched:
        raise StoreError(
            f"{dispatched} dispatched tasks have tags that schema {down_revision} does not know; "
            "nothing is changed: wait until these have ended, or cancel them"
        )
    op.drop_table("tag_key")
    with op.batch_alter_table("instance") as table:  # SQLite before 3.35 drops no column
        for name in ("went_back", "first_reservation", "first_job"):
            table.drop_column(name)
