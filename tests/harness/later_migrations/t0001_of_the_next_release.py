"""A migration that only tests have: it adds, fills and renames"""

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Int64

revision = "t0001"
down_revision = "s0005"  # the newest of the present release
RENAMED = {"drain.entry": "drain.calendar_entry"}


def upgrade() -> None:
    op.create_table(
        "remark",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", name=op.f("pk_remark")),
    )
    op.execute("INSERT INTO remark (cluster, text) SELECT cluster, reason FROM drain")
    op.add_column("cluster", sa.Column("seen", sa.Float()))
    op.execute("UPDATE cluster SET seen = time")
    # tests write to these alone
    op.create_table(
        "note",
        sa.Column("job", Int64, autoincrement=False, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_note")),
    )
    op.add_column("job", sa.Column("colour", sa.Text()))
    op.add_column("attempt", sa.Column("nice", Int64))
    op.create_index("ix_attempt_nice", "attempt", ["nice"])
    op.alter_column("drain", "entry", new_column_name="calendar_entry")


def downgrade() -> None:
    op.alter_column("drain", "calendar_entry", new_column_name="entry")
    op.drop_index("ix_attempt_nice", "attempt")
    op.drop_column("attempt", "nice")
    op.drop_column("job", "colour")
    op.drop_table("note")
    op.drop_column("cluster", "seen")
    op.drop_table("remark")
