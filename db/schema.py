"""The tables, with constraints that hold even if the code is wrong.

The attempt table is the outbox of dispatches. An attempt in `dispatching` is an intent to dispatch,
and its `intent` column a pending withdrawal; both are written in the transaction of the decision.
"""

from __future__ import annotations

import hashlib
from typing import Any

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
    func,
    text,
)

from metasched.core.transitions import ATTEMPT_FINAL, FINAL, LIVE, QUEUED_OR_HELD
from metasched.model.notice import DeliveryState
from metasched.model.policy_version import PolicyChange
from metasched.model.reservation import FINAL_STATES, ReservationState

REVISION = "s0005"  # the newest migration, which leaves exactly these tables

# 64 bits in both databases; in SQLite only INTEGER can be the row id
Int64 = BigInteger().with_variant(Integer(), "sqlite")


class SafeText(TypeDecorator[str]):
    """Text that may come from users or managers. NUL is replaced: PostgreSQL cannot store it."""

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
    """Return the SQL condition that a column has any of these values."""
    return f"{column} IN ({', '.join(repr(str(value)) for value in sorted(values))})"


instance = Table(
    "instance",
    metadata,
    Column("name", SafeText, primary_key=True),
    Column("created", Float, nullable=False),
    Column("first_dispatch", Int64, nullable=False),  # with this name in its tag
    # Lower ids of jobs, and of reservations, may have been issued before the database was restored.
    # Backups of earlier releases name no value.
    Column("first_job", Int64, nullable=False, server_default="0"),
    Column("first_reservation", Int64, nullable=False, server_default="0"),
    # how it was noticed that the database had gone back; "": it had not, or it was adopted since
    Column("went_back", SafeText, nullable=False, server_default=""),
)

# The secret of the digests in tags, in a single row. No command and no log shows it.
tag_key = Table(
    "tag_key",
    metadata,
    Column("key", Text, primary_key=True),
    Column("first_dispatch", Int64, nullable=False),  # tags of lower dispatch ids have no digest
)

# Number of daemon starts, in a single row. Transactions of older daemons are rejected.
epoch = Table(
    "epoch",
    metadata,
    Column("number", Int64, primary_key=True, autoincrement=False),
    # name of the process of the last active daemon; "": no other can have replaced it
    Column("holder", Text, nullable=False),
)

# Scripts and environments by digest: equal texts of many jobs are stored once.
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
    Column("margin", Float),  # seconds to spare before the deadline; null: no deadline
    Column("array", SafeText),
    Column("priority", Int64, nullable=False),
    Column("priority_parts", SafeText, nullable=False),
    Column("spec", SafeText, nullable=False),
    Column("script", SafeText, ForeignKey("content.digest"), nullable=False),
    Column("environment", SafeText, ForeignKey("content.digest"), nullable=False),
    Column("payload", SafeText, nullable=False),
    Column("modified_spec", SafeText),  # null: as submitted
    Column("policy_version", Int64),  # that decided the priority; null: not recorded
    Index("ix_job_margin", "id", sqlite_where=_HAS_MARGIN, postgresql_where=_HAS_MARGIN),
    Index("ix_job_script", "script"),  # these two find the last job that refers to a content
    Index("ix_job_environment", "environment"),
    Index("ix_job_user", "user", "id"),  # all jobs of a user in pages
)
# JSON of a job as it was modified last
current_spec = func.coalesce(job.c.modified_spec, job.c.spec).label("spec")

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
    Column("ignore_rejections_until", Int64, nullable=False),
    # that of the job: an index of the open tasks of a user needs it here
    Column("user", SafeText, nullable=False),
    CheckConstraint(_in_condition("state", QUEUED_OR_HELD | LIVE | FINAL), name="state"),
    CheckConstraint(f"({_in_condition('state', FINAL)}) = (ended IS NOT NULL)", name="ended"),
)
_IS_OPEN = task.c.ended.is_(None)
Index(
    "ix_task_open",
    task.c.job,
    task.c.task_index,
    sqlite_where=_IS_OPEN,
    postgresql_where=_IS_OPEN,
)
Index(
    "ix_task_user_open",
    task.c.user,
    task.c.job,
    task.c.task_index,
    sqlite_where=_IS_OPEN,
    postgresql_where=_IS_OPEN,
)
# pruning walks the first; both find tasks that ended lately
Index("ix_task_ended", task.c.ended, task.c.job, task.c.task_index)
_HAS_ENDED = task.c.ended.is_not(None)
Index(
    "ix_task_user_ended",
    task.c.user,
    task.c.ended,
    task.c.job,
    task.c.task_index,
    sqlite_where=_HAS_ENDED,
    postgresql_where=_HAS_ENDED,
)

