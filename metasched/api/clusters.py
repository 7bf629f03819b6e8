"""Clusters: how each is, drained and resumed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body

from metasched.api.request import Running, Who
from metasched.client.job_request import LONGEST_NAME
from metasched.core.events import Drained, Resumed
from metasched.daemon.circuit_breaker import Breaker
from metasched.daemon.service import Engine
from metasched.errors import Wrong
from metasched.units import iso

router = APIRouter()


@dataclass(frozen=True)
class Drain:
    """How a cluster is drained: why, and whether jobs that wait there may stay."""

    reason: str = ""
    keep_pending: bool = False
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic only


@router.get("/clusters")
async def clusters(_: Who, running: Running) -> list[dict[str, Any]]:
    return [_cluster(running, c.name, c.adapter) for c in running.core.clusters]


@router.post("/clusters/{name}/drain")
async def drain(
    who: Who, running: Running, name: str, how: Annotated[Drain, Body()]
) -> dict[str, Any]:
    who.must_operate("drain clusters")
    adapter = _adapter(running, name)
    if len(how.reason) > LONGEST_NAME or not how.reason.isprintable():
        raise Wrong(422, f"reason: unprintable or more than {LONGEST_NAME}; write a line")
    running.take(Drained(time.time(), name, who.user, how.reason, how.keep_pending))
    return _cluster(running, name, adapter)


@router.post("/clusters/{name}/resume")
async def resume(who: Who, running: Running, name: str) -> dict[str, Any]:
    who.must_operate("resume clusters")
    adapter = _adapter(running, name)
    if running.core.drain(name) is not None:
        running.take(Resumed(time.time(), name, who.user))
    return _cluster(running, name, adapter)


def _adapter(engine: Engine, name: str) -> str:
    """The adapter of a cluster. Wrong if there is no such cluster."""
    found = {cluster.name: cluster.adapter for cluster in engine.core.clusters}
    if name not in found:
        raise Wrong(404, f"no cluster {name[:60]!r}; there are {', '.join(found)}")
    return found[name]


def _cluster(engine: Engine, name: str, adapter: str) -> dict[str, Any]:
    facts, silent = engine.core.view(name)
    drain = engine.core.drain(name)
    link = engine.links[name]
    state = f"down: {link.breaker.words or silent}" if silent else str(drain or "up")
    return {
        "cluster": name,
        "adapter": adapter,
        "access": link.access,
        "state": state,
        "cpus": facts.cpus if facts else 0,
        "used": facts.used if facts else 0,
        "pending": facts.pending if facts else 0,
        "records": facts.records if facts else "",
        "load": engine.core.dispatch.load(name),
        "count": engine.core.dispatch.count(name),
        "drained": drain
        and {
            "by": drain.by,
            "since": iso(drain.time),
            "reason": drain.reason,
            "keep_pending": drain.keep_pending,
        },
        "breaker": breaker_row(link.breaker),
        "worker": breaker_row(link.deaths),
    }


def breaker_row(breaker: Breaker) -> dict[str, Any]:
    return {
        "state": breaker.state(time.monotonic()),
        "failures": breaker.failures,
        "since": iso(breaker.since),
        "next_try": iso(breaker.next_try),
        "words": breaker.words,
    }
