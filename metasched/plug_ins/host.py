"""The daemon's side of the plug-ins: starts their process, asks it, suspends what fails.

A question waits at most `ASK_SECONDS` for its turn and `CALL_SECONDS` for its answer. Plug-ins
without an answer are then excluded. The process that failed is killed. The plug-in that was being
asked is suspended for the user whose jobs it was asked about, longer each time. If it fails for a
second user before it answers again, it is suspended for all. So a job that makes a plug-in hang
harms its owner. Questions that wait meanwhile wait for the next process. A new process loads
plug-ins while the former process still answers. Without a process, plug-ins that have not failed
are loaded first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Final, NamedTuple

import msgspec

from metasched.model.job import Job
from metasched.plug_ins.messages import PlugInAnswer, Question
from metasched.policies.heuristic import ClusterTraits
from metasched.policies.plug_in_ratings import PlugIn, PlugInKind, Rating, checked
from metasched.processes.confinement import (
    CALL_SECONDS,
    FIRST_SUSPENSION,
    LOAD_SECONDS,
    MAX_ANSWER,
    MAX_SUSPENSION,
    confined_command,
    confined_environment,
)
from metasched.processes.frames import framed, read_frame, wait_for_end
from metasched.times.timeouts import reply_timeout

log = logging.getLogger("metasched")

MAX_CALLS: Final = 64  # of plug-ins in a question; a single job may need more
ASK_SECONDS: Final = 5.0  # for the turns of the jobs of a request
KILL_SECONDS: Final = 1.0  # for the end of a killed process; a hung file system delays it
WARNING_INTERVAL: Final = 60.0  # seconds between two warnings about a plug-in
MAX_SUSPENDED_USERS: Final = 1000  # whose suspensions are remembered
ALL = ""  # in place of a user
NO_TIME: Final = Rating(
    error="no time was left: other jobs were being rated, or the plug-ins started"
)
_DECODER: Final = msgspec.json.Decoder(PlugInAnswer)

Ratings = dict[PlugIn, Rating]


class PlugInFailed(Exception):
    """A plug-in did not answer; the process is of no use any more.

    `answers` are those of the plug-ins before it.
    """

    def __init__(
        self, plug_in: PlugIn, reason: str, answers: dict[PlugIn, PlugInAnswer] | None = None
    ) -> None:
        super().__init__(reason)
        self.plug_in, self.reason, self.answers = plug_in, reason, answers or {}


class PlugInState(NamedTuple):
    """A plug-in for those who look after it."""

    plug_in: PlugIn
    problem: str  # why it is excluded for all jobs now; "": it is not
    excluded: int  # jobs for which it was excluded since the start of the service


@dataclass
class _Suspension:
    until: float  # monotonic seconds
    delay: float  # seconds
    reason: str


class _Process:
    """A process that has loaded plug-ins. After a PlugInFailed it must be killed."""

    def __init__(self, process: asyncio.subprocess.Process, plug_ins: Sequence[PlugIn]) -> None:
        self._process, self.plug_ins = process, tuple(plug_ins)

    @classmethod
    async def start(cls, plug_ins: Sequence[PlugIn]) -> _Process:
        """Start a process. OSError if that fails."""
        process = await asyncio.create_subprocess_exec(
            *confined_command("metasched.plug_ins.process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=confined_environment(),
            start_new_session=True,
        )
        return cls(process, plug_ins)

    async def ask(self, question: Question, seconds: float) -> dict[PlugIn, PlugInAnswer]:
        """Return the answers. PlugInFailed by the plug-in that has not answered in time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answers: dict[PlugIn, PlugInAnswer] = {}
        reason = f"no answer within {seconds:g} s"
        with suppress(TimeoutError):
            async with reply_timeout(seconds):
                with suppress(ConnectionError):  # noticed by the missing answer
                    self._process.stdin.write(framed(msgspec.json.encode(question)))
                    await self._process.stdin.drain()
                for plug_in in question.plug_ins:
                    reason = f"no answer within {seconds:g} s"
                    try:
                        answer = _DECODER.decode(await read_frame(self._process.stdout, MAX_ANSWER))
                    except (EOFError, ConnectionError):
                        reason = "the process of the plug-ins ended"
                        break
                    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                        reason = "an answer that is no message"
                        break
                    except ValueError as error:
                        reason = str(error)
                        break
                    fits = answer.error or len(answer.ratings) == len(question.jobs)
                    if answer.id != question.id or not fits:
                        reason = "an answer to another question"
                        break
                    answers[plug_in] = answer
        for plug_in in question.plug_ins:
            if plug_in not in answers:
                raise PlugInFailed(plug_in, reason, answers)
        return answers

    async def kill(self) -> None:
        """Kill the process with all that it has started in its session's group."""
        if self._process.returncode is not None:
            return  # another group may have its number by now
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                await wait_for_end(self._process)


