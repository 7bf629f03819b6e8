"""Use of ended tasks and leases by day, in SQL; it stays when jobs are pruned.

`store` works in the caller's transaction: a run is counted with the end of its attempt, and a lease
with its return. So a crash counts nothing twice. Days are those of the daemon's time zone, and of
the end as the cluster reports it.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    case,
    func,
    insert,
    select,
    tuple_,
    union,
    update,
)

from metasched.core.events import CoreEvent, Outcome, UseReported
from metasched.core.leasing import PASSED_ON
from metasched.core.tasks import Attempt, Task
from metasched.core.transitions import ATTEMPT_FINAL, FINAL
from metasched.db import period_use
from metasched.db.schema import (
    attempt,
    current_spec,
    daily_licence_peak,
    daily_licence_use,
    daily_use,
    job,
    licence,
)
from metasched.model.daily_use import (
    MAX_NAME,
    NUMBERS,
    OTHER,
    UseKey,
    UseSums,
    correct_run,
    count_deadline,
    count_run,
    merge,
)
from metasched.model.fair_share import ForeignUse
from metasched.model.job import Job, State
from metasched.model.job_usage import EndedRun, RunUsage
from metasched.model.licence import Lease, ReturnedLease
from metasched.policies.eligible import choose_gres

MAX_ACCOUNTS = 50  # of a user on a day; users may invent names of accounts
_IN_PORTIONS = {"yield_per": 1000}  # rows that are in memory
_MOST = 2.0**53  # processor-seconds of a report
_LATEST = 2.0**36  # epoch seconds: later times count as that

_KEY = daily_use.c[UseKey._fields]
_IS_KEY = and_(*(column == bindparam(f"k_{column.name}") for column in _KEY))
_FIND, _INSERT = select(daily_use).where(_IS_KEY), insert(daily_use)
_UPDATE = (
    update(daily_use)
    .where(_IS_KEY)
    .values({name: bindparam(f"v_{name}") for name in (*NUMBERS, "waits")})
)
# of both tables
_ACCOUNTS = union(
    *(
        select(table.c.account).where(
            table.c.day == bindparam("k_day"), table.c.user == bindparam("k_user")
        )
        for table in (daily_use, daily_licence_use)
    )
)
_WAITS = msgspec.json.Decoder(dict[int, int])
_IS_ENDED_RUN = (
    attempt.c.state.in_(sorted(ATTEMPT_FINAL)),
    attempt.c.started.is_not(None),
    attempt.c.ended.is_not(None),
)


def day_of(moment: float) -> int:
    """Return the day of a time (epoch seconds) on this host, such as 20260331."""
    return _day_number(time.localtime(min(max(moment, 0.0), _LATEST)))


def _utc_day(moment: float) -> int:
    return _day_number(time.gmtime(moment))


def _day_number(date: time.struct_time) -> int:
    return date.tm_year * 10000 + date.tm_mon * 100 + date.tm_mday


# Accounts of dispatches


def keep_account(connection: Connection, modified: Job) -> None:
    """Store the account of a job's attempts with them, if the job gets another; before it does."""
    spec = select(current_spec).where(job.c.id == modified.id)
    before = msgspec.json.decode(connection.execute(spec).scalar_one(), type=Job)
    if before.account != modified.account:
        is_unset = (attempt.c.job == modified.id) & attempt.c.account.is_(None)
        account = before.account or ""
        connection.execute(update(attempt).where(is_unset).values(account=account))


# an attempt that continues a dispatch has the account of the first
_DISPATCHED_ACCOUNT = (
    select(attempt.c.account)
    .where(
        attempt.c.job == bindparam("of_job"),
        attempt.c.task_index == bindparam("of_task"),
        attempt.c.dispatch_id == bindparam("of_dispatch"),
        attempt.c.account.is_not(None),
    )
    .order_by(attempt.c.number)
    .limit(1)
)


