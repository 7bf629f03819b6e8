"""The first tables"""

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Int64

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "cluster",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_cluster")),
    )
    op.create_table(
        "content",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_content")),
    )
    op.create_table(
        "event",
        sa.Column("id", Int64, autoincrement=False, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
    )
    op.create_table(
        "instance",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_instance")),
    )
    op.create_table(
        "change",
        sa.Column("id", Int64, nullable=False),
        sa.Column("event", Int64, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("job", Int64, nullable=False),
        sa.Column("task_index", Int64, nullable=False),
        sa.Column("attempt", Int64, nullable=False),
        sa.Column("what", sa.Text(), nullable=True),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["event"], ["event.id"], name=op.f("fk_change_event")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_change")),
    )
    with op.batch_alter_table("change", schema=None) as batch_op:
        batch_op.create_index("ix_change_job", ["job", "id"], unique=False)

    op.create_table(
        "job",
        sa.Column("id", Int64, autoincrement=False, nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("submitted", sa.Float(), nullable=False),
        sa.Column("margin", sa.Float(), nullable=True),
        sa.Column("array", sa.Text(), nullable=True),
        sa.Column("priority", Int64, nullable=False),
        sa.Column("parts", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("script", sa.Text(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment"], ["content.digest"], name=op.f("fk_job_environment")
        ),
        sa.ForeignKeyConstraint(["script"], ["content.digest"], name=op.f("fk_job_script")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
    )
    with op.batch_alter_table("job", schema=None) as batch_op:
        batch_op.create_index(
            "ix_job_margin",
            ["id"],
            unique=False,
            sqlite_where=sa.text("margin >= 0"),
            postgresql_where=sa.text("margin >= 0"),
        )

    op.create_table(
        "task",
        sa.Column("job", Int64, nullable=False),
        sa.Column("task_index", Int64, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("target", sa.Text(), nullable=True),
        sa.Column("attempts", Int64, nullable=False),
        sa.Column("moves", Int64, nullable=False),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.CheckConstraint(
            "(state IN ('cancelled', 'completed', 'failed', 'rejected', 'timeout')) = (ended IS NOT NULL)",
            name=op.f("ck_task_ended"),
        ),
        sa.CheckConstraint(
            "state IN ('cancelled', 'completed', 'dispatching', 'failed', 'held', 'pending', 'queued', 'rejected', 'running', 'suspended', 'timeout', 'unknown')",
            name=op.f("ck_task_state"),
        ),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_task_job")),
        sa.PrimaryKeyConstraint("job", "task_index", name=op.f("pk_task")),
    )
    with op.batch_alter_table("task", schema=None) as batch_op:
        batch_op.create_index("ix_task_ended", ["ended"], unique=False)
        batch_op.create_index(
            "ix_task_open",
            ["job", "task_index"],
            unique=False,
            sqlite_where=sa.text("ended IS NULL"),
            postgresql_where=sa.text("ended IS NULL"),
        )

    op.create_table(
        "attempt",
        sa.Column("job", Int64, nullable=False),
        sa.Column("task_index", Int64, nullable=False),
        sa.Column("number", Int64, nullable=False),
        sa.Column("sending", Int64, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("sent", sa.Float(), nullable=False),
        sa.Column("accepted", sa.Float(), nullable=True),
        sa.Column("tried", sa.Float(), nullable=True),
        sa.Column("native_id", sa.Text(), nullable=True),
        sa.Column("intent", sa.Text(), nullable=True),
        sa.Column("target", sa.Text(), nullable=True),
        sa.Column("started", sa.Float(), nullable=True),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("exit_code", Int64, nullable=True),
        sa.Column("signal", Int64, nullable=True),
        sa.Column("word", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("cpu_seconds", sa.Float(), nullable=True),
        sa.Column("max_memory", Int64, nullable=True),
        sa.Column("refused", sa.Boolean(), nullable=False),
        sa.CheckConstraint(
            "state IN ('cancelled', 'completed', 'dispatching', 'failed', 'node_fail', 'out_of_memory', 'pending', 'preempted', 'running', 'suspended', 'timeout', 'unknown')",
            name=op.f("ck_attempt_state"),
        ),
        sa.ForeignKeyConstraint(
            ["job", "task_index"], ["task.job", "task.task_index"], name="fk_attempt_task"
        ),
        sa.PrimaryKeyConstraint("job", "task_index", "number", name=op.f("pk_attempt")),
    )
    with op.batch_alter_table("attempt", schema=None) as batch_op:
        batch_op.create_index(
            "ix_attempt_one_live",
            ["job", "task_index"],
            unique=True,
            sqlite_where=sa.text(
                "state IN ('dispatching', 'pending', 'running', 'suspended', 'unknown')"
            ),
            postgresql_where=sa.text(
                "state IN ('dispatching', 'pending', 'running', 'suspended', 'unknown')"
            ),
        )
