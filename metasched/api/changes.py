"""Jobs are cancelled, held, released, requeued, resolved and modified."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body

from metasched.api.modifications import OURS, Changes, different, must_be_sent_anew, told
from metasched.api.request import Running, Serving, Who
from metasched.api.reservations import must_fit
from metasched.api.selection import Choice, answers, chosen
from metasched.api.submissions import default_time, fates_of, warnings_of
from metasched.core.events import Asked, CoreEvent, Modified, Requeued, Wish
from metasched.core.transitions import BEGUN, FINAL, UNSTARTED, WITH_US
from metasched.daemon.service import Engine
from metasched.errors import Wrong
from metasched.model.dependencies import Fate
from metasched.model.job import Job, State

router = APIRouter()


@router.post("/jobs/modify")
async def modify(
    daemon: Serving,
    who: Who,
    running: Running,
    choice: Annotated[Choice, Body()],
    changes: Annotated[Changes, Body()],
) -> dict[str, Any]:
    """Change every chosen job, or none at all if one of those named cannot be changed."""
    if not changes.model_fields_set:
        raise Wrong(422, "nothing to change; give --time, --deadline or another option")
    if alone := next((word for word in choice.jobs if "_" in word), None):
        raise Wrong(422, f"{alone} is a task; name the whole job {alone.partition('_')[0]}")
    most = running.settings.policy.max_priority
    if changes.priority is not None and changes.priority > most:
        raise Wrong(422, f"priority {changes.priority} is too high; it goes from 1 to {most}")
    if changes.priority is not None:
        who.must_operate("set priorities")
    rows = chosen(daemon, who, "modify", choice)
    now, events = time.time(), []
    states: dict[int, set[State]] = {}
    for row in rows:
        states.setdefault(row["job"], set()).add(State(row["state"]))
    notes: dict[int, str] = {}
    for id in states:
        states[id] -= FINAL
        job, _ = daemon.ledger.asked(id)
        default = default_time(running, changes.partition or job.partition)
        try:
            new = changes.of(job, default)
        except ValueError as error:
            raise Wrong(422, f"{error}, job {id}; give another") from None
        ours = not (different(job, new) - OURS)
        if not states[id]:
            notes[id] = "it has ended; requeue it first"
        elif states[id] <= BEGUN and not ours:
            notes[id] = "it is running; only deadline, urgency, priority and name can be changed"
        elif (why := running.core.refusal(new)) is not None:
            raise Wrong(403, f"job {id}: {why}")
        else:
            if {"time_limit", "clusters", "begin"} & different(job, new):
                must_fit(running, new, now)
            anew = must_be_sent_anew(job, new, now)
            words = told(job, new) or f"priority {changes.priority or 'as classified'}"
            events.append(Modified(now, new, words, anew, changes.priority, who.user))
            notes[id] = "; ".join(warnings_of(new)) if ours else ""
            continue
        if choice.jobs:
            raise Wrong(403, f"job {id}: {notes[id]}")
    if events:
        running.take(*events)
    return {"jobs": answers(daemon, rows, [notes[row["job"]] for row in rows])}


@router.post("/jobs/{wish}")
async def ask(
    daemon: Serving,
    who: Who,
    running: Running,
    wish: Wish,
    choice: Annotated[Choice, Body()],
) -> dict[str, Any]:
    """Carry out a wish on every chosen task; unknown ids change nothing at all."""
    if wish in ("lost", "ran"):
        who.must_operate("resolve jobs")
    rows = chosen(daemon, who, wish, choice)
    now = time.time()
    indices: dict[int, list[int]] = {}
    for row in rows:
        indices.setdefault(row["job"], []).append(row["task_index"])
    notes = [_note(wish, State(row["state"]), _has_begun(running, row)) for row in rows]
    events: list[CoreEvent] = []
    for job, of in indices.items():
        events.append(Asked(now, wish, job, tuple(of), who.user))
        if wish == "requeue":
            tasks, last = daemon.ledger.ended(job, of)
            if tasks:
                asked, priority = daemon.ledger.asked(job)
                waits = any(again.attempts == 0 for again in tasks)
                fates = _still_known(running, asked) if waits else ()
                events.append(Requeued(now, asked, priority, last, tasks, who.user, fates))
    if events:
        running.take(*events)
    return {"jobs": answers(daemon, rows, notes)}


def _still_known(running: Engine, job: Job) -> tuple[Fate, ...]:
    """What has become of the jobs that one depends on. Wrong if one of them is forgotten."""
    try:
        return fates_of(running, job)
    except Wrong as error:
        lost = str(error).partition("; ")[0]
        raise Wrong(404, f"job {job.id} cannot be requeued: {lost}; submit it anew") from None


def _has_begun(running: Engine, row: Mapping[str, Any]) -> bool:
    """Whether a task that may wait again has begun in its present sending."""
    task = running.core.tasks.get((row["job"], row["task_index"]))
    return task is not None and task.attempt is not None and task.attempt.begun


def _note(wish: str, state: State, begun: bool) -> str:
    """What a wish will do to a task in that state, where it is not plain."""
    if wish == "requeue":
        if state is State.PENDING and begun:
            return "its cluster begins it again by itself; nothing to requeue"
        if state in UNSTARTED | WITH_US:
            return f"it is {state} and has not begun; nothing to requeue"
        if state is State.UNKNOWN:
            return "nobody knows whether it runs; resolve it first"
        return "" if state in FINAL else "it runs again as soon as it has been ended"
    if wish in ("lost", "ran"):
        plain = f"it is {state}; only what is unknown needs to be resolved"
        return "" if state is State.UNKNOWN else plain
    if state in FINAL:
        return f"it has ended ({state}); nothing to {wish}"
    if wish == "hold" and state is State.PENDING and begun:
        return "its cluster begins it again by itself; only what has not begun can be held"
    if wish == "hold" and state not in UNSTARTED | {State.QUEUED, State.HELD}:
        return f"it is {state}; only what has not begun can be held"
    if wish == "release" and state is not State.HELD:
        return "it is with its cluster; a hold under way is taken back"
    if wish == "cancel" and state is State.UNKNOWN:
        return "it is cancelled when its cluster shows it again; resolve it if that never will"
    return ""
