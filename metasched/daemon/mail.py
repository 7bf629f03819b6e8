"""Mail to the owners of broken reservations, by the site's mail program.

Owners are notified at least once: `notified` is stored after the mail program has succeeded, so a
crash in between repeats the message.
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

RETRY_DELAYS = (2.0, 3600.0)  # seconds before a failed mail is repeated: initial, maximum
REPLY_GRACE = 1.0  # seconds; an owner who still waits for a reply is notified by that reply
MAIL_TIMEOUT = 60.0  # seconds for the mail program
GIVE_UP_AFTER = 86400.0  # seconds after the break
# A mail program may read other texts as an option, a file or a command to be run.
ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.%+-]{0,63}(@[A-Za-z0-9][A-Za-z0-9.-]{0,189})?")


def message_for(reservation: Reservation) -> tuple[str, str]:
    """Return subject and text for the owner of a broken reservation.

    No line begins with text from outside: mail programs interpret leading characters.
    """
    unit, multiplier, option = "nodes", 1, " --nodes"
    if not reservation.nodes:
        unit, multiplier, option = "processors", reservation.cpus // reservation.size, ""
    lines = [
        f"Your reservation {reservation.id} on {reservation.cluster} cannot be kept.",
        f"Window: {reservation.size * multiplier} {unit}"
        f" from {iso(reservation.start)} to {iso(reservation.end)}",
        f"Cause: {' '.join(reservation.cause.split())}",
        "Jobs that wait for it stay queued in metasched until you cancel them.",
    ]
    for offer in reservation.offers:
        cluster = offer.cluster or reservation.cluster
        if offer.cluster:  # another cluster: the offer counts processors
            unit, multiplier, option = "processors", 1, ""
        begin, end = iso(offer.start), iso(offer.end)
        lines += [
            f"Free instead: {offer.size * multiplier} {unit} of {cluster} from {begin} to {end}."
            " To reserve it:",
            f"    metasched reserve --cluster {cluster} --size {offer.size * multiplier}{option}"
            f" --start {begin} --end {end}",
        ]
    if not reservation.offers:
        lines.append("No other window was found for it; try metasched reserve with --dry-run.")
    return f"metasched: reservation {reservation.id} is broken", "\n".join(lines) + "\n"


class Mailer:
    """Notifies the owners of broken reservations, in sequence."""

    def __init__(self, program: Path | None, ledger: Ledger) -> None:
        self.program = program
        self.last_error = ""  # of the last mail; "" if it was sent
        self._ledger = ledger
        self._breakers: dict[int, CircuitBreaker] = {}
        self._wake = asyncio.Event()
        self._wake.set()  # an earlier run may have left unnotified owners

    def check_outcome(self, outcome: Outcome) -> None:
        """Wake up if an outcome that was just stored breaks a reservation."""
        reservations = outcome.reservations.values()
        if any(reservation.state is ReservationState.BROKEN for reservation in reservations):
            self._wake.set()

    async def run(self) -> None:
        """Run until cancelled. StorageFailed if the database accepts no write."""
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
        oldest = time.time() - GIVE_UP_AFTER
        unnotified = {row.id: row for row in self._ledger.unnotified_reservations(oldest)}
        for id in self._breakers.keys() - unnotified.keys():
            log.error("giving up the mail to the owner of reservation %d: %s", id, self.last_error)
            del self._breakers[id]
        for id, reservation in unnotified.items():
            owner = _address(reservation)
            breaker = self._breakers.get(id, CircuitBreaker(*RETRY_DELAYS))
            if breaker.open_until > time.monotonic():
                continue
            failure = await self._send_mail(program, reservation)
            if failure is None:
                self._breakers.pop(id, None)
                self._ledger.mark_notified(id, time.time())
                log.info("reservation %d: notified %s that it is broken", id, owner)
            else:
                delay = breaker.record_failure(failure, time.time(), time.monotonic())
                self._breakers[id] = breaker
                message = f"reservation {id}: {owner} not notified: {failure}"
                log.warning("%s; retrying in %g s", message, delay)
            self.last_error = failure or ""

    async def _send_mail(self, program: Path, reservation: Reservation) -> str | None:
        """Run the mail program. Return None on success, else the failure."""
        subject, text = message_for(reservation)
        try:
            process = await asyncio.create_subprocess_exec(
                str(program),
                "-s",
                subject,
                _address(reservation),
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
