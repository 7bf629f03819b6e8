"""What a core is restored from, and its events in order: read back from the tables."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, get_args

import msgspec
from msgspec import structs
from sqlalchemy import Connection, and_, func, select

from metasched.core.events import CoreEvent, Drained, Seen
from metasched.core.state import ENDED_KEPT
from metasched.core.tasks import Attempt, Ended, Intent, Past, Task
from metasched.core.transitions import LIVE
from metasched.db import leases, reservations
from metasched.db.cluster_info import applied
from metasched.db.schema import attempt, cluster, drain, event, job, task
from metasched.model.arrays import folded
from metasched.model.cluster import Facts
from metasched.model.dependencies import Fate, Target, parse_dependency
from metasched.model.job import Job, State
from metasched.model.licence import Lease, LicenceCount, Lingering
from metasched.model.reservation import Reservation

KINDS: dict[str, type[CoreEvent]] = {k.__name__.lower(): k for k in get_args(CoreEvent)}
ATTEMPT = [c.name for c in attempt.c if c.name not in ("job", "task_index")]  # its own columns
_OF_TASK = and_(task.c.job == attempt.c.job, task.c.task_index == attempt.c.task_index)


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What a core is restored from: the arguments of `Core.restore`."""

    tasks: list[Task]
    last_sendings: dict[int, int]
    facts: dict[str, Facts]
    margins: list[Job]
    drains: list[Drained]
    ended: dict[tuple[int, int], Ended] = msgspec.field(default_factory=dict)
    fates: dict[int, list[Fate]] = msgspec.field(default_factory=dict)
    leases: list[Lease] = msgspec.field(default_factory=list)
    lingering: list[Lingering] = msgspec.field(default_factory=list)
    totals: dict[str, int] = msgspec.field(default_factory=dict)
    past_us: dict[str, dict[str, LicenceCount]] = msgspec.field(default_factory=dict)
    reservations: list[Reservation] = msgspec.field(default_factory=list)

    def packed(self) -> bytes:
        return zlib.compress(msgspec.msgpack.encode(self), 1)

    @staticmethod
    def unpacked(data: bytes) -> Known:
        return msgspec.msgpack.decode(zlib.decompress(data), type=Known)


def read(connection: Connection, window: int) -> Known:
    """What is stored, with the last `window` jobs that had a margin."""
    run = connection.execute
    tasks = list(_open_tasks(connection))
    sendings = run(
        select(attempt.c.job, func.max(attempt.c.sending))
        # of all their tasks: no tag may come twice
        .where(attempt.c.job.in_(select(task.c.job).where(task.c.ended.is_(None))))
        .group_by(attempt.c.job)
    )
    margins = run(
        select(job.c.job).where(job.c.margin >= 0).order_by(job.c.id.desc()).limit(window)
    ).scalars()
    return Known(
        tasks=tasks,
        last_sendings={row[0]: row[1] for row in sendings},
        facts={
            row.name: msgspec.json.decode(row.facts, type=Facts) for row in run(select(cluster))
        },
        margins=[msgspec.json.decode(text, type=Job) for text in margins][::-1],
        drains=[Drained(**row) for row in run(select(drain)).mappings()],
        ended=_ended_tasks(connection),
        # what was sent before waits for none any more
        fates=_fates(connection, {t.job.id: t.job for t in tasks if not t.attempts}.values()),
        leases=leases.live(connection),
        lingering=leases.lingering(connection),
        totals=leases.totals(connection),
        past_us=leases.past_us(connection),
        reservations=reservations.live(connection),
    )


def _open_tasks(connection: Connection) -> Iterator[Task]:
    run = connection.execute
    jobs: dict[int, Job] = {}
    refused: dict[tuple[int, int], set[str]] = {}
    past: dict[tuple[int, int], dict[int, Past]] = {}
    earlier = (
        select(attempt, task.c.forgiven)
        .join(task, _OF_TASK)
        .where(task.c.ended.is_(None), attempt.c.state.not_in(sorted(LIVE)))
        .order_by(attempt.c.number)
    )
    for row in run(earlier):
        key = (row.job, row.task_index)
        past.setdefault(key, {})[row.sending] = _past_of(row)
        if row.refused and row.number > row.forgiven:
            refused.setdefault(key, set()).add(row.cluster)
    rows = run(
        select(task, job.c.priority, func.coalesce(job.c.changed, job.c.job).label("spec"))
        .join(job, job.c.id == task.c.job)
        .where(task.c.ended.is_(None))
        .order_by(task.c.job, task.c.task_index)
    ).all()
    live = {
        (row.job, row.task_index): row
        for row in run(select(attempt).where(attempt.c.state.in_(sorted(LIVE))))
    }
    for row in rows:
        if row.job not in jobs:
            jobs[row.job] = msgspec.json.decode(row.spec, type=Job)
        key = (row.job, row.task_index)
        found = live.get(key)
        if found is not None:
            past.get(key, {}).pop(found.sending, None)
        yield Task(
            jobs[row.job],
            row.task_index,
            row.priority,
            key=0.0,
            state=State(row.state),
            reason=row.reason,
            held=row.held,
            attempts=row.attempts,
            moves=row.moves,
            target=row.target,
            attempt=_attempt_of(found) if found is not None else None,
            refused=refused.get(key, set()),
            forgiven=row.forgiven,
            past=past.get(key, {}),
        )


