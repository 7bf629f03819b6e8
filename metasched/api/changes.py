"""Jobs are cancelled, held, released, requeued, resolved and modified."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body

from metasched.api.modifications import (
    METASCHED_FIELDS,
    JobChanges,
    changed_fields,
    describe_changes,
    needs_new_dispatch,
)
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.api.reservations import check_reservation_fit
from metasched.api.selection import JobSelection, change_results, select_tasks
from metasched.api.submissions import deadline_warnings, default_time_limit, dependency_fates
from metasched.core.dependency_status import TargetSummary
from metasched.core.events import CoreEvent, JobModified, JobRequeued, UserAction, UserRequested
from metasched.core.transitions import FINAL, QUEUED_OR_HELD, STARTED, UNSTARTED
from metasched.daemon.service import SchedulerService
from metasched.errors import ApiError
from metasched.model.job import Job, State

router = APIRouter()


@router.post("/jobs/modify")
async def modify(
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    service: CurrentService,
    choice: Annotated[JobSelection, Body()],
    changes: Annotated[JobChanges, Body()],
) -> dict[str, Any]:
    """Change every chosen job, or none at all if one of those named cannot be changed."""
    if not changes.model_fields_set:
        raise ApiError(422, "nothing to change; give --time, --deadline or another option")
    if task_reference := next((reference for reference in choice.jobs if "_" in reference), None):
        raise ApiError(
            422,
            f"{task_reference} is a task; name the whole job {task_reference.partition('_')[0]}",
        )
    max_priority = service.settings.policy.max_priority
    if changes.priority is not None and changes.priority > max_priority:
        raise ApiError(
            422, f"priority {changes.priority} is too high; it goes from 1 to {max_priority}"
        )
    if changes.priority is not None:
        caller.require_operator("set priorities")
    rows = select_tasks(daemon, caller, "modify", choice)
    now, events = time.time(), []
    states: dict[int, set[State]] = {}
    for row in rows:
        states.setdefault(row["job"], set()).add(State(row["state"]))
    notes: dict[int, str] = {}
    for job_id in states:
        states[job_id] -= FINAL
        job, _ = daemon.ledger.current_job(job_id)
        default_limit = default_time_limit(service, changes.partition or job.partition)
        try:
            modified = changes.apply_to(job, default_limit)
        except ValueError as error:
            raise ApiError(422, f"{error}, job {job_id}; give another") from None
        managers_unaffected = not (changed_fields(job, modified) - METASCHED_FIELDS)
        if not states[job_id]:
            notes[job_id] = "it has ended; requeue it first"
        elif states[job_id] <= STARTED and not managers_unaffected:
            notes[job_id] = (
                "it is running; only deadline, urgency, priority and name can be changed"
            )
        elif (refusal := service.core.rejection_reason(modified)) is not None:
            raise ApiError(403, f"job {job_id}: {refusal}")
        else:
            if {"time_limit", "clusters", "begin"} & changed_fields(job, modified):
                check_reservation_fit(service, modified, now)
            needs_dispatch = needs_new_dispatch(job, modified, now)
            description = (
                describe_changes(job, modified) or f"priority {changes.priority or 'as classified'}"
            )
            events.append(
                JobModified(
                    now, modified, description, needs_dispatch, changes.priority, caller.user
                )
            )
            notes[job_id] = "; ".join(deadline_warnings(modified)) if managers_unaffected else ""
            continue
        if choice.jobs:
            raise ApiError(403, f"job {job_id}: {notes[job_id]}")
    if events:
        service.apply_events(*events)
    return {"jobs": change_results(daemon, rows, [notes[row["job"]] for row in rows])}


@router.post("/jobs/{wish}")
async def request_action(
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    service: CurrentService,
    wish: UserAction,
    selection: Annotated[JobSelection, Body()],
) -> dict[str, Any]:
    """Carry out a wish on every chosen task; unknown ids change nothing at all."""
    if wish in ("lost", "ran"):
        caller.require_operator("resolve jobs")
    rows = select_tasks(daemon, caller, wish, selection)
    now = time.time()
    indices: dict[int, list[int]] = {}
    for row in rows:
        indices.setdefault(row["job"], []).append(row["task_index"])
    notes = [_note_for(wish, State(row["state"]), _has_started(service, row)) for row in rows]
    events: list[CoreEvent] = []
    for job_id, task_indices in indices.items():
        events.append(UserRequested(now, wish, job_id, tuple(task_indices), caller.user))
        if wish == "requeue":
            ended_tasks, last_dispatch = daemon.ledger.ended_tasks(job_id, task_indices)
            if ended_tasks:
                submitted_job, priority = daemon.ledger.current_job(job_id)
                any_waiting = any(task.attempts == 0 for task in ended_tasks)
                fates = _dependency_fates(service, submitted_job) if any_waiting else ()
                events.append(
                    JobRequeued(
                        now, submitted_job, priority, last_dispatch, ended_tasks, caller.user, fates
                    )
                )
    if events:
        service.apply_events(*events)
    return {"jobs": change_results(daemon, rows, notes)}


def _dependency_fates(service: SchedulerService, job: Job) -> tuple[TargetSummary, ...]:
    """What has become of the jobs that one depends on. Wrong if one of them is forgotten."""
    try:
        return dependency_fates(service, job)
    except ApiError as error:
        missing = str(error).partition("; ")[0]
        raise ApiError(404, f"job {job.id} cannot be requeued: {missing}; submit it anew") from None


def _has_started(service: SchedulerService, row: Mapping[str, Any]) -> bool:
    """Whether a task that may wait again has begun in its present sending."""
    task = service.core.tasks.get((row["job"], row["task_index"]))
    return task is not None and task.attempt is not None and task.attempt.has_started


def _note_for(action: str, state: State, started: bool) -> str:
    """What a wish will do to a task in that state, where it is not plain."""
    if action == "requeue":
        if state is State.PENDING and started:
            return "its cluster begins it again by itself; nothing to requeue"
        if state in UNSTARTED | QUEUED_OR_HELD:
            return f"it is {state} and has not begun; nothing to requeue"
        if state is State.UNKNOWN:
            return "nobody knows whether it runs; resolve it first"
        return "" if state in FINAL else "it runs again as soon as it has been ended"
    if action in ("lost", "ran"):
        message = f"it is {state}; only what is unknown needs to be resolved"
        return "" if state is State.UNKNOWN else message
    if state in FINAL:
        return f"it has ended ({state}); nothing to {action}"
    if action == "hold" and state is State.PENDING and started:
        return "its cluster begins it again by itself; only what has not begun can be held"
    if action == "hold" and state not in UNSTARTED | {State.QUEUED, State.HELD}:
        return f"it is {state}; only what has not begun can be held"
    if action == "release" and state is not State.HELD:
        return "it is with its cluster; a hold under way is taken back"
    if action == "cancel" and state is State.UNKNOWN:
        return "it is cancelled when its cluster shows it again; resolve it if that never will"
    return ""
