"""Licences: how it stands with each, who has what a task waits for, totals and releases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body

from metasched.api.clusters import breaker_row
from metasched.api.request import Running, Serving, Who
from metasched.api.selection import Choice, chosen
from metasched.core.events import LicenceSet, LicencesReleased
from metasched.core.scheduler import Core
from metasched.core.tasks import Task
from metasched.daemon.licence_monitor import Watch
from metasched.daemon.service import Engine
from metasched.errors import Wrong
from metasched.model.job import State
from metasched.model.licence import MOST, Lease, Standing
from metasched.units import iso

router = APIRouter()


@dataclass(frozen=True)
class Total:
    """How many of a licence there are; None: as configured."""

    total: int | None
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic only


@router.get("/licences")
async def licences(_: Who, running: Running) -> list[dict[str, Any]]:
    return [_row(running, one) for one in running.core.licences.standings(time.time())]


@router.get("/licences/servers")
async def licence_servers(_: Who, running: Running) -> list[dict[str, Any]]:
    return [_licence_server(watch) for watch in running.watches]


@router.post("/licences/release")
async def release_licences(
    daemon: Serving, who: Who, running: Running, choice: Annotated[Choice, Body()]
) -> dict[str, Any]:
    """Take back what the chosen tasks have leased that are unknown; of others a note."""
    who.must_operate("take back licences")
    now, answers = time.time(), []
    indices: dict[int, list[int]] = {}
    for row in chosen(daemon, who, "release", choice):
        place = (row["job"], row["task_index"])
        lease = running.core.licences.leases.get(place)
        unknown = row["state"] == State.UNKNOWN
        if lease is None:
            note = "it has no licences"
        elif unknown:
            note = ""
            indices.setdefault(place[0], []).append(place[1])
        else:
            note = f"it is {row['state']}; only what is unknown can lose its licences"
        answers.append(
            {
                "job": row["job"],
                "task": row["task_index"] if row["array"] else None,
                "released": dict(lease.tokens) if lease is not None and unknown else {},
                "note": note,
            }
        )
    events = [LicencesReleased(now, id, tuple(of), who.user) for id, of in indices.items()]
    if events:
        running.take(*events)
    return {"jobs": answers}


@router.post("/licences/{name}/total")
async def set_licence(
    who: Who, running: Running, name: str, how: Annotated[Total, Body()]
) -> dict[str, Any]:
    who.must_operate("set how many licences there are")
    tokens = running.core.licences
    if (why := tokens.refusal({name: 0})) is not None:
        raise Wrong(404, why)
    if how.total is not None and not 0 <= how.total <= MOST:
        raise Wrong(422, f"{how.total} of a licence; give 0 to {MOST}")
    now = time.time()
    running.take(LicenceSet(now, name, how.total, who.user))
    return _row(running, tokens.standing(name, now))


def _licence_server(watch: Watch) -> dict[str, Any]:
    return {
        "server": watch.settings.name,
        "kind": watch.settings.kind,
        "licences": [pool.name for pool in watch.pools],
        "observed": iso(watch.observed),
        "lacking": watch.lacking,
        "breaker": breaker_row(watch.breaker),
    }


def _row(running: Engine, standing: Standing) -> dict[str, Any]:
    """A row of `licences --json`."""
    core = running.core
    pool = core.licences.pool(standing.licence)
    return {
        "licence": standing.licence,
        **_shares(standing),
        "waiting": standing.waiting,
        "rho": standing.rho,
        "lingering": standing.lingering,
        "headroom": pool.headroom if pool else 0,
        "clusters": list(pool.clusters) if pool else [],
        "machines": {
            cluster.name: cluster.licensed[standing.licence]
            for cluster in core.clusters
            if standing.licence in cluster.licensed
        },
        "server": pool.server if pool else "",
        "observed": iso(standing.observed),
        "chosen": standing.chosen,
        "reserved": standing.reserved,
        "windows": list(_windows(core, standing.licence)),
        "managers": list(_managers(running, standing)),
    }


def _shares(standing: Standing) -> dict[str, Any]:
    """Who has how many, and what keeps more from being leased."""
    return {
        "total": standing.total,
        "ours": standing.ours,
        "outside": standing.outside,
        "free": None if standing.free is None else max(standing.free, 0),
        "state": _state(standing),
    }


def _windows(core: Core, licence: str) -> Iterator[dict[str, Any]]:
    """The reservations that have some of a licence, by their start."""
    for window in core.licences.windows(licence):
        yield {
            "reservation": window.id,
            "count": window.licences[licence],
            "start": iso(window.start),
            "end": iso(window.until),
        }


def _managers(running: Engine, standing: Standing) -> Iterator[dict[str, Any]]:
    """What managers themselves count of a licence; `others` are taken there, and not by us.

    `observed` is when the manager was last asked.
    """
    core = running.core
    for cluster in core.clusters:
        facts, _ = core.view(cluster.name)
        word = cluster.licence(standing.licence)
        if facts is None or word not in facts.licences:
            continue
        copies, others = facts.licences[word], standing.past_us.get(cluster.name)
        yield {
            "cluster": cluster.name,
            "total": copies.total,
            "used": copies.used,
            "others": others.outside if others is not None else 0,
            "observed": iso(running.links[cluster.name].listed or None),
        }


def _state(standing: Standing) -> str:
    """What keeps a licence from being leased as usual; "ok": nothing."""
    if standing.word:
        return f"unknown: {standing.word}"
    over = standing.ours + standing.outside + standing.reserved - (standing.total or 0)
    return f"over-committed by {over}" if over > 0 else "ok"


def who_has(
    core: Core, task: Task, now: float, visible: Callable[[str], bool]
) -> list[dict[str, Any]]:
    """For each licence that keeps a task waiting who has it, and until when.

    Those whose user is not `visible` to who asks are told without job and user.
    """
    return [
        {
            "licence": standing.licence,
            "wanted": task.job.licences[standing.licence],
            "windows": list(_windows(core, standing.licence)),
            "holders": [
                _holder(core, lease, standing.licence, visible)
                for lease in core.licences.leases.values()
                if standing.licence in lease.tokens
            ],
            **_shares(standing),
        }
        for standing in core.lacks(task, now)
    ]


def _holder(
    core: Core, lease: Lease, licence: str, visible: Callable[[str], bool]
) -> dict[str, Any]:
    """A lease, and when its job ends by its time limit; None: it has not begun, or is unknown."""
    task = core.tasks.get((lease.job, lease.index))
    job = task.job if task else None
    started = task.attempt.started if task and task.attempt else None
    seen = job is not None and visible(job.user)
    return {
        "job": lease.job if seen else None,
        "task": lease.index if seen and job and job.array else None,
        "user": job.user if seen and job else None,
        "count": lease.tokens[licence],
        "since": iso(lease.since),
        "expected": iso(started + (job.time_limit or job.estimated)) if job and started else None,
    }


def told_who_has(lacking: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Who has what is lacking, in words."""
    for lack in lacking:
        for has in lack["holders"]:
            task = "" if has["task"] is None else f"_{has['task']}"
            who = f"job {has['job']}{task} of {has['user']}" if has["job"] else "another user's job"
            back = f", expected back by {has['expected']}" if has["expected"] else ""
            yield f"{has['count']} of {lack['licence']} with {who}{back}"
        for has in lack["windows"]:
            window = f"reservation {has['reservation']} from {has['start']} to {has['end']}"
            yield f"{has['count']} of {lack['licence']} kept for {window}"
        if lack["outside"]:
            yield f"{lack['outside']} of {lack['licence']} in use by others"