# Tasks of an array that are equal but for their indices, and have no row in `task`: those that
# wait untouched, and those of them that were cancelled.
task_run = Table(
    "task_run",
    metadata,
    Column("job", Int64, ForeignKey("job.id"), primary_key=True),
    Column("first_index", Int64, primary_key=True),
    Column("last_index", Int64, nullable=False),
    Column("step", Int64, nullable=False),  # between indices
    Column("state", SafeText, nullable=False),
    Column("reason", SafeText, nullable=False),
    Column("ended", Float),
    Column("user", SafeText, nullable=False),  # that of the job
    CheckConstraint("step > 0 AND last_index >= first_index", name="indices"),
    CheckConstraint("state IN ('cancelled', 'held', 'queued')", name="state"),
    CheckConstraint("(state = 'cancelled') = (ended IS NOT NULL)", name="ended"),
)
_RUN_IS_OPEN = task_run.c.ended.is_(None)
Index(
    "ix_task_run_open",
    task_run.c.job,
    task_run.c.first_index,
    sqlite_where=_RUN_IS_OPEN,
    postgresql_where=_RUN_IS_OPEN,
)
Index("ix_task_run_ended", task_run.c.ended, task_run.c.job)
Index("ix_task_run_user", task_run.c.user, task_run.c.job, task_run.c.first_index)

