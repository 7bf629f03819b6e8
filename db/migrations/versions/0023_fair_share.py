"""Decayed use of users and accounts, positions in the accounting of clusters, reported shares"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.create_table(
        "share_use",
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("used", sa.Float(), nullable=False),
        sa.Column("as_of", sa.Float(), nullable=False),
        sa.CheckConstraint("used >= 0", name=op.f("ck_share_use_used")),
        sa.PrimaryKeyConstraint("account", "user", name=op.f("pk_share_use")),
    )
    op.create_table(
        "use_cursor",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("cursor", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", name=op.f("pk_use_cursor")),
    )
    op.create_table(
        "share_tree",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("tree", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", name=op.f("pk_share_tree")),
    )


def downgrade() -> None:
    for table in ("share_tree", "use_cursor", "share_use"):
        op.drop_table(table)
