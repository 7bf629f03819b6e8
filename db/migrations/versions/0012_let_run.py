"""Jobs that may go on after the end of their reservation"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column(
        "reservation", sa.Column("let_run", sa.Float(), nullable=False, server_default="0")
    )
