"""Indexes by which a page of jobs is read without a scan; positions in listings of clusters"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0019"


def upgrade() -> None:
    op.add_column("task", sa.Column("user", sa.Text(), nullable=False, server_default=""))
    op.execute('UPDATE task SET "user" = (SELECT job."user" FROM job WHERE job.id = task.job)')
    is_open, has_ended = sa.text("ended IS NULL"), sa.text("ended IS NOT NULL")
    op.create_index(
        op.f("ix_task_user_open"),
        "task",
        ["user", "job", "task_index"],
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
    op.create_index(
        op.f("ix_task_user_ended"),
        "task",
        ["user", "ended", "job", "task_index"],
        sqlite_where=has_ended,
        postgresql_where=has_ended,
    )
    op.drop_index(op.f("ix_task_ended"), "task")
    op.create_index(op.f("ix_task_ended"), "task", ["ended", "job", "task_index"])
    op.create_index(op.f("ix_job_user"), "job", ["user", "id"])
    op.create_index(op.f("ix_token_user"), "token", ["user", "id"])
    op.create_table(
        "listing_cursor",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("cursor", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", name=op.f("pk_listing_cursor")),
    )


def downgrade() -> None:
    op.drop_table("listing_cursor")
    op.drop_index(op.f("ix_token_user"), "token")
    op.drop_index(op.f("ix_job_user"), "job")
    op.drop_index(op.f("ix_task_ended"), "task")
    op.create_index(op.f("ix_task_ended"), "task", ["ended", "job"])
    op.drop_index(op.f("ix_task_user_ended"), "task")
    op.drop_index(op.f("ix_task_user_open"), "task")
    op.drop_column("task", "user")
