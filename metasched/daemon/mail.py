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
from metasched.daemon.circuit_breaker import CircuitBreaker
from metasched.db.ledger import Ledger
from metasched.model.reservation import Reservation, ReservationState
from metasched.timeouts import reply_timeout
from metasched.units import iso

log = logging.getLogger("metasched")

RETRY_DELAYS = (
    2.0,
    3600.0,
)  # seconds until one that was not told is told again: first, at the most
REPLY_GRACE = 1.0  # seconds in which who still waits for the answer to his request is told by that
MAIL_TIMEOUT = 60.0  # seconds for the mail program
GIVE_UP_AFTER = 86400.0  # seconds after which nobody is told any more
# A mail program may take other words for an option, a file, or a command that it is to run.
ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.%+-]{0,63}(@[A-Za-z0-9][A-Za-z0-9.-]{0,189})?")


def message_for(reservation: Reservation) -> tuple[str, str]:
    """Subject and text to the owner of a broken reservation; no line begins with others' words."""
    unit, multiplier, option = "nodes", 1, " --nodes"
    if not reservation.nodes:
        unit, multiplier, option = "processors", reservation.cpus // reservation.size, ""
    lines = [
        f"Your reservation {reservation.id} on {reservation.cluster} cannot be kept.",
        f"Window: {reservation.size * multiplier} {unit} from {iso(reservation.start)} to {iso(reservation.end)}",
        f"Cause: {' '.join(reservation.cause.split())}",
        "Jobs that wait for it stay with metasched until you cancel them.",
    ]
    for offer in reservation.offers:
        cluster = offer.cluster or reservation.cluster
        if offer.cluster:  # which counts differently
            unit, multiplier, option = "processors", 1, ""
        begin, end = iso(offer.start), iso(offer.end)
        lines += [
            f"Free instead: {offer.size * multiplier} {unit} of {cluster} from {begin} to {end}."
            " It is not kept for you until you ask:",
            f"    metasched reserve --cluster {cluster} --size {offer.size * multiplier}{option}"
            f" --start {begin} --end {end}",
        ]
    if not reservation.offers:
        lines.append("No other window was found for it; try metasched reserve with --dry-run.")
    return f"metasched: reservation {reservation.id} is broken", "\n".join(lines) + "\n"


class Mailer:
    """Tells the owners of all reservations that break, one by one, as long as its engine runs."""

    def __init__(self, program: Path | None, ledger: Ledger) -> None:
        self.program = program
        self.last_error = ""  # why the last owner was not told
        self._ledger = ledger
        self._breakers: dict[int, CircuitBreaker] = {}
        self._wake = asyncio.Event()
        self._wake.set()  # what an earlier life has left

    def check_outcome(self, outcome: Outcome) -> None:
        """See whether somebody is to be told of what has just been stored."""
        if any(
            reservation.state is ReservationState.BROKEN
            for reservation in outcome.reservations.values()
        ):
            self._wake.set()

    async def run(self) -> None:
        """For ever; StorageFailed if the database takes no write."""
        if self.program is None:
            return
        while True:
            due = min((breaker.open_until for breaker in self._breakers.values()), default=None)
            with suppress(TimeoutError):
                async with asyncio.timeout(due and max(due - time.monotonic(), 0.0)):
                    await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(REPLY_GRACE)
            await self._notify_owners(self.program)

    async def _notify_owners(self, program: Path) -> None:
        unnotified = {
            reservation.id: reservation
            for reservation in self._ledger.unnotified_reservations(time.time() - GIVE_UP_AFTER)
        }
        for reservation_id in self._breakers.keys() - unnotified.keys():
            log.error(
                "the owner of reservation %d is told no more: %s", reservation_id, self.last_error
            )
            del self._breakers[reservation_id]
        for reservation in unnotified.values():
            breaker = self._breakers.get(reservation.id, CircuitBreaker(*RETRY_DELAYS))
            if breaker.open_until > time.monotonic():
                continue
            failure = await self._send_mail(program, reservation)
            if failure is None:
                self._breakers.pop(reservation.id, None)
                self._ledger.mark_notified(reservation.id, time.time())
                log.info(
                    "reservation %d: %s is told that it is broken",
                    reservation.id,
                    _address(reservation),
                )
            else:
                delay = breaker.record_failure(failure, time.time(), time.monotonic())
                self._breakers[reservation.id] = breaker
                message = (
                    f"reservation {reservation.id}: {_address(reservation)} is not told: {failure}"
                )
                log.warning("%s; again in %g s", message, delay)
            self.last_error = failure or ""

    async def _send_mail(self, program: Path, reservation: Reservation) -> str | None:
        """Why the owner was not told by the mail program; None: it says that it did."""
        subject, text = message_for(reservation)
        try:
            process = await asyncio.create_subprocess_exec(
                *(str(program), "-s", subject, _address(reservation)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            return f"{program}: {error.strerror}"
        try:
            async with reply_timeout(MAIL_TIMEOUT):
                await process.communicate(text.encode())
        except TimeoutError:
            return f"{program} did not end in {MAIL_TIMEOUT:g} s"
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        code = process.returncode
        return f"{program} ended with exit code {code}" if code else None


def _address(reservation: Reservation) -> str:
    return reservation.mail or reservation.user
