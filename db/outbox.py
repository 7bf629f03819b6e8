"""The outbox: mails and events of webhooks, stored in the transaction of the change they report.

`read_changes` runs before the rows of a step are written, `store` after it. A sender delivers the
rows later, and marks them. An id is microseconds since the epoch, or the last id plus 1: it
is never used again, so receivers can recognise a repetition.

The rows are bounded. A user has so many mails an hour; a digest stands for all others. The events
of a step share rows, and so do those that wait, up to a number of events and bytes. A receiver that
is away or slow for long loses its oldest rows. Delivered rows are deleted after a day.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from msgspec import structs
from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, insert, select, update

from metasched.core import notifications
from metasched.core.events import CoreEvent, Outcome
from metasched.core.notifications import Beginning, JobProgress
from metasched.db.schema import (
    attempt,
    calendar,
    current_spec,
    job,
    limit_mail,
    outbox,
    reservation,
    task,
    task_run,
)
from metasched.model.audit import OPERATORS_ONLY, AuditKind, AuditRecord, cleaned
from metasched.model.calendar import CalendarAct, Reserve
from metasched.model.job import Job
from metasched.model.mail_types import BEGIN, REQUEUE
from metasched.model.notice import (
    ALERT_KINDS,
    DIGEST,
    JOB_ENDED,
    MAIL,
    OCCURRENCE_KINDS,
    UNREPORTED,
    DeliveryState,
    Notice,
    of_record,
)
from metasched.model.units import iso

TICKS = 1_000_000  # ids per second
HOUR = 3600.0  # seconds
EVENTS_PER_ROW = 100  # of a webhook
MAX_ROW_BYTES = 64 * 1024  # of the events of a webhook in a row; a longer event is alone in its row
MAX_OPEN_ROWS = 10_000  # of a receiver; the oldest of more are given up
DELIVERED_KEPT_FOR = 86400.0  # seconds for which delivered rows are listed
LATEST_DUE = 2 * HOUR  # seconds from now; later only if the clock was set back
KEPT_FOR = 7 * 86400.0  # seconds for which failed and uncertain rows are listed

UNREADABLE = "its content in the database cannot be read"  # why a row is given up

_IS_OPEN = outbox.c.ended.is_(None)
_IS_PENDING = outbox.c.state == DeliveryState.PENDING
_RECIPIENT = func.coalesce(outbox.c.user, outbox.c.address)  # see `OutboxRow.recipient`
_INSERT = insert(outbox)


@dataclass(frozen=True, kw_only=True)
class NotificationRules:
    """Who is notified of what."""

    instance: str = ""  # of the database, part of the ids that receivers of webhooks see
    mails_per_hour: int = 0  # to a user; 0: the site sends no mail
    alerts_to: tuple[str, ...] = ()  # addresses of operators
    # kinds of notices by webhook
    webhooks: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def receivers(self) -> set[str]:
        return {*self.webhooks, *([MAIL] if self.mails_per_hour else [])}


@dataclass(frozen=True)
class OutboxRow:
    """A row that is to be delivered. Times are epoch seconds."""

    id: int
    user: str | None
    kind: str
    address: str  # of a mail
    created: float
    due: float
    tries: int
    error: str  # of the last try
    source: str  # instance that created it; "": it cannot be read
    notices: tuple[Notice, ...]  # empty: they cannot be read

    @property
    def recipient(self) -> str:
        """The user whom a mail concerns, or the address of an operator."""
        return self.address if self.user is None else self.user


class _Content(msgspec.Struct, frozen=True):
    """The column `data`."""

    source: str
    notices: tuple[Notice, ...]


class _EncodedContent(msgspec.Struct, frozen=True):
    """The same, of notices that are encoded already."""

    source: str
    notices: tuple[msgspec.Raw, ...]


_UNREADABLE = _Content("", ())
_END = "]}"  # of an encoded content: its notices are the last field


@dataclass
class _LastRow:
    """The last row of a webhook, which later events may fill up."""

    id: int
    events: int
    bytes: int  # of the encoded events
    length: int  # characters of the column `data`, if later writes were stored

    def takes(self, size: int) -> bool:
        """Return whether it has room for an event of so many bytes."""
        return self.events < EVENTS_PER_ROW and self.bytes + size <= MAX_ROW_BYTES


class Mail(NamedTuple):
    """A mail that is to be stored."""

    user: str | None  # whom it concerns; None: operators
    address: str
    notice: Notice


@dataclass
class PendingNotices:
    """Notices of steps that are being stored."""

    mails: list[Mail] = field(default_factory=list)
    events: list[Notice] = field(default_factory=list)
    # arrays that may have ended, with the time of the last end; None: the job is to be read
    arrays: dict[int, tuple[Job | None, float]] = field(default_factory=dict)


class Outbox:
    """Writes rows; each method works in the caller's transaction."""

    def __init__(self) -> None:
        self.rules = NotificationRules()
        self._last_id = 0
        self._is_used = self._wants_ends = False
        self._last_rows: dict[str, _LastRow] = {}  # by webhook; none of earlier runs

    def open(
        self, connection: Connection, rules: NotificationRules, now: float, *, restored: bool
    ) -> list[AuditRecord]:
        """Take over the rules, and settle rows that the daemon before left; return audit records.

        A mail that was being sent is not sent again. Nor is any of a restored backup, since the
        original may have sent it.
        """
        self.rules = rules
        self._is_used = bool(rules.receivers)
        self._wants_ends = any(JOB_ENDED in kinds for kinds in rules.webhooks.values())
        self._last_id = connection.execute(select(func.max(outbox.c.id))).scalar() or 0
        self._last_rows.clear()
        is_mail = outbox.c.receiver == MAIL
        was_sent = is_mail if restored else is_mail & (outbox.c.state == DeliveryState.SENDING)
        cause = "restored from a backup" if restored else "the daemon ended while it was sent"
        uncertain = close(connection, was_sent, DeliveryState.UNCERTAIN, cause, now)
        is_unknown = outbox.c.receiver.not_in(sorted(rules.receivers))
        return uncertain + close(
            connection, is_unknown, DeliveryState.FAILED, "no such receiver is configured", now
        )

    def read_changes(
        self, connection: Connection, steps: Sequence[tuple[CoreEvent, Outcome]]
    ) -> PendingNotices:
        """Return the notices of steps whose rows are not written yet."""
        pending = PendingNotices()
        if not self._is_used:
            return pending
        begun: set[int] = set()  # arrays that begin in these steps
        for event, outcome in steps:
            for changes in notifications.job_changes(outcome, all_ends=self._wants_ends).values():
                self._add_ends(pending, changes, event.time)
                if self.rules.mails_per_hour and changes.job.mail is not None:
                    self._add_others(connection, pending, changes, event.time, begun)
            for job_id, _ in outcome.cancelled_runs:
                pending.arrays.setdefault(job_id, (None, event.time))
        return pending

    def _add_ends(self, pending: PendingNotices, changes: JobProgress, time: float) -> None:
        if not changes.ended:
            return
        ended = changes.job
        if ended.array is not None:
            pending.arrays[ended.id] = (ended, time)
        elif self._wants_ends:
            pending.events.append(notifications.end_notice(changes.ended[0], time))
        if self.rules.mails_per_hour and ended.mail and notifications.reports_tasks(ended):
            pending.mails += [
                _mail_of(ended, notifications.end_notice(end, time))
                for end in changes.ended
                if notifications.reports_end(ended.mail, end.task.state)
            ]

    def _add_others(
        self,
        connection: Connection,
        pending: PendingNotices,
        changes: JobProgress,
        time: float,
        begun: set[int],
    ) -> None:
        owner_job, single = changes.job, notifications.reports_tasks(changes.job)
        assert owner_job.mail is not None
        if BEGIN in owner_job.mail.types and changes.begun and single:
            pending.mails += [
                _mail_of(owner_job, notifications.begin_notice(beginning, time))
                for beginning in changes.begun
                if not (beginning.was_unknown and _has_begun(connection, owner_job, beginning))
            ]
        elif BEGIN in owner_job.mail.types and changes.begun and owner_job.id not in begun:
            begun.add(owner_job.id)
            if not _has_begun(connection, owner_job):
                notice = notifications.array_begin_notice(changes.begun[0], time)
                pending.mails.append(_mail_of(owner_job, notice))
        if REQUEUE in owner_job.mail.types and changes.requeued:
            tasks = changes.requeued if single else changes.requeued[:1]
            notices = [notifications.requeue_notice(each, time) for each in tasks]
            if not single:
                notices = [structs.replace(notices[0], task=None, count=len(changes.requeued))]
            pending.mails += [_mail_of(owner_job, notice) for notice in notices]

    def store(self, connection: Connection, pending: PendingNotices) -> bool:
        """Store notices, after the rows of their steps; return whether there are new rows."""
        for job_id, (known_job, time) in pending.arrays.items():
            counts = _counts_if_ended(connection, job_id)
            if counts is None:
                continue
            array = known_job or _read_job(connection, job_id)
            notice = notifications.array_end_notice(array, counts, time)
            if self._wants_ends:
                pending.events.append(notice)
            if self.rules.mails_per_hour and array.mail and not notifications.reports_tasks(array):
                state = notifications.array_state(counts)
                if notifications.reports_end(array.mail, state):
                    pending.mails.append(_mail_of(array, notice))
        return any(
            [
                self.add_mails(connection, pending.mails),
                self.add_events(connection, pending.events),
            ]
        )

    def add_records(self, connection: Connection, records: Iterable[AuditRecord]) -> bool:
        """Store audit records for webhooks, operators, and owners of series.

        Return whether there are any.
        """
        if not self._is_used:
            return False
        records = list(records)
        notices = [of_record(record) for record in records if record.kind not in UNREPORTED]
        alerts = [
            Mail(None, address, notice)
            for notice in notices
            if notice.kind in ALERT_KINDS
            for address in self.rules.alerts_to
        ]
        about_series = [_mail_about_occurrence(connection, record) for record in records]
        mails = [*alerts, *(mail for mail in about_series if mail and self.rules.mails_per_hour)]
        return self.add_mails(connection, mails) | self.add_events(connection, notices)

    def add_events(self, connection: Connection, events: Sequence[Notice]) -> bool:
        """Store events for the webhooks that want them; return whether there are any.

        Those of a receiver with several rows that wait fill up the last of them.
        """
        subscribed = frozenset[str]().union(*self.rules.webhooks.values())
        encoded = [
            (notice, msgspec.json.encode(notifications.for_webhook(notice)))
            for notice in events
            if notice.kind in subscribed
        ]
        rows = []
        for receiver, kinds in self.rules.webhooks.items():
            of_receiver = [pair for pair in encoded if pair[0].kind in kinds]
            remaining = of_receiver[self._fill_up(connection, receiver, of_receiver) :]
            for portion in _portions(remaining):
                rows.append(self._events_row(receiver, portion))
        if rows:
            connection.execute(_INSERT, rows)
        return bool(encoded)

    def _fill_up(
        self, connection: Connection, receiver: str, events: Sequence[tuple[Notice, bytes]]
    ) -> int:
        """Append events to the last row of a webhook that waits; return how many it took.

        The oldest row may be at the receiver, which knows a repetition by its id: it does not
        change. Nor do rows of an earlier run, which the original of a backup may have delivered.
        A stored text is not read again: its length shows whether it is as it was written.
        """
        last = self._last_rows.get(receiver)
        if last is None or not events or not last.takes(len(events[0][1])):
            return 0
        query = select(outbox.c.id).where(_IS_OPEN, _IS_PENDING, outbox.c.receiver == receiver)
        waiting = connection.execute(query.order_by(outbox.c.id.desc()).limit(2)).scalars().all()
        if len(waiting) < 2 or waiting[0] != last.id:
            return 0
        added = []
        for _, event in events:
            if not last.takes(len(event)):
                break
            added.append(event)
            last.events, last.bytes = last.events + 1, last.bytes + len(event)
        text = "".join(f",{event.decode()}" for event in added) + _END
        data, length = outbox.c.data, last.length
        last.length += len(text) - len(_END)
        stored = connection.execute(
            update(outbox)
            .where(outbox.c.id == last.id, func.length(data) == length)
            .values(
                data=func.substr(data, 1, length - len(_END)).op("||")(text),
                created=events[len(added) - 1][0].time,
            )
        )
        return len(added) if stored.rowcount else 0

    def _events_row(self, receiver: str, events: Sequence[tuple[Notice, bytes]]) -> dict[str, Any]:
        texts = tuple(msgspec.Raw(text) for _, text in events)
        data = msgspec.json.encode(_EncodedContent(self.rules.instance, texts)).decode()
        row = self._row(receiver, data, events[0][0].kind, events[-1][0].time)
        size = sum(len(text) for _, text in events)
        self._last_rows[receiver] = _LastRow(row["id"], len(events), size, len(data))
        return row

    def add_limit_mails(self, connection: Connection, mails: Iterable[Mail]) -> bool:
        """Store mails about shares of time limits, each once for a run, delivered or not."""
        return self.add_mails(connection, [m for m in mails if _is_first(connection, m)])

    def add_mails(self, connection: Connection, mails: Sequence[Mail]) -> bool:
        """Store mails up to the limit of an hour, and count the others in a digest.

        A user has a limit, and so has each kind of alert to an address. Return whether
        there are any.
        """
        by_limit: defaultdict[tuple[str | None, str, str], list[Mail]] = defaultdict(list)
        for mail in mails:
            is_alert = mail.user is None
            limit = (mail.notice.kind, mail.address) if is_alert else ("", "")
            by_limit[(mail.user, *limit)].append(mail)
        for (user, kind, _), of_limit in by_limit.items():
            counted = _is_to(of_limit[0])
            counted &= outbox.c.kind == kind if kind else outbox.c.kind != DIGEST
            counted &= outbox.c.created > of_limit[-1].notice.time - HOUR
            used = connection.execute(select(func.count()).where(counted)).scalar_one()
            room = max(self.rules.mails_per_hour - used, 0)
            rows = [
                self._row(MAIL, self._encode((mail.notice,)), mail.notice.kind, mail.notice.time)
                | {"user": user, "address": mail.address, "job": mail.notice.job}
                for mail in of_limit[:room]
            ]
            if rows:
                connection.execute(_INSERT, rows)
            if surplus := of_limit[room:]:
                self._add_to_digest(connection, surplus)
        return bool(mails)

    def _add_to_digest(self, connection: Connection, mails: Sequence[Mail]) -> None:
        """Count mails in the digest of their recipient, which is sent an hour after its first."""
        counts, first = Counter(mail.notice.kind for mail in mails), mails[0]
        open_digest = connection.execute(
            select(outbox.c.id, outbox.c.data)
            .where(_IS_OPEN, _IS_PENDING, _is_to(first), outbox.c.kind == DIGEST)
            .limit(1)
        ).first()
        if open_digest is not None:
            is_row = outbox.c.id == open_digest.id
            for digest in _content_of(open_digest.data).notices:
                digest = structs.replace(digest, counts=counts + Counter(digest.counts))
                _update(connection, is_row, data=self._encode((digest,)))
                return
            failed = {"state": DeliveryState.FAILED.value, "ended": first.notice.time}
            _update(connection, is_row, **failed, error=UNREADABLE)
        digest = Notice(kind=DIGEST, time=first.notice.time, user=first.user, counts=counts)
        row = self._row(MAIL, self._encode((digest,)), DIGEST, digest.time)
        row |= {"user": first.user, "address": first.address, "due": digest.time + HOUR}
        connection.execute(_INSERT, [row])

    def _row(self, receiver: str, data: str, kind: str, time: float) -> dict[str, Any]:
        self._last_id = max(self._last_id + 1, int(time * TICKS))
        return {
            "id": self._last_id,
            "receiver": receiver,
            "user": None,
            "job": None,
            "kind": kind,
            "address": "",
            "created": time,
            "due": time,
            "state": DeliveryState.PENDING.value,
            "tries": 0,
            "error": "",
            "ended": None,
            "data": data,
        }

    def _encode(self, notices: tuple[Notice, ...]) -> str:
        return msgspec.json.encode(_Content(self.rules.instance, notices)).decode()


