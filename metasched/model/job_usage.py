"""Use of ended tasks: the daemon's query to a manager's accounting, and the answer. Pure."""

from __future__ import annotations

import msgspec


class EndedRun(msgspec.Struct, frozen=True):
    """An attempt that ran and ended, without a stored use."""

    job: int
    task: int  # index in the array
    attempt: int
    native_id: str
    user: str  # owner of the job
    ended: float = 0.0  # epoch seconds


class RunUsage(msgspec.Struct, frozen=True):
    """The use of a run; None: its manager does not report it."""

    cpu_seconds: float | None = None
    max_memory: int | None = None  # MiB
    elapsed: float | None = None  # seconds, without suspension
    cpus: int | None = None  # that were allocated; may be more than were requested
