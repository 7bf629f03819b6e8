"""The tables: what is kept, and the constraints that hold even if our code does not.

An attempt in `dispatching` is an intent to send, its `intent` a wish to withdraw: the attempt
table is the outbox, written in the transaction that decided it.
"""

from __future__ import annotations

import hashlib

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Dialect,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    false,
    text,
)

from metasched.core.transitions import ATTEMPT_FINAL, FINAL, LIVE, QUEUED_OR_HELD
from metasched.model.reservation import FINAL_STATES, ReservationState

REVISION = "0015"  # of the newest migration, which makes exactly these tables

# 64 bits everywhere: in SQLite only INTEGER is the key of the row itself
Int64 = BigInteger().with_variant(Integer(), "sqlite")


class SafeText(TypeDecorator[str]):
    """Text of which a manager may be the author: PostgreSQL stores no NUL, so none does."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return value if value is None else value.replace("\0", "\N{REPLACEMENT CHARACTER}")


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)


def _in_condition(column: str, values: frozenset[str]) -> str:
    return f"{column} IN ({', '.join(repr(str(allowed)) for allowed in sorted(values))})"


instance = Table(
    "instance",
    metadata,
    Column("name", SafeText, primary_key=True),
    Column("created", Float, nullable=False),
)

# How many lives of a daemon have begun, one row: only the last one's transactions are taken.
epoch = Table("epoch", metadata, Column("number", Int64, primary_key=True, autoincrement=False))

# Scripts and environments by digest: a thousand like jobs keep one copy.
content = Table(
    "content",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("text", Text, nullable=False),
)

_HAS_MARGIN = text("margin >= 0")
job = Table(
    "job",
    metadata,
    Column("id", Int64, primary_key=True, autoincrement=False),
    Column("user", SafeText, nullable=False),
    Column("name", SafeText, nullable=False),
    Column("submitted", Float, nullable=False),
    Column("margin", Float),  # seconds to spare before the deadline; null without one
    Column("array", SafeText),
    Column("priority", Int64, nullable=False),
    Column("parts", SafeText, nullable=False),
    Column("job", SafeText, nullable=False),
    Column("script", SafeText, ForeignKey("content.digest"), nullable=False),
    Column("environment", SafeText, ForeignKey("content.digest"), nullable=False),
    Column("payload", SafeText, nullable=False),
    Column("changed", SafeText),  # the job as users have modified it since; null: as submitted
    Index("ix_job_margin", "id", sqlite_where=_HAS_MARGIN, postgresql_where=_HAS_MARGIN),
    Index("ix_job_script", "script"),  # these two: a content is dropped with its last job
    Index("ix_job_environment", "environment"),
)

task = Table(
    "task",
    metadata,
    Column("job", Int64, ForeignKey("job.id"), primary_key=True),
    Column("task_index", Int64, primary_key=True),
    Column("state", SafeText, nullable=False),
    Column("reason", SafeText, nullable=False),
    Column("held", Boolean(create_constraint=False), nullable=False),
    Column("target", SafeText),
    Column("attempts", Int64, nullable=False),
    Column("moves", Int64, nullable=False),
    Column("ended", Float),
    Column("forgiven", Int64, nullable=False, server_default="0"),
    CheckConstraint(_in_condition("state", QUEUED_OR_HELD | LIVE | FINAL), name="state"),
    CheckConstraint(f"({_in_condition('state', FINAL)}) = (ended IS NOT NULL)", name="ended"),
)
Index(
    "ix_task_open",
    task.c.job,
    task.c.task_index,
    sqlite_where=task.c.ended.is_(None),
    postgresql_where=task.c.ended.is_(None),
)
Index("ix_task_ended", task.c.ended)

attempt = Table(
    "attempt",
    metadata,
    Column("job", Int64, primary_key=True),
    Column("task_index", Int64, primary_key=True),
    Column("number", Int64, primary_key=True),
    Column("sending", Int64, nullable=False),
    Column("cluster", SafeText, nullable=False),
    Column("state", SafeText, nullable=False),
    Column("sent", Float, nullable=False),
    Column("accepted", Float),
    Column("tried", Float),
    Column("native_id", SafeText),
    Column("intent", SafeText),
    Column("target", SafeText),
    Column("started", Float),
    Column("ended", Float),
    Column("exit_code", Int64),
    Column("signal", Int64),
    Column("word", SafeText, nullable=False),
    Column("node", SafeText, nullable=False),
    Column("cpu_seconds", Float),
    Column("max_memory", Int64),
    Column("refused", Boolean(create_constraint=False), nullable=False),
    Column("rival", Int64),
    Column("restarts", Int64, nullable=False, server_default="0"),
    Column("begun", Boolean(create_constraint=False), nullable=False, server_default=false()),
    Column("fence", SafeText, nullable=False, server_default=""),
    Column("revoking", Boolean(create_constraint=False), nullable=False, server_default=false()),
    Column("revoked", Boolean(create_constraint=False), nullable=False, server_default=false()),
    ForeignKeyConstraint(
        ["job", "task_index"], ["task.job", "task.task_index"], name="fk_attempt_task"
    ),
    CheckConstraint(_in_condition("state", LIVE | ATTEMPT_FINAL), name="state"),
)
_IS_LIVE = text(_in_condition("state", LIVE))
Index(
    "ix_attempt_one_live",
    attempt.c.job,
    attempt.c.task_index,
    unique=True,
    sqlite_where=_IS_LIVE,
    postgresql_where=_IS_LIVE,
)

# What is leased of each licence stays within its total, even if processes race for it: `leased` is
# added to by who leases, and fails. `excess` is what is leased beyond it all the same, since the
# total was lowered, or the task was there already.
licence = Table(
    "licence",
    metadata,
    Column("name", SafeText, primary_key=True),
    Column("total", Int64, nullable=False),
    Column("leased", Int64, nullable=False),
    Column("excess", Int64, nullable=False),
    Column("chosen", Int64),  # the total that an operator has set; null: as configured
    Column("outside", Int64, nullable=False),
    Column("observed", Float),  # when its server was asked last; null: it has none
    Column("past_us", SafeText, nullable=False, server_default="{}"),  # of `outside`, by cluster
    CheckConstraint("leased >= 0 AND excess >= 0", name="counts"),
    CheckConstraint("leased <= total + excess", name="within_total"),
)

# Who has, and had, tokens of a licence. A lease is live until it has been given back.
lease = Table(
    "lease",
    metadata,
    Column("id", Int64, primary_key=True),
    Column("licence", SafeText, ForeignKey("licence.name"), nullable=False),
    Column("job", Int64, nullable=False),
    Column("task_index", Int64, nullable=False),
    Column("attempt", Int64, nullable=False),
    Column("tokens", Int64, nullable=False),
    Column("since", Float, nullable=False),
    Column("until", Float),
    Column("why", SafeText),  # it was given back
    Column("lingers", Float),  # until then its tokens count as in use
    ForeignKeyConstraint(
        ["job", "task_index", "attempt"],
        ["attempt.job", "attempt.task_index", "attempt.number"],
        name="fk_lease_attempt",
    ),
    CheckConstraint("tokens > 0", name="tokens"),
    CheckConstraint("(until IS NULL) = (why IS NULL)", name="ended"),
    Index("ix_lease_job", "job", "task_index"),
    Index("ix_lease_lingers", "lingers"),
)
_NOT_RETURNED = lease.c.until.is_(None)
Index(
    "ix_lease_one_live",
    lease.c.licence,
    lease.c.job,
    lease.c.task_index,
    unique=True,
    sqlite_where=_NOT_RETURNED,
    postgresql_where=_NOT_RETURNED,
)

# Nodes promised for a window. While it is `held` its manager may know it. `told` is when its owner
# was told that it is broken: no fact of the core's, which writes all others.
reservation = Table(
    "reservation",
    metadata,
    Column("id", Int64, primary_key=True, autoincrement=False),
    Column("user", SafeText, nullable=False),
    Column("cluster", SafeText, nullable=False),
    Column("start", Float, nullable=False),
    Column("end", Float, nullable=False),
    Column("size", Int64, nullable=False),
    Column("cpus", Int64, nullable=False),
    Column("made", Float, nullable=False),
    Column("state", SafeText, nullable=False),
    Column("cause", SafeText, nullable=False),
    Column("nodes", SafeText, nullable=False),
    Column("placed", SafeText, nullable=False),
    Column("held", Boolean(create_constraint=False), nullable=False),
    Column("tries", Int64, nullable=False),
    Column("closed", Float),
    Column("offers", SafeText, nullable=False),
    Column("let_run", Float, nullable=False, server_default="0"),
    Column("licences", SafeText, nullable=False, server_default="{}"),
    Column("mail", SafeText, nullable=False, server_default=""),
    Column("told", Float),
    CheckConstraint('start < "end"', name="window"),
    CheckConstraint("size > 0 AND cpus >= size", name="size"),
    CheckConstraint(_in_condition("state", frozenset(ReservationState)), name="state"),
    CheckConstraint(
        f"({_in_condition('state', FINAL_STATES)}) = (closed IS NOT NULL)", name="closed"
    ),
)
_OPEN_OR_HELD = text("closed IS NULL OR held")
Index(
    "ix_reservation_open",
    reservation.c.cluster,
    reservation.c.start,
    sqlite_where=_OPEN_OR_HELD,
    postgresql_where=_OPEN_OR_HELD,
)

# Whose end a job waits for: what an open job depends on is not pruned. A target may be gone later.
dependency = Table(
    "dependency",
    metadata,
    Column("job", Int64, ForeignKey("job.id"), primary_key=True),
    Column("target", Int64, primary_key=True),
    Index("ix_dependency_target", "target"),
)

# What reached the core, in order: stepping a fresh core through it gives every decision again.
event = Table(
    "event",
    metadata,
    Column("id", Int64, primary_key=True, autoincrement=False),
    Column("time", Float, nullable=False),
    Column("kind", SafeText, nullable=False),
    Column("data", SafeText, nullable=False),
)

# What followed from it for a task: its story.
change = Table(
    "change",
    metadata,
    Column("id", Int64, primary_key=True),
    Column("event", Int64, ForeignKey("event.id"), nullable=False),
    Column("time", Float, nullable=False),
    Column("job", Int64, nullable=False),
    Column("task_index", Int64, nullable=False),
    Column("attempt", Int64, nullable=False),
    Column("what", SafeText),
    Column("before", SafeText),
    Column("after", SafeText, nullable=False),
    Column("cluster", SafeText),
    Column("reason", SafeText, nullable=False),
    Column("cause", SafeText, nullable=False),
    Index("ix_change_job", "job", "id"),
    Index("ix_change_event", "event"),  # an event is kept for its changes
)

cluster = Table(
    "cluster",
    metadata,
    Column("name", SafeText, primary_key=True),
    Column("facts", SafeText, nullable=False),
    Column("time", Float, nullable=False),
)

# A token itself is never kept, only its hash.
token = Table(
    "token",
    metadata,
    Column("id", Int64, primary_key=True, autoincrement=False),
    Column("user", SafeText, nullable=False),
    Column("digest", Text, nullable=False, unique=True),
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=False),
    Column("revoked", Float),
)

# Clusters that operators keep closed to new work.
drain = Table(
    "drain",
    metadata,
    Column("cluster", SafeText, primary_key=True),
    Column("time", Float, nullable=False),
    Column("by", SafeText, nullable=False),
    Column("reason", SafeText, nullable=False),
    Column("keep_pending", Boolean(create_constraint=False), nullable=False),
)

# From time to time, what a core was restored from just before the event: older events may go.
checkpoint = Table(
    "checkpoint",
    metadata,
    Column("event", Int64, primary_key=True, autoincrement=False),
    Column("time", Float, nullable=False),
    Column("data", LargeBinary, nullable=False),
)


def digest(text: str) -> str:
    """By which a text is kept, and a token found that is not kept itself."""
    return hashlib.sha256(text.encode()).hexdigest()
