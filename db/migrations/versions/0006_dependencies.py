"""Which jobs others depend on"""

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Int64

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "dependency",
        sa.Column("job", Int64, nullable=False),
        sa.Column("target", Int64, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_dependency_job")),
        sa.PrimaryKeyConstraint("job", "target", name=op.f("pk_dependency")),
    )
    op.create_index("ix_dependency_target", "dependency", ["target"])
