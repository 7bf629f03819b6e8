"""Select the jobs of a request and check the permissions of its caller."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from sys import intern
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field

from metasched.api.identity import Caller
from metasched.api.readers import Readers, ReadingKind
from metasched.core.array_remainder import common_indices
from metasched.core.scheduler import Core
from metasched.core.transitions import FINAL
from metasched.daemon.service import SchedulerService
from metasched.db.job_pages import TaskFilter, TaskSelector
from metasched.db.ledger import Ledger
from metasched.errors import ApiError, ParseError
from metasched.model.arrays import parse_task_selector
from metasched.model.cluster import Cluster
from metasched.model.job import State
from metasched.model.request_bounds import MAX_SELECTORS
from metasched.model.request_texts import Name, Word

RECENTLY_ENDED = 3600.0  # seconds for which ended jobs are listed by default
MAX_READS = 3  # of a selection whose tasks end meanwhile


@dataclass(frozen=True)
class JobSelection:
    """The jobs of a command: by id, or all open jobs of a user, in given states, on a cluster."""

    jobs: Annotated[
        tuple[Word, ...], Field(max_length=MAX_SELECTORS)
    ] = ()  # as 17, 17_3 or 17_[3-4]
    user: Name | None = None
    state: Name | None = None  # states, separated by commas
    cluster: Name | None = None  # of the tasks' last attempts
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic only


@dataclass(slots=True)
class SelectedTasks:
    """Tasks that a request selects: a single task, or equal tasks in a run."""

    job: int
    array: str | None  # its range, as submitted; None: the job is no array
    indices: range  # never empty
    state: State  # before the request
    is_run: bool  # whether they had no row of their own when they were read
    user: str  # the owner


async def select_tasks(
    request: Request,
    readers: Readers,
    service: SchedulerService,
    action: str,
    selection: JobSelection,
) -> list[SelectedTasks]:
    """Return the selected tasks with their present states, by job; runs come after single tasks.

    Without ids only open tasks are selected; `requeue` adds the tasks that ended in the last hour.
    Raise ApiError for an unknown job or cluster; the caller must be its owner or an operator.
    """
    caller: Caller = request.state.caller
    if not (selection.jobs or selection.user or selection.state or selection.cluster):
        raise ApiError(422, f"nothing to {action}; name jobs, --user, --state or --cluster")

    def read() -> Iterator[list[SelectedTasks]]:
        ledger, task_filter = (
            service.ledger,
            _task_filter(service.ledger, caller, action, selection),
        )
        # the runs first: a task that leaves its run meanwhile is in both
        yield [
            _selected(run.row, indices, True)
            for run in ledger.selected_runs(task_filter)
            for indices in run.ranges()
        ]
        for page in ledger.selected_tasks(task_filter):
            yield [_selected(row, _single(row["task_index"]), False) for row in page.rows]

    for _ in range(MAX_READS):
        runs, *pages = await readers.run_portions(request, ReadingKind.SELECTION, read())
        selected = _with_present_states(service.core, list(chain(*pages)), runs)
        if selected is not None:
            break
        service.store_group()  # so that the reading sees tasks that have ended since
    else:
        raise ApiError(503, "the tasks end faster than they are read; nothing changed, try again")
    if not selected and selection.cluster is not None:
        find_cluster(service, selection.cluster)  # jobs may remain of a cluster that was removed
    return selected


def _selected(row: Mapping[str, Any], indices: range, is_run: bool) -> SelectedTasks:
    state = State(row["state"])
    user = intern(row["user"])  # a shared string for thousands of tasks
    return SelectedTasks(row["job"], row["array"], indices, state, is_run, user)


def _single(index: int) -> range:
    return range(index, index + 1)


def _with_present_states(
    core: Core, single: list[SelectedTasks], runs: list[SelectedTasks]
) -> list[SelectedTasks] | None:
    """Return selected tasks as they are now: some may have left their runs since they were read.

    None if such a task has ended, and the core does not remember how.
    """
    selected: dict[tuple[int, int], SelectedTasks] = {}
    for tasks in single:
        selected[tasks.job, tasks.indices[0]] = tasks
    remaining = []
    open_indices = {id: sorted(core.open_tasks.get(id, ())) for id in {run.job for run in runs}}
    for run in runs:
        if run.state in FINAL:
            remaining.append(run)
            continue
        states = {
            index: core.tasks[run.job, index].state
            for index in common_indices(run.indices, open_indices[run.job])
        }
        parts: list[range] = []
        if (remainder := core.remainders.get(run.job)) is not None:
            parts = list(remainder.members(run.indices))
            remaining += [
                SelectedTasks(run.job, run.array, indices, remainder.state, True, run.user)
                for indices in parts
            ]
        if len(states) + sum(map(len, parts)) < len(run.indices):
            for index in set(run.indices).difference(states, *parts):
                ended = core.state.ended_tasks.get((run.job, index))
                if ended is None:
                    return None
                states[index] = ended.state
        for index, state in sorted(states.items()):
            tasks = SelectedTasks(run.job, run.array, _single(index), state, False, run.user)
            selected.setdefault((run.job, index), tasks)
    for (job_id, index), tasks in selected.items():
        if (task := core.tasks.get((job_id, index))) is not None:
            tasks.state = task.state
    return sorted([*selected.values(), *remaining], key=lambda tasks: (tasks.job, tasks.is_run))


def _task_filter(
    ledger: Ledger, caller: Caller, action: str, selection: JobSelection
) -> TaskFilter:
    """Return the filter of a selection, after checking the caller's permission."""
    requested = requested_jobs(ledger, caller, selection.jobs) if selection.jobs else None
    user, by_filter = selection.user, requested is None
    if requested is not None:
        caller.require_owner(find_owners(ledger, caller, requested))
    elif user is not None:
        caller.require_owner([user])
    elif not caller.operator:
        user = caller.user
    return TaskFilter(
        named=requested,
        user=user,
        states=parse_states(selection.state),
        ended_since=time.time() - RECENTLY_ENDED if by_filter and action == "requeue" else None,
        only_open=by_filter and action != "requeue",
        cluster=selection.cluster,
    )