def _ended_tasks(connection: Connection) -> dict[tuple[int, int], Ended]:
    """The last tasks that have ended, oldest first."""
    run = connection.execute
    last = select(task).order_by(task.c.ended.desc()).where(task.c.ended.is_not(None))
    rows = run(last.limit(ENDED_KEPT)).all()
    past: dict[tuple[int, int], dict[int, Past]] = {}
    if rows:
        oldest = rows[-1].ended
        of = attempt.c
        for row in run(
            select(
                *(of.job, of.task_index, of.sending),
                *(of.cluster, of.begun, of.fence, of.revoked, of.intent),
            )
            .join(task, _OF_TASK)
            .where(task.c.ended >= oldest)
            .order_by(of.number)
        ):
            sent = past.setdefault((row.job, row.task_index), {})
            sent[row.sending] = _past_of(row)
    return {
        (row.job, row.task_index): Ended(
            State(row.state), row.attempts, past.get((row.job, row.task_index), {})
        )
        for row in reversed(rows)
    }


def _fates(connection: Connection, jobs: Iterable[Job]) -> dict[int, list[Fate]]:
    """What has become of the targets of each job that depends on some."""
    targets = {j.id: parse_dependency(j.dependency).targets for j in jobs if j.dependency}
    found = {
        t: fate(connection, t) for t in dict.fromkeys(t for of in targets.values() for t in of)
    }
    return {id: [found[target] for target in of] for id, of in targets.items()}


def fate(connection: Connection, target: Target) -> Fate:
    query = (
        select(task.c.task_index, task.c.state, task.c.ended, attempt.c.started, job.c.array)
        .join(job, job.c.id == task.c.job)
        .outerjoin(  # the attempt with which it ended, if it was with a manager then
            attempt,
            and_(
                _OF_TASK,
                attempt.c.number == task.c.attempts,
                attempt.c.ended == task.c.ended,
            ),
        )
        .where(task.c.job == target.job)
        .order_by(task.c.task_index)
    )
    if target.index is not None:
        query = query.where(task.c.task_index == target.index)
    rows = connection.execute(query).all()
    ended = [row for row in rows if row.ended is not None]
    return Fate(
        target,
        len(rows),
        array=any(row.array is not None for row in rows),
        ok=folded(row.task_index for row in ended if row.state == State.COMPLETED),
        bad=folded(row.task_index for row in ended if row.state != State.COMPLETED),
        begun=max((row.started or row.ended for row in ended), default=0.0),
    )


def _attempt_of(row: Any) -> Attempt:
    fields = {name: getattr(row, name) for name in ATTEMPT}
    fields["state"] = State(row.state)
    fields["intent"] = Intent(row.intent) if row.intent else None
    return Attempt(**fields)


def _past_of(row: Any) -> Past:
    requeued = row.begun and row.intent == Intent.REQUEUE
    return Past(row.cluster, row.begun, row.fence, row.revoked, requeued)


def events(reading: Connection, since: int = 0) -> Iterator[CoreEvent]:
    """The recorded events in order: what `core.replay` needs.

    `since` is the first one, or one at which the daemon started: what is stored of facts is
    relative to earlier ones of the same life.
    """
    facts: dict[str, Facts] = {}
    stored = select(event).where(event.c.id >= since).order_by(event.c.id)
    # a server sends as many at a time: all at once they may not fit into memory
    for row in reading.execute(stored, execution_options={"yield_per": 1000}):
        kind = KINDS[row.kind]
        if kind is not Seen:
            yield msgspec.json.decode(row.data, type=kind)
            continue
        told = msgspec.json.decode(row.data)
        news = told.pop("changed", None)
        seen = msgspec.convert(told, Seen)
        if news is not None:
            seen = structs.replace(seen, facts=applied(facts[seen.cluster], news))
        if seen.facts is not None:
            facts[seen.cluster] = seen.facts
        yield seen