def _as_dispatched(connection: Connection, owner: Job, index: int, dispatch_id: int) -> Job:
    """Return a job with the account that it had at a dispatch of a task; the manager charges it."""
    values = {"of_job": owner.id, "of_task": index, "of_dispatch": dispatch_id}
    account = connection.execute(_DISPATCHED_ACCOUNT, values).scalar()
    return owner if account is None else msgspec.structs.replace(owner, account=account)


def _modified_jobs(connection: Connection, outcomes: Iterable[Outcome]) -> frozenset[int]:
    """Return the jobs with closed attempts that were modified; only they may have two accounts."""
    ids = sorted({owner.job.id for out in outcomes for owner, _ in out.closed_attempts})
    modified: set[int] = set()
    for first in range(0, len(ids), 1000):
        portion = job.c.id.in_(ids[first : first + 1000])
        query = select(job.c.id).where(portion, job.c.modified_spec.is_not(None))
        modified.update(connection.execute(query).scalars())
    return frozenset(modified)


# Writing


def store(connection: Connection, steps: Sequence[tuple[CoreEvent, Outcome]]) -> None:
    """Add the runs, deadlines and leases that ended, and use that accounting reports of others.

    The licences' counters are stored before.
    """
    sums: dict[UseKey, UseSums] = {}
    modified = _modified_jobs(connection, [outcome for _, outcome in steps])

    def owner_of(run_task: Task, run: Attempt) -> Job:
        if run_task.job.id not in modified:
            return run_task.job
        return _as_dispatched(connection, run_task.job, run_task.index, run.dispatch_id)

    for event, outcome in steps:
        if isinstance(event, UseReported):
            for key, outside in _reported_use(event.cluster, outcome.foreign_uses):
                sums.setdefault(key, UseSums()).add(outside)
        for ended_task, ended in outcome.closed_attempts:
            if ended.started is not None and ended.ended is not None:
                owner = owner_of(ended_task, ended)
                key = UseKey.of(owner, ended.cluster, day_of(ended.ended))
                sums.setdefault(key, UseSums()).add(_count_attempt(ended_task, ended))
        for ended_task in _tasks_with_deadlines(outcome):
            assert ended_task.job.deadline is not None
            assert ended_task.ended is not None
            owner, last, cluster = ended_task.job, ended_task.attempt, ""
            if last is not None and last.started is not None:
                owner, cluster = owner_of(ended_task, last), last.cluster
            key = UseKey.of(owner, cluster, day_of(ended_task.ended))
            sums.setdefault(key, UseSums()).add(
                count_deadline(ended_task.job.deadline, ended_task.state, ended_task.ended)
            )
    add(connection, sums)
    period_use.invalidate(connection, {key.day for key in sums})
    _store_leases(connection, steps, owner_of)


def _reported_use(cluster: str, uses: Iterable[ForeignUse]) -> Iterator[tuple[UseKey, UseSums]]:
    for use in uses:
        if 0.0 < use.processor_seconds <= _MOST and math.isfinite(use.ended):
            names = (cluster, use.user[:MAX_NAME], use.account[:MAX_NAME], "", "")
            yield UseKey(day_of(use.ended), *names), UseSums(cpu_outside=use.processor_seconds)


def _tasks_with_deadlines(outcome: Outcome) -> Iterator[Task]:
    """Yield the tasks with a deadline that ended in a step, each once."""
    for key in {
        (change.job, change.index)
        for change in outcome.changes
        if change.after in FINAL and change.before not in FINAL
    }:
        ended = outcome.tasks.get(key)
        if ended is not None and ended.job.deadline is not None and ended.state in FINAL:
            yield ended


