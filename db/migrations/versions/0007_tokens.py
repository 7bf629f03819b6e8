"""Tokens with which users call from other hosts"""

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Int64

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "token",
        sa.Column("id", Int64, autoincrement=False, nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False),
        sa.Column("revoked", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_token")),
        sa.UniqueConstraint("digest", name=op.f("uq_token_digest")),
    )
