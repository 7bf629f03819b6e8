"""Licences: how it stands with each, who has what a task waits for, totals and releases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body

from metasched.api.clusters import breaker_row
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.api.selection import JobSelection, select_tasks
from metasched.core.events import LicenceSet, LicencesReleased
from metasched.core.scheduler import Core
from metasched.core.tasks import Task
from metasched.daemon.licence_monitor import LicenceMonitor
from metasched.daemon.service import SchedulerService
from metasched.errors import ApiError
from metasched.model.job import State
from metasched.model.licence import MAX_TOKENS, Lease, LicenceStatus
from metasched.units import iso

router = APIRouter()


@dataclass(frozen=True)
class LicenceTotal:
    """How many of a licence there are; None: as configured."""

    total: int | None
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic only


@router.get("/licences")
async def licences(_: CurrentCaller, service: CurrentService) -> list[dict[str, Any]]:
    return [
        _licence_row(service, standing) for standing in service.core.licences.statuses(time.time())
    ]


@router.get("/licences/servers")
async def licence_servers(_: CurrentCaller, service: CurrentService) -> list[dict[str, Any]]:
    return [_server_row(monitor) for monitor in service.licence_monitors]


@router.post("/licences/release")
async def release_licences(
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    service: CurrentService,
    selection: Annotated[JobSelection, Body()],
) -> dict[str, Any]:
    """Take back what the chosen tasks have leased that are unknown; of others a note."""
    caller.require_operator("take back licences")
    now, results = time.time(), []
    indices: dict[int, list[int]] = {}
    for row in select_tasks(daemon, caller, "release", selection):
        task_id = (row["job"], row["task_index"])
        lease = service.core.licences.leases.get(task_id)
        is_unknown = row["state"] == State.UNKNOWN
        if lease is None:
            note = "it has no licences"
        elif is_unknown:
            note = ""
            indices.setdefault(task_id[0], []).append(task_id[1])
        else:
            note = f"it is {row['state']}; only what is unknown can lose its licences"
        results.append(
            {
                "job": row["job"],
                "task": row["task_index"] if row["array"] else None,
                "released": dict(lease.tokens) if lease is not None and is_unknown else {},
                "note": note,
            }
        )
    events = [
        LicencesReleased(now, job_id, tuple(task_indices), caller.user)
        for job_id, task_indices in indices.items()
    ]
    if events:
        service.apply_events(*events)
    return {"jobs": results}


@router.post("/licences/{name}/total")
async def set_licence(
    caller: CurrentCaller,
    service: CurrentService,
    name: str,
    requested: Annotated[LicenceTotal, Body()],
) -> dict[str, Any]:
    caller.require_operator("set how many licences there are")
    pools = service.core.licences
    if (refusal := pools.refusal({name: 0})) is not None:
        raise ApiError(404, refusal)
    if requested.total is not None and not 0 <= requested.total <= MAX_TOKENS:
        raise ApiError(422, f"{requested.total} of a licence; give 0 to {MAX_TOKENS}")
    now = time.time()
    service.apply_events(LicenceSet(now, name, requested.total, caller.user))
    return _licence_row(service, pools.status(name, now))


def _server_row(monitor: LicenceMonitor) -> dict[str, Any]:
    return {
        "server": monitor.settings.name,
        "kind": monitor.settings.server_type,
        "licences": [pool.name for pool in monitor.pools],
        "observed": iso(monitor.observed),
        "lacking": monitor.missing_licences,
        "breaker": breaker_row(monitor.breaker),
    }


def _licence_row(service: SchedulerService, standing: LicenceStatus) -> dict[str, Any]:
    """A row of `licences --json`."""
    core = service.core
    pool = core.licences.configured_pool(standing.licence)
    return {
        "licence": standing.licence,
        **_token_counts(standing),
        "waiting": standing.waiting_tokens,
        "rho": standing.rho,
        "lingering": standing.lingering,
        "headroom": pool.headroom if pool else 0,
        "clusters": list(pool.clusters) if pool else [],
        "machines": {
            cluster.name: cluster.licence_features[standing.licence]
            for cluster in core.clusters
            if standing.licence in cluster.licence_features
        },
        "server": pool.server if pool else "",
        "observed": iso(standing.observed),
        "chosen": standing.operator_total,
        "reserved": standing.reserved,
        "windows": list(_reserved_windows(core, standing.licence)),
        "managers": list(_manager_rows(service, standing)),
    }


def _token_counts(standing: LicenceStatus) -> dict[str, Any]:
    """Who has how many, and what keeps more from being leased."""
    return {
        "total": standing.total,
        "ours": standing.leased_tokens,
        "outside": standing.outside,
        "free": None if standing.free is None else max(standing.free, 0),
        "state": _pool_state(standing),
    }


def _reserved_windows(core: Core, licence: str) -> Iterator[dict[str, Any]]:
    """The reservations that have some of a licence, by their start."""
    for window in core.licences.windows(licence):
        yield {
            "reservation": window.id,
            "count": window.licences[licence],
            "start": iso(window.start),
            "end": iso(window.until),
        }


def _manager_rows(service: SchedulerService, standing: LicenceStatus) -> Iterator[dict[str, Any]]:
    """What managers themselves count of a licence; `others` are taken there, and not by us.

    `observed` is when the manager was last asked.
    """
    core = service.core
    for cluster in core.clusters:
        info, _ = core.cluster_status(cluster.name)
        manager_name = cluster.manager_licence_name(standing.licence)
        if info is None or manager_name not in info.licences:
            continue
        manager_licences, outside_use = (
            info.licences[manager_name],
            standing.used_outside.get(cluster.name),
        )
        yield {
            "cluster": cluster.name,
            "total": manager_licences.total,
            "used": manager_licences.used,
            "others": outside_use.outside if outside_use is not None else 0,
            "observed": iso(service.connections[cluster.name].last_listed or None),
        }


def _pool_state(standing: LicenceStatus) -> str:
    """What keeps a licence from being leased as usual; "ok": nothing."""
    if standing.unknown_reason:
        return f"unknown: {standing.unknown_reason}"
    excess = standing.leased_tokens + standing.outside + standing.reserved - (standing.total or 0)
    return f"over-committed by {excess}" if excess > 0 else "ok"


def licence_holders(
    core: Core, task: Task, now: float, is_visible: Callable[[str], bool]
) -> list[dict[str, Any]]:
    """For each licence that keeps a task waiting who has it, and until when.

    Those whose user is not `visible` to who asks are told without job and user.
    """
    return [
        {
            "licence": standing.licence,
            "wanted": task.job.licences[standing.licence],
            "windows": list(_reserved_windows(core, standing.licence)),
            "holders": [
                _holder_row(core, lease, standing.licence, is_visible)
                for lease in core.licences.leases.values()
                if standing.licence in lease.tokens
            ],
            **_token_counts(standing),
        }
        for standing in core.missing_licences(task, now)
    ]


def _holder_row(
    core: Core, lease: Lease, licence: str, is_visible: Callable[[str], bool]
) -> dict[str, Any]:
    """A lease, and when its job ends by its time limit; None: it has not begun, or is unknown."""
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


def describe_holders(shortages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Who has what is lacking, in words."""
    for shortage in shortages:
        for entry in shortage["holders"]:
            task = "" if entry["task"] is None else f"_{entry['task']}"
            holder = (
                f"job {entry['job']}{task} of {entry['user']}"
                if entry["job"]
                else "another user's job"
            )
            expected_return = f", expected back by {entry['expected']}" if entry["expected"] else ""
            yield f"{entry['count']} of {shortage['licence']} with {holder}{expected_return}"
        for entry in shortage["windows"]:
            reservation = (
                f"reservation {entry['reservation']} from {entry['start']} to {entry['end']}"
            )
            yield f"{entry['count']} of {shortage['licence']} kept for {reservation}"
        if shortage["outside"]:
            yield f"{shortage['outside']} of {shortage['licence']} in use by others"
