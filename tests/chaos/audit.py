"""Checks after a fault: no job is lost, duplicated or orphaned, and all counters are correct."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import Connection, func, or_, select

from metasched.core.audit_trail import AuditTrail
from metasched.core.scheduler import Core
from metasched.core.transitions import FINAL, LIVE, UNSTARTED
from metasched.db import leases, reservations
from metasched.db.audit import AuditFilter
from metasched.db.ledger import Ledger
from metasched.db.schema import attempt, change, job, lease, task
from metasched.db.store import Database
from metasched.model.job import Job, State
from metasched.model.reservation import (
    OPEN_STATES,
    Reservation,
    ReservationState,
    manager_name,
    reservation_id,
)
from metasched.model.tags import parse_tag
from tests.chaos.stream import TOTALS, Stream, Use, named
from tests.e2e.conftest import KINDS_WITHOUT_EVENT

# Returns the tags of all jobs that a manager has now, queued or running.
Natives = Callable[[], Iterable[str]]
_BAD_ENDS = {State.FAILED, State.TIMEOUT, State.REJECTED, State.CANCELLED}


@dataclass
class Verdict:
    """Findings of an audit; the first three lists are empty if every check passes."""

    jobs: int = 0
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # orphans, counters, stories, ends
    waiting: list[str] = field(default_factory=list)  # open tasks that have not begun
    ended: list[str] = field(default_factory=list)  # tasks ended by the fault, and recorded so
    restarted: list[str] = field(default_factory=list)  # jobs that their manager started again

    @property
    def well(self) -> bool:
        return not (self.lost or self.duplicated or self.wrong)

    def __str__(self) -> str:
        return (
            f"{self.jobs} jobs; lost {self.lost}, duplicated {self.duplicated}, "
            f"wrong {self.wrong[:10]}, waiting {self.waiting[:10]}"
        )


def audit(
    database: Database,
    stream: Stream,
    natives: Iterable[Natives] = (),
    may_fail: bool = False,
    reserved: Collection[str] = (),
) -> Verdict:
    """Check the database of a stopped daemon, the payload starts and the jobs of the managers.

    `reserved` are the names of the reservations in the managers.

    `may_fail`: the fault may end jobs of its manager, begun or not (a dead node, a reused id). The
    database must record such an end. A manager that has lost a start may start that job again;
    its task is not duplicated, since metasched has submitted the job once.
    """
    verdict = Verdict()
    engine = database.open_existing()
    ledger = Ledger(engine)
    try:
        stored = [
            (named({**row, "task": row["task_index"] if row["array"] else None}), row)
            for row in ledger.status()
        ]
        rows = dict(stored)
        verdict.jobs = len(rows)
        verdict.duplicated += [
            f"{name} is stored {copies} times"
            for name, copies in Counter(name for name, _ in stored).items()
            if copies > 1
        ]
        with engine.connect() as reading:
            reused = _with_reused_ids(reading)
        _promises(verdict, rows, stream, may_fail, reused)
        tags = [tag for of in natives for tag in of()]
        instance = ledger.identity(0.0).instance
        with engine.connect() as reading:
            verdict.wrong += _replayed(ledger, reading)
            verdict.wrong += _audit_records(ledger)
            verdict.wrong += _orphans(reading, instance, tags, may_fail)
            verdict.wrong += _leases(reading)
            verdict.wrong += leases.find_mismatches(reading)
            verdict.wrong += _reservations(reading, instance, stream, reserved, may_fail)
        if not may_fail:  # else jobs may run on after their manager reports their end
            verdict.wrong += _overused(stream.used())
    finally:
        ledger.close()
    return verdict


def _with_reused_ids(reading: Connection) -> frozenset[tuple[int, int]]:
    """Return the tasks (job, index) that were dispatched twice under the same id of a manager."""
    task_columns = (attempt.c.job, attempt.c.task_index)
    reused = func.count(attempt.c.dispatch_id.distinct()) > 1
    rows = reading.execute(
        select(*task_columns)
        .group_by(*task_columns, attempt.c.cluster, attempt.c.native_id)
        .having(reused)
    )
    return frozenset((job_id, index) for job_id, index in rows)


def _promises(
    verdict: Verdict,
    rows: dict[str, dict[str, Any]],
    stream: Stream,
    may_fail: bool,
    reused: Collection[tuple[int, int]],
) -> None:
    began, native_ids = stream.began(), stream.native_ids()
    verdict.wrong += [f"{name} began and is not stored" for name in began.keys() - rows.keys()]
    verdict.wrong += [
        f"{name} began as uid {uid}, its owner is {promise.owner}"
        for name, uid in sorted(stream.owners())
        if (promise := stream.promises.get(name)) is not None and uid != promise.owner
    ]
    for name, promise in stream.promises.items():
        row, times = rows.get(name), began[name]
        if row is None:
            if promise.accepted is not None:
                verdict.lost.append(f"{name}: accepted as job {promise.accepted} and not stored")
            continue
        label = f"{name} (job {row['job']}, {row['state']}, {row['reason'] or 'no reason'})"
        requested = promise.cancelled or promise.refused
        if times > 1 + promise.again:
            same_job = len(native_ids[name]) == 1 and (row["job"], row["task_index"]) not in reused
            findings = verdict.restarted if may_fail and same_job else verdict.duplicated
            findings.append(f"{label} began {times} times")
        elif promise.refused and times:
            verdict.wrong.append(f"{label} began, though its manager refused it")
        elif times == 0 and row["state"] not in FINAL:
            verdict.waiting.append(label)
            if not row["reason"] and row["state"] not in LIVE:
                verdict.wrong.append(f"{label} waits without a reason")
        elif may_fail and row["state"] in _BAD_ENDS and not requested:
            verdict.ended.append(label)
        elif times == 0 and not requested:
            verdict.lost.append(f"{label} ended and never began")
        elif row["state"] in _BAD_ENDS and not requested:
            verdict.wrong.append(f"{label}: its payload did not fail")


def _audit_records(ledger: Ledger) -> list[str]:
    """Replay the audit records of the recorded events; each must be stored once."""
    core, trail, replayed = Core(), AuditTrail(), list[tuple[float, str, int | None, str]]()
    for event in ledger.events():
        records = trail.records(event, core.step(event))
        replayed += [(r.time, r.kind.value, r.job, r.cause) for r in records]
    rows, _ = ledger.audit_page(AuditFilter(), 0, 10_000_000)
    stored = [
        (row["time"], row["kind"], row["job"], row["cause"])
        for row in rows
        if row["kind"] not in KINDS_WITHOUT_EVENT
    ]
    if stored == replayed:
        return []
    counted, expected = Counter(stored), Counter(replayed)
    differ = [*(counted - expected).elements(), *(expected - counted).elements()]
    return [f"{len(stored)} audit records, replayed {len(replayed)}: {differ[:2]}"]


def _replayed(ledger: Ledger, reading: Connection) -> list[str]:
    """Replay the recorded events in a fresh core; return its differences from the tables."""
    core, wrong = Core(), []
    lines = []
    for event in ledger.events():
        for line in core.step(event).changes:
            lines.append((line.job, line.index, line.attempt, line.event, line.after, line.cause))
    stored = [
        tuple(row)
        for row in reading.execute(
            select(
                change.c.job,
                change.c.task_index,
                change.c.attempt,
                change.c.task_event,
                change.c.after,
                change.c.cause,
            ).order_by(change.c.id)
        )
    ]
    tasks = [
        tuple(row)
        for row in reading.execute(
            select(
                task.c.job,
                task.c.task_index,
                task.c.state,
                attempt.c.number,
                attempt.c.cluster,
                attempt.c.dispatch_id,
                attempt.c.native_id,
                job.c.priority,
            )
            .join(job, job.c.id == task.c.job)
            .outerjoin(
                attempt,
                (attempt.c.job == task.c.job)
                & (attempt.c.task_index == task.c.task_index)
                & (attempt.c.number == task.c.attempts)
                & attempt.c.state.in_(sorted(LIVE)),
            )
            .where(task.c.ended.is_(None))
        )
    ]
    if lines != stored:
        differ = next(
            (a, b) for a, b in zip([*lines, None], [*stored, None], strict=False) if a != b
        )
        wrong.append(f"the story replays differently: {differ[0]} instead of {differ[1]}")
    again = {
        (
            *(task.job.id, task.index, task.state),
            *((a.number, a.cluster, a.dispatch_id, a.native_id) if a else (None,) * 4),
            task.priority,
        )
        for task in core.tasks.values()
        for a in [task.attempt]
    }
    wrong += [f"replayed and stored state differ: {task}" for task in again ^ set(tasks)]
    waiting = Counter(
        (cluster, priority)
        for *_, state, _n, cluster, _s, _id, priority in tasks
        if state in UNSTARTED
    )
    for cluster in core.clusters:
        counts = core.load_ordering.count(cluster.name)
        recount = [
            sum(n for (name, p), n in waiting.items() if name == cluster.name and p > index)
            for index in range(len(counts))
        ]
        if counts != recount:
            wrong.append(f"{cluster.name}: jobs counted by priority {counts}, really {recount}")
    return wrong


def _orphans(reading: Connection, instance: str, tags: list[str], forgets: bool) -> list[str]:
    """Return findings for jobs of metasched in a manager that are not live in the database.

    A manager that `forgets` may list a job as running after it has reported the end.
    """
    alive = attempt.c.state.in_(sorted(LIVE))
    condition = or_(alive, attempt.c.started.is_not(None)) if forgets else alive
    rows = reading.execute(select(attempt.c.job, attempt.c.dispatch_id).where(condition))
    live = {(row.job, row.dispatch_id) for row in rows}
    return [
        f"{tag} is in its manager and not live in the database"
        for tag in tags
        if (key := parse_tag(tag, frozenset({instance}))) is not None and key not in live
    ]


def _leases(reading: Connection) -> Iterator[str]:
    """Each attempt must lease the licences of its job, and hold them exactly while it is live.

    An operator may have released the licences of an unknown attempt.
    """
    rows = reading.execute(
        select(
            attempt.c.job,
            attempt.c.task_index,
            attempt.c.number,
            attempt.c.state,
            job.c.spec,
        ).join(job, job.c.id == attempt.c.job)
    )
    attempts = {(row.job, row.task_index, row.number): row for row in rows}
    had: dict[tuple[int, int, int], dict[str, int]] = defaultdict(dict)
    holds, released = set(), set()
    for row in reading.execute(select(lease)):
        key = (row.job, row.task_index, row.attempt)
        had[key][row.licence] = row.tokens
        if row.until is None:
            holds.add(key)
        elif row.reason.startswith("released"):
            released.add(key)
    for key, row in attempts.items():
        requested = dict(msgspec.json.decode(row.spec, type=Job).licences)
        lease_label = f"attempt {key[2]} of task {key[0]}_{key[1]} ({row.state})"
        if had.get(key, {}) != requested:
            yield f"{lease_label} had leased {had.get(key, {})}, its job wants {requested}"
        if requested and (key in holds) != (row.state in LIVE) and key not in released:
            yield f"{lease_label} has {'' if key in holds else 'not '}its licences"


def _reservations(
    reading: Connection, instance: str, stream: Stream, reserved: Collection[str], may_fail: bool
) -> Iterator[str]:
    """Each promised reservation exists or was cancelled; managers keep no others of metasched."""
    yield from reservations.find_conflicts(reading)
    stored = {reservation.id: reservation for reservation in reservations.open_since(reading, 0.0)}
    for id, cancelled in stream.promised.items():
        state = stored[id].state if id in stored else None
        over = cancelled and state is ReservationState.CANCELLED
        broken = may_fail and state is ReservationState.BROKEN  # its node died
        if state not in OPEN_STATES and not over and not broken:
            yield f"reservation {id} was promised and is {state or 'not stored'}"
    yield from _overpromised(
        [reservation for reservation in stored.values() if reservation.state in OPEN_STATES]
    )
    in_managers = {name for name in reserved if reservation_id(name, instance) is not None}
    requested = {
        manager_name(instance, reservation.id)
        for reservation in stored.values()
        if reservation.state in OPEN_STATES
    }
    for name in sorted(in_managers ^ requested):
        location = "not in its manager" if name in requested else "in its manager and over"
        yield f"reservation {name} is {location}"


def _overpromised(windows: Sequence[Reservation]) -> Iterator[str]:
    """Report licences with more tokens in concurrent reservations than exist."""
    for at in windows:
        promised: Counter[str] = Counter()
        for window in windows:
            if window.start <= at.start < window.until:
                promised.update(window.licences)
        for name, total in TOTALS.items():
            if promised[name] > total:
                yield (
                    f"{promised[name]} of licence {name} kept with reservation {at.id}, not {total}"
                )


def _overused(uses: Sequence[Use]) -> Iterator[str]:
    """Report licences with more tokens in concurrent use by payloads than exist."""
    for at in uses:
        in_use = Counter(at.tokens)
        for use in uses:
            # a payload without a recorded end counts only at its own start
            if use is not at and use.ended is not None and use.begun <= at.begun < use.ended:
                in_use.update(use.tokens)
        for name, total in TOTALS.items():
            if in_use[name] > total:
                yield f"{in_use[name]} of licence {name} in use with {at.name}, there are {total}"
