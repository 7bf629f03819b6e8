"""The shell round the core: database, workers, timers.

Every event goes one way: the core steps, one transaction stores the event with all that followed
(`Ledger.record`), and only then is anything done in the world. What is to be done is in the
states themselves: an attempt `dispatching` is a send intended, its `intent` a wish to withdraw.
Just before a send is made `Tried` is stored. Hence a crash between any two steps is harmless:
before the commit nothing happened; after it the next start reads the same intents; an untried
send is made, one that was tried is looked for in a listing first, a withdrawal is idempotent.
A transaction that fails is treated as such a crash: the engine is thrown away and started again
from the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from metasched.adapters.base import Order, Withdrawal
from metasched.config import ClusterSettings, Settings
from metasched.core import Core
from metasched.db.ledger import Ledger, StorageFailed, Stored
from metasched.events import (
    Accepted,
    Action,
    Booted,
    CoreEvent,
    Declined,
    Due,
    Outcome,
    Returned,
    Seen,
    Send,
    Silent,
    Tried,
    Unsure,
    Withdraw,
)
from metasched.model import tag_of
from metasched.policies.eligible import NoMapping, translated
from metasched.worker import Answer, Boot, Call

log = logging.getLogger("metasched")

IDLE = 10.0  # seconds between polls of a cluster on which nothing of ours is live
SLOWEST = 60.0  # seconds between tries of a cluster that does not answer, at the most
SILENT_AFTER = 2  # failed polls in a row after which a cluster counts as silent
RESTART = 2.0  # seconds before an engine that broke is started again
LONGEST_LINE = 1 << 28  # bytes of one answer of a worker


class Link:
    """One cluster: its worker process, the actions waiting for it, and its polls."""

    def __init__(self, engine: Engine, settings: ClusterSettings) -> None:
        self.name, self.settings = settings.cluster.name, settings
        self._engine = engine
        self._queue: deque[Action] = deque()
        self._wake = asyncio.Event()
        self._worker: asyncio.subprocess.Process | None = None
        self._failures = 0
        self._full = True
        self._next_poll = 0.0
        self._retry = 0.0

    def add(self, action: Action) -> None:
        self._queue.append(action)
        self._wake.set()

    async def run(self) -> None:
        """Poll when it is time, else carry out the next action, else wait."""
        try:
            while True:
                now = time.monotonic()
                self._wake.clear()
                if now >= self._next_poll:
                    await self._poll()
                elif self._queue and not self._failures and now >= self._retry:
                    await self._act(self._queue[0])
                else:
                    until = self._next_poll
                    if self._queue and not self._failures:
                        until = min(until, self._retry)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), until - now)
                    if self._queue:
                        self._next_poll = min(
                            self._next_poll, time.monotonic() + self.settings.poll_interval
                        )
        finally:
            worker = self._worker
            self._kill()
            if worker is not None:
                await worker.wait()

    # Polls

    async def _poll(self) -> None:
        answer = await self._call(Call("poll", full=self._full))
        now, core = time.time(), self._engine.core
        if answer.news is None:
            self._failed(answer.reason)
            return
        news = answer.news
        _, silent = core.view(self.name)
        if silent or self._failures:
            log.info("cluster %s answers", self.name)
        self._failures, self._full, self._retry = 0, False, 0.0
        quiet = not (news.rows or news.vanished or news.facts or news.full or silent)
        if not quiet or core.expects(self.name):
            self._engine.take(
                Seen(
                    now,
                    self.name,
                    news.rows,
                    news.vanished,
                    news.facts,
                    news.full,
                    news.since,
                    news.until,
                )
            )
        busy = bool(core.tasks_on(self.name) or self._queue)
        interval = self.settings.poll_interval
        self._next_poll = time.monotonic() + (interval if busy else max(IDLE, interval))

    def _failed(self, reason: str) -> None:
        """A poll failed: wait longer, and say so to the core once it lasts."""
        self._failures += 1
        delay = min(self.settings.poll_interval * 2**self._failures, SLOWEST)
        self._next_poll = time.monotonic() + delay
        log.warning("cluster %s does not answer (%s); next try in %g s", self.name, reason, delay)
        if self._failures != SILENT_AFTER:
            return
        now = time.time()
        self._full = True
        untried = [a for a in self._queue if isinstance(a, Send)]
        self._queue = deque(a for a in self._queue if not isinstance(a, Send))
        self._engine.take(
            Silent(now, self.name, reason),
            *(Returned(now, send.job, send.sending) for send in untried),
        )

    # Actions

    async def _act(self, action: Action) -> None:
        match action:
            case Send():
                await self._send(action)
            case Withdraw():
                await self._withdraw(action)

    async def _send(self, send: Send) -> None:
        engine = self._engine
        self._queue.popleft()
        tasks = engine.core.sending(send.job, send.sending)
        if not any(task.attempt and task.attempt.intent is None for task in tasks):
            engine.take(Returned(time.time(), send.job, send.sending))
            return
        facts, _ = engine.core.view(self.name)
        try:
            job = translated(tasks[0].job, self.settings.cluster, facts)
        except NoMapping as error:
            engine.take(Declined(time.time(), send.job, send.sending, str(error)))
            return
        order = Order(
            tag=tag_of(engine.core.instance, send.job, send.sending),
            job=job,
            payload=engine.ledger.payload(send.job),
            indices=tuple(task.index for task in tasks),
            priority=tasks[0].priority,
            options=tuple(shlex.split(job.native.get(self.name, ""))),
        )
        engine.take(Tried(time.time(), send.job, send.sending))
        answer = await self._call(Call("submit", order=order))
        now = time.time()
        match answer.error:
            case "":
                engine.take(Accepted(now, send.job, send.sending, answer.natives))
            case "refused":
                engine.take(Declined(now, send.job, send.sending, answer.reason, answer.again))
            case _:
                self._next_poll = 0.0
                engine.take(Unsure(now, send.job, send.sending, answer.reason))

    async def _withdraw(self, wish: Withdraw) -> None:
        answer = await self._call(
            Call(
                "withdraw",
                withdrawal=Withdrawal(
                    tag=tag_of(self._engine.core.instance, wish.job, wish.sending),
                    natives=wish.natives,
                    unstarted=wish.unstarted,
                ),
            )
        )
        if answer.error in ("", "refused"):
            self._queue.popleft()
            self._next_poll = min(self._next_poll, time.monotonic() + 0.2)
        else:
            self._retry = time.monotonic() + self.settings.poll_interval
            self._next_poll = 0.0

    # The worker process

    async def _call(self, call: Call) -> Answer:
        """One call to the worker; a worker that dies or hangs is killed, and may have done it."""
        try:
            worker = self._worker or await self._start()
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(msgspec.json.encode(call) + b"\n")
            async with asyncio.timeout(self.settings.call_timeout):
                await worker.stdin.drain()
                line = await worker.stdout.readline()
        except TimeoutError:
            self._kill()
            return Answer("unreachable", f"no answer in {self.settings.call_timeout:g} s")
        except (OSError, ValueError) as error:
            self._kill()
            return Answer("unreachable", f"its worker failed: {error}")
        if not line.endswith(b"\n"):
            self._kill()
            return Answer("unreachable", "its worker died")
        answer = msgspec.json.decode(line, type=Answer)
        if answer.error == "defect":
            log.error("cluster %s: %s", self.name, answer.reason)
            return Answer("unreachable", answer.reason.strip().rpartition("\n")[2])
        return answer

    async def _start(self) -> asyncio.subprocess.Process:
        settings = self.settings
        folder = self._engine.settings.folder / self.name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._worker = await asyncio.create_subprocess_exec(
            settings.python or sys.executable,
            "-m",
            "metasched.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | settings.environment,
            limit=LONGEST_LINE,
        )
        self._full = True
        boot = Boot(
            settings.cluster.adapter,
            settings.cluster,
            settings.options,
            self._engine.core.instance,
            str(folder),
        )
        assert self._worker.stdin is not None
        self._worker.stdin.write(msgspec.json.encode(boot) + b"\n")
        return self._worker

    def _kill(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None and worker.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                worker.kill()


class Engine:
    """One life of the scheduler, from the database as it stands to a stop or a failed write."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self.settings, self.ledger = settings, ledger
        self.core = Core()
        self.changed = asyncio.Event()
        self._links = {c.cluster.name: Link(self, c) for c in settings.clusters}
        self._due = asyncio.Event()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ledger.restore(self.core, settings.policy.window)
        now = time.time()
        self.take(
            Booted(
                now,
                ledger.instance(now),
                settings.policy,
                tuple(c.cluster for c in settings.clusters),
            )
        )

    def take(
        self,
        *events: CoreEvent,
        stored: Sequence[Stored] = (),
        texts: Mapping[str, str] | None = None,
    ) -> list[Outcome]:
        """Let events happen: step, store in one transaction, then act. StorageFailed: none did."""
        if self._broken.done():
            raise StorageFailed("the last write failed; starting again from the database")
        try:
            outcomes = [self.core.step(event) for event in events]
            self.ledger.record(list(zip(events, outcomes, strict=True)), stored, texts)
        except Exception as error:
            # the core is ahead of the database now: this engine is at its end
            if not self._broken.done():
                self._broken.set_exception(error)
            raise
        for outcome in outcomes:
            for action in outcome.actions:
                self._links[action.cluster].add(action)
        self._due.set()
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
        return outcomes

    async def run(self) -> None:
        """Run all clusters and timers until cancelled, or until an event could not be taken."""
        async with asyncio.TaskGroup() as group:
            for link in self._links.values():
                group.create_task(link.run(), name=link.name)
            group.create_task(self._begin_times())
            await self._broken

    async def _begin_times(self) -> None:
        while True:
            self._due.clear()
            due = self.core.next_due
            if due is not None and due <= time.time():
                self.take(Due(time.time()))
                continue
            wait = None if due is None else min(due - time.time(), IDLE)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), wait)


class Daemon:
    """The engine, restarted after a failed write, and what the API needs to reach it."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self.settings, self.ledger, self.started = settings, ledger, time.time()
        self.engine: Engine | None = None

    async def run(self) -> None:
        while True:
            try:
                self.engine = Engine(self.settings, self.ledger)
                await self.engine.run()
            except* StorageFailed as failed:
                log.error("no write to the database: %s", failed.exceptions[0])
            except* Exception:
                log.exception("a defect; the engine starts again from the database")
            self.engine = None
            await asyncio.sleep(RESTART)
