"""What managers of clusters have given of licences to others, which outlasts a restart"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("licence", sa.Column("past_us", sa.Text(), nullable=False, server_default="{}"))
