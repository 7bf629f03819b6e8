"""The route /metrics, in the text format of Prometheus or as OpenMetrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool

from metasched.api.connections import OpenConnections, Refusal
from metasched.api.readers import CurrentReaders
from metasched.api.request import CurrentCaller, CurrentDaemon
from metasched.daemon.service import Daemon, SchedulerService
from metasched.daemon.state_metrics import (
    Family,
    TaskCounts,
    daemon_families,
    service_families,
)
from metasched.db.store import StorageFailed

router = APIRouter()


class Scrape(Collector):
    """The metrics of a scrape: counters of the daemon, then readings of its state."""

    def __init__(self, daemon: Daemon, readings: Iterable[Family]) -> None:
        self._registry, self._readings = daemon.metrics.registry, readings

    def collect(self) -> Iterator[Metric]:
        yield from self._registry.collect()
        yield from self._readings


@router.get("/metrics", response_class=Response)
async def metrics(
    request: Request, daemon: CurrentDaemon, _: CurrentCaller, readers: CurrentReaders
) -> Response:
    """Return all metrics. Without a running scheduler those of the daemon alone, not an error."""
    database_up = await _database_answers(daemon)
    readings = daemon_families(
        daemon.started,
        database_up=database_up,
        size=await daemon.database_size.read() if database_up else None,
        running=daemon.unavailable_reason is None,
    )
    readings += _connection_families(request.app.state.listeners)
    if (service := daemon.service) is not None and service.failure is None:
        await readers.run_in_loop(request, _read(service, readings))
    encode, content_type = _encoder(request.headers.get("accept", ""))
    # in a thread, since the text of many clusters takes longer than a step of the scheduler
    body = await run_in_threadpool(encode, Scrape(daemon, readings))
    return Response(body, media_type=None, headers={"Content-Type": content_type})


def _read(service: SchedulerService, readings: list[Family]) -> Iterator[None]:
    """Add the readings of a service; yield after each portion."""
    counts = TaskCounts()
    yield from counts.count(service.core.state)
    for family in service_families(service, counts):
        if family is not None:
            readings.append(family)
        yield


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Return how to encode for a scraper, and the content type; plain text in case of doubt."""
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # of a version that is none
        return choose_encoder("")


async def _database_answers(daemon: Daemon) -> bool:
    try:
        await daemon.database_probe.check()
    except StorageFailed:
        return False
    return True


def _connection_families(listeners: Sequence[OpenConnections]) -> list[Family]:
    """Return the connections of each listener, and the refusals since the start."""
    open_now = GaugeMetricFamily("metasched_connections", "Open connections.", labels=["listener"])
    limits = GaugeMetricFamily(
        "metasched_connections_limit", "Most open connections.", labels=["listener"]
    )
    refused = CounterMetricFamily(
        "metasched_connections_refused",
        "Connections and requests that were refused, by kind.",
        labels=["listener", "kind"],
    )
    for connections in listeners:
        open_now.add_metric([connections.address], len(connections))
        limits.add_metric([connections.address], connections.limit)
        for kind in Refusal:
            refused.add_metric([connections.address, kind.value], connections.refusals[kind])
    return [open_now, limits, refused]
