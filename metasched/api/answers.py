"""Answers about jobs, as the OpenAPI document describes them. Times are in UTC, in ISO 8601.

Routes return them encoded: FastAPI would check and encode each row anew, in the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from fastapi.responses import Response


@dataclass(frozen=True, slots=True)
class JobRow:
    """A task, as `status --json` lists it."""

    job: int
    array: str | None  # its range, as submitted; None: the job is no array
    task: int | None  # index in the array
    name: str
    user: str
    state: str
    reason: str
    priority: int  # 1 to 10
    cluster: str | None  # of its last attempt
    native_id: str | None  # in the cluster's manager
    submitted: str | None
    expected_start: str | None  # by its manager, if that reports one
    started: str | None
    ended: str | None
    exit_code: int | None  # 128 + signal if a signal ended it


@dataclass(frozen=True, slots=True)
class ChangedTask:
    """A task of a request that changes jobs."""

    job: int
    task: int | None  # index in the array
    was: str  # state before
    state: str  # state after
    note: str  # why it is not as requested; may be empty


@dataclass(frozen=True, slots=True)
class ChangedTasks:
    """All tasks of a request that changes jobs."""

    jobs: list[ChangedTask]


def encoded(answer: object) -> Response:
    """Encode an answer as JSON."""
    return Response(msgspec.json.encode(answer), media_type="application/json")
