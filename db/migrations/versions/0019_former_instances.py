"""Names that a restored database had before; attempts whose leases have expired"""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("instance", sa.Column("first_dispatch", integer))
    expired = sa.Boolean(create_constraint=False)
    op.add_column(
        "attempt",
        sa.Column("lease_expired", expired, nullable=False, server_default=sa.false()),
    )
    connection = op.get_bind()
    names = connection.execute(
        sa.text("SELECT name, created FROM instance ORDER BY created DESC LIMIT 2")
    ).all()
    if not names:
        return
    newest, *former = names
    own_events = connection.execute(
        sa.text("SELECT COUNT(*) FROM event WHERE time >= :created"), {"created": newest.created}
    ).scalar()
    set_first = sa.text("UPDATE instance SET first_dispatch = :first WHERE name = :name")
    if not former or own_events:
        # a name before it keeps none: its dispatches cannot be distinguished
        connection.execute(set_first, {"first": 0, "name": newest.name})
        return
    # a backup by the release before, on which no daemon has run
    last = connection.execute(sa.text("SELECT MAX(sending) FROM attempt")).scalar() or 0
    connection.execute(set_first, {"first": 0, "name": former[0].name})
    connection.execute(set_first, {"first": last + 1, "name": newest.name})
    connection.execute(
        sa.text("UPDATE instance SET name = '' WHERE name = :name"), {"name": newest.name}
    )


def downgrade() -> None:
    op.get_bind().execute(
        sa.text("UPDATE instance SET name = :name WHERE name = ''"), {"name": secrets.token_hex(4)}
    )
    op.drop_column("attempt", "lease_expired")
    op.drop_column("instance", "first_dispatch")
