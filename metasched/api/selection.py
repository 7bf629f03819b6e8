"""Select the jobs of a request and check the permissions of its caller."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from metasched.api.identity import Caller
from metasched.daemon.service import Daemon
from metasched.errors import ApiError, ParseError
from metasched.model.arrays import parse_task_selector
from metasched.model.job import State

RECENTLY_ENDED = 3600.0  # seconds for which ended jobs are listed by default


@dataclass(frozen=True)
class JobSelection:
    """The jobs of a command: by id, or all open jobs of a user, in given states, on a cluster."""

    jobs: tuple[str, ...] = ()  # as 17, 17_3 or 17_[3-4]
    user: str | None = None
    state: str | None = None  # states, separated by commas
    cluster: str | None = None  # of the tasks' last attempts
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic only


def select_tasks(
    daemon: Daemon, caller: Caller, action: str, selection: JobSelection
) -> list[dict[str, Any]]:
    """Return the rows of the selected tasks.

    Without ids only open tasks are selected; `requeue` adds the tasks that ended in the last hour.
    Raise ApiError for an unknown job; the caller must be its owner or an operator.
    """
    if not (selection.jobs or selection.user or selection.state or selection.cluster):
        raise ApiError(422, f"nothing to {action}; name jobs, --user, --state or --cluster")
    requested = parse_job_ids(selection.jobs) if selection.jobs else None
    ended_since: float | None = time.time() - RECENTLY_ENDED if action == "requeue" else math.inf
    user = selection.user
    if requested is not None:
        caller.require_owner(find_owners(daemon, caller, requested))
        ended_since = None
    elif user is not None:
        caller.require_owner([user])
    elif not caller.operator:
        user = caller.user
    rows = daemon.ledger.status(
        requested, user=user, states=parse_states(selection.state), ended_since=ended_since
    )
    return [row for row in rows if selection.cluster in (None, row["cluster"])]


def parse_job_ids(references: Sequence[str]) -> list[tuple[int, int | None]]:
    """Parse `17`, `17_3` and `17_[3-4]` to (17, None), (17, 3) and (17, 3), (17, 4)."""
    task_ids: list[tuple[int, int | None]] = []
    for reference in references:
        try:
            job_id, indices = parse_task_selector(reference)
        except ParseError as error:
            raise ApiError(422, str(error)) from None
        task_ids += [(job_id, None)] if indices is None else [(job_id, index) for index in indices]
    return task_ids


def find_owners(
    daemon: Daemon, caller: Caller, requested: Sequence[tuple[int, int | None]]
) -> set[str]:
    """Return the owners of jobs. Raise ApiError if a job or task does not exist for the caller.

    Where a site hides the jobs of others, these do not exist: the answers are the same.
    """
    visible_to = None if caller.sees_all else caller.user
    if missing := daemon.ledger.missing_jobs(requested, visible_to):
        remainder = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ApiError(
            404, f"no job {', '.join(missing[:3])}{remainder}; see `metasched status --all`"
        )
    return daemon.ledger.owners(job_id for job_id, _ in requested)


def find_visible_job(daemon: Daemon, caller: Caller, reference: str) -> tuple[int, int | None]:
    """Return the job or task that `reference` names, after checking the caller's permission."""
    requested = parse_job_ids([reference])
    if len(requested) > 1:
        job_id, index = requested[0]
        raise ApiError(422, f"{reference} are several tasks; name one task, as {job_id}_{index}")
    caller.require_owner(find_owners(daemon, caller, requested))
    return requested[0]


def parse_states(text: str | None) -> list[str]:
    """Parse states separated by commas."""
    if text is None:
        return []
    for state in text.split(","):
        if state not in set(State):
            raise ApiError(422, f"unknown state {state!r}; use {', '.join(State)}")
    return text.split(",")


def change_results(
    daemon: Daemon, rows: Sequence[dict[str, Any]], notes: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the state before and after a change, with a note, for each task."""
    states_after = {
        (after["job"], after["task_index"]): after["state"]
        for after in daemon.ledger.status([(row["job"], None) for row in rows])
    }
    return [
        {
            "job": row["job"],
            "task": row["task_index"] if row["array"] else None,
            "was": row["state"],
            "state": states_after[row["job"], row["task_index"]],
            "note": note,
        }
        for row, note in zip(rows, notes, strict=True)
    ]
