"""Reservations of licences for a window"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column(
        "reservation", sa.Column("licences", sa.Text(), nullable=False, server_default="{}")
    )
