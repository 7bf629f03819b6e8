"""Which of a job's alternative licences an attempt has leased"""

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Int64

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.add_column("attempt", sa.Column("licence_choice", Int64))


def downgrade() -> None:
    op.drop_column("attempt", "licence_choice")
