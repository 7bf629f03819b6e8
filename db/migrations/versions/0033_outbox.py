"""The outbox: mails and events of webhooks"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
IS_OPEN = sa.text("ended IS NULL")


def upgrade() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", INTEGER, autoincrement=False, nullable=False),
        sa.Column("receiver", sa.Text(), nullable=False),
        sa.Column("user", sa.Text()),
        sa.Column("job", INTEGER),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("due", sa.Float(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("tries", INTEGER, nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("ended", sa.Float()),
        sa.Column("data", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "state IN ('delivered', 'failed', 'pending', 'sending', 'uncertain')",
            name=op.f("ck_outbox_state"),
        ),
        sa.CheckConstraint(
            "(state IN ('pending', 'sending')) = (ended IS NULL)", name=op.f("ck_outbox_ended")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )
    op.create_index(
        "ix_outbox_open",
        "outbox",
        ["receiver", "id"],
        sqlite_where=IS_OPEN,
        postgresql_where=IS_OPEN,
    )
    op.create_index("ix_outbox_user", "outbox", ["user", "receiver", "created"])
    op.create_index("ix_outbox_ended", "outbox", ["ended"])


def downgrade() -> None:
    op.drop_table("outbox")
