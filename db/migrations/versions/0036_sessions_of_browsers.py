"""Sessions of browsers: the token that opened one, with which it ends"""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"


def upgrade() -> None:
    op.add_column(
        "token", sa.Column("parent", sa.BigInteger().with_variant(sa.Integer(), "sqlite"))
    )


def downgrade() -> None:
    op.execute("DELETE FROM token WHERE scope IN ('link', 'session', 'user_session')")
    op.drop_column("token", "parent")
