"""Accounts of accounting whose jobs may run in a reservation"""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"


def upgrade() -> None:
    column = sa.Column("accounts", sa.Text(), server_default="[]", nullable=False)
    op.add_column("reservation", column)


def downgrade() -> None:
    op.drop_column("reservation", "accounts")