def _portions(
    events: Iterable[tuple[Notice, bytes]],
) -> Iterator[Sequence[tuple[Notice, bytes]]]:
    """Yield encoded events in the portions of rows."""
    portion: list[tuple[Notice, bytes]] = []
    size = 0
    for event in events:
        length = len(event[1])
        if portion and (len(portion) == EVENTS_PER_ROW or size + length > MAX_ROW_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(event)
        size += length
    if portion:
        yield portion


def _is_first(connection: Connection, mail: Mail) -> bool:
    """Store that a mail was made about a share of a run; return whether there was none before."""
    notice = mail.notice
    is_whole_array = notice.array is not None and notice.task is None
    key = {
        "job": notice.job,
        "task_index": -1 if is_whole_array else notice.task or 0,
        "started": 0.0 if is_whole_array else notice.started,
        "kind": notice.kind,
    }
    is_known = and_(*(limit_mail.c[name] == value for name, value in key.items()))
    if connection.execute(select(exists().where(is_known))).scalar():
        return False
    connection.execute(insert(limit_mail), [key])
    return True


def _mail_about_occurrence(connection: Connection, record: AuditRecord) -> Mail | None:
    """Return the mail to the owner of a series; None: the record is about something else."""
    if record.kind not in OCCURRENCE_KINDS:
        return None
    series = record.details.get("series")
    if series is None and record.reservation is not None:
        query = select(reservation.c.series).where(reservation.c.id == record.reservation)
        series = connection.execute(query).scalar()
    if series is None:
        return None
    stored = connection.execute(select(calendar.c.act).where(calendar.c.id == series)).scalar()
    act = None if stored is None else msgspec.json.decode(stored, type=CalendarAct)
    address = act.mail if isinstance(act, Reserve) else ""
    due = record.details.get("due")
    begin = "" if due is None else f" of {iso(float(due))}"
    reason = f"series {series}, occurrence{begin}: {record.cause}"
    notice = structs.replace(of_record(record), severity="", reason=reason)
    return Mail(record.owner, address or record.owner or "", notice)


def _mail_of(sender_job: Job, notice: Notice) -> Mail:
    """Return the mail about a job, whose owner wants it."""
    assert sender_job.mail is not None
    return Mail(sender_job.user, sender_job.mail.user or sender_job.user, notice)


def _is_to(mail: Mail) -> ColumnElement[bool]:
    """Return the condition of mails to the same user, or to the same address of an operator."""
    is_mail = outbox.c.receiver == MAIL
    if mail.user is not None:
        return is_mail & (outbox.c.user == mail.user)
    return is_mail & outbox.c.user.is_(None) & (outbox.c.address == mail.address)


def _has_begun(connection: Connection, owner_job: Job, beginning: Beginning | None = None) -> bool:
    """Return whether a job, or an attempt, is stored as begun."""
    condition = (attempt.c.job == owner_job.id) & attempt.c.has_started
    if beginning is not None:
        condition &= attempt.c.task_index == beginning.task.index
        condition &= attempt.c.number == beginning.attempt.number
    return bool(connection.execute(select(exists().where(condition))).scalar())


def _counts_if_ended(connection: Connection, job_id: int) -> dict[str, int] | None:
    """Return the number of a job's tasks by state; None if any has not ended."""
    for table in (task, task_run):
        is_open = exists().where(table.c.job == job_id, table.c.ended.is_(None))
        if connection.execute(select(is_open)).scalar():
            return None
    by_state = select(task.c.state, func.count()).where(task.c.job == job_id)
    counts: Counter[str] = Counter()
    for row in connection.execute(by_state.group_by(task.c.state)):
        counts[row[0]] += row[1]
    for run in connection.execute(select(task_run).where(task_run.c.job == job_id)):
        counts[run.state] += (run.last_index - run.first_index) // run.step + 1
    return dict(counts)


def _read_job(connection: Connection, job_id: int) -> Job:
    spec = connection.execute(select(current_spec).where(job.c.id == job_id)).scalar_one()
    return msgspec.json.decode(spec, type=Job)


# Delivery


def next_rows(connection: Connection, receiver: str, limit: int) -> list[OutboxRow]:
    """Return the rows of a receiver that are pending, oldest first."""
    query = select(outbox).where(_IS_OPEN, _IS_PENDING, outbox.c.receiver == receiver)
    return list(_decoded(connection, query.order_by(outbox.c.id).limit(limit)))


def due_rows(
    connection: Connection, receiver: str, now: float, limit: int, paused: Collection[str] = ()
) -> list[OutboxRow]:
    """Return rows of a receiver that are pending and due, oldest first.

    A row that is due later than any delay explains is due at once. `paused`: recipients whose rows
    are left out.
    """
    query = select(outbox).where(
        _IS_OPEN, _IS_PENDING, outbox.c.receiver == receiver, _RECIPIENT.not_in(paused)
    )
    is_due = (outbox.c.due <= now) | (outbox.c.due > now + LATEST_DUE)
    return list(_decoded(connection, query.where(is_due).order_by(outbox.c.id).limit(limit)))


def next_due(connection: Connection, receiver: str, paused: Collection[str] = ()) -> float | None:
    """Return when the next row of a receiver is due (epoch seconds); None: there is none.

    `paused`: see `due_rows`.
    """
    query = select(func.min(outbox.c.due)).where(
        _IS_OPEN, _IS_PENDING, outbox.c.receiver == receiver, _RECIPIENT.not_in(paused)
    )
    return connection.execute(query).scalar()


def open_rows(connection: Connection) -> dict[str, tuple[int, float]]:
    """Return the number of open rows by receiver, and when the oldest was created."""
    query = select(outbox.c.receiver, func.count(), func.min(outbox.c.created)).where(_IS_OPEN)
    rows = connection.execute(query.group_by(outbox.c.receiver))
    return {receiver: (count, oldest) for receiver, count, oldest in rows}


def _content_of(data: str) -> _Content:
    """Return the content of a row; without notices if it is damaged, or of another release."""
    try:
        return msgspec.json.decode(data, type=_Content)
    except (msgspec.MsgspecError, ValueError):
        return _UNREADABLE


def _decoded(connection: Connection, query: Any) -> Iterator[OutboxRow]:
    for row in connection.execute(query):
        content = _content_of(row.data)
        yield OutboxRow(
            row.id,
            row.user,
            row.kind,
            row.address,
            row.created,
            row.due,
            row.tries,
            row.error,
            content.source,
            content.notices,
        )


def mark_sending(connection: Connection, id: int) -> tuple[Notice, ...]:
    """Store that a mail is about to be given to the mail program; return its notices.

    Empty: it is not pending any more, or cannot be read. A digest counts no further mails from now
    on.
    """
    is_row = (outbox.c.id == id) & _IS_PENDING
    data = connection.execute(select(outbox.c.data).where(is_row)).scalar()
    notices = () if data is None else _content_of(data).notices
    if notices:
        _update(connection, is_row, state=DeliveryState.SENDING.value)
    return notices


def mark_delivered(connection: Connection, id: int, now: float) -> None:
    """Store that a row was delivered."""
    _update(connection, outbox.c.id == id, state=DeliveryState.DELIVERED.value, ended=now, error="")


def mark_tried(connection: Connection, id: int, due: float, error: str) -> None:
    """Store that a row certainly was not delivered, and when to try again (epoch seconds)."""
    _update(
        connection,
        outbox.c.id == id,
        state=DeliveryState.PENDING.value,
        tries=outbox.c.tries + 1,
        due=due,
        error=error,
    )


def give_up(
    connection: Connection, receiver: str, created_before: float, now: float
) -> list[AuditRecord]:
    """Give up the old pending rows of a receiver, and those above `MAX_OPEN_ROWS`."""
    of_receiver = _IS_PENDING & (outbox.c.receiver == receiver)
    records = close(
        connection,
        of_receiver & (outbox.c.created < created_before),
        DeliveryState.FAILED,
        "too old",
        now,
    )
    newest = select(outbox.c.id).where(_IS_OPEN, of_receiver).order_by(outbox.c.id.desc())
    last = connection.execute(newest.offset(MAX_OPEN_ROWS).limit(1)).scalar()
    if last is not None:
        is_surplus = of_receiver & (outbox.c.id <= last)
        cause = f"more than {MAX_OPEN_ROWS} wait"
        records += close(connection, is_surplus, DeliveryState.FAILED, cause, now)
    return records


def close(
    connection: Connection,
    condition: ColumnElement[bool],
    state: DeliveryState,
    cause: str,
    now: float,
) -> list[AuditRecord]:
    """Close open rows without delivery; return an audit record for each receiver and user."""
    query = select(outbox.c.receiver, outbox.c.user, func.count(), func.max(outbox.c.error))
    query = query.where(_IS_OPEN, condition).group_by(outbox.c.receiver, outbox.c.user)
    closed = connection.execute(query).all()
    if not closed:
        return []
    _update(connection, _IS_OPEN & condition, state=state.value, ended=now)
    kind = AuditKind.NOTIFICATION_FAILED
    if state is DeliveryState.UNCERTAIN:
        kind = AuditKind.NOTIFICATION_UNCERTAIN
    return [
        cleaned(
            AuditRecord(
                time=now,
                kind=kind,
                owner=OPERATORS_ONLY if user is None else user,
                cause=f"{receiver}: {cause}{f'; {error}' if error else ''}",
                count=count,
                details={"receiver": receiver},
            )
        )
        for receiver, user, count, error in closed
    ]


def _update(connection: Connection, condition: ColumnElement[bool], **values: Any) -> None:
    connection.execute(update(outbox).where(condition).values(**values))


def read_page(
    connection: Connection, user: str | None, after: int, limit: int, *, delivered: bool
) -> list[dict[str, Any]]:
    """Return the first `limit` rows with ids above `after`, without their texts, by id.

    `user` None: of all users and webhooks. `delivered`: also those that were delivered.
    """
    columns = [column for column in outbox.c if column.name != "data"]
    query = select(*columns).where(outbox.c.id > after).order_by(outbox.c.id).limit(limit)
    if user is not None:
        query = query.where(outbox.c.user == user)
    if not delivered:
        query = query.where(outbox.c.state != DeliveryState.DELIVERED)
    return [dict(row) for row in connection.execute(query).mappings()]


def prune_batch(connection: Connection, now: float, limit: int) -> int:
    """Delete at most `limit` rows that ended long ago; return their number."""
    is_delivered = outbox.c.state == DeliveryState.DELIVERED
    old = select(outbox.c.id).where(
        outbox.c.ended < now - DELIVERED_KEPT_FOR, is_delivered | (outbox.c.ended < now - KEPT_FOR)
    )
    return connection.execute(delete(outbox).where(outbox.c.id.in_(old.limit(limit)))).rowcount
