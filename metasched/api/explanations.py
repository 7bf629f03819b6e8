"""Why a job is where it is, and what speaks against each cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter

from metasched.api.licences import told_who_has, who_has
from metasched.api.request import Running, Serving, Who
from metasched.api.selection import known
from metasched.core.tasks import Task
from metasched.core.transitions import FINAL, WITH_US
from metasched.daemon.manager_start_times import Expectation
from metasched.daemon.service import Engine
from metasched.model.job import State
from metasched.units import iso

router = APIRouter()


@router.get("/jobs/{job}/explain")
async def explain(daemon: Serving, who: Who, running: Running, job: str) -> dict[str, Any]:
    id, index = known(daemon, who, job)
    stored = daemon.ledger.of_job(id)
    assert stored is not None
    rows = daemon.ledger.status([(id, index)])
    # of a whole array the first task that has not ended, and of these one that waits
    row = min(rows, key=lambda r: (r["state"] in FINAL, State(r["state"]) not in WITH_US))
    task = running.core.tasks.get((id, row["task_index"]))
    clusters: list[dict[str, Any]] = []
    licences: list[dict[str, Any]] = []
    cause = daemon.ledger.story(id, row["task_index"])[-1]["cause"]
    if task is not None:
        chosen = task.attempt.cluster if task.attempt else None
        clusters = clusters_for(running, task, chosen)
        cause = running.core.waits_for(task) or cause
        if (lacking := running.core.lacking(task, now := time.time())) is not None:
            row |= {"reason": str(lacking.reason)}
            licences = who_has(
                running.core, task, now, lambda user: who.sees_all or user == who.user
            )
            cause = "; ".join((lacking.text, *told_who_has(licences)))
    expected = running.expected((id, row["task_index"]))
    whole = f"{_counted(rows)}; task {row['task_index']}: " if len(rows) > 1 else ""
    return {
        "job": id,
        "task": row["task_index"] if row["array"] else None,
        "state": row["state"],
        "reason": row["reason"],
        "text": whole + _why(row, clusters, cause) + _when(expected),
        "expected_start": iso(expected.start) if expected else None,
        "expected_told": iso(expected.told) if expected else None,
        "priority": stored["priority"],
        "parts": msgspec.json.decode(stored["parts"]),
        "clusters": clusters,
        "licences": licences,
    }


def _counted(rows: Sequence[dict[str, Any]]) -> str:
    """How many tasks are in which state, in words."""
    counts = Counter(row["state"] for row in rows)
    told = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    return f"Of {len(rows)} tasks are {told}"


def _when(expected: Expectation | None) -> str:
    """When a manager expects a task to begin, in a sentence that follows another."""
    if expected is None:
        return ""
    return (
        f" {expected.cluster} expects it to begin at {iso(expected.start)}, "
        f"as it said at {iso(expected.told)}."
    )


def _why(row: dict[str, Any], clusters: Sequence[dict[str, Any]], cause: str) -> str:
    """Why a task is where it is, in a sentence."""
    where = f"on {row['cluster']}" if row["cluster"] else "with us"
    match State(row["state"]):
        case State.HELD:
            return "It is held; release it to let it go."
        case State.QUEUED if row["reason"] == "begin_time":
            return "It waits for its begin time."
        case State.QUEUED if row["reason"] == "dependency":
            return f"It waits for other jobs: {cause}."
        case State.QUEUED if row["reason"] in ("licence_busy", "licence_unknown"):
            return f"It waits for its licences: {cause}."
        case State.QUEUED if row["reason"] == "limit_array":
            return f"It waits until fewer tasks of its array ({row['array']}) are under way."
        case State.QUEUED:
            told = "; ".join(f"{c['cluster']}: {c['text']}" for c in clusters if c["text"])
            return f"It waits {where}: {told or cause}."
        case State.DISPATCHING:
            return f"It is being sent to {row['cluster']} ({cause})."
        case State.PENDING:
            word = row["reason"].removeprefix("manager:") or "it has just arrived"
            return f"It waits in the queue {where}: {word}."
        case State.UNKNOWN:
            return f"Nobody can say how it is {where}: {cause}."
        case State.RUNNING | State.SUSPENDED:
            return f"It is {row['state']} {where} since {iso(row['started'])}."
        case ended:
            return f"It has ended {where}: {ended}{f' ({cause})' if cause else ''}."


def clusters_for(engine: Engine, task: Task, chosen: str | None) -> list[dict[str, Any]]:
    return [
        {
            "cluster": v.cluster,
            "eligible": v.unfit is None,
            "reason": v.unfit.reason if v.unfit else None,
            "text": v.unfit.text if v.unfit else "",
            "load": v.load,
            "count": v.count,
            "chosen": v.cluster == chosen,
        }
        for v in engine.core.verdicts(task)
    ]
