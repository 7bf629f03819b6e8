"""Authentication of calls from jobs, by tokens that the jobs have made themselves.

A job registers the digest of its token by a folder in its claims, which must belong to the job's
owner. The token is good as long as the attempt is live: also while its cluster does not answer, and
after a restart of the daemon, which stores nothing of it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from secrets import compare_digest
from threading import Thread

from metasched.adapters.claims import FenceError, fence_dir_of, has_registered
from metasched.core.tasks import Task
from metasched.daemon.service import Daemon, SchedulerService
from metasched.errors import ApiError
from metasched.model.job_token import JobToken, key_of, parse_job_token
from metasched.model.listing import TaskClaim

CLAIM_TIMEOUT = 10.0  # seconds for a look at the shared filesystem
CLAIM_THREADS = 4  # of each filesystem: if it hangs, only its own new tokens stop
MAX_REGISTERED = 10_000  # tokens that are remembered


class ClaimThreads:
    """Threads that look at claims. One that hangs delays no other filesystem, and no end."""

    def __init__(self) -> None:
        self._free: defaultdict[Path, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(CLAIM_THREADS)
        )

    async def has_registered(self, claim: TaskClaim, digest: str) -> bool:
        """As that of claims. A caller that is cancelled leaves the thread to its filesystem."""
        free = self._free[fence_dir_of(claim)]
        await free.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()

        def finish(is_registered: bool, error: Exception | None) -> None:
            free.release()
            if answer.done():
                return
            if error is None:
                answer.set_result(is_registered)
            else:
                answer.set_exception(error)

        def look() -> None:
            is_registered, problem = False, None
            try:
                is_registered = has_registered(claim, digest)
            except Exception as error:  # it is raised in the caller
                problem = error
            with suppress(RuntimeError):  # the daemon has ended
                loop.call_soon_threadsafe(finish, is_registered, problem)

        # an executor would wait for its threads at the end of the process
        Thread(target=look, name="job-token", daemon=True).start()
        return await answer


class JobTokens:
    """The tokens of jobs."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._registered: set[JobToken] = set()  # found registered; each is good for a live attempt
        self._threads = ClaimThreads()

    async def user_of(self, text: str) -> str | None:
        """Return the owner of the job that has made a token; None unless it is live and registered.

        ApiError if that cannot be found out now.
        """
        daemon, token = self._daemon, parse_job_token(text)
        if (reason := daemon.unavailable_reason) is not None:
            raise ApiError(503, f"{reason}; nothing changed, try again soon")
        assert daemon.service is not None
        task = None if token is None else _find_task(daemon.service, token)
        if token is None or task is None:
            return None
        if token not in self._registered:
            if not await self._is_registered(task, token):
                return None
            if len(self._registered) >= MAX_REGISTERED:
                self._registered.clear()
            self._registered.add(token)
        return task.job.user

    async def _is_registered(self, task: Task, token: JobToken) -> bool:
        user = "" if self._daemon.settings.launcher is None else task.job.user
        claim = TaskClaim(task.live_attempt.fence, token.tag, token.task, user=user)
        try:
            async with asyncio.timeout(CLAIM_TIMEOUT):
                return await self._threads.has_registered(claim, token.digest)
        except (FenceError, TimeoutError):  # its cause is not for unknown callers
            problem = "the folder of claims does not answer"
            raise ApiError(503, f"{problem}; nothing changed, try again soon") from None


def _find_task(service: SchedulerService, token: JobToken) -> Task | None:
    """Return the task whose live attempt has the token's key.

    Only who knows the key can make the daemon look at the shared filesystem.
    """
    task = service.core.state.task_by_tag(token.tag, token.task)
    key = "" if task is None else key_of(task.live_attempt.fence)
    return task if key and compare_digest(key, token.key) else None
