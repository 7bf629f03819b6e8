"""Submissions of attempts, as their managers list them"""

import sqlalchemy as sa
from alembic import op

revision = "s0004"
down_revision = "s0003"


def upgrade() -> None:
    op.add_column("attempt", sa.Column("submitted", sa.Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("attempt", "submitted")
