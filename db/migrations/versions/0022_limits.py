"""Uses of what the site limits; a start of the daemon counts them"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "limit_use",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("used", integer, nullable=False),
        sa.Column("maximum", integer, nullable=False),
        sa.Column("excess", integer, nullable=False),
        sa.CheckConstraint("used >= 0 AND excess >= 0", name=op.f("ck_limit_use_counts")),
        sa.CheckConstraint("used <= maximum + excess", name=op.f("ck_limit_use_within_limit")),
        sa.PrimaryKeyConstraint("scope", "name", "resource", name=op.f("pk_limit_use")),
    )


def downgrade() -> None:
    op.drop_table("limit_use")
