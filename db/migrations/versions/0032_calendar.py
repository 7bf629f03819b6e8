"""The calendar, drains made by it, series of reservations, and accounts that share them"""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "calendar",
        sa.Column("id", INTEGER, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("act", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("made", sa.Float(), nullable=False),
        sa.Column("grace", sa.Float(), nullable=False),
        sa.Column("lead", sa.Float(), nullable=False),
        sa.Column("until", sa.Float()),
        sa.Column("next_run", sa.Float()),
        sa.Column("ran", sa.Text(), nullable=False),
        sa.Column("running", sa.Float()),
        sa.CheckConstraint("grace >= 0 AND lead >= 0", name=op.f("ck_calendar_times")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_calendar")),
    )
    of_site = sa.text("name <> ''")
    op.create_index(
        "ix_calendar_name",
        "calendar",
        ["name"],
        unique=True,
        sqlite_where=of_site,
        postgresql_where=of_site,
    )
    op.add_column("drain", sa.Column("entry", sa.Text(), server_default="", nullable=False))
    op.add_column("reservation", sa.Column("users", sa.Text(), server_default="[]", nullable=False))
    op.add_column("reservation", sa.Column("series", INTEGER))


def downgrade() -> None:
    op.drop_column("reservation", "series")
    op.drop_column("reservation", "users")
    op.drop_column("drain", "entry")
    op.drop_table("calendar")
