"""Mails about shares of time limits that were stored or counted in a digest"""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "limit_mail",
        sa.Column("job", INTEGER, nullable=False),
        sa.Column("task_index", INTEGER, nullable=False),
        sa.Column("started", sa.Float(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_limit_mail_job_job")),
        sa.PrimaryKeyConstraint("job", "task_index", "started", "kind", name=op.f("pk_limit_mail")),
    )


def downgrade() -> None:
    op.drop_table("limit_mail")