attempt = Table(
    "attempt",
    metadata,
    Column("job", Int64, primary_key=True),
    Column("task_index", Int64, primary_key=True),
    Column("number", Int64, primary_key=True),
    Column("dispatch_id", Int64, nullable=False),
    Column("cluster", SafeText, nullable=False),
    Column("state", SafeText, nullable=False),
    Column("dispatched", Float, nullable=False),
    Column("accepted", Float),
    Column("tried", Float),
    Column("native_id", SafeText),
    Column("intent", SafeText),
    Column("target", SafeText),
    Column("started", Float),
    Column("run_since", Float),
    Column("ended", Float),
    Column("exit_code", Int64),
    Column("signal", Int64),
    Column("manager_reason", SafeText, nullable=False),
    Column("node", SafeText, nullable=False),
    Column("cpu_seconds", Float),
    Column("max_memory", Int64),
    Column("rejected", Boolean(create_constraint=False), nullable=False),
    Column("yields_to", Int64),
    Column("restarts", Int64, nullable=False),
    Column("has_started", Boolean(create_constraint=False), nullable=False),
    Column("fence", SafeText, nullable=False),
    Column("gres_choice", Int64),
    Column("licence_choice", Int64),
    Column("revoking", Boolean(create_constraint=False), nullable=False),
    Column("revoked", Boolean(create_constraint=False), nullable=False),
    Column("lease_expired", Boolean(create_constraint=False), nullable=False),
    # as accounting reports them; null: by start and end, and as requested
    Column("elapsed", Float),
    Column("allocated_cpus", Int64),
    # of its dispatch, "": none; null: the job's, which was not modified since
    Column("account", SafeText),
    Column("sentence", SafeText),
    Column("submitted", Float),
    Column("unbegun_on", SafeText),
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

# Refusals without proof, of open jobs
strike = Table(
    "strike",
    metadata,
    Column("job", Int64, primary_key=True),
    Column("cluster", SafeText, primary_key=True),
    Column("count", Int64, nullable=False),
    Column("sentence", SafeText, nullable=False),
    Column("time", Float, nullable=False),
    Column("delay", Float, nullable=False),
    Column("retry_at", Float, nullable=False),
    CheckConstraint("count >= 0", name="count"),
)

_LACKS_USE = text(
    "started IS NOT NULL AND ended IS NOT NULL AND native_id IS NOT NULL AND cpu_seconds IS NULL"
)
Index(
    "ix_attempt_lacks_use",  # those that accounting is asked for, in the order of their ends
    attempt.c.cluster,
    attempt.c.ended,
    attempt.c.job,
    attempt.c.task_index,
    attempt.c.number,
    sqlite_where=_LACKS_USE,
    postgresql_where=_LACKS_USE,
)

# Tokens of each licence. `leased` is incremented with each lease, and the constraint
# `within_total` fails if too few are free, also for racing processes. `excess` counts tokens
# leased beyond the total: the total was lowered, or the task had started before.
licence = Table(
    "licence",
    metadata,
    Column("name", SafeText, primary_key=True),
    Column("total", Int64, nullable=False),
    Column("leased", Int64, nullable=False),
    Column("excess", Int64, nullable=False),
    Column("operator_total", Int64),  # set by an operator; null: as configured
    Column("outside", Int64, nullable=False),
    Column("observed", Float),  # time of the server's last count; null without a server
    Column("used_outside", SafeText, nullable=False),  # JSON: counts by cluster
    CheckConstraint("leased >= 0 AND excess >= 0", name="counts"),
    CheckConstraint("leased <= total + excess", name="within_total"),
)

# Current and past leases of tokens. A lease is live while `until` is null.
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
    Column("reason", SafeText),  # why it ended
    Column("lingering_until", Float),  # its tokens count as in use until then
    ForeignKeyConstraint(
        ["job", "task_index", "attempt"],
        ["attempt.job", "attempt.task_index", "attempt.number"],
        name="fk_lease_attempt",
    ),
    CheckConstraint("tokens > 0", name="tokens"),
    CheckConstraint("(until IS NULL) = (reason IS NULL)", name="ended"),
    Index("ix_lease_job", "job", "task_index"),
    Index("ix_lease_lingering_until", "lingering_until"),
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

# Uses of the resources that the site limits, by scope. `used` is changed with the tasks, and the
# constraint `within_limit` fails if too little is left, also for racing processes. `excess` is
# the use beyond the limit: the limit was lowered, or the tasks were there before.
limit_use = Table(
    "limit_use",
    metadata,
    Column("scope", SafeText, primary_key=True),  # kind of the scope
    Column("name", SafeText, primary_key=True),  # of the user, group, account or class
    Column("resource", SafeText, primary_key=True),
    Column("used", Int64, nullable=False),
    Column("maximum", Int64, nullable=False),
    Column("excess", Int64, nullable=False),
    CheckConstraint("used >= 0 AND excess >= 0", name="counts"),
    CheckConstraint("used <= maximum + excess", name="within_limit"),
)

# Decayed use of users and accounts, see `ShareUse`. Changed with the tasks that cause it.
share_use = Table(
    "share_use",
    metadata,
    Column("account", SafeText, primary_key=True),
    Column("user", SafeText, primary_key=True),
    Column("used", Float, nullable=False),
    Column("as_of", Float, nullable=False),
    CheckConstraint("used >= 0", name="used"),
)


def _use_key() -> list[Column[Any]]:
    """Return the columns of `UseKey`, which begin a primary key."""
    names = ("cluster", "user", "account", "user_group", "user_class")
    day: Column[Any] = Column("day", Int64, primary_key=True, autoincrement=False)
    return [day, *(Column(name, SafeText, primary_key=True) for name in names)]


# Use of ended tasks, by the day of their end: see `UseSums`. Changed with the tasks that cause
# it, and kept when these are pruned.
daily_use = Table(
    "daily_use",
    metadata,
    *_use_key(),
    *(Column(name, Int64, nullable=False) for name in ("jobs", "completed", "failed")),
    *(Column(name, Int64, nullable=False) for name in ("timed_out", "cancelled")),
    *(Column(name, Float, nullable=False) for name in ("elapsed", "cpu_allocated", "cpu_used")),
    *(Column(name, Float, nullable=False) for name in ("cpu_measured", "node_seconds")),
    *(Column(name, Float, nullable=False) for name in ("gpu_seconds", "cpu_outside")),
    Column("starts", Int64, nullable=False),
    *(Column(name, Float, nullable=False) for name in ("wait", "max_wait", "slowdown")),
    *(Column(name, Int64, nullable=False) for name in ("deadlines", "met", "missed")),
    *(Column(name, Float, nullable=False) for name in ("lateness", "max_lateness")),
    Column("waits", Text, nullable=False),  # JSON: number of starts by range of the wait
    Index("ix_daily_use_user", "user", "day"),
)

# Sums of `daily_use` by a single key over periods that are over, see `db.period_use`. The row with
# the key "" marks that the sums of its period are valid.
period_use = Table(
    "period_use",
    metadata,
    Column("key", Text, primary_key=True),  # a column of `daily_use`; "": all together
    Column("period", Int64, primary_key=True, autoincrement=False),  # month, part of a month or day
    Column("name", SafeText, primary_key=True),  # value of the key
    Column("first_day", Int64, nullable=False),  # of the period
    *(Column(name, Int64, nullable=False) for name in ("jobs", "completed", "failed")),
    *(Column(name, Int64, nullable=False) for name in ("timed_out", "cancelled")),
    *(Column(name, Float, nullable=False) for name in ("elapsed", "cpu_allocated", "cpu_used")),
    *(Column(name, Float, nullable=False) for name in ("cpu_measured", "node_seconds")),
    *(Column(name, Float, nullable=False) for name in ("gpu_seconds", "cpu_outside")),
    *(Column(name, Int64, nullable=False) for name in ("deadlines", "met", "missed")),
    *(Column(name, Float, nullable=False) for name in ("lateness", "max_lateness")),
    sqlite_with_rowid=False,  # rows of a key and period lie together
)

# Leases that ended, by the day of their end and the same key.
daily_licence_use = Table(
    "daily_licence_use",
    metadata,
    *_use_key(),
    Column("licence", SafeText, primary_key=True),
    Column("leases", Int64, nullable=False),
    Column("token_seconds", Float, nullable=False),
    # from the submission, or its begin time, to the lease
    *(Column(name, Float, nullable=False) for name in ("wait", "max_wait")),
    Index("ix_daily_licence_use_user", "user", "day"),
)

# Tokens leased at a time, on days with a lease that began or ended; `peak` includes those that were
# leased when the day began.
daily_licence_peak = Table(
    "daily_licence_peak",
    metadata,
    Column("day", Int64, primary_key=True, autoincrement=False),
    Column("licence", SafeText, primary_key=True),
    Column("peak", Int64, nullable=False),
    Column("last", Int64, nullable=False),  # after the last change of the day
    Column("total", Int64, nullable=False),  # tokens that there are; the most of the day
)

# Figures of licences over time: after changes, at most once a minute; deleted after some weeks.
licence_sample = Table(
    "licence_sample",
    metadata,
    Column("licence", SafeText, primary_key=True),
    Column("time", Float, primary_key=True),
    Column("total", Int64),  # None: unknown
    *(Column(name, Int64, nullable=False) for name in ("leased", "outside")),
    Column("free", Int64),  # None: unknown
    Column("waiting", Int64, nullable=False),  # tokens that queued tasks request
    Index("ix_licence_sample_time", "time"),
)

# Positions in the accounting of clusters, after the jobs whose use has been counted.
use_cursor = Table(
    "use_cursor",
    metadata,
    Column("cluster", SafeText, primary_key=True),
    Column("cursor", SafeText, nullable=False),
)

# Trees of shares as managers reported them last, in JSON.
share_tree = Table(
    "share_tree",
    metadata,
    Column("cluster", SafeText, primary_key=True),
    Column("tree", SafeText, nullable=False),
)

# Advance reservations. `notified` is the time when the owner was notified of a broken reservation;
# the core writes all other columns.
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
    Column("created", Float, nullable=False),
    Column("state", SafeText, nullable=False),
    Column("cause", SafeText, nullable=False),
    Column("nodes", SafeText, nullable=False),
    Column("bound_nodes", SafeText, nullable=False),
    Column("known_to_manager", Boolean(create_constraint=False), nullable=False),
    Column("rejections", Int64, nullable=False),
    Column("closed", Float),
    Column("offers", SafeText, nullable=False),
    Column("let_run", Float, nullable=False),
    Column("licences", SafeText, nullable=False),
    Column("mail", SafeText, nullable=False),
    Column("notified", Float),
    Column("users", SafeText, nullable=False),  # JSON
    Column("accounts", SafeText, nullable=False),  # JSON
    Column("series", Int64),  # id in `calendar`, while that is open; null: a single reservation
    CheckConstraint('start < "end"', name="window"),
    CheckConstraint("size > 0 AND cpus >= size", name="size"),
    CheckConstraint(_in_condition("state", frozenset(ReservationState)), name="state"),
    CheckConstraint(
        f"({_in_condition('state', FINAL_STATES)}) = (closed IS NOT NULL)", name="closed"
    ),
)
_OPEN_OR_KNOWN = text("closed IS NULL OR known_to_manager")
Index(
    "ix_reservation_open",
    reservation.c.cluster,
    reservation.c.start,
    sqlite_where=_OPEN_OR_KNOWN,
    postgresql_where=_OPEN_OR_KNOWN,
)

