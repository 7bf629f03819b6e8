"""Common parts of all acts of pages: one at a time for a subject, and a record of each.

An act is a page that says in words what will happen, and changes nothing; then a form of that page
(`CheckedForm`), which calls the function of the API's route. That function alone decides who may.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from weakref import WeakValueDictionary

from metasched.api.identity import Caller
from metasched.daemon.service import SchedulerService
from metasched.errors import ApiError
from metasched.model.audit import AuditKind, AuditRecord

# by subject, as `cluster alpha`; a lock lives as long as an act
_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()


@contextlib.asynccontextmanager
async def alone(subjects: Iterable[str]) -> AsyncIterator[None]:
    """Let no other page act on these subjects within the block: its readings stay true."""
    locks = [_locks.setdefault(name, asyncio.Lock()) for name in sorted(set(subjects))]
    async with contextlib.AsyncExitStack() as stack:
        for lock in locks:
            await stack.enter_async_context(lock)
        yield


def record(
    service: SchedulerService,
    caller: Caller,
    act: str,
    *,
    job: int | None = None,
    reservation: int | None = None,
    cluster: str = "",
    licence: str = "",
) -> None:
    """Store that a caller asked for an act by a page; the act itself has its own records.

    StorageFailed if the database is away: then the act must not begin.
    """
    service.store_act(
        AuditRecord(
            time=time.time(),
            kind=AuditKind.SESSION_ACTED,
            actor=caller.user,
            owner=caller.user,
            job=job,
            reservation=reservation,
            cluster=cluster,
            licence=licence,
            cause=f"{act}, by web session",
        )
    )


def require_same(seen: str, present: str, subject: str) -> None:
    """Raise ApiError if a form was made for another state: another user has acted meanwhile."""
    if seen != present:
        raise ApiError(
            409,
            f"{subject} has changed since this page was opened: it was {seen or 'none'}, it is "
            f"{present or 'none'}; nothing changed, look again",
        )