def _count_attempt(owner: Task, ended: Attempt) -> UseSums:
    assert ended.started is not None
    assert ended.ended is not None
    is_rerun = 0 < owner.ignore_rejections_until < ended.number or any(
        past.has_started and dispatch_id != ended.dispatch_id
        for dispatch_id, past in owner.past_attempts.items()
    )
    return count_run(
        choose_gres(owner.job, ended.gres_choice),
        state=ended.state,
        started=ended.started,
        ended=ended.ended,
        node=ended.node,
        cpu_seconds=ended.cpu_seconds,
        first_start=ended.restarts == 0 and not is_rerun,
    )


def add(connection: Connection, sums: Mapping[UseKey, UseSums]) -> None:
    """Add sums to the rows of their keys. The caller invalidates the sums of their periods."""
    for key, added in sorted(sums.items()):
        values = _key_values(key)
        stored = connection.execute(_FIND, values).mappings().first()
        if stored is None and (merged_key := _with_known_account(connection, key)) != key:
            values = _key_values(key := merged_key)
            stored = connection.execute(_FIND, values).mappings().first()
        if stored is None:
            connection.execute(_INSERT, key._asdict() | _row_of(added))
            continue
        total = merge((sums_of(stored), added))
        changed = {f"v_{name}": value for name, value in _row_of(total).items()}
        connection.execute(_UPDATE, values | changed)


def _key_values(key: UseKey) -> dict[str, Any]:
    return {f"k_{name}": value for name, value in key._asdict().items()}


def _with_known_account(connection: Connection, key: UseKey) -> UseKey:
    """Replace a further account of a user who has used too many on a day."""
    if not key.account:
        return key
    values = {"k_day": key.day, "k_user": key.user}
    accounts = set(connection.execute(_ACCOUNTS, values).scalars())
    if key.account in accounts or len(accounts) < MAX_ACCOUNTS:
        return key
    return key._replace(account=OTHER)


def _row_of(sums: UseSums) -> dict[str, Any]:
    row = {name: getattr(sums, name) for name in NUMBERS}
    return {**row, "waits": msgspec.json.encode(sums.waits).decode()}


def sums_of(row: Mapping[Any, Any]) -> UseSums:
    """Return the sums of a row."""
    sums = UseSums(waits=_WAITS.decode(row["waits"]))
    for name in NUMBERS:
        setattr(sums, name, row[name])
    return sums


# What accounting reports later


def correct(connection: Connection, usage: Mapping[EndedRun, RunUsage]) -> None:
    """Add what accounting reports of runs that are counted; before it is stored with them.

    The number of queries depends on the keys of the sums, not on the number of runs.
    """
    used = {
        (run.job, run.task, run.attempt): reported
        for run, reported in usage.items()
        if reported.cpu_seconds is not None
    }
    rows = _ended_runs(connection, sorted(used))
    owners, modified = _owners(connection, {row.job for row in rows})
    accounts = _dispatched_accounts(connection, [row for row in rows if row.job in modified])
    sums: dict[UseKey, UseSums] = {}
    for row in rows:
        owner = owners[row.job]
        key = UseKey.of(owner, row.cluster, day_of(row.ended))
        account = accounts.get((row.job, row.task_index, row.dispatch_id))
        if account is not None:
            key = key._replace(account=account[:MAX_NAME])
        report = used[row.job, row.task_index, row.number]
        change = correct_run(_count_row(owner, row, None), _count_row(owner, row, report))
        sums.setdefault(key, UseSums()).add(change)
    add(connection, sums)
    period_use.invalidate(connection, {key.day for key in sums})


def _has_key(last: ColumnElement[int], keys: Sequence[tuple[int, int, int]]) -> ColumnElement[bool]:
    """Return the condition that an attempt has any of the keys (job, task, `last`).

    SQLite finds no row values by an index: it would read all attempts. Of the single columns it
    uses that of the primary key.
    """
    return and_(
        attempt.c.job.in_(sorted({job_id for job_id, _, _ in keys})),
        attempt.c.task_index.in_(sorted({index for _, index, _ in keys})),
        tuple_(attempt.c.job, attempt.c.task_index, last).in_(keys),
    )


