"""Audit records: acts of operators, changes of clusters, licences, policy, reservations and jobs"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", INTEGER, autoincrement=False, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("job", INTEGER),
        sa.Column("task_index", INTEGER),
        sa.Column("reservation", INTEGER),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("licence", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("count", INTEGER, nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.CheckConstraint("count > 0", name=op.f("ck_audit_count")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    for name in ("kind", "actor", "owner", "cluster", "job"):
        op.create_index(f"ix_audit_{name}", "audit", [name, "id"])
    op.create_table(
        "audit_condition",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("subject", name=op.f("pk_audit_condition")),
    )


def downgrade() -> None:
    op.drop_table("audit_condition")
    op.drop_table("audit")