def find_cluster(service: SchedulerService, name: str) -> Cluster:
    """Return a configured cluster. ApiError if there is none of this name."""
    clusters = {cluster.name: cluster for cluster in service.core.clusters}
    if name not in clusters:
        raise ApiError(404, f"no cluster {name[:60]!r}; use {', '.join(clusters)}")
    return clusters[name]


def requested_jobs(ledger: Ledger, caller: Caller, references: Sequence[str]) -> list[TaskSelector]:
    """Return the jobs and tasks that are named, tasks of arrays also by their own numbers."""
    return ledger.replace_task_numbers(parse_job_ids(references), caller.visible_owner)


def parse_job_ids(references: Sequence[str]) -> list[TaskSelector]:
    """Parse `17`, `17_3` and `17_[3-4]` to (17, None), (17, 3) and (17, 3), (17, 4)."""
    selectors: list[TaskSelector] = []
    for reference in references:
        try:
            job_id, indices = parse_task_selector(reference)
        except ParseError as error:
            raise ApiError(422, str(error)) from None
        if len(selectors) + len(indices or (None,)) > MAX_SELECTORS:
            raise ApiError(
                422, f"more than {MAX_SELECTORS} jobs and tasks; name whole jobs, or fewer at once"
            )
        selectors += [(job_id, None)] if indices is None else [(job_id, index) for index in indices]
    return selectors


def find_owners(ledger: Ledger, caller: Caller, requested: Sequence[TaskSelector]) -> set[str]:
    """Return the owners of jobs. Raise ApiError if a job or task does not exist for the caller.

    Where a site hides the jobs of others, these do not exist: the answers are the same.
    """
    visible_to = caller.visible_owner
    if missing := ledger.missing_jobs(requested, visible_to):
        remainder = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ApiError(
            404, f"no job {', '.join(missing[:3])}{remainder}; see `metasched status --all`"
        )
    return ledger.owners(job_id for job_id, _ in requested)


def visible_jobs(
    ledger: Ledger, caller: Caller, requested: Sequence[TaskSelector]
) -> list[TaskSelector]:
    """Return those jobs and tasks that exist for the caller."""
    visible_to = caller.visible_owner
    missing = set(ledger.missing_jobs(requested, visible_to))
    return [
        (job_id, index)
        for job_id, index in requested
        if (str(job_id) if index is None else f"{job_id}_{index}") not in missing
    ]


def find_visible_job(ledger: Ledger, caller: Caller, reference: str) -> TaskSelector:
    """Return the job or task that `reference` names, after checking the caller's permission."""
    requested = requested_jobs(ledger, caller, [reference])
    if len(requested) > 1:
        job_id, index = requested[0]
        raise ApiError(422, f"{reference} are several tasks; name one task, as {job_id}_{index}")
    caller.require_owner(find_owners(ledger, caller, requested))
    return requested[0]


def parse_states(text: str | None) -> list[str]:
    """Parse states separated by commas."""
    if text is None:
        return []
    for state in text.split(","):
        if state not in set(State):
            raise ApiError(422, f"unknown state {state!r}; use {', '.join(State)}")
    return text.split(",")
