"""Tells owners, by the site's mail program, which of their reservations cannot be kept.

The row of a reservation is the outbox: one that is broken and not `told` is told. What was told is
stored when the program has ended well, so that a crash in between tells it twice, never not at all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

from metasched.core.events import Outcome
from metasched.daemon.circuit_breaker import Breaker
from metasched.db.ledger import Ledger
from metasched.model.reservation import Reservation, Stage
from metasched.timeouts import listening
from metasched.units import iso

log = logging.getLogger("metasched")

AGAIN = (2.0, 3600.0)  # seconds until one that was not told is told again: first, at the most
FIRST = 1.0  # seconds in which who still waits for the answer to his request is told by that
PATIENCE = 60.0  # seconds for the mail program
GIVE_UP = 86400.0  # seconds after which nobody is told any more
# A mail program may take other words for an option, a file, or a command that it is to run.
ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.%+-]{0,63}(@[A-Za-z0-9][A-Za-z0-9.-]{0,189})?")


def letter(one: Reservation) -> tuple[str, str]:
    """Subject and text to the owner of a broken reservation; no line begins with others' words."""
    unit, each, option = "nodes", 1, " --nodes"
    if not one.nodes:
        unit, each, option = "processors", one.cpus // one.size, ""
    lines = [
        f"Your reservation {one.id} on {one.cluster} cannot be kept.",
        f"Window: {one.size * each} {unit} from {iso(one.start)} to {iso(one.end)}",
        f"Cause: {' '.join(one.cause.split())}",
        "Jobs that wait for it stay with metasched until you cancel them.",
    ]
    for offer in one.offers:
        cluster = offer.cluster or one.cluster
        if offer.cluster:  # which counts differently
            unit, each, option = "processors", 1, ""
        begin, end = iso(offer.start), iso(offer.end)
        lines += [
            f"Free instead: {offer.size * each} {unit} of {cluster} from {begin} to {end}."
            " It is not kept for you until you ask:",
            f"    metasched reserve --cluster {cluster} --size {offer.size * each}{option}"
            f" --start {begin} --end {end}",
        ]
    if not one.offers:
        lines.append("No other window was found for it; try metasched reserve with --dry-run.")
    return f"metasched: reservation {one.id} is broken", "\n".join(lines) + "\n"


class Mailer:
    """Tells the owners of all reservations that break, one by one, as long as its engine runs."""

    def __init__(self, program: Path | None, ledger: Ledger) -> None:
        self.program = program
        self.trouble = ""  # why the last owner was not told
        self._ledger = ledger
        self._breakers: dict[int, Breaker] = {}
        self._news = asyncio.Event()
        self._news.set()  # what an earlier life has left

    def look(self, outcome: Outcome) -> None:
        """See whether somebody is to be told of what has just been stored."""
        if any(one.state is Stage.BROKEN for one in outcome.reservations.values()):
            self._news.set()

    async def run(self) -> None:
        """For ever; StorageFailed if the database takes no write."""
        if self.program is None:
            return
        while True:
            due = min((breaker.until for breaker in self._breakers.values()), default=None)
            with suppress(TimeoutError):
                async with asyncio.timeout(due and max(due - time.monotonic(), 0.0)):
                    await self._news.wait()
            self._news.clear()
            await asyncio.sleep(FIRST)
            await self._tell_all(self.program)

    async def _tell_all(self, program: Path) -> None:
        owed = {one.id: one for one in self._ledger.untold(time.time() - GIVE_UP)}
        for id in self._breakers.keys() - owed.keys():
            log.error("the owner of reservation %d is told no more: %s", id, self.trouble)
            del self._breakers[id]
        for one in owed.values():
            breaker = self._breakers.get(one.id, Breaker(*AGAIN))
            if breaker.until > time.monotonic():
                continue
            why = await self._told(program, one)
            if why is None:
                self._breakers.pop(one.id, None)
                self._ledger.told(one.id, time.time())
                log.info("reservation %d: %s is told that it is broken", one.id, _address(one))
            else:
                delay = breaker.fail(why, time.time(), time.monotonic())
                self._breakers[one.id] = breaker
                told = f"reservation {one.id}: {_address(one)} is not told: {why}"
                log.warning("%s; again in %g s", told, delay)
            self.trouble = why or ""

    async def _told(self, program: Path, one: Reservation) -> str | None:
        """Why the owner was not told by the mail program; None: it says that it did."""
        subject, text = letter(one)
        try:
            process = await asyncio.create_subprocess_exec(
                *(str(program), "-s", subject, _address(one)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            return f"{program}: {error.strerror}"
        try:
            async with listening(PATIENCE):
                await process.communicate(text.encode())
        except TimeoutError:
            return f"{program} did not end in {PATIENCE:g} s"
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        code = process.returncode
        return f"{program} ended with exit code {code}" if code else None


def _address(one: Reservation) -> str:
    return one.mail or one.user
