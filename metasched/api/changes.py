"""Routes that cancel, hold, release, requeue, resolve and modify jobs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Annotated

from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import Response

from metasched.api.change_answers import AppliedChange, ChangedStates, change_answer
from metasched.api.identity import Caller
from metasched.api.modifications import (
    METASCHED_FIELDS,
    JobChanges,
    changed_fields,
    describe_changes,
    needs_new_dispatch,
)
from metasched.api.readers import CurrentReaders, Readers
from metasched.api.request import CurrentCaller, CurrentService
from metasched.api.selection import JobSelection, SelectedTasks, parse_states, select_tasks
from metasched.api.submissions import deadline_warnings, default_time_limit, dependency_targets
from metasched.client.job_answers import ChangedTasks, FoldedChanges
from metasched.core.dependency_status import TargetSummary
from metasched.core.events import (
    CoreEvent,
    JobModified,
    JobRequeued,
    Outcome,
    UserAction,
    UserRequested,
)
from metasched.core.scheduler import Core
from metasched.core.transitions import FINAL, QUEUED_OR_HELD, STARTED, UNSTARTED
from metasched.daemon.reserved_jobs import check_reservation_fit
from metasched.daemon.service import SchedulerService
from metasched.db.store import StorageFailed
from metasched.errors import ApiError
from metasched.model.job import Job, State

MAX_EXIT_CODE = 255
PORTION = 1_000  # tasks that are changed before others are served
Fold = Annotated[bool, Query(description="Answer with one row for equal tasks of a job.")]
router = APIRouter()


@dataclass(frozen=True)
class ActionRequest(JobSelection):
    """The jobs that an action is for."""

    exit_code: int | None = None  # of `ran`: of each task
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic only


@router.post("/jobs/modify", response_model=ChangedTasks | FoldedChanges)
async def modify(
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    selection: Annotated[JobSelection, Body(alias="choice")],
    changes: Annotated[JobChanges, Body()],
    fold: Fold = False,
) -> Response:
    """Modify every selected job; no job at all if a job named by id cannot be modified."""
    applied = await modify_jobs(request, caller, service, readers, selection, changes)
    return await change_answer(service.core, *applied, fold)


async def modify_jobs(
    request: Request,
    caller: Caller,
    service: SchedulerService,
    readers: Readers,
    selection: JobSelection,
    changes: JobChanges,
) -> AppliedChange:
    """Modify selected jobs for a caller. ApiError, or ForbiddenError: nothing has changed."""
    if not changes.model_fields_set:
        raise ApiError(422, "nothing to change; give --time, --deadline or another option")
    for reference in selection.jobs:
        whole_job, is_task, _ = reference.partition("_")
        if is_task:
            raise ApiError(422, f"{reference} is a task; name the whole job {whole_job}")
    max_priority = service.settings.policy.max_priority
    if changes.priority is not None and changes.priority > max_priority:
        raise ApiError(422, f"priority {changes.priority} is too high; give 1 to {max_priority}")
    if changes.priority is not None:
        caller.require_operator("set priorities")
    selected = await select_tasks(request, readers, service, "modify", selection)
    named = set(map(int, selection.jobs))
    for tasks in selected:
        if named and tasks.job not in named:
            raise ApiError(
                422,
                f"{tasks.job}_{tasks.indices[0]} is a task, named by its number; "
                f"name the whole job {tasks.job}",
            )
    service.store_group()  # a job may be modified twice in a group
    now, events = time.time(), []
    states: dict[int, set[State]] = {}
    for tasks in selected:
        states.setdefault(tasks.job, set()).add(tasks.state)
    notes: dict[int, str] = {}
    for job_id in states:
        states[job_id] -= FINAL
        job, _ = service.ledger.current_job(job_id)
        default_limit = default_time_limit(service, changes.partition or job.partition)
        try:
            modified = changes.apply_to(job, default_limit)
        except ValueError as error:
            raise ApiError(422, f"{error}, job {job_id}; give another value") from None
        managers_unaffected = not (changed_fields(job, modified) - METASCHED_FIELDS)
        if not states[job_id] or not service.core.is_open(job_id):
            notes[job_id] = "it has ended; requeue it first"
        elif states[job_id] <= STARTED and not managers_unaffected:
            notes[job_id] = (
                "it is running; only deadline, urgency, priority and name can be changed"
            )
        elif (refusal := service.core.rejection_reason(modified)) is not None or (
            refusal := service.core.limits.admission_refusal(
                [(modified, service.core.count_open(job_id))], replaced=job
            )
        ) is not None:
            raise ApiError(403, f"job {job_id}: {refusal}")
        else:
            if {"time_limit", "clusters", "begin", "account"} & changed_fields(job, modified):
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
        if selection.jobs:
            raise ApiError(403, f"job {job_id}: {notes[job_id]}")
    outcomes = await service.apply_events(*events) if events else []
    notes_by_task = [notes[tasks.job] for tasks in selected]
    return AppliedChange(selected, notes_by_task, ChangedStates(outcomes))


@router.post("/jobs/{action}", response_model=ChangedTasks | FoldedChanges)
async def request_action(
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    readers: CurrentReaders,
    action: UserAction,
    selection: Annotated[ActionRequest, Body()],
    fold: Fold = False,
) -> Response:
    """Apply an action to every selected task, in portions; nothing changes if an id is unknown."""
    applied = await act_on_jobs(request, caller, service, readers, action, selection)
    return await change_answer(service.core, *applied, fold)


async def act_on_jobs(
    request: Request,
    caller: Caller,
    service: SchedulerService,
    readers: Readers,
    action: UserAction,
    selection: ActionRequest,
) -> AppliedChange:
    """Apply an action to selected tasks for a caller. ForbiddenError: nothing has changed.

    ApiError, too, unless it says that the database failed when some tasks were changed.
    """
    if action in ("lost", "ran"):
        caller.require_operator("resolve jobs")
        if not (selection.jobs or selection.state):
            selection = replace(selection, state=State.UNKNOWN)
    if selection.exit_code is not None:
        if action != "ran":
            raise ApiError(422, f"{action} takes no exit code; only ran does")
        if not 0 <= selection.exit_code <= MAX_EXIT_CODE:
            raise ApiError(422, f"exit code {selection.exit_code}; give 0 to {MAX_EXIT_CODE}")
    selected = await select_tasks(request, readers, service, action, selection)
    if action == "requeue":
        service.store_group()  # a task may have ended in it
    notes = [_note_for(action, tasks.state, _has_started(service, tasks)) for tasks in selected]

    if action == "requeue":
        changed = ChangedStates(await _requeue(service, selected, caller))
    else:
        states = frozenset(parse_states(selection.state))
        changed = await _apply_in_portions(
            service, action, selected, states, caller, selection.exit_code
        )
    return AppliedChange(selected, notes, changed)


async def _requeue(
    service: SchedulerService, selected: Sequence[SelectedTasks], caller: Caller
) -> list[Outcome]:
    """Requeue selected tasks. ApiError if a limit of the site bars it."""
    now, events = time.time(), list[CoreEvent]()
    for of_job in _by_job(selected):
        events.append(_user_request(service, now, "requeue", of_job, caller))
        events += _requeue_events(service, now, of_job, caller)
    requeued = [(event.job, len(event.tasks)) for event in events if isinstance(event, JobRequeued)]
    if (refusal := service.core.limits.admission_refusal(requeued)) is not None:
        raise ApiError(403, refusal)
    return await service.apply_events(*events) if events else []


async def _apply_in_portions(
    service: SchedulerService,
    action: UserAction,
    selected: Sequence[SelectedTasks],
    states: frozenset[str],
    caller: Caller,
    exit_code: int | None,
) -> ChangedStates:
    """Apply an action to selected tasks, `PORTION` of them at a time; others are served between.

    A task that has left the selected `states` (empty: all) meanwhile is left out. ApiError if the
    database fails when some are changed.
    """
    changed, any_changed = ChangedStates(), False
    for of_jobs in _portions(service.core, action, selected):
        now = time.time()
        portion = [
            remaining
            for of_job in of_jobs
            if (remaining := [t for t in of_job if _is_in(service.core, t, states)])
        ]
        if not portion:
            continue
        events = [
            _user_request(service, now, action, of_job, caller, exit_code) for of_job in portion
        ]
        try:
            changed.add(await service.apply_events(*events))
            any_changed = True
        except StorageFailed as error:
            if not any_changed:
                raise
            raise ApiError(
                504,
                f"the database failed when some of the tasks were changed ({error}); "
                "check with `metasched status`, and repeat the command",
            ) from error
    return changed


def _is_in(core: Core, tasks: SelectedTasks, states: frozenset[str]) -> bool:
    """Return whether selected tasks are still in one of the states (empty: any)."""
    task = None if tasks.is_run else core.tasks.get((tasks.job, tasks.indices[0]))
    return task is None or not states or str(task.state) in states


def _portions(
    core: Core, action: UserAction, selected: Sequence[SelectedTasks]
) -> Iterator[list[list[SelectedTasks]]]:
    """Yield portions of selected tasks, by job; runs go first.

    A run counts as a task, unless the action makes its tasks single: then `PORTION` of them do.
    """
    portion: list[list[SelectedTasks]] = []
    size = 0
    for of_job in _by_job(selected):
        makes_single = _makes_single(core, action, of_job)
        part: list[SelectedTasks] = []
        for tasks in sorted(of_job, key=lambda tasks: not tasks.is_run):
            for piece in _pieces(tasks) if makes_single else (tasks,):
                cost = len(piece.indices) if makes_single else 1
                if size + cost > PORTION:
                    yield [*portion, part] if part else portion
                    portion, part, size = [], [], 0
                part.append(piece)
                size += cost
        if part:
            portion.append(part)
    if portion:
        yield portion


def _makes_single(core: Core, action: UserAction, of_job: Sequence[SelectedTasks]) -> bool:
    """Return whether an action makes single tasks of runs, as a hold of a part of a remainder."""
    remainder = core.remainders.get(of_job[0].job)
    if remainder is None or action not in ("hold", "release"):
        return False
    return sum(len(tasks.indices) for tasks in of_job if tasks.is_run) < len(remainder)


def _pieces(tasks: SelectedTasks) -> Iterator[SelectedTasks]:
    """Yield the tasks of a run, `PORTION` at a time."""
    for first in range(0, len(tasks.indices), PORTION):
        yield replace(tasks, indices=tasks.indices[first : first + PORTION])


def _by_job(selected: Iterable[SelectedTasks]) -> Iterator[list[SelectedTasks]]:
    for _, of_job in groupby(selected, key=lambda tasks: tasks.job):
        yield list(of_job)


def _requeue_events(
    service: SchedulerService, now: float, of_job: Sequence[SelectedTasks], caller: Caller
) -> Iterator[JobRequeued]:
    """Yield the event that requeues ended tasks of a job, if there are any."""
    job_id = of_job[0].job
    task_indices = [index for tasks in of_job for index in tasks.indices]
    ended_tasks, last_dispatch = service.ledger.ended_tasks(job_id, task_indices)
    if ended_tasks:
        job, priority = service.ledger.current_job(job_id)
        any_waiting = any(task.attempts == 0 for task in ended_tasks)
        targets = _requeue_targets(service, job) if any_waiting else ()
        yield JobRequeued(now, job, priority, last_dispatch, ended_tasks, caller.user, targets)


def _user_request(
    service: SchedulerService,
    now: float,
    action: UserAction,
    selected: Sequence[SelectedTasks],
    caller: Caller,
    exit_code: int | None = None,
) -> UserRequested:
    """Return the event for selected tasks of a job; a whole remainder costs no list of indices."""
    job_id = selected[0].job
    remainder = service.core.remainders.get(job_id)
    in_runs = [tasks.indices for tasks in selected if tasks.is_run and tasks.state not in FINAL]
    is_whole = False
    by_index: list[Iterable[int]] = [tasks.indices for tasks in selected if not tasks.is_run]
    if remainder is None:
        by_index += in_runs
    else:
        # tasks may have left the remainder since they were selected
        members = [part for run in in_runs for part in remainder.members(run)]
        is_whole = sum(map(len, members)) == len(remainder)
        if not is_whole:
            by_index += in_runs
        elif sum(map(len, in_runs)) > len(remainder):
            by_index.append(set(chain(*in_runs)).difference(*members))
    indices = tuple(sorted(chain(*by_index)))
    by, owner = caller.user, selected[0].user
    return UserRequested(now, action, job_id, indices, by, exit_code, is_whole, owner)


def _requeue_targets(service: SchedulerService, job: Job) -> tuple[TargetSummary, ...]:
    """Return the dependency targets of a job. Raise ApiError if a target was pruned."""
    try:
        (targets,) = dependency_targets(service, job.user, [job])
        return targets
    except ApiError as error:
        missing = str(error).partition("; ")[0]
        raise ApiError(404, f"job {job.id} cannot be requeued: {missing}; submit it anew") from None


def _has_started(service: SchedulerService, tasks: SelectedTasks) -> bool:
    """Return whether a task has already started in its current dispatch."""
    task = None if tasks.is_run else service.core.tasks.get((tasks.job, tasks.indices[0]))
    return task is not None and task.attempt is not None and task.attempt.has_started


def _note_for(action: str, state: State, started: bool) -> str:
    """Explain the effect of an action on a task where it differs from the action's name."""
    if action == "requeue":
        if state is State.PENDING and started:
            return "its cluster restarts it; nothing to requeue"
        if state in UNSTARTED | QUEUED_OR_HELD:
            return f"it is {state} and has not started; nothing to requeue"
        if state is State.UNKNOWN:
            return "it may still run; resolve it first"
        return "" if state in FINAL else "it is requeued once its cluster has ended it"
    if action in ("lost", "ran"):
        message = f"it is {state}; only unknown jobs can be resolved"
        return "" if state is State.UNKNOWN else message
    if state in FINAL:
        return f"it has ended ({state}); nothing to {action}"
    if action == "hold" and state is State.PENDING and started:
        return "its cluster restarts it; only jobs that have not started can be held"
    if action == "hold" and state not in UNSTARTED | {State.QUEUED, State.HELD}:
        return f"it is {state}; only jobs that have not started can be held"
    if action == "release" and state is not State.HELD:
        return f"it is {state}; a hold in progress is cancelled"
    if action == "cancel" and state is State.UNKNOWN:
        return "it is cancelled when its cluster lists it again; if that never happens, resolve it"
    return ""