# Dependencies between jobs. A target is not pruned while a dependent job is open.
dependency = Table(
    "dependency",
    metadata,
    Column("job", Int64, ForeignKey("job.id"), primary_key=True),
    Column("target", Int64, primary_key=True),
    Index("ix_dependency_target", "target"),
)

# Inputs of the core, in order: a replay through a fresh core repeats every decision.
event = Table(
    "event",
    metadata,
    Column("id", Int64, primary_key=True, autoincrement=False),
    Column("time", Float, nullable=False),
    Column("kind", SafeText, nullable=False),
    Column("data", SafeText, nullable=False),
)

# State changes of a task that followed from an event: its story.
change = Table(
    "change",
    metadata,
    Column("id", Int64, primary_key=True),
    Column("event", Int64, ForeignKey("event.id"), nullable=False),
    Column("time", Float, nullable=False),
    Column("job", Int64, nullable=False),
    Column("task_index", Int64, nullable=False),
    Column("attempt", Int64, nullable=False),
    Column("task_event", SafeText),
    Column("before", SafeText),
    Column("after", SafeText, nullable=False),
    Column("cluster", SafeText),
    Column("reason", SafeText, nullable=False),
    Column("cause", SafeText, nullable=False),
    # of equal lines of tasks in a run of indices from `task_index` on; null: a single task
    Column("run_last", Int64),
    Column("run_step", Int64),
    Index("ix_change_job", "job", "id"),
    Index("ix_change_event", "event"),  # events with changes are not pruned
)

