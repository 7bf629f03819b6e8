"""The order in which ended tasks are pruned"""

from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.drop_index(op.f("ix_task_ended"), "task")
    op.create_index(op.f("ix_task_ended"), "task", ["ended", "job"])


def downgrade() -> None:
    op.drop_index(op.f("ix_task_ended"), "task")
    op.create_index(op.f("ix_task_ended"), "task", ["ended"])
