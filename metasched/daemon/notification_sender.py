"""Delivers the rows of the outbox: mails once, events of webhooks at least once and in order.

A mail is stored as being sent before the program is called. A crash between the two, or a program
that had to be killed, makes it uncertain: it is reported and not sent again. A program that ends
with another exit code than 0 has not taken the mail, and is called again later. Until then the
mails to the same user wait, and all mails after failures of several users.

Each webhook has a task and a thread of its own. The next row waits until the previous row is
delivered or given up. Times of the next try are in the ledger, so a restart keeps them.

Rows are read in threads, and what becomes of them joins the commits of the scheduler. So many
deliveries take little of its time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from metasched.config.settings import MailSettings, Settings, WebhookSettings
from metasched.core.events import Outcome
from metasched.daemon.mail import (
    MailFailed,
    MailUncertain,
    UnknownAddress,
    command_for,
    send_mail,
)
from metasched.daemon.mail_pauses import MailPauses
from metasched.daemon.notification_texts import (
    alert_message,
    digest_message,
    job_message,
    occurrence_message,
    reservation_message,
    webhook_body,
)
from metasched.daemon.webhook import BodyTooLarge, DeliveryFailed, DeliveryThread, deliver
from metasched.db import outbox
from metasched.db.ledger import Ledger
from metasched.db.outbox import NotificationRules, OutboxRow
from metasched.db.store import StorageFailed
from metasched.model.mail import is_allowed
from metasched.model.notice import DIGEST, MAIL, OCCURRENCE_KINDS, Notice
from metasched.model.reservation import Reservation, ReservationState

log = logging.getLogger("metasched")
Value = TypeVar("Value")

REPLY_GRACE = 1.0  # seconds; an owner who still waits for a reply is notified by that reply
FIRST_DELAY, MAX_DELAY = 5.0, 3600.0  # seconds before a failed delivery is repeated
MAIL_GIVEN_UP_AFTER = 86400.0  # seconds since the notice
EVENTS_GIVEN_UP_AFTER = 3 * 86400.0  # seconds
READ_PAUSE = 1.0  # seconds before a query that failed is repeated
MAX_WAIT = 60.0  # seconds; bounds the effect of a change of the wall clock
COUNT_INTERVAL = 10.0  # seconds between two counts of the rows that wait
LOG_INTERVAL = 60.0  # seconds between two lines about an error that comes and goes
GIVE_UP_INTERVAL = 60.0  # seconds between two looks for rows that are too old
MAILS_AT_ONCE = 20  # rows that are read together
LAST_MAIL_TIME = 5.0  # seconds for a mail that is being sent when the service ends


@dataclass
class ReceiverStatus:
    """Mail, or a webhook, as metrics and doctor show it."""

    name: str
    waiting: int = 0  # rows; counted every `COUNT_INTERVAL`
    oldest: float | None = None  # epoch seconds of the oldest of these
    failures: int = 0  # in a row
    last_error: str = ""  # of the last delivery; "" if it succeeded
    next_try: float | None = None  # epoch seconds


class NotificationSender:
    """Delivers the rows of the outbox until cancelled. StorageFailed ends the service."""

    def __init__(
        self, settings: Settings, ledger: Ledger, commit: Callable[[], Awaitable[None]]
    ) -> None:
        """`commit` waits until the open group of the ledger is stored."""
        self.mail, self._ledger, self._commit = settings.mail, ledger, commit
        self.webhooks = settings.webhooks
        names = [*([MAIL] if self.mail else []), *(hook.name for hook in self.webhooks)]
        self.statuses = {name: ReceiverStatus(name) for name in names}
        self._new_rows = {name: asyncio.Event() for name in names}
        self._may_be_broken = True  # an earlier run may have left unnotified owners
        self._counted = -COUNT_INTERVAL  # monotonic seconds
        self._gave_up = dict.fromkeys(names, -GIVE_UP_INTERVAL)  # monotonic seconds
        self._pauses = MailPauses()
        self._logged: dict[tuple[str, str], float] = {}  # receiver and error: monotonic seconds

    def rules(self, instance: str) -> NotificationRules:
        """Return who is notified of what."""
        return NotificationRules(
            instance=instance,
            mails_per_hour=self.mail.per_hour if self.mail else 0,
            alerts_to=self.mail.alerts_to if self.mail else (),
            webhooks={hook.name: hook.kinds for hook in self.webhooks},
        )

    @property
    def mail_error(self) -> str:
        """Why mails are not sent; "" if they are, or if a single recipient may be the cause."""
        return self._pauses.program_error(time.monotonic())

    def check_outcome(self, outcome: Outcome) -> None:
        """Wake up if an outcome that was just stored breaks a reservation."""
        reservations = outcome.reservations.values()
        if self.mail and any(each.state is ReservationState.BROKEN for each in reservations):
            self._may_be_broken = True
            self._new_rows[MAIL].set()

    def wake(self) -> None:
        """Look for new rows."""
        for new_rows in self._new_rows.values():
            new_rows.set()

    async def _read(self, query: Callable[..., Value], *arguments: object) -> Value:
        """Run a query in a thread; wait while the database has no connection for it."""
        while True:
            try:
                return await asyncio.to_thread(query, *arguments)
            except StorageFailed:
                await asyncio.sleep(READ_PAUSE)

    async def _sleep(self, receiver: str, until: float | None) -> None:
        """Wait for new rows, or until a time (epoch seconds); None: there is no row."""
        await self._count(at_once=until is None and self.statuses[receiver].waiting > 0)
        timeout = None if until is None else min(max(until - time.time(), 0.0), MAX_WAIT)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._new_rows[receiver].wait()

    async def _count(self, *, at_once: bool = False) -> None:
        """Count the waiting rows, every `COUNT_INTERVAL` or at once."""
        now = time.monotonic()
        if now - self._counted < COUNT_INTERVAL and not at_once:
            return
        self._counted = now
        rows = await self._read(self._ledger.open_notices)
        for name, status in self.statuses.items():
            status.waiting, status.oldest = rows.get(name, (0, None))

    async def _bound_rows(self, receiver: str, max_age: float) -> None:
        """Count the rows that wait; give up those older than `max_age`, and the oldest of too many.

        Called by the task of the receiver alone, so none of the rows is being delivered. The time
        of the scheduler that this takes is bounded: it reads all rows that wait.
        """
        await self._count()
        status, monotonic = self.statuses[receiver], time.monotonic()
        is_due = monotonic - self._gave_up[receiver] >= GIVE_UP_INTERVAL
        if is_due or status.waiting > outbox.MAX_OPEN_ROWS:
            now = time.time()
            self._ledger.give_up_notices(receiver, now - max_age, now)
            self._gave_up[receiver] = monotonic
            status.waiting = min(status.waiting, outbox.MAX_OPEN_ROWS)

    def _note_success(self, receiver: str) -> None:
        status = self.statuses[receiver]
        status.failures, status.last_error, status.next_try = 0, "", None

    def _note_failure(self, row: OutboxRow, receiver: str, error: str) -> None:
        """Store when a row is tried again; log the error if it is new.

        Mails of a user may fail and succeed in turn, so an error is logged once a minute.
        """
        delay = min(FIRST_DELAY * 2.0 ** min(row.tries, 30), MAX_DELAY)
        status, next_try = self.statuses[receiver], time.time() + delay
        self._ledger.mark_tried(row.id, next_try, error)
        monotonic = time.monotonic()
        self._logged = {
            key: moment for key, moment in self._logged.items() if moment + LOG_INTERVAL > monotonic
        }
        if status.last_error != error and (receiver, error) not in self._logged:
            self._logged[receiver, error] = monotonic
            log.warning("%s: not delivered: %s; retrying in %g s", receiver, error, delay)
        status.failures += 1
        status.last_error, status.next_try = error, next_try

    def _note_earlier_failures(self, row: OutboxRow, receiver: str) -> None:
        """Take over the failures of a row from before this service began."""
        status = self.statuses[receiver]
        if row.tries and not status.failures:
            status.failures, status.last_error, status.next_try = row.tries, row.error, row.due

    # Mail

    async def run_mail(self) -> None:
        """Send mails in sequence. Run until cancelled; return at once without a program."""
        if self.mail is None:
            return
        while True:
            self._new_rows[MAIL].clear()
            await self._sleep(MAIL, await self._send_due_mails(self.mail))

    async def _send_due_mails(self, mail: MailSettings) -> float | None:
        """Send mails that are due, in sequence.

        Return when to look for others (epoch seconds); None: there is none.
        """
        await self._bound_rows(MAIL, MAIL_GIVEN_UP_AFTER)
        now, pauses = time.time(), self._pauses
        if self._may_be_broken:
            await asyncio.sleep(REPLY_GRACE)
            self._may_be_broken = False
            self._ledger.queue_broken_reservations(now - MAIL_GIVEN_UP_AFTER, now)
        monotonic = time.monotonic()
        if seconds := pauses.seconds_until_tried(monotonic):
            return now + seconds
        paused = pauses.paused(monotonic)
        limit = 1 if pauses.program.failures else MAILS_AT_ONCE
        rows = await self._read(self._ledger.due_notices, MAIL, now, limit, paused)
        for row in rows:
            monotonic = time.monotonic()
            if pauses.seconds_until_tried(monotonic):
                break
            if row.recipient not in pauses.paused(monotonic):
                await self._mail(mail, row)
        if rows:
            return now
        due = await self._read(self._ledger.next_notice_due, MAIL, paused)
        end = pauses.next_end(monotonic)
        moments = (due, None if end is None else now + end)
        return min((moment for moment in moments if moment is not None), default=None)

    async def _give_up_unreadable(self, row: OutboxRow, receiver: str) -> None:
        log.error("%s: row %d: %s", receiver, row.id, outbox.UNREADABLE)
        self._ledger.mark_failed(row.id, outbox.UNREADABLE, time.time())
        await self._commit()

    async def _mail(self, mail: MailSettings, row: OutboxRow) -> None:
        if not row.notices:
            await self._give_up_unreadable(row, MAIL)
            return
        reservation = await self._reservation_of(row.notices[0])
        notices = self._ledger.mark_sending(row.id)
        if not notices:
            return  # given up since it was read
        # without a pause, so that no row is stored as being sent that makes no message
        try:
            command, content = self._command(mail, row, notices[0], reservation)
        except Exception as error:
            log.exception("mail %d cannot be made; please report it", row.id)
            self._ledger.mark_failed(row.id, f"it cannot be made: {error!r}", time.time())
            await self._commit()
            return
        await self._commit()
        sending = asyncio.create_task(send_mail(command, content))
        try:
            await asyncio.wait([sending])
        except asyncio.CancelledError:
            # the service ends: most programs take a mail in less than a second
            await asyncio.wait([sending], timeout=LAST_MAIL_TIME)
            if sending.done():
                with suppress(StorageFailed):
                    self._settle_mail(row, sending)
                    self._ledger.commit_group()
            sending.cancel()
            raise
        self._settle_mail(row, sending)
        await self._commit()

    def _settle_mail(self, row: OutboxRow, sending: asyncio.Task[None]) -> None:
        """Store how a mail was sent."""
        error, now = sending.exception(), time.time()
        if error is None:
            self._ledger.mark_delivered(row.id, now)
            self._note_success(MAIL)
            self._pauses.note_success(row.recipient)
            return
        if isinstance(error, MailFailed):
            self._note_failure(row, MAIL, str(error))
        elif isinstance(error, MailUncertain):
            self._ledger.mark_uncertain(row.id, str(error), now)
            self.statuses[MAIL].last_error = str(error)
        else:
            log.error("mail %d: please report it", row.id, exc_info=error)
            self._ledger.mark_uncertain(row.id, repr(error), now)
            return
        blames_address = isinstance(error, UnknownAddress)
        self._pauses.note_failure(
            row.recipient, str(error), now, time.monotonic(), blames_address=blames_address
        )

    async def _reservation_of(self, notice: Notice) -> Reservation | None:
        """Return the reservation that a mail to its owner is about; None: it was pruned."""
        if notice.severity or notice.reservation is None:
            return None
        return await self._read(self._ledger.reservation, notice.reservation)

    def _command(
        self, mail: MailSettings, row: OutboxRow, notice: Notice, reservation: Reservation | None
    ) -> tuple[list[str], bytes]:
        """Return the command that sends a mail, and its input."""
        if notice.kind == DIGEST:
            subject, text = digest_message(notice, mail.per_hour)
        elif row.user is not None and notice.kind in OCCURRENCE_KINDS:
            subject, text = occurrence_message(notice)
        elif reservation is not None:
            subject, text = reservation_message(reservation)
        elif notice.severity or notice.reservation is not None:
            subject, text = alert_message(notice)  # a reservation that was pruned says no more
        else:
            subject, text = job_message(notice)
        address = row.address
        if row.user is not None and not is_allowed(address, row.user, mail.domains):
            address = row.user  # the site allowed more when it was asked
        return command_for(mail, f"{row.source}-{row.id}", address, subject, text)

    # Webhooks

    async def run_webhook(self, hook: WebhookSettings) -> None:
        """Deliver the events of a webhook in order. Run until cancelled."""
        thread = DeliveryThread(hook.name)
        try:
            while True:
                self._new_rows[hook.name].clear()
                await self._bound_rows(hook.name, EVENTS_GIVEN_UP_AFTER)
                now = time.time()
                row = await self._read(self._ledger.next_notice, hook.name)
                if row is None:
                    await self._sleep(hook.name, None)
                elif row.created < now - EVENTS_GIVEN_UP_AFTER:
                    self._ledger.give_up_notices(hook.name, now - EVENTS_GIVEN_UP_AFTER, now)
                elif now < row.due <= now + MAX_DELAY:  # later only if the clock was set back
                    self._note_earlier_failures(row, hook.name)
                    await self._sleep(hook.name, row.due)
                else:
                    await self._deliver(hook, row, thread)
        finally:
            thread.stop()

    async def _deliver(self, hook: WebhookSettings, row: OutboxRow, thread: DeliveryThread) -> None:
        if not row.notices:
            await self._give_up_unreadable(row, hook.name)
            return
        try:
            await self._deliver_events(hook, row, thread)
        except DeliveryFailed as error:
            self._note_failure(row, hook.name, str(error))
        else:
            self._ledger.mark_delivered(row.id, time.time())
            self._note_success(hook.name)
        await self._commit()

    async def _deliver_events(
        self, hook: WebhookSettings, row: OutboxRow, thread: DeliveryThread
    ) -> None:
        """Deliver the events of a row, in halves if they are too large together.

        The id of a half names its events, so a repetition with the same id holds the same. After a
        failure all halves are repeated, in order.
        """
        first, count = 0, len(row.notices)
        while first < len(row.notices):
            part = row.notices[first : first + count]
            id = f"{row.source}-{row.id}"
            if len(part) < len(row.notices):
                id += f"-{first}-{len(part)}"
            body = webhook_body(id, row.created, part)
            try:
                await thread.run(deliver(hook, id, int(time.time()), body))
            except BodyTooLarge:
                if len(part) == 1:
                    raise
                count = len(part) // 2
            else:
                first += len(part)
