"""Runs of equal tasks of arrays; lines of stories for runs"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "task_run",
        sa.Column("job", INTEGER, nullable=False),
        sa.Column("first_index", INTEGER, nullable=False),
        sa.Column("last_index", INTEGER, nullable=False),
        sa.Column("step", INTEGER, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("ended", sa.Float()),
        sa.Column("user", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "step > 0 AND last_index >= first_index", name=op.f("ck_task_run_indices")
        ),
        sa.CheckConstraint(
            "state IN ('cancelled', 'held', 'queued')", name=op.f("ck_task_run_state")
        ),
        sa.CheckConstraint(
            "(state = 'cancelled') = (ended IS NOT NULL)", name=op.f("ck_task_run_ended")
        ),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_task_run_job")),
        sa.PrimaryKeyConstraint("job", "first_index", name=op.f("pk_task_run")),
    )
    is_open = sa.text("ended IS NULL")
    op.create_index(
        *("ix_task_run_open", "task_run", ["job", "first_index"]),
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
    op.create_index("ix_task_run_ended", "task_run", ["ended", "job"])
    op.create_index("ix_task_run_user", "task_run", ["user", "job", "first_index"])
    op.add_column("change", sa.Column("run_last", INTEGER))
    op.add_column("change", sa.Column("run_step", INTEGER))


def downgrade() -> None:
    """Give each task in a run, and each line of its story, a row of its own."""
    execute = op.get_bind().execute
    execute(
        sa.text(
            "INSERT INTO task (job, task_index, state, reason, held, target, attempts, moves,"
            ' ended, forgiven, "user") '
            "WITH RECURSIVE listed(job, task_index, first_index, last_index, step) AS ("
            " SELECT job, first_index, first_index, last_index, step FROM task_run UNION ALL"
            " SELECT job, task_index + step, first_index, last_index, step FROM listed"
            " WHERE task_index + step <= last_index) "
            "SELECT listed.job, listed.task_index, state, reason, state = 'held', NULL, 0, 0,"
            ' ended, 0, "user" FROM listed JOIN task_run'
            " ON task_run.job = listed.job AND task_run.first_index = listed.first_index"
        )
    )
    if execute(sa.text("SELECT 1 FROM change WHERE run_last IS NOT NULL LIMIT 1")).first():
        columns = (
            "event, time, job, task_index, attempt, what, before, after, cluster, reason, cause"
        )
        # the order of a story is that of the ids: all are given anew, negative at first
        execute(
            sa.text(
                f"INSERT INTO change (id, {columns}) "
                "WITH RECURSIVE listed(id, task_index, run_last, run_step) AS ("
                " SELECT id, task_index, coalesce(run_last, task_index), coalesce(run_step, 1)"
                " FROM change UNION ALL"
                " SELECT id, task_index + run_step, run_last, run_step FROM listed"
                " WHERE task_index + run_step <= run_last) "
                "SELECT -row_number() OVER (ORDER BY listed.id, listed.task_index),"
                " event, time, job, listed.task_index, attempt, what, before, after, cluster,"
                " reason, cause FROM listed JOIN change ON change.id = listed.id"
            )
        )
        execute(sa.text("DELETE FROM change WHERE id > 0"))
        execute(sa.text("UPDATE change SET id = -id"))
        if op.get_bind().dialect.name == "postgresql":
            execute(
                sa.text(
                    "SELECT setval(pg_get_serial_sequence('change', 'id'),"
                    " (SELECT max(id) FROM change))"
                )
            )
    op.drop_column("change", "run_step")
    op.drop_column("change", "run_last")
    op.drop_table("task_run")