def _ended_runs(connection: Connection, runs: Sequence[tuple[int, int, int]]) -> Sequence[Row[Any]]:
    """Return the attempts (job, task, number) that are counted and whose use is not known yet."""
    names = ("job", "task_index", "number", "dispatch_id", "state", "cluster", "started", "ended")
    query = select(*(attempt.c[name] for name in (*names, "node", "gres_choice"))).where(
        _has_key(attempt.c.number, runs), *_IS_ENDED_RUN, attempt.c.cpu_seconds.is_(None)
    )
    return connection.execute(query).all()


def _owners(connection: Connection, ids: Collection[int]) -> tuple[dict[int, Job], set[int]]:
    """Return jobs, each decoded once, and those of them that were modified."""
    query = select(job.c.id, job.c.spec, job.c.modified_spec).where(job.c.id.in_(sorted(ids)))
    stored = connection.execute(query).all()
    decoder = msgspec.json.Decoder(Job)
    owners = {row.id: decoder.decode(row.modified_spec or row.spec) for row in stored}
    return owners, {row.id for row in stored if row.modified_spec is not None}


def _dispatched_accounts(
    connection: Connection, rows: Sequence[Row[Any]]
) -> dict[tuple[int, int, int], str]:
    """Return the accounts of modified jobs at dispatches, as `_as_dispatched` does for each."""
    dispatches = sorted({(row.job, row.task_index, row.dispatch_id) for row in rows})
    query = select(*(attempt.c[name] for name in ("job", "task_index", "dispatch_id", "account")))
    query = query.where(_has_key(attempt.c.dispatch_id, dispatches), attempt.c.account.is_not(None))
    latest_first = connection.execute(query.order_by(attempt.c.number.desc()))
    return {(row.job, row.task_index, row.dispatch_id): row.account for row in latest_first}


def _count_row(owner: Job, row: Any, used: RunUsage | None) -> UseSums:
    """Count a stored run; `used` is its use as accounting reports it."""
    return count_run(
        choose_gres(owner, row.gres_choice),
        state=State(row.state),
        started=row.started,
        ended=row.ended,
        node=row.node,
        cpu_seconds=used.cpu_seconds if used else None,
        first_start=False,
        elapsed=used.elapsed if used else None,
        cpus=used.cpus if used else None,
    )


# Leases

_LICENCE_SUMS = ("leases", "token_seconds", "wait", "max_wait")
_LICENCE_KEY = daily_licence_use.c[(*UseKey._fields, "licence")]


def _store_leases(
    connection: Connection,
    steps: Sequence[tuple[CoreEvent, Outcome]],
    owner_of: Callable[[Task, Attempt], Job],
) -> None:
    sums: dict[tuple[UseKey, str], dict[str, float]] = {}
    deltas: list[tuple[int, str, int]] = []  # day, licence, tokens
    for event, outcome in steps:
        closed = {}
        if outcome.leases:
            closed = {
                (holder.job.id, holder.index, ended.number): (holder, ended)
                for holder, ended in outcome.closed_attempts
            }
        for change in outcome.leases:
            changed, sign = (change, 1) if isinstance(change, Lease) else (change.lease, -1)
            day = day_of(event.time)
            deltas += [(day, name, sign * count) for name, count in changed.tokens.items()]
            if isinstance(change, ReturnedLease):
                holder_run = closed.get((changed.job, changed.index, changed.attempt))
                if holder_run is None:
                    owner, cluster = _find_holder(connection, changed)
                else:
                    owner, cluster = owner_of(*holder_run), holder_run[1].cluster
                if owner is not None:
                    key = UseKey.of(owner, cluster, day_of(change.until))
                    _count_lease(sums, key, owner, change)
    if deltas:
        _add_leases(connection, sums)
        _store_peaks(connection, deltas)