cluster = Table(
    "cluster",
    metadata,
    Column("name", SafeText, primary_key=True),
    Column("info", SafeText, nullable=False),
    Column("time", Float, nullable=False),
)

# Positions in the listings of clusters that list the end of a task once: a listing after a restart
# begins there.
listing_cursor = Table(
    "listing_cursor",
    metadata,
    Column("cluster", SafeText, primary_key=True),
    Column("cursor", SafeText, nullable=False),
)

# Access tokens; only their hashes are stored.
token = Table(
    "token",
    metadata,
    Column("id", Int64, primary_key=True, autoincrement=False),
    Column("user", SafeText, nullable=False),
    Column("digest", Text, nullable=False, unique=True),
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=False),
    Column("revoked", Float),
    Column("scope", SafeText, nullable=False),
    Column("parent", Int64),  # id of the token that opened this session, and ends it
    Index("ix_token_user", "user", "id"),
    Index("ix_token_parent", "parent"),
)

# Keys of recent submissions; they show that a submission is a repetition.
submission_key = Table(
    "submission_key",
    metadata,
    Column("user", SafeText, primary_key=True),
    Column("key", SafeText, primary_key=True),
    Column("body_digest", Text, nullable=False),
    Column("created", Float, nullable=False),
    Column("answer", SafeText, nullable=False),  # JSON
    Index("ix_submission_key_created", "created"),
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
    Column("entry", SafeText, nullable=False),  # of the calendar that drained it
)

