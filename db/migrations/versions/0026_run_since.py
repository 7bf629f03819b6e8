"""Start of a run on the daemon's clock, which fair share charges from"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.add_column("attempt", sa.Column("run_since", sa.Float()))
    op.execute("UPDATE attempt SET run_since = started WHERE ended IS NULL")


def downgrade() -> None:
    op.drop_column("attempt", "run_since")