def _find_holder(connection: Connection, held: Lease) -> tuple[Job | None, str]:
    """Return the job that held a lease, and the cluster of the attempt, which had ended before."""
    row = connection.execute(
        select(current_spec, attempt.c.cluster, attempt.c.dispatch_id)
        .join(attempt, attempt.c.job == job.c.id)
        .where(
            job.c.id == held.job,
            attempt.c.task_index == held.index,
            attempt.c.number == held.attempt,
        )
    ).first()
    if row is None:
        return None, ""
    spec_now = msgspec.json.decode(row.spec, type=Job)
    return _as_dispatched(connection, spec_now, held.index, row.dispatch_id), row.cluster


def _count_lease(
    sums: dict[tuple[UseKey, str], dict[str, float]],
    key: UseKey,
    owner: Job,
    returned: ReturnedLease,
) -> None:
    since, seconds = returned.lease.since, max(returned.until - returned.lease.since, 0.0)
    is_over = returned.reason != PASSED_ON  # else the next attempt goes on with it
    wait = max(since - max(owner.submitted, owner.begin or 0.0), 0.0) if is_over else 0.0
    for name, tokens in returned.lease.tokens.items():
        row = sums.setdefault((key, name), dict.fromkeys(_LICENCE_SUMS, 0))
        row["leases"] += int(is_over)
        row["token_seconds"] += tokens * seconds
        row["wait"] += wait
        row["max_wait"] = max(row["max_wait"], wait)


def _add_leases(
    connection: Connection, sums: Mapping[tuple[UseKey, str], Mapping[str, float]]
) -> None:
    for (key, name), added in sorted(sums.items(), key=lambda item: item[0]):
        key = _with_known_account(connection, key)
        values: dict[str, Any] = {**key._asdict(), "licence": name}
        is_row = and_(*(column == values[column.name] for column in _LICENCE_KEY))
        columns = {c: daily_licence_use.c[c] + added[c] for c in _LICENCE_SUMS[:-1]}
        larger = _larger(daily_licence_use.c.max_wait, added["max_wait"])
        changed = update(daily_licence_use).where(is_row).values(columns | {"max_wait": larger})
        if not connection.execute(changed).rowcount:
            connection.execute(insert(daily_licence_use).values(values | dict(added)))


def _store_peaks(connection: Connection, deltas: Sequence[tuple[int, str, int]]) -> None:
    """Store the most tokens that were leased at a time; the counters have the changes already."""
    names = {name for _, name, _ in deltas}
    counters = connection.execute(select(licence).where(licence.c.name.in_(names))).all()
    levels = dict.fromkeys(names, 0) | {row.name: int(row.leased) for row in counters}
    totals = dict.fromkeys(names, 0) | {row.name: int(row.total) for row in counters}
    for _, name, delta in deltas:
        levels[name] -= delta  # as before all changes
    peaks: dict[tuple[int, str], int] = {}
    for day, name, delta in deltas:
        before = peaks.get((day, name), levels[name])
        levels[name] += delta
        peaks[day, name] = max(before, levels[name])
    table = daily_licence_peak
    for (day, name), peak in sorted(peaks.items()):
        changed = (
            update(table)
            .where(table.c.day == day, table.c.licence == name)
            .values(
                peak=_larger(table.c.peak, peak),
                last=levels[name],
                total=_larger(table.c.total, totals[name]),
            )
        )
        if not connection.execute(changed).rowcount:
            row = {"peak": peak, "last": levels[name], "total": totals[name]}
            connection.execute(insert(table).values(day=day, licence=name, **row))


def _larger(column: ColumnElement[Any], value: float) -> ColumnElement[Any]:
    return case((column < value, value), else_=column)


# Checks


