"""What the API tells of licences: how it stands with each, and who has what a task waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from metasched.core import Core
from metasched.events import Task
from metasched.licences import Lease, Standing
from metasched.units import iso


def rows(core: Core, now: float) -> list[dict[str, Any]]:
    """The rows of `licences --json`."""
    return [row(core, standing) for standing in core.licences.standings(now)]


def row(core: Core, standing: Standing) -> dict[str, Any]:
    pool = core.licences.pool(standing.licence)
    return {
        "licence": standing.licence,
        "total": standing.total,
        "ours": standing.ours,
        "outside": standing.outside,
        "free": None if standing.free is None else max(standing.free, 0),
        "waiting": standing.waiting,
        "rho": standing.rho,
        "state": _state(standing),
        "lingering": standing.lingering,
        "headroom": pool.headroom if pool else 0,
        "clusters": list(pool.clusters) if pool else [],
        "server": pool.server if pool else "",
        "observed": iso(standing.observed),
        "chosen": standing.chosen,
        "managers": list(_managers(core, standing.licence)),
    }


def _managers(core: Core, licence: str) -> Iterator[dict[str, Any]]:
    """What managers themselves count of a licence; `others` are taken there, and not by us."""
    for cluster in core.clusters:
        facts, _ = core.view(cluster.name)
        word = cluster.maps.get("licence", {}).get(licence, licence)
        if facts is None or word not in facts.licences:
            continue
        copies = facts.licences[word]
        ours = sum(
            lease.tokens.get(licence, 0)
            for place, lease in core.licences.leases.items()
            if place in core.tasks and _on(core.tasks[place], cluster.name)
        )
        yield {
            "cluster": cluster.name,
            "total": copies.total,
            "used": copies.used,
            "others": max(copies.used - ours, 0),
        }


def _on(task: Task, cluster: str) -> bool:
    return task.attempt is not None and task.attempt.cluster == cluster


def _state(standing: Standing) -> str:
    """What keeps a licence from being leased as usual; "ok": nothing."""
    if standing.word:
        return f"unknown: {standing.word}"
    over = standing.ours + standing.outside - (standing.total or 0)
    return f"over-committed by {over}" if over > 0 else "ok"


def lacking(
    core: Core, task: Task, now: float, visible: Callable[[str], bool]
) -> list[dict[str, Any]]:
    """For each licence that keeps a task waiting who has it, and until when.

    Those whose user is not `visible` to who asks are told without job and user.
    """
    return [
        {
            "licence": standing.licence,
            "wanted": task.job.licences[standing.licence],
            "holders": [
                _holder(core, lease, standing.licence, visible)
                for lease in core.licences.leases.values()
                if standing.licence in lease.tokens
            ],
            **{key: value for key, value in row(core, standing).items() if key in _SHOWN},
        }
        for standing in core.lacks(task, now)
    ]


_SHOWN = ("total", "ours", "outside", "free", "state")


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


def told(lacking: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Who has what is lacking, in words."""
    for lack in lacking:
        for has in lack["holders"]:
            task = "" if has["task"] is None else f"_{has['task']}"
            who = f"job {has['job']}{task} of {has['user']}" if has["job"] else "another user's job"
            back = f", expected back by {has['expected']}" if has["expected"] else ""
            yield f"{has['count']} of {lack['licence']} with {who}{back}"
