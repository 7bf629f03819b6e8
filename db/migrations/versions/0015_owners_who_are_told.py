"""Owners are told of broken reservations"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("reservation", sa.Column("mail", sa.Text(), nullable=False, server_default=""))
    op.add_column("reservation", sa.Column("told", sa.Float()))
    # nobody is told now of what broke before
    op.execute("UPDATE reservation SET told = closed WHERE state = 'broken'")