def find_mismatches(connection: Connection) -> Iterator[str]:
    """Yield a message if a user has fewer runs, or seconds of runs, on a cluster than attempts.

    The zone of the daemon at that time is unknown here: a run may be stored under each day that it
    was in any zone. Runs of jobs that are pruned make the sums larger.
    """
    columns = (daily_use.c.user, daily_use.c.cluster)
    sums = (func.sum(daily_use.c.jobs), func.sum(daily_use.c.elapsed))
    stored: dict[tuple[str, str], dict[int, tuple[int, float]]] = {}
    by_day_query = select(*columns, daily_use.c.day, *sums).group_by(*columns, daily_use.c.day)
    for user, cluster, day, jobs, seconds in connection.execute(by_day_query):
        stored.setdefault((user, cluster), {})[day] = (jobs, seconds)
    counted: dict[tuple[str, str], dict[tuple[int, int], tuple[int, float]]] = {}
    ended = (
        select(
            *(attempt.c[name] for name in ("cluster", "started", "ended", "elapsed")), job.c.user
        )
        .join(job, job.c.id == attempt.c.job)
        .where(*_IS_ENDED_RUN)
    )
    for row in connection.execute(ended, execution_options=_IN_PORTIONS):
        of_user = counted.setdefault((row.user[:MAX_NAME], row.cluster[:MAX_NAME]), {})
        days = _possible_days(row.ended)
        jobs, seconds = of_user.get(days, (0, 0.0))
        elapsed = max(row.ended - row.started, 0.0) if row.elapsed is None else row.elapsed
        of_user[days] = (jobs + 1, seconds + elapsed)
    for (user, cluster), runs in sorted(counted.items()):
        by_day = stored.get((user, cluster), {})
        has_all_jobs = sum(jobs for jobs, _ in by_day.values()) == sum(
            jobs for jobs, _ in runs.values()
        )
        for number, name in enumerate(("jobs", "s")):
            total = sum(amounts[number] for amounts in runs.values())
            stored_total = sum(amounts[number] for amounts in by_day.values())
            tolerance = 1e-6 * total + 1e-3
            missing = find_missing(
                {days: amounts[number] for days, amounts in runs.items()},
                {day: amounts[number] for day, amounts in by_day.items()},
                tolerance,
            )
            totals = f"all days have {stored_total:g}, all attempts {total:g}"
            for first, last, amount in missing:
                yield (
                    f"use of {user} on {cluster} from {first} to {last} lacks {amount:g} {name}: "
                    f"{totals}"
                )
            if has_all_jobs and stored_total - total > tolerance:
                yield f"use of {user} on {cluster} has too many {name}: {totals}"


def _possible_days(moment: float) -> tuple[int, int]:
    """Return the first and the last day that a time (epoch seconds) has in any time zone."""
    counted = min(max(moment, 0.0), _LATEST)  # as `day_of` does
    return _utc_day(counted - 12 * 3600.0), _utc_day(counted + 14 * 3600.0)


def find_missing(
    demands: Mapping[tuple[int, int], float], supply: Mapping[int, float], tolerance: float
) -> Iterator[tuple[int, int, float]]:
    """Yield (first day, last day, amount) of demands that the supply of these days does not meet.

    A demand can be met by each day from its first to its last. Those that end first come first:
    so all are met if they can be (EDF, Jackson 1955). O((d + s) log d).
    """
    waiting: list[tuple[int, int]] = []  # a heap of (last day, index of the demand)
    ordered = sorted(demands)
    open_demands = [demands[days] for days in ordered]
    begun = 0
    for day in sorted(supply):
        while begun < len(ordered) and ordered[begun][0] <= day:
            heapq.heappush(waiting, (ordered[begun][1], begun))
            begun += 1
        available = supply[day]
        while waiting and available > 0.0:
            last, index = waiting[0]
            if last >= day:
                taken = min(available, open_demands[index])
                available -= taken
                open_demands[index] -= taken
            if last < day or open_demands[index] <= 0.0:
                heapq.heappop(waiting)
    for (first, last), amount in zip(ordered, open_demands, strict=True):
        if amount > tolerance:
            yield first, last, amount
