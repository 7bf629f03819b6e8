"""Puts policies in force at the times of the calendar.

Each such run replaces the service that began it. So it belongs to the daemon, and the next service
awaits it and records the result. After a crash it is done again: a policy that is in force already
makes no further version. A run that waits for its next try gives way to a later run, unless that
fails, and a run is not begun after its time: else the policy of the night would be in force by day.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from metasched.config.policy_file import read_policy_text
from metasched.config.settings import ConfigError
from metasched.daemon.backup_threads import EntryRun
from metasched.db.store import StorageFailed
from metasched.errors import UserError
from metasched.model.policy_version import PolicyVersion

log = logging.getLogger("metasched")

RETRY_PAUSE = 20.0  # seconds between two tries of a run
MAX_TRIES = 3  # of a run: each may replace the service


class PolicyNotActivated(UserError):
    """A run of the calendar did not put its policy in force."""


class PolicyRunSkipped(PolicyNotActivated):
    """It did not, since its time is over."""


# Puts a policy in force: text, path, reason. ConfigError for a mistake in it; another UserError or
# StorageFailed if it cannot be put in force now.
ActivateText = Callable[[str, str, str], Awaitable[PolicyVersion]]


class ScheduledPolicies:
    """Activations that have begun, and results that no service has recorded yet."""

    def __init__(self, activate: ActivateText) -> None:
        self._activate = activate
        self._tasks: dict[EntryRun, asyncio.Task[str]] = {}
        self._overtaken: set[EntryRun] = set()  # a later run, already forgotten, has succeeded

    async def put_in_force(self, run: EntryRun, file: str, entry: str, until: float) -> str:
        """Put the policy of a file in force for an entry; return which version that is.

        `until` is when the last try may begin, in epoch seconds. A run that has begun is awaited.
        Of runs of the same time that of the later entry counts. PolicyNotActivated for the mistake
        in the file, or for the last obstacle; PolicyRunSkipped if it is too late.
        """
        task = self._tasks.get(run)
        if task is None:
            attempt = self._try(run, Path(file), entry, until)
            task = self._tasks[run] = asyncio.create_task(attempt, name=f"policy {entry}")
        return await asyncio.shield(task)

    def forget(self, run: EntryRun) -> None:
        """Forget a run whose result is stored."""
        task = self._tasks.pop(run, None)
        self._overtaken.discard(run)
        if task is not None and _has_succeeded(task):
            self._overtaken |= {other for other in self._tasks if _order(other) < _order(run)}

    async def _give_way(self, run: EntryRun) -> None:
        """Wait for later runs under way. PolicyRunSkipped if any put its policy in force."""

        def later() -> list[asyncio.Task[str]]:
            return [task for other, task in self._tasks.items() if _order(other) > _order(run)]

        while waiting := [task for task in later() if not task.done()]:
            await asyncio.wait(waiting)
        if run in self._overtaken or any(map(_has_succeeded, later())):
            raise PolicyRunSkipped("a later policy of the calendar was due as well")

    async def _try(self, run: EntryRun, file: Path, entry: str, until: float) -> str:
        for tries_left in range(MAX_TRIES - 1, -1, -1):
            try:
                text = await asyncio.to_thread(read_policy_text, file)
                await self._give_way(run)
                if time.time() > until:
                    raise PolicyRunSkipped("it was late before it could be put in force")
                version = await self._activate(text, str(file), f"calendar entry {entry}")
            except ConfigError as error:
                raise PolicyNotActivated(str(error)) from error
            except PolicyRunSkipped:
                raise
            except (UserError, StorageFailed) as error:
                if not tries_left or time.time() + RETRY_PAUSE > until:
                    raise PolicyNotActivated(str(error)) from error
                log.warning("calendar entry %s: %s; trying again", entry, error)
                await asyncio.sleep(RETRY_PAUSE)
            except Exception as error:  # a defect: other entries must not suffer from it
                log.exception("calendar entry %s: a defect; please report it", entry)
                raise PolicyNotActivated(f"a defect: {type(error).__name__}: {error}") from error
            else:
                return f"policy version {version.number}"
        raise AssertionError("the last try returns or raises")


def _has_succeeded(task: asyncio.Task[str]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _order(run: EntryRun) -> tuple[float, int]:
    return run.due, run.entry