# The calendar: entries of the site's file, and open series of reservations. `next_run` is the
# nominal time of the next run. `running` is that of a backup or a removal under way.
calendar = Table(
    "calendar",
    metadata,
    Column("id", Int64, primary_key=True, autoincrement=False),
    Column("name", SafeText, nullable=False),  # of an entry of the file; '': a series
    Column("act", SafeText, nullable=False),  # JSON
    Column("rule", SafeText, nullable=False),
    Column("zone", SafeText, nullable=False),
    Column("owner", SafeText, nullable=False),  # of a series; '': the site
    Column("requested_by", SafeText, nullable=False),
    Column("created", Float, nullable=False),
    Column("grace", Float, nullable=False),
    Column("lead", Float, nullable=False),
    Column("until", Float),
    Column("next_run", Float),
    Column("last_runs", SafeText, nullable=False),  # JSON: nominal times
    Column("running", Float),
    CheckConstraint("grace >= 0 AND lead >= 0", name="times"),
)
_IS_OF_SITE = text("name <> ''")
Index(
    "ix_calendar_name",
    calendar.c.name,
    unique=True,
    sqlite_where=_IS_OF_SITE,
    postgresql_where=_IS_OF_SITE,
)

# Acts of operators, and changes of clusters, licences, policy, reservations and jobs: see
# `model.audit`. Ids grow with the time: microseconds since the epoch, or the last id plus 1.
# So a range of times is a range of ids, and each index has one column of a filter and the id.
# `owner`: the user whom a record concerns; '': all users may see it; null: operators only.
audit = Table(
    "audit",
    metadata,
    Column("id", Int64, primary_key=True, autoincrement=False),
    Column("time", Float, nullable=False),
    Column("kind", SafeText, nullable=False),
    Column("actor", SafeText, nullable=False),
    Column("owner", SafeText),
    Column("job", Int64),
    Column("task_index", Int64),
    Column("reservation", Int64),
    Column("cluster", SafeText, nullable=False),
    Column("licence", SafeText, nullable=False),
    Column("cause", SafeText, nullable=False),
    Column("count", Int64, nullable=False),
    Column("details", SafeText, nullable=False),  # JSON
    CheckConstraint("count > 0", name="count"),
)
for _name in ("kind", "actor", "owner", "cluster", "job"):
    Index(f"ix_audit_{_name}", audit.c[_name], audit.c.id)

# Mails and events of webhooks, stored with the change that they report; see `db.outbox`. Ids are as
# those of `audit`. `user`: whom it concerns; null: operators only.
outbox = Table(
    "outbox",
    metadata,
    Column("id", Int64, primary_key=True, autoincrement=False),
    Column("receiver", SafeText, nullable=False),  # "mail", or the name of a webhook
    Column("user", SafeText),
    Column("job", Int64),
    Column("kind", SafeText, nullable=False),
    Column("address", SafeText, nullable=False),  # of a mail
    Column("created", Float, nullable=False),
    Column("due", Float, nullable=False),  # of the next try
    Column("state", SafeText, nullable=False),
    Column("tries", Int64, nullable=False),  # that failed
    Column("error", SafeText, nullable=False),  # of the last of these
    Column("ended", Float),  # when it was delivered or given up
    Column("data", SafeText, nullable=False),  # JSON
    CheckConstraint(_in_condition("state", frozenset(DeliveryState)), name="state"),
    CheckConstraint("(state IN ('pending', 'sending')) = (ended IS NULL)", name="ended"),
    Index("ix_outbox_user", "user", "receiver", "created"),
    Index("ix_outbox_ended", "ended"),
)
_IS_UNDELIVERED = outbox.c.ended.is_(None)
Index(
    "ix_outbox_open",
    outbox.c.receiver,
    outbox.c.id,
    sqlite_where=_IS_UNDELIVERED,
    postgresql_where=_IS_UNDELIVERED,
)

