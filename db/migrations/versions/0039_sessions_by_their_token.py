"""An index by which the sessions that a token has opened are found"""

from alembic import op

revision = "0039"
down_revision = "0038"


def upgrade() -> None:
    op.create_index("ix_token_parent", "token", ["parent"])


def downgrade() -> None:
    op.drop_index("ix_token_parent", "token")
