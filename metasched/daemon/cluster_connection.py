"""One cluster's connection: its worker process, polls, dispatches, withdrawals."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import math
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from metasched.adapters.base import Order, Withdrawal
from metasched.adapters.protocol import Answer, Boot, Call, News
from metasched.clock import Clock
from metasched.config.settings import ClusterSettings
from metasched.core.events import (
    Accepted,
    Action,
    CoreEvent,
    Declined,
    Look,
    Returned,
    Revoke,
    Revoked,
    Seen,
    Send,
    Silent,
    Traced,
    Tried,
    Unsure,
    Withdraw,
)
from metasched.daemon.circuit_breaker import Breaker
from metasched.daemon.manager_start_times import Expectations
from metasched.daemon.reservation_sync import ReservationLink
from metasched.model.job import Payload
from metasched.model.listing import Claim, Trace
from metasched.model.reservation import name_of
from metasched.model.tags import tag_of
from metasched.policies.eligible import NoMapping, translated
from metasched.timeouts import listening

if TYPE_CHECKING:
    from metasched.daemon.service import Engine

log = logging.getLogger("metasched")

# Polls slow down while nothing happens: an end is seen late by a tenth of the quiet before it.
SLOWER = 1.1


QUIET = 10.0  # seconds between polls, at the most, while jobs of ours run


IDLE = 60.0  # likewise while there are none; a submission makes them quick again


SLOWEST = 60.0  # seconds between tries of a cluster that does not answer, at the most


SILENT_AFTER = 2  # failed polls in a row after which a cluster counts as silent


WORKER_AGAIN = 0.5  # seconds before a worker that died is started again, doubled each time


SLOW_START = 4.0  # times `call_timeout` for the first answer, after deaths in a row, at the most


HEALTHY = 60.0  # seconds of life after which the earlier deaths of a worker are forgotten


LONGEST_LINE = 1 << 28  # bytes of one answer of a worker


# Tasks with a worker at the least, if there are as many, before more are sent to it: under half a
# second of sbatch for a poll to wait for, and two transactions and turns of ours for 32 tasks.
AHEAD = 32


@dataclass(eq=False)
class _Wish:
    """A withdrawal that is told to a worker until it has been taken."""

    what: Withdraw
    breaker: Breaker


class Link:
    """One cluster: its worker process, the actions waiting for it, and its polls."""

    def __init__(self, engine: Engine, settings: ClusterSettings) -> None:
        self.name, self.settings = settings.cluster.name, settings
        self.access = ""  # by what its worker speaks to it, once that is known
        self._engine = engine
        self._sends: list[tuple[float, int, int, Send]] = []
        self._wishes: dict[tuple[int, int, bool], _Wish] = {}
        self._look: Look | None = None
        self._claims: set[Claim] = set()  # to be revoked
        self.expectations = Expectations(self.name)
        self.reservations = ReservationLink(settings.cluster, engine, self.call)
        self.listed = 0.0  # when the listing was taken that news is relative to
        self._wake = asyncio.Event()
        self._worker: asyncio.subprocess.Process | None = None
        self._born = 0.0
        self._answered = False  # the worker, at least once
        self._ends: set[asyncio.Task[None]] = set()  # of workers, waited for
        self._full = True
        self._next_poll = 0.0
        self._pace = settings.poll_interval
        self.breaker = self._new_breaker()
        self.deaths = Breaker(WORKER_AGAIN, SLOWEST)

    def _new_breaker(self) -> Breaker:
        return Breaker(min(2 * self.settings.poll_interval, SLOWEST), SLOWEST)

    def stir(self) -> None:
        """Something is going to happen: look soon."""
        self._pace = self.settings.poll_interval
        self._wake.set()

    def add(self, action: Action) -> None:
        """Queue an action: sends by the order of their tasks, all others before them."""
        match action:
            case Send():
                tasks = self._engine.core.sending(action.job, action.sending)
                first = min((task.key for task in tasks), default=0.0)
                heapq.heappush(self._sends, (first, action.job, action.sending, action))
            case Withdraw():
                key = (action.job, action.sending, action.unstarted)
                earlier = self._wishes.pop(key, None)
                natives = {**earlier.what.natives, **action.natives} if earlier else action.natives
                self._wishes[key] = _Wish(replace(action, natives=natives), self._new_breaker())
            case Look():
                self._look = action
            case Revoke():
                self._claims.update(action.claims)
        self.stir()

    async def run(self) -> None:
        """Do what goes first, else send, else wait."""
        try:
            while True:
                self._wake.clear()
                self._notice_death()
                first = self._first()
                if first is not None:
                    await first()
                elif self._sends:
                    await self._send()
                else:
                    wanted = min((w.breaker.until for w in self._wishes.values()), default=math.inf)
                    await self._sleep(min(self._next_poll, wanted, self.reservations.due))
        finally:
            worker = self._worker
            self._kill()
            if worker is not None:
                await worker.wait()

    def _first(self) -> Callable[[], Awaitable[None]] | None:
        """What goes before any sending now: a poll when it is time, else a wish."""
        now = time.monotonic()
        if self.deaths.state(now) == "open":  # there is no worker yet
            return partial(self._sleep, self.deaths.until)
        if now >= self._next_poll:
            return self._poll
        if self._claims:
            return self._revoke
        if self.breaker.failures:
            return partial(self._sleep, self._next_poll)
        wish = min(self._wishes.values(), key=lambda w: w.breaker.until, default=None)
        if wish is not None and now >= wish.breaker.until:
            return partial(self._withdraw, wish)
        if now >= self.reservations.due:
            return self.reservations.act
        return None if self._look is None else self._trace

    async def _sleep(self, until: float) -> None:
        """Wait for the time or for a new action; then poll soon, if all is well."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(until - time.monotonic(), 0.0)):
                await self._wake.wait()
            if not self.breaker.failures:
                self._poll_in(self.settings.poll_interval)

    def _poll_in(self, seconds: float) -> None:
        self._next_poll = min(self._next_poll, time.monotonic() + seconds)

    # Polls

    async def _poll(self) -> None:
        clock = Clock()
        rho = self._engine.core.licences.rho
        answer = await self.call(Call("poll", full=self._full, rho=rho))
        if by := clock.step():
            # its times are those of another clock, and what it told as news it tells no more
            log.warning("cluster %s: the clock was set by %+.0f s during a poll", self.name, by)
            self._full, self._next_poll = True, 0.0
            return
        now, core = time.time(), self._engine.core
        if answer.news is None:
            self._failed(answer.reason)
            return
        news = self._genuine(answer.news)
        _, silent = core.view(self.name)
        if silent or self.breaker.failures:
            log.info("cluster %s answers", self.name)
            for wish in self._wishes.values():
                wish.breaker.succeed()  # it was not for what they ask that they failed
        self.breaker.succeed()
        self._full = False
        self.expectations.learn(news, core.instance)
        quiet = not (news.rows or news.vanished or news.facts or news.full or silent)
        if not quiet or core.expects(self.name, now):
            self._engine.take(
                Seen(
                    now,
                    self.name,
                    news.rows,
                    tuple((tag, index) for tag, index, _ in news.vanished),
                    news.facts,
                    news.full,
                    news.since,
                    news.until,
                    self.listed,
                    news.up_since,
                )
            )
        self.listed = news.taken
        self._next_poll = time.monotonic() + self._interval(bool(news.rows or news.vanished))

    def _interval(self, news: bool) -> float:
        """Seconds to the next poll: slower while nothing of ours is to begin, move or change."""
        core, quickest = self._engine.core, self.settings.poll_interval
        busy = self._wishes or core.restless or core.licences.waited_for
        if news or busy or core.expects(self.name, time.time()):
            self._pace = quickest
        else:
            slowest = QUIET if core.tasks else IDLE
            least = quickest if core.tasks_on(self.name) else QUIET
            self._pace = max(min(max(self._pace * SLOWER, least), slowest), quickest)
        return self._pace

    def _genuine(self, news: News) -> News:
        """Without what others than its owner have marked with a task's tag."""
        owns = self._engine.owns
        return structs.replace(
            news,
            rows=tuple(row for row in news.rows if owns(row.tag, row.owner)),
            vanished=tuple(gone for gone in news.vanished if owns(gone[0], gone[2])),
            expected=tuple(one for one in news.expected if owns(one[0], one[2])),
        )

    def _failed(self, reason: str) -> None:
        """A poll failed: wait longer, and say so to the core once it lasts."""
        now = time.monotonic()
        delay = self.breaker.fail(reason, time.time(), now, least=self.deaths.until - now)
        self._next_poll = self.breaker.until
        log.warning("cluster %s does not answer (%s); next try in %g s", self.name, reason, delay)
        if self.breaker.failures != SILENT_AFTER:
            return
        self._full = True
        untried = tuple((send.job, send.sending) for *_, send in self._sends)
        self._sends.clear()
        returned = [Returned(time.time(), untried)] if untried else []
        self._engine.take(Silent(time.time(), self.name, reason), *returned)

    # Actions

    async def _send(self) -> None:
        """Send what waits, until something goes before it or the manager takes no more for now.

        The worker has its next orders in hand while we store what it has answered, and one
        transaction stores the answers to half of them with the intents of as many more.
        """
        engine = self._engine
        under_way: deque[tuple[Send, Call]] = deque()
        happened: list[CoreEvent] = []
        taking = True
        while True:
            chosen: list[Send] = []
            if taking and self._first() is None:
                chosen = self._chosen(AHEAD - sum(len(send.indices) for send, _ in under_way))
            payloads = engine.ledger.payloads(send.job for send in chosen)
            calls: list[tuple[Send, Call]] = []
            for send in chosen:
                now = time.time()
                try:
                    order = self._order(send, payloads[send.job])
                except NoMapping as error:
                    happened.append(Declined(now, send.job, send.sending, str(error)))
                    continue
                if order is None:
                    happened.append(Returned(now, ((send.job, send.sending),)))
                    continue
                happened.append(Tried(now, send.job, send.sending))
                calls.append((send, Call("submit", order=order, chained=bool(under_way or calls))))
            if happened:
                engine.take(*happened)
                happened.clear()
            for send, call in calls:
                under_way.append((send, call))
                taking = taking and await self._tell(call)
            if not under_way:
                return
            # nobody waits for the answer to a single job, nor one of many for those to all
            most = min(len(under_way) - 1, AHEAD // 2 if self._sends else AHEAD)
            while len(under_way) > (most if taking else 0):
                send, call = under_way.popleft()
                answer = await self._hear(call)
                now, job, sending = time.time(), send.job, send.sending
                match answer.error:
                    case "":
                        happened.append(Accepted(now, job, sending, answer.natives, answer.access))
                    case "refused":
                        taking = taking and not answer.again
                        happened.append(Declined(now, job, sending, answer.reason, answer.again))
                    case "untried":
                        happened.append(Returned(now, ((job, sending),)))
                    case _:
                        taking, self._next_poll = False, 0.0
                        happened.append(Unsure(now, job, sending, answer.reason))

    def _chosen(self, room: int) -> list[Send]:
        """The next sendings, until there are as many tasks."""
        chosen: list[Send] = []
        while self._sends and room > 0:
            chosen.append(heapq.heappop(self._sends)[-1])
            room -= len(chosen[-1].indices)
        return chosen

    def _order(self, send: Send, payload: Payload) -> Order | None:
        """A sending as the worker is told it; None: not any more, or not now.

        NoMapping if the cluster has no word for something that the job asks for.
        """
        core = self._engine.core
        tasks = core.sending(send.job, send.sending)
        full = core.full_since(self.name)
        wanted = [t.attempt for t in tasks if t.attempt and t.attempt.intent is None]
        if not wanted or (full is not None and wanted[0].sent <= full):
            return None
        facts, _ = core.view(self.name)
        job = translated(tasks[0].job, self.settings.cluster, facts)
        return Order(
            tag=tag_of(core.instance, send.job, send.sending),
            job=job,
            payload=payload,
            indices=tuple(task.index for task in tasks),
            priority=tasks[0].priority,
            options=tuple(shlex.split(job.native.get(self.name, ""))),
            fence=wanted[0].fence,
            reservation=name_of(core.instance, job.reservation) if job.reservation else "",
            leased=tuple(tasks[0].job.licences),
        )

    async def _withdraw(self, first: _Wish) -> None:
        """Tell a wish, with others that can be told in the same call."""
        told = self._together(first)
        withdrawals = tuple(
            Withdrawal(
                tag=self._tag(wish),
                user=self._engine.owner_of(self._tag(wish)),
                natives=wish.what.natives,
                unstarted=wish.what.unstarted,
            )
            for wish in told
        )
        answer = await self.call(Call("withdraw", withdrawals=withdrawals))
        if not answer.error or (answer.error == "refused" and len(told) == 1):
            for wish in told:
                key = (wish.what.job, wish.what.sending, wish.what.unstarted)
                if self._wishes.get(key) is wish:
                    del self._wishes[key]
            self._poll_in(0.2)
        else:
            for wish in told:
                wish.breaker.fail(answer.reason, time.time(), time.monotonic())
            more = f" and {len(told) - 1} more" if len(told) > 1 else ""
            which = f"{withdrawals[0].tag}{more}"
            log.warning("cluster %s: %s not withdrawn: %s", self.name, which, answer.reason)
            self._poll_in(0.0)

    def _together(self, first: _Wish) -> list[_Wish]:
        """The wish and those like it, up to a chunk of tasks; what has failed is told alone."""
        if first.breaker.failures:
            return [first]
        owner = self._engine.owner_of(self._tag(first))
        found, left = [first], self.settings.cluster.chunk - len(first.what.natives)
        for wish in self._wishes.values():
            if (
                wish is not first
                and not wish.breaker.failures
                and wish.what.unstarted == first.what.unstarted
                and self._engine.owner_of(self._tag(wish)) == owner
            ):
                left -= len(wish.what.natives)
                if left < 0:
                    break
                found.append(wish)
        return found

    def _tag(self, wish: _Wish) -> str:
        return tag_of(self._engine.core.instance, wish.what.job, wish.what.sending)

    async def _trace(self) -> None:
        """What accounting does not tell now the core asks for again later."""
        look, self._look = self._look, None
        assert look is not None
        missing = tuple(
            structs.replace(one, user=self._engine.owner_of(one.tag)) for one in look.missing
        )
        answer = await self.call(Call("trace", missing=missing))
        if answer.trace is None:
            log.warning("cluster %s: its accounting does not answer: %s", self.name, answer.reason)
        elif answer.trace != Trace():
            found = answer.trace
            rows = tuple(row for row in found.rows if self._engine.owns(row.tag, row.owner))
            self._engine.take(Traced(time.time(), self.name, rows, found.unstarted))

    async def _revoke(self) -> None:
        """What is not known now the core asks for again later."""
        claims = tuple(sorted(self._claims, key=lambda claim: (claim.tag, claim.task)))
        self._claims.clear()
        answer = await self.call(Call("revoke", claims=claims))
        if answer.reason:
            log.warning("cluster %s: claims not revoked: %s", self.name, answer.reason)
        told = [(revoked, claims[number]) for number, revoked in answer.revoked.items()]
        if told:
            never = tuple((claim.tag, claim.task) for revoked, claim in told if revoked)
            begun = tuple((claim.tag, claim.task) for revoked, claim in told if not revoked)
            self._engine.take(Revoked(time.time(), never, begun))

    # The worker process

    async def call(self, call: Call) -> Answer:
        """One call to the worker; a worker that dies or hangs is killed, and may have done it."""
        await self._tell(call)
        return await self._hear(call)

    @property
    def _patience(self) -> float:
        """Seconds for an answer; a busy host may keep a worker from its first one for longer."""
        if self._answered:
            return self.settings.call_timeout
        return self.settings.call_timeout * min(2.0**self.deaths.failures, SLOW_START)

    async def _tell(self, call: Call) -> bool:
        """Give a call to the worker; False: there is none, as `_hear` will say."""
        if self._worker is None and self.deaths.state(time.monotonic()) == "open":
            return False
        patience = self._patience
        try:
            worker = self._worker or await self._start()
            assert worker.stdin is not None
            worker.stdin.write(msgspec.json.encode(call) + b"\n")
            async with listening(patience):
                await worker.stdin.drain()
        except TimeoutError:
            self._lost(f"it did not read in {patience:g} s")
        except ConnectionError:
            self._lost(f"its worker died{await self._cause(worker)}")
        except (OSError, ValueError) as error:
            self._lost(f"its worker failed: {error}")
        return self._worker is not None

    async def _hear(self, call: Call) -> Answer:
        """The answer to a call; they come in the order of the calls."""
        worker = self._worker
        if worker is None:
            return Answer("unreachable", self.deaths.words)
        assert worker.stdout is not None
        patience = self._patience
        try:
            async with listening(patience):
                line = await worker.stdout.readline()
        except TimeoutError:
            return self._lost(f"no answer to {call.call} in {patience:g} s")
        except (OSError, ValueError) as error:
            return self._lost(f"its worker failed: {error}")
        if not line.endswith(b"\n"):
            return self._lost(f"its worker died{await self._cause(worker)}")
        try:
            answer = msgspec.json.decode(line, type=Answer)
        except msgspec.DecodeError as error:
            log.error("cluster %s: an answer that makes no sense: %s", self.name, error)
            return self._lost(f"its worker's answer makes no sense ({error})")
        self._answered, self.access = True, answer.access
        if answer.error == "defect":
            log.error("cluster %s: %s", self.name, answer.reason)
            return Answer("unreachable", answer.reason.strip().rpartition("\n")[2])
        return answer

    async def _start(self) -> asyncio.subprocess.Process:
        settings = self.settings
        self._born = time.monotonic()
        every = self._engine.settings.folder
        folder = every / self.name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._engine.settings.launcher is not None:
            every.chmod(0o711)  # to reach their own part users pass through this
        self._worker = await asyncio.create_subprocess_exec(
            settings.python or sys.executable,
            "-m",
            "metasched.adapters.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | settings.environment,
            limit=LONGEST_LINE,
        )
        self._full, self._answered = True, False
        end = asyncio.create_task(self._wake_at_end(self._worker))
        self._ends.add(end)
        end.add_done_callback(self._ends.discard)
        boot = Boot(
            settings.cluster.adapter,
            settings.cluster,
            settings.options,
            self._engine.core.instance,
            str(folder),
            str(self._engine.settings.launcher or ""),
        )
        assert self._worker.stdin is not None
        self._worker.stdin.write(msgspec.json.encode(boot) + b"\n")
        return self._worker

    async def _wake_at_end(self, worker: asyncio.subprocess.Process) -> None:
        await worker.wait()
        self._wake.set()

    def _notice_death(self) -> None:
        """A worker that dies while nothing is asked of it is told of, and another started soon."""
        if self._worker is not None and self._worker.returncode is not None:
            self._lost(f"its worker died{_end(self._worker.returncode)}")
            self._next_poll = max(self.deaths.until, self.breaker.until)

    @staticmethod
    async def _cause(worker: asyncio.subprocess.Process) -> str:
        """How a worker that closed its pipe has ended, if it tells at once."""
        try:
            async with asyncio.timeout(1.0):
                return _end(await worker.wait())
        except TimeoutError:
            return ""

    def _lost(self, words: str) -> Answer:
        """A worker is of no use any more; one that dies again and again is started less often."""
        if self._worker is not None and self._worker.stdin is not None:
            # what it has not read breaks its pipe: asyncio logs that unless somebody asks for it
            closed = asyncio.create_task(self._worker.stdin.wait_closed())
            closed.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._kill()
        now = time.monotonic()
        if now - self._born > HEALTHY:
            self.deaths.succeed()
        again = f", {self.deaths.failures + 1} times in a row" if self.deaths.failures else ""
        delay = self.deaths.fail(words + again, time.time(), now)
        log.warning("cluster %s: %s%s; a new worker in %g s", self.name, words, again, delay)
        return Answer("unreachable", words + again)

    def _kill(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None and worker.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                worker.kill()


def _end(code: int) -> str:
    return f" of signal {-code}" if code < 0 else f" with exit code {code}"
