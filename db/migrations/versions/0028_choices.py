"""Which of a job's alternative generic resources an attempt requests"""

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Int64

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.add_column("attempt", sa.Column("gres_choice", Int64))


def downgrade() -> None:
    op.drop_column("attempt", "gres_choice")