# Mails about shares of time limits that were stored or counted in a digest. Unlike their rows in
# the outbox, these stay as long as the job. `task_index` -1, `started` 0: a mail of an array.
limit_mail = Table(
    "limit_mail",
    metadata,
    Column("job", Int64, ForeignKey("job.id"), primary_key=True),
    Column("task_index", Int64, primary_key=True),
    Column("started", Float, primary_key=True),  # of the run, which its manager may repeat
    Column("kind", SafeText, primary_key=True),  # of the notice, so the share
)

# The condition last recorded of a subject, such as "unreachable" of a cluster: see `AuditTrail`.
audit_condition = Table(
    "audit_condition",
    metadata,
    Column("subject", SafeText, primary_key=True),
    Column("value", SafeText, nullable=False),
)

# Versions of the policy; the newest is in force. `event` put it in force. So a change of a task was
# decided by the newest version whose event is not later.
policy_version = Table(
    "policy_version",
    metadata,
    Column("number", Int64, primary_key=True, autoincrement=False),
    Column("event", Int64, nullable=False),
    Column("time", Float, nullable=False),
    Column("change", SafeText, nullable=False),
    Column("by", SafeText, nullable=False),
    Column("reason", SafeText, nullable=False),
    Column("file", SafeText, nullable=False),
    Column("text", SafeText, nullable=False),
    Column("site_digest", SafeText, nullable=False),
    Column("previous", Int64),
    Column("copy_of", Int64),
    CheckConstraint(_in_condition("change", frozenset(PolicyChange)), name="change"),
    CheckConstraint("previous < number", name="previous"),
)

# The candidate policy that runs beside the one in force, or ran last: a single row.
shadow = Table(
    "shadow",
    metadata,
    Column("number", Int64, primary_key=True, autoincrement=False),
    Column("since", Float, nullable=False),
    Column("by", SafeText, nullable=False),
    Column("reason", SafeText, nullable=False),
    Column("file", SafeText, nullable=False),
    Column("text", SafeText, nullable=False),
    Column("ended", Float),
    Column("end_reason", SafeText, nullable=False),
)

# Its last decisions on dispatched tasks, beside those in force. `cluster` NULL: not compared.
shadow_decision = Table(
    "shadow_decision",
    metadata,
    Column("id", Int64, primary_key=True),
    Column("shadow", Int64, nullable=False),
    Column("time", Float, nullable=False),
    Column("job", Int64, nullable=False),
    Column("task_index", Int64, nullable=False),
    Column("user_class", SafeText, nullable=False),
    Column("deadline", Boolean, nullable=False),
    Column("eligible", Int64, nullable=False),
    Column("live_priority", Int64, nullable=False),
    Column("priority", Int64, nullable=False),
    Column("live_cluster", SafeText, nullable=False),
    Column("cluster", SafeText),
)

# Configurations of the self-optimising classification, with the jobs they were judged by.
tuning = Table(
    "tuning",
    metadata,
    Column("parameter", SafeText, primary_key=True),
    Column("state", SafeText, nullable=False),  # JSON
)

# Their last changes, each by the event that caused it.
tuning_change = Table(
    "tuning_change",
    metadata,
    Column("id", Int64, primary_key=True),
    Column("event", Int64, nullable=False),
    Column("time", Float, nullable=False),
    Column("job", Int64),  # the submitted job; NULL: a start of the daemon
    Column("parameter", SafeText, nullable=False),
    Column("change", SafeText, nullable=False),  # JSON
    Index("ix_tuning_change_event", "event"),
)

# State of the core just before a start of the daemon: a replay can begin there, and older events
# can be pruned.
checkpoint = Table(
    "checkpoint",
    metadata,
    Column("event", Int64, primary_key=True, autoincrement=False),
    Column("time", Float, nullable=False),
    Column("data", LargeBinary, nullable=False),
    # `DECISION_VERSION` of the release that decided what follows
    Column("decision_version", Integer, nullable=False),
)


def digest(text: str) -> str:
    """Return the SHA-256 digest of a text: the key of a content, or the stored form of a token."""
    return hashlib.sha256(text.encode()).hexdigest()
