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
import time
from collections.abc import Mapping, Sequence

from metasched.clock import Clock
from metasched.config.settings import Settings
from metasched.core.events import (
    Booted,
    ClockSet,
    CoreEvent,
    Due,
    Outcome,
    Submitted,
)
from metasched.core.scheduler import Core
from metasched.core.tasks import Place
from metasched.daemon.cluster_connection import QUIET, Link
from metasched.daemon.licence_monitor import Watch
from metasched.daemon.mail import Mailer
from metasched.daemon.manager_start_times import Expectation
from metasched.db.ledger import Ledger, Stored
from metasched.db.store import StorageFailed
from metasched.model.tags import parse_tag

log = logging.getLogger("metasched")

PRUNE_EVERY = 3600.0  # seconds between looks for jobs that ended too long ago to be kept
PRUNE_PAUSE = 0.1  # seconds between two portions of them
WATCH = 10.0  # seconds between looks whether the database is there
RESTART = 2.0  # seconds before an engine that broke is started again


class Engine:
    """One life of the scheduler, from the database as it stands to a stop or a failed write."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self.settings, self.ledger = settings, ledger
        self.core = Core()
        self._clock = Clock()
        self.changed = asyncio.Event()
        self.links = {c.cluster.name: Link(self, c) for c in settings.clusters}
        self.watches = [
            Watch(self, server, [pool for pool in settings.licences if pool.server == server.name])
            for server in settings.licence_servers
        ]
        self.mailer = Mailer(settings.mail_program, ledger)
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
                pools=settings.licences,
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
        if by := self._clock.step():
            log.warning("the clock was set by %+.0f s", by)
            events = (ClockSet(time.time(), by), *events)
        try:
            outcomes = [self.core.step(event) for event in events]
            self.ledger.record(list(zip(events, outcomes, strict=True)), stored, texts)
        except Exception as error:
            # the core is ahead of the database now: this engine is at its end
            if not self._broken.done():
                self._broken.set_exception(error)
            raise
        for outcome in outcomes:
            for warning in outcome.warnings:
                log.warning("%s", warning)
            for action in outcome.actions:
                self.links[action.cluster].add(action)
            for binding in outcome.bindings:
                self.links[binding.cluster].reservations.add(binding)
                self.links[binding.cluster].stir()
            self.mailer.look(outcome)
        if any(isinstance(event, Submitted) for event in events):
            for link in self.links.values():
                link.stir()
        self._due.set()
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
        return outcomes[1:] if by else outcomes

    def owns(self, tag: str, owner: str) -> bool:
        """Whether that account owns the job of a tag, if jobs have owners here."""
        return self.settings.launcher is None or self.owner_of(tag) == owner

    def owner_of(self, tag: str) -> str:
        """The user to whom the job of a tag belongs; "" if it was never stored."""
        named = parse_tag(tag, self.core.instance)
        if named is None:
            return ""
        if tasks := self.core.tasks_of(named[0]):
            return tasks[0].job.user
        return self.ledger.owner(named[0]) or ""

    def expected(self, place: Place) -> Expectation | None:
        """When a task's manager expects it to begin. May be called from any thread."""
        task = self.core.tasks.get(place)
        attempt = None if task is None else task.attempt
        link = None if attempt is None else self.links.get(attempt.cluster)
        return None if attempt is None or link is None else link.expectations.of(place, attempt)

    async def run(self) -> None:
        """Run all clusters and timers until cancelled, or until an event could not be taken."""
        async with asyncio.TaskGroup() as group:
            for link in self.links.values():
                group.create_task(link.run(), name=link.name)
            for watch in self.watches:
                group.create_task(watch.run(), name=f"licence server {watch.settings.name}")
            group.create_task(self.mailer.run(), name="mail")
            group.create_task(self._begin_times())
            group.create_task(self._prune())
            group.create_task(self._watch())
            await self._broken

    async def _prune(self) -> None:
        """Forget what ended long ago, a little at a time."""
        while True:
            while self.ledger.prune(time.time() - self.settings.keep):
                await asyncio.sleep(PRUNE_PAUSE)
            await asyncio.sleep(min(PRUNE_EVERY, self.settings.keep))

    async def _watch(self) -> None:
        """An idle daemon writes nothing, and should know all the same that it could not."""
        while True:
            await asyncio.sleep(WATCH)
            self.ledger.look()

    async def _begin_times(self) -> None:
        while True:
            self._due.clear()
            due = self.core.next_due
            if due is not None and due <= time.time():
                begun = time.monotonic()
                self.take(Due(time.time()))
                # between the portions of a large array all others have as much time
                await asyncio.sleep(time.monotonic() - begun)
                continue
            wait = None if due is None else min(due - time.time(), QUIET)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._due.wait()


class Daemon:
    """The engine, restarted after a failed write, and what the API needs to reach it."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self.settings, self.ledger, self.started = settings, ledger, time.time()
        self.engine: Engine | None = None
        self.trouble = "the daemon starts"  # why there is no engine
        self.away = False  # the database, as far as has been told
        self.stopping = False

    def stop(self) -> None:
        """Let go of those who wait for news: the end is near."""
        self.stopping = True
        if self.engine is not None:
            self.engine.changed.set()

    async def run(self) -> None:
        """Until it is cancelled. Busy: another daemon has the database by now."""
        while True:
            await self._reach()
            try:
                self.engine = Engine(self.settings, self.ledger)
                await self.engine.run()
            except* StorageFailed as failed:
                self.away = True
                self.trouble = f"the database is away or takes no write ({_first(failed)})"
            except* Exception:
                self.trouble = "the daemon starts again after an error, see its log"
                log.exception("a defect; the engine starts again from the database")
            self.engine = None
            log.error("%s; starting again from the database", self.trouble)
            await asyncio.sleep(RESTART)

    async def _reach(self) -> None:
        """Wait until the database can be written to."""
        told = ""
        while True:
            try:
                # a server that does not answer must not keep us from answering
                await asyncio.to_thread(self.ledger.reach)
            except StorageFailed as error:
                self.away = True
                self.trouble = f"the database is away ({error})"
                if self.trouble != told:
                    log.error("%s; it is tried every %g s", self.trouble, RESTART)
                told = self.trouble
                await asyncio.sleep(RESTART)
            else:
                if self.away:
                    log.info("the database is back")
                self.away = False
                return


def _first(group: BaseExceptionGroup[StorageFailed]) -> BaseException:
    """An error out of a group, however deep."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
