"""Routes that list, drain and resume clusters."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Body, Request
from fastapi.responses import Response

from metasched.api.pages import RequestedPage
from metasched.api.readers import CurrentReaders
from metasched.api.request import CurrentCaller, CurrentService
from metasched.api.selection import find_cluster
from metasched.api.whole_answers import live_answer
from metasched.client.options import MAX_NAME_LENGTH
from metasched.client.site_answers import (
    BreakerRow,
    ClusterRow,
    LocalPolicyRow,
    NativeClusterRow,
    NativeClustersAnswer,
    UseRow,
)
from metasched.config.settings import ClusterSettings
from metasched.core.events import ClusterDrained, ClusterResumed
from metasched.daemon.circuit_breaker import CircuitBreaker
from metasched.daemon.cluster_connection import ClusterConnection
from metasched.daemon.service import SchedulerService
from metasched.daemon.use_monitor import UseMonitor
from metasched.errors import ApiError
from metasched.model.request_texts import Reason
from metasched.model.units import iso

router = APIRouter()


@dataclass(frozen=True)
class DrainOptions:
    """Options of a drain."""

    reason: Reason = ""
    keep_pending: bool = False  # leave jobs that are pending there
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic only


@router.get("/clusters", response_model=list[ClusterRow])
async def clusters(
    request: Request,
    _: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    page: RequestedPage,
) -> Response:
    """List clusters in the order of the configuration."""
    clusters = service.core.clusters
    rows = (_cluster_row(service, cluster.name, cluster.adapter) for cluster in clusters)
    return await live_answer(request, readers, rows, page)


@router.post("/clusters/{name}/drain")
async def drain(
    caller: CurrentCaller,
    service: CurrentService,
    name: str,
    options: Annotated[DrainOptions, Body()],
) -> ClusterRow:
    caller.require_operator("drain clusters")
    adapter = find_cluster(service, name).adapter
    if len(options.reason) > MAX_NAME_LENGTH or not options.reason.isprintable():
        raise ApiError(
            422, f"reason: unprintable or over {MAX_NAME_LENGTH} characters; write a line"
        )
    await service.apply_events(
        ClusterDrained(time.time(), name, caller.user, options.reason, options.keep_pending)
    )
    return _cluster_row(service, name, adapter)


@router.post("/clusters/{name}/resume")
async def resume(caller: CurrentCaller, service: CurrentService, name: str) -> ClusterRow:
    caller.require_operator("resume clusters")
    adapter = find_cluster(service, name).adapter
    if service.core.find_drain(name) is not None:
        await service.apply_events(ClusterResumed(time.time(), name, caller.user))
    return _cluster_row(service, name, adapter)


def _cluster_row(service: SchedulerService, name: str, adapter: str) -> ClusterRow:
    """Return a row of `clusters --json`."""
    info, unreachable_reason = service.core.cluster_status(name)
    drain_state = service.core.find_drain(name)
    refusal, refused_users = service.core.refusal_of(name)
    connection = service.connections[name]
    pulls, pulls_started = service.core.pull_counts(name)
    state = (
        f"down: {connection.breaker.last_error or unreachable_reason}"
        if unreachable_reason
        else str(drain_state or (refusal and f"refusing: {refusal}") or "up")
    )
    return {
        "cluster": name,
        "adapter": adapter,
        "access": connection.worker.access,
        "state": state,
        "refusing": refusal,
        "refused_users": refused_users,
        "cpus": info.cpus if info else 0,
        "used": info.used_cpus if info else 0,
        "pending": info.pending_jobs if info else 0,
        "records": info.accounting_source if info else "",
        "listed": iso(connection.last_listed or None),
        "load": service.core.load_ordering.load(name),
        "count": service.core.load_ordering.count(name),
        "pulls": pulls,
        "pulls_started_at_once": pulls_started,
        "drained": None
        if drain_state is None
        else {
            "by": drain_state.by,
            "since": iso(drain_state.time),
            "reason": drain_state.reason,
            "keep_pending": drain_state.keep_pending,
            "entry": drain_state.entry or None,
        },
        "set_aside": len(connection.row_filter.rows),
        "local_policy": _local_policy_row(connection),
        "breaker": breaker_row(connection.breaker),
        "worker": breaker_row(connection.worker.breaker),
        "use": _use_row(connection.use_monitor),
        "max_native_id": info.max_native_id if info else None,
    }


def _local_policy_row(connection: ClusterConnection) -> LocalPolicyRow | None:
    exclusions = connection.worker.exclusions
    if exclusions is None:
        return None
    return {
        "excluded": exclusions.excluded,
        "excluded_passes": connection.excluded_passes,
    }


@router.get("/clusters/native")
async def native(_: CurrentCaller, service: CurrentService) -> NativeClustersAnswer:
    """Return where the clusters' own commands are, and which ids and tags are metasched's."""
    return {
        "first_id": service.settings.first_id,
        "instances": sorted(service.core.instances.names),
        "clusters": [_native_row(service, entry) for entry in service.settings.clusters],
    }


def _native_row(service: SchedulerService, settings: ClusterSettings) -> NativeClusterRow:
    """Return the data for a user's own command of Slurm to reach a cluster; others have none."""
    cluster = settings.cluster
    options = settings.options if settings.capabilities.has_slurm_commands else {}
    info, unreachable_reason = service.core.cluster_status(cluster.name)
    return {
        "cluster": cluster.name,
        "manager_name": info.manager_name if info else "",
        "up": not unreachable_reason,
        "accounting": bool(info and info.use_source),
        "config": options.get("config"),
        "bin_dir": options.get("bin_dir"),
        "tag_field": options.get("tag_field"),
        "native_jobs": options.get("native_jobs", False),
    }


def _use_row(monitor: UseMonitor) -> UseRow:
    """Return the report of the accounting on other jobs' use and on shares."""
    return {
        "source": monitor.source,
        "until": iso(monitor.cursor.until if monitor.cursor else None),
        "breaker": breaker_row(monitor.breaker),
        "shares": breaker_row(monitor.shares_breaker),
    }


def breaker_row(breaker: CircuitBreaker) -> BreakerRow:
    """Return the state of a circuit breaker for JSON."""
    return {
        "state": breaker.state(time.monotonic()),
        "failures": breaker.failures,
        "since": iso(breaker.failing_since),
        "next_try": iso(breaker.next_retry),
        "words": breaker.last_error,
    }
