"""Scope of a token: some read metrics alone"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.add_column("token", sa.Column("scope", sa.Text(), server_default="user", nullable=False))


def downgrade() -> None:
    op.execute("DELETE FROM token WHERE scope <> 'user'")
    op.drop_column("token", "scope")