@dataclass
class PlugInHost:
    """The plug-ins of a service. `run` keeps their process; `ask` may be called at any time."""

    plug_ins: Sequence[PlugIn]
    on_exclusion: Callable[[PlugIn, int], None] = lambda plug_in, jobs: None
    call_seconds: float = CALL_SECONDS
    ask_seconds: float = ASK_SECONDS
    load_seconds: float = LOAD_SECONDS
    first_suspension: float = FIRST_SUSPENSION
    _process: _Process | None = None
    _stale: bool = False  # the process has loaded packages that may have changed since
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _user_turns: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _suspended: dict[tuple[PlugIn, str], _Suspension] = field(default_factory=dict)
    _failed_for: dict[PlugIn, str] = field(default_factory=dict)  # user, until it answers again
    _unusable: dict[PlugIn, str] = field(default_factory=dict)  # why it cannot be loaded
    _warned: dict[PlugIn, float] = field(default_factory=dict)
    _excluded: dict[PlugIn, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Keep a process that has loaded all plug-ins except suspended ones, until cancelled."""
        try:
            while self.plug_ins:
                self._changed.clear()
                usable = self._usable()
                loaded = set() if self._process is None else set(self._process.plug_ins)
                if usable and (self._stale or loaded != set(usable)):
                    if await self._replace(usable):
                        self._ready.set()
                    continue
                self._ready.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._next_end()):
                        await self._changed.wait()
        finally:
            await self._close()

    async def ask(
        self, jobs: Sequence[Job], clusters: Sequence[ClusterTraits], user: str
    ) -> list[Ratings]:
        """Return the ratings of each job of a user. What gives none in time is excluded.

        The requests of a user take turns. Those of others wait for a part of a request only.
        """
        results: list[Ratings] = []
        deadline = asyncio.get_running_loop().time() + self.ask_seconds
        size = max(MAX_CALLS // max(self._calls_per_job(len(clusters)), 1), 1)
        user_turn = self._user_turns[user]
        has_user_turn = await _in_time(user_turn.acquire(), deadline)
        try:
            for first in range(0, len(jobs), size):
                part = tuple(jobs[first : first + size])
                if not has_user_turn or not await _in_time(self._take_turn(), deadline):
                    results += [dict.fromkeys(self.plug_ins, NO_TIME) for _ in part]
                    continue
                try:
                    results += await self._ask_in_turn(part, tuple(clusters), user)
                finally:
                    self._turn.release()
        finally:
            if has_user_turn:
                user_turn.release()
        self._note(results)
        return results

    def renew(self) -> None:
        """Load all plug-ins again: their packages may have changed. Suspensions are over."""
        self._stale = True
        self._suspended.clear()
        self._failed_for.clear()
        self._changed.set()

    def states(self) -> list[PlugInState]:
        """Return the state of each plug-in."""
        return [
            PlugInState(
                plug_in,
                self._unusable.get(plug_in) or self._suspension(plug_in, ALL) or "",
                self._excluded.get(plug_in, 0),
            )
            for plug_in in self.plug_ins
        ]

    def _calls_per_job(self, clusters: int) -> int:
        return sum(clusters if p.kind is PlugInKind.PLACEMENT else 1 for p in self.plug_ins)

    async def _take_turn(self) -> None:
        """Wait for the process, and for the turn to ask it."""
        while True:
            await self._ready.wait()
            await self._turn.acquire()
            if self._ready.is_set():
                return
            self._turn.release()  # who had the turn before has made it fail

    async def _ask_in_turn(
        self, jobs: tuple[Job, ...], clusters: tuple[ClusterTraits, ...], user: str
    ) -> list[Ratings]:
        process, answers = self._process, dict[PlugIn, PlugInAnswer]()
        asked = (
            []
            if process is None
            else [
                plug_in
                for plug_in in process.plug_ins
                if plug_in not in self._unusable and self._suspension(plug_in, user) is None
            ]
        )
        if process is not None and asked:
            try:
                question = Question(token_hex(8), tuple(asked), jobs, clusters)
                answers = await process.ask(question, self.call_seconds)
            except PlugInFailed as failure:
                answers = failure.answers
                self._suspend(failure, user)
                self._discard(process)
                await process.kill()
            except asyncio.CancelledError:  # an answer may still come: of no use for the next
                self._discard(process)
                await process.kill()
                raise
            else:
                for plug_in in asked:
                    self._answered(plug_in, user)
        results: list[Ratings] = [{} for _ in jobs]
        for plug_in in self.plug_ins:
            answer = answers.get(plug_in) or PlugInAnswer("", error=self._obstacle(plug_in, user))
            for index, ratings in enumerate(results):
                rating = Rating(error=answer.error) if answer.error else answer.ratings[index]
                ratings[plug_in] = checked(plug_in, rating, clusters)
        return results

    def _usable(self) -> list[PlugIn]:
        """Return the plug-ins to load; without a process only those that did not fail, if any."""
        candidates = [p for p in self.plug_ins if self._suspension(p, ALL) is None]
        if self._process is None:
            return [p for p in candidates if (p, ALL) not in self._suspended] or candidates
        return candidates

    async def _replace(self, usable: Sequence[PlugIn]) -> bool:
        """Put a process with these plug-ins in place of the present process; False: it failed."""
        was_stale, self._stale = self._stale, False
        if await self._start(usable):
            return True
        self._stale = self._stale or was_stale
        return False

    async def _start(self, usable: Sequence[PlugIn]) -> bool:
        try:
            process = await _Process.start(usable)
        except OSError as error:
            for plug_in in usable:
                self._suspend(PlugInFailed(plug_in, f"no process: {error.strerror}"), ALL)
            return False
        try:
            answers = await process.ask(Question(token_hex(8), tuple(usable)), self.load_seconds)
        except PlugInFailed as failure:
            await process.kill()
            self._suspend(failure, ALL)
            return False
        except asyncio.CancelledError:
            await process.kill()
            raise
        self._unusable = {p: answer.error for p, answer in answers.items() if answer.error}
        async with self._turn:
            former, self._process = self._process, process
        if former is not None:
            await former.kill()
        return True

    def _discard(self, process: _Process) -> None:
        if self._process is process:
            self._process = None
            self._ready.clear()
            self._changed.set()

    async def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.kill()

    # Suspensions

    def _suspend(self, failure: PlugInFailed, user: str) -> None:
        """Suspend a plug-in for a user; for all if it has failed for another since it answered."""
        plug_in, last = failure.plug_in, self._failed_for.get(failure.plug_in)
        if last is not None and last != user:
            user = ALL
        self._failed_for[plug_in] = user
        before = self._suspended.pop((plug_in, user), None)
        if len(self._suspended) >= MAX_SUSPENDED_USERS:
            del self._suspended[next(iter(self._suspended))]
        delay = self.first_suspension if before is None else min(before.delay * 2, MAX_SUSPENSION)
        until = time.monotonic() + delay
        self._suspended[plug_in, user] = _Suspension(until, delay, failure.reason)
        self._changed.set()

    def _answered(self, plug_in: PlugIn, user: str) -> None:
        """Forget old suspensions. Recent ones count: a plug-in may answer and hang by turns."""
        self._failed_for.pop(plug_in, None)
        now = time.monotonic()
        for key in ((plug_in, user), (plug_in, ALL)):
            suspended = self._suspended.get(key)
            if suspended is not None and now - suspended.until > MAX_SUSPENSION:
                del self._suspended[key]

    def _suspension(self, plug_in: PlugIn, user: str) -> str | None:
        """Return why a plug-in is suspended for a user, or None."""
        now = time.monotonic()
        for whose in {user, ALL}:
            suspended = self._suspended.get((plug_in, whose))
            if suspended is not None and now < suspended.until:
                return f"{suspended.reason}; it is asked again after {suspended.delay:g} s"
        return None

    def _obstacle(self, plug_in: PlugIn, user: str) -> str:
        """Return why a plug-in was not asked, or did not answer."""
        unusable = self._unusable.get(plug_in) or self._suspension(plug_in, user)
        return unusable or "another plug-in failed at that time"

    def _next_end(self) -> float | None:
        """Return the seconds until the next suspension for all ends; None: there is none."""
        now = time.monotonic()
        ends = [s.until for (_, user), s in self._suspended.items() if user == ALL]
        return min((max(end - now, 0.0) for end in ends if end > now), default=None)

    def _note(self, results: Iterable[Ratings]) -> None:
        """Count exclusions, and warn of each plug-in at most once in `WARNING_INTERVAL`."""
        counts: dict[PlugIn, int] = {}
        reasons: dict[PlugIn, str] = {}
        for ratings in results:
            for plug_in, rating in ratings.items():
                if rating.error:
                    counts[plug_in] = counts.get(plug_in, 0) + 1
                    reasons[plug_in] = rating.error
        now = time.monotonic()
        for plug_in, count in counts.items():
            self._excluded[plug_in] = self._excluded.get(plug_in, 0) + count
            self.on_exclusion(plug_in, count)
            if now - self._warned.get(plug_in, -WARNING_INTERVAL) >= WARNING_INTERVAL:
                self._warned[plug_in] = now
                log.warning("heuristic %s is excluded: %s", plug_in, reasons[plug_in])


async def _in_time(acquired: Awaitable[object], deadline: float) -> bool:
    """Await something until a time of the event loop; return False if it is not there by then."""
    try:
        async with asyncio.timeout_at(deadline):
            await acquired
    except TimeoutError:
        return False
    return True
