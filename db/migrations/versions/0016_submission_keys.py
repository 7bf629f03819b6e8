"""Keys by which a repeated submission is recognised"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_table(
        "submission_key",
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("user", "key", name=op.f("pk_submission_key")),
    )
    op.create_index(op.f("ix_submission_key_created"), "submission_key", ["created"])


def downgrade() -> None:
    op.drop_table("submission_key")
