"""Routes that list licences and their holders, set totals, and release leases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Query, Request
from fastapi.responses import Response

from metasched.api.answers import encoded
from metasched.api.clusters import breaker_row
from metasched.api.identity import Caller
from metasched.api.pages import KeyPage, key_page
from metasched.api.readers import CurrentReaders, ReadingKind
from metasched.api.request import CurrentCaller, CurrentService
from metasched.api.selection import JobSelection, select_tasks
from metasched.api.whole_answers import live_answer, live_page
from metasched.client.job_answers import MissingLicence
from metasched.client.site_answers import (
    LicenceHistoryAnswer,
    LicenceHolder,
    LicenceHolders,
    LicenceRow,
    LicenceServerRow,
    ManagerTokens,
    ReleasedTask,
    ReleasedTasks,
    TokenCounts,
    TokenWindowRow,
)
from metasched.core.events import LicenceSet, LicencesReleased
from metasched.core.scheduler import Core
from metasched.core.tasks import Task
from metasched.daemon.licence_monitor import LicenceMonitor
from metasched.daemon.service import SchedulerService
from metasched.errors import ApiError, quote_for_error
from metasched.model.job import State
from metasched.model.licence import MAX_TOKENS, Lease, LicenceStatus
from metasched.model.units import iso

router = APIRouter()

MAX_HOLDERS = 50  # of a licence, in a listing or an explanation
MAX_HOURS = 31 * 24  # of a history: older figures are deleted
HISTORY_PERIODS = 120  # of a history; each has a whole number of seconds


@dataclass(frozen=True)
class LicenceTotal:
    """New total of a licence."""

    total: int | None  # None: as configured
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic only


@router.get("/licences", response_model=list[LicenceRow])
async def licences(
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    page: Annotated[KeyPage, Depends(key_page(1))],
) -> Response:
    """List licences by name, with their holders as far as the caller may see their jobs."""
    [after] = page.after or ("",)
    statuses = service.core.licences.statuses(time.time(), after)
    rows = (_licence_row(service, status, caller) for status in statuses)
    if page.requested:
        keyed = (((str(row["licence"]),), row) for row in rows)
        return await live_page(request, readers, keyed, page)
    return await live_answer(request, readers, rows)


@router.get("/licences/servers")
async def licence_servers(_: CurrentCaller, service: CurrentService) -> list[LicenceServerRow]:
    return [_server_row(monitor) for monitor in service.licence_monitors]


@router.get("/licences/{name}/history", response_model=LicenceHistoryAnswer)
async def licence_history(
    request: Request,
    _: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    name: str,
    hours: Annotated[int, Query(ge=1, le=MAX_HOURS, description="up to now")] = 24,
) -> Response:
    """Return how many tokens were in use, free and waited for, in periods up to now.

    All users see these counts; no user sees the holders of that time.
    """
    if service.core.licences.configured_pool(name) is None:
        raise ApiError(404, f"there is no licence {quote_for_error(name)}; write one as listed")
    seconds = hours * 3600 // HISTORY_PERIODS
    since = (int(time.time()) // seconds + 1 - HISTORY_PERIODS) * seconds
    ledger = service.ledger

    def read() -> LicenceHistoryAnswer:
        periods = ledger.licence_periods(name, float(since), float(seconds), HISTORY_PERIODS)
        return {
            "licence": name,
            "since": iso(since) or "",
            "seconds": seconds,
            "periods": HISTORY_PERIODS,
            "rows": [
                {
                    "begin": iso(period.begin) or "",
                    "total": period.total,
                    "ours": period.leased,
                    "outside": period.outside,
                    "free": period.free,
                    "waiting": period.waiting,
                }
                for period in periods
                if period is not None
            ],
        }

    return encoded(await readers.run(request, ReadingKind.LISTING, read, until_answered=False))


@router.post("/licences/release")
async def release_licences(
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    selection: Annotated[JobSelection, Body()],
) -> ReleasedTasks:
    """Release the leases of the selected tasks that are unknown; the others get a note."""
    caller.require_operator("release licences")
    selected = await select_tasks(request, readers, service, "release", selection)
    now, released_tasks = time.time(), list[ReleasedTask]()
    indices: dict[int, list[int]] = {}
    owners = {tasks.job: tasks.user for tasks in selected}
    for tasks, index in ((entry, index) for entry in selected for index in entry.indices):
        task_id = (tasks.job, index)
        lease = service.core.licences.leases.get(task_id)
        is_unknown = tasks.state is State.UNKNOWN
        if lease is None:
            note = "it has no licences"
        elif is_unknown:
            note = ""
            indices.setdefault(task_id[0], []).append(task_id[1])
        else:
            note = f"it is {tasks.state}; only unknown jobs can lose their licences"
        released_tasks.append(
            {
                "job": tasks.job,
                "task": index if tasks.array else None,
                "released": dict(lease.tokens) if lease is not None and is_unknown else {},
                "note": note,
            }
        )
    events = [
        LicencesReleased(now, job_id, tuple(task_indices), caller.user, owners[job_id])
        for job_id, task_indices in indices.items()
    ]
    if events:
        await service.apply_events(*events)
    return {"jobs": released_tasks}


@router.post("/licences/{name}/total")
async def set_licence(
    caller: CurrentCaller,
    service: CurrentService,
    name: str,
    requested: Annotated[LicenceTotal, Body()],
) -> LicenceRow:
    caller.require_operator("set licence totals")
    pools = service.core.licences
    if (refusal := pools.refusal({name: 0})) is not None:
        raise ApiError(404, refusal)
    if requested.total is not None and not 0 <= requested.total <= MAX_TOKENS:
        raise ApiError(422, f"total {requested.total} is out of range; give 0 to {MAX_TOKENS}")
    now = time.time()
    await service.apply_events(LicenceSet(now, name, requested.total, caller.user))
    return _licence_row(service, pools.status(name, now), caller)


def _server_row(monitor: LicenceMonitor) -> LicenceServerRow:
    """Return the state of a licence server."""
    return {
        "server": monitor.settings.name,
        "kind": monitor.settings.server_type,
        "licences": [pool.name for pool in monitor.pools],
        "observed": iso(monitor.observed),
        "lacking": monitor.missing_licences,
        "breaker": breaker_row(monitor.breaker),
    }


def _licence_row(service: SchedulerService, status: LicenceStatus, caller: Caller) -> LicenceRow:
    """Return a row of `licences --json`."""
    core = service.core
    pool = core.licences.configured_pool(status.licence)
    return {
        "licence": status.licence,
        **_token_counts(status),
        "waiting": status.waiting_tokens,
        "rho": status.rho,
        "lingering": status.lingering,
        "headroom": pool.headroom if pool else 0,
        "clusters": list(pool.clusters) if pool else [],
        "machines": {
            cluster.name: cluster.licence_features[status.licence]
            for cluster in core.clusters
            if status.licence in cluster.licence_features
        },
        "server": pool.server if pool else "",
        "observed": iso(status.observed),
        "chosen": status.operator_total,
        "reserved": status.reserved,
        "windows": list(_reserved_windows(core, status.licence)),
        "managers": list(_manager_rows(service, status)),
        **_holders(core, status.licence, caller.may_list),
    }


def _token_counts(status: LicenceStatus) -> TokenCounts:
    """Return the token counts of a licence, and the state of its pool."""
    return {
        "total": status.total,
        "ours": status.leased_tokens,
        "outside": status.outside,
        "free": None if status.free is None else max(status.free, 0),
        "state": _pool_state(status),
    }


def _reserved_windows(core: Core, licence: str) -> Iterator[TokenWindowRow]:
    """Yield reservations that hold tokens of a licence, and limits of the calendar, by start."""
    now = time.time()
    for window in core.licences.windows(licence):
        if window.entry and window.until <= now:
            continue
        count = window.licences[licence]
        if window.entry:
            count = core.licences.missing_in(window, licence)
        yield {
            "reservation": None if window.entry else window.id,
            "entry": window.entry or None,
            "count": count,
            "start": iso(window.start),
            "end": iso(window.until),
        }


def _manager_rows(service: SchedulerService, status: LicenceStatus) -> Iterator[ManagerTokens]:
    """Yield the licence counts of managers; `others` counts use outside metasched.

    `observed` is the time of the manager's last listing.
    """
    core = service.core
    for cluster in core.clusters:
        info, _ = core.cluster_status(cluster.name)
        manager_name = cluster.manager_licence_name(status.licence)
        if info is None or manager_name not in info.licences:
            continue
        manager_licences = info.licences[manager_name]
        outside_use = status.used_outside.get(cluster.name)
        yield {
            "cluster": cluster.name,
            "total": manager_licences.total,
            "used": manager_licences.used,
            "others": outside_use.outside if outside_use is not None else 0,
            "observed": iso(service.connections[cluster.name].last_listed or None),
        }


def _pool_state(status: LicenceStatus) -> str:
    """Return "ok", or the reason why no tokens of a licence can be leased."""
    if status.unknown_reason:
        return f"unknown: {status.unknown_reason}"
    excess = status.leased_tokens + status.outside + status.reserved - (status.total or 0)
    return f"over-committed by {excess}" if excess > 0 else "ok"


def licence_holders(
    core: Core, task: Task, now: float, is_visible: Callable[[str], bool]
) -> list[MissingLicence]:
    """Return the holders of each licence that a task waits for, with their expected end.

    At most `MAX_HOLDERS` of a licence, the oldest leases first; `more_holders` counts the others.
    The job and user of a holder are omitted unless `is_visible(user)`.
    """
    return [
        {
            "licence": status.licence,
            "wanted": max(r.get(status.licence, 0) for r in task.job.licence_requests),
            "windows": list(_reserved_windows(core, status.licence)),
            **_holders(core, status.licence, is_visible),
            **_token_counts(status),
        }
        for status in core.missing_licences(task, now)
    ]


def _holders(core: Core, licence: str, is_visible: Callable[[str], bool]) -> LicenceHolders:
    """Return the oldest leases of a licence as `holders`; `more_holders` counts the others."""
    return {
        "holders": [
            _holder_row(core, lease, licence, is_visible)
            for lease in islice(core.licences.leases_of(licence), MAX_HOLDERS)
        ],
        "more_holders": max(core.licences.count_leases(licence) - MAX_HOLDERS, 0),
    }


def _holder_row(
    core: Core, lease: Lease, licence: str, is_visible: Callable[[str], bool]
) -> LicenceHolder:
    """Describe a lease; `expected` is the end by the time limit, None before the job starts."""
    task = core.tasks.get((lease.job, lease.index))
    job = task.job if task else None
    started = task.attempt.started if task and task.attempt else None
    disclosed = job is not None and is_visible(job.user)
    return {
        "job": lease.job if disclosed else None,
        "task": lease.index if disclosed and job and job.array else None,
        "user": job.user if disclosed and job else None,
        "count": lease.tokens[licence],
        "since": iso(lease.since),
        "expected": iso(started + (job.time_limit or job.estimated)) if job and started else None,
    }


def describe_holders(shortages: Iterable[MissingLicence]) -> Iterator[str]:
    """Describe the holders of missing licences."""
    for shortage in shortages:
        for entry in shortage["holders"]:
            task = "" if entry["task"] is None else f"_{entry['task']}"
            holder = (
                f"job {entry['job']}{task} of {entry['user']}"
                if entry["job"]
                else "another user's job"
            )
            expected_return = f", expected back at {entry['expected']}" if entry["expected"] else ""
            yield f"{entry['count']} of {shortage['licence']} with {holder}{expected_return}"
        if shortage["more_holders"]:
            yield f"{shortage['licence']} with {shortage['more_holders']} more jobs"
        for window in shortage["windows"]:
            reservation = (
                f"reservation {window['reservation']} from {window['start']} to {window['end']}"
            )
            yield f"{window['count']} of {shortage['licence']} reserved for {reservation}"
        if shortage["outside"]:
            yield f"{shortage['outside']} of {shortage['licence']} in use by others"
