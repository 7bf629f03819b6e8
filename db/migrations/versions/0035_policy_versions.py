"""Versions of the policy, and the version that decided the priority of a job"""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "policy_version",
        sa.Column("number", INTEGER, autoincrement=False, nullable=False),
        sa.Column("event", INTEGER, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("site_digest", sa.Text(), nullable=False),
        sa.Column("previous", INTEGER),
        sa.Column("copy_of", INTEGER),
        sa.CheckConstraint(
            "change IN ('activated', 'file', 'undone')", name=op.f("ck_policy_version_change")
        ),
        sa.CheckConstraint("previous < number", name=op.f("ck_policy_version_previous")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_policy_version")),
    )
    op.add_column("job", sa.Column("policy", INTEGER))


def downgrade() -> None:
    op.drop_column("job", "policy")
    op.drop_table("policy_version")
