"""Audit records of a step of the core: a pure function of stored events and their outcomes.

`AuditTrail.records` is the only place that makes them, apart from what no event causes
(`daemon.notices`) and tokens. A condition is the last recorded state of a subject, such as
"unreachable" of a cluster: a record is made only if its condition changes. Conditions are stored
with the records. So a restart, or a repetition of an event, adds nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from metasched.core.calendar_events import CalendarEntryRemoved, CalendarEntrySet, CalendarRun
from metasched.core.events import (
    ClusterDrained,
    ClusterResumed,
    ClusterUnreachable,
    CoreEvent,
    DaemonStarted,
    JobModified,
    LicenceSet,
    LicencesReleased,
    ListingReceived,
    Outcome,
    UserRequested,
)
from metasched.core.reservations.events import ReservationCancelled, ReservationRequested
from metasched.core.tasks import Task
from metasched.model.audit import OPERATORS_ONLY, PUBLIC, AuditKind, AuditRecord, cleaned
from metasched.model.calendar import CalendarEntry, DrainCluster, ResumeCluster, RunResult
from metasched.model.host_lists import name_nodes
from metasched.model.job import State
from metasched.model.policy_version import DEFAULTS
from metasched.model.reservation import OPEN_STATES, Reservation, ReservationState
from metasched.model.tags import tag_job

DRIFT_SHARE = 0.1  # of the total: smaller changes of the use outside metasched are not recorded
MAX_ROWS_SET_ASIDE = 10  # records of rows of a listing; the others are counted
MAX_REMEMBERED_ROWS = 1000  # rows of a cluster that are known to be set aside

K = AuditKind
_ACTIONS: Final = {
    "cancel": K.JOB_CANCELLED,
    "hold": K.JOB_HELD,
    "release": K.JOB_RELEASED,
    "requeue": K.JOB_REQUEUED,
    "lost": K.JOB_DECLARED_LOST,
    "ran": K.JOB_DECLARED_RAN,
}
_RESERVATION_KINDS: Final = {
    ReservationState.BOUND: K.RESERVATION_BOUND,
    ReservationState.ACTIVE: K.RESERVATION_BEGAN,
    ReservationState.ENDED: K.RESERVATION_ENDED,
    ReservationState.CANCELLED: K.RESERVATION_CANCELLED,
    ReservationState.BROKEN: K.RESERVATION_BROKEN,
    ReservationState.CONFIRMED: K.RESERVATION_LOST,  # after it was bound
}


class AuditTrail:
    """Derives records from steps, in their order."""

    def __init__(
        self,
        conditions: Mapping[str, str] | None = None,
        reservations: Mapping[int, Reservation] | None = None,
        drains: Mapping[str, ClusterDrained] | None = None,
        calendar: Mapping[int, CalendarEntry] | None = None,
    ) -> None:
        """All as they were before the first step: conditions by subject, drains by cluster."""
        self._conditions = dict(conditions or {})
        self._changed: dict[str, str] = {}  # conditions that are not stored yet
        self._reservations = dict(reservations or {})
        self._drains = dict(drains or {})
        self._calendar = dict(calendar or {})
        self._set_aside: dict[str, set[tuple[str, int]]] = {}  # by cluster
        self._handlers: dict[type, Callable[[Any], Iterable[AuditRecord]]] = {
            DaemonStarted: self._daemon_started,
            ClusterDrained: self._drained,
            ClusterResumed: self._resumed,
            ClusterUnreachable: self._unreachable,
            ListingReceived: self._listed,
            UserRequested: self._requested,
            JobModified: self._modified,
            LicencesReleased: self._licences_released,
        }

    def records(self, event: CoreEvent, outcome: Outcome) -> list[AuditRecord]:
        """Return the records of a step, in the order of their storage."""
        records: list[AuditRecord] = []
        if (handler := self._handlers.get(type(event))) is not None:
            records += handler(event)
        for cluster, sentence in outcome.refusing.items():
            if self.changes(f"refusals of {cluster}", "refusing" if sentence else ""):
                kind = K.CLUSTER_REFUSES if sentence else K.CLUSTER_ACCEPTS
                records.append(
                    AuditRecord(time=event.time, kind=kind, cluster=cluster, cause=sentence)
                )
        if outcome.licence_statuses:
            records += self._licences(event, outcome)
        if outcome.reservations:
            records += self._reservation_changes(event, outcome)
        if outcome.calendar:
            records += self._calendar_changes(event, outcome)
        if outcome.changes:
            records += _unknown_jobs(event, outcome)
            records += _unbegun_jobs(event, outcome)
        return list(map(cleaned, records))

    def condition(self, subject: str) -> str:
        """Return the condition last recorded of a subject; "": none, or it is well again."""
        return self._conditions.get(subject, "")

    def changes(self, subject: str, value: str) -> bool:
        """Set the condition of a subject; return whether it was another."""
        if self.condition(subject) == value:
            return False
        self._conditions[subject] = self._changed[subject] = value
        if not value:
            del self._conditions[subject]
        return True

    def take_changed(self) -> dict[str, str]:
        """Return the conditions to store with the records returned since the last call."""
        changed, self._changed = self._changed, {}
        return changed

    # Events

    def _daemon_started(self, event: DaemonStarted) -> Iterator[AuditRecord]:
        if event.went_back:
            yield AuditRecord(
                time=event.time,
                kind=K.DATABASE_WENT_BACK,
                owner=OPERATORS_ONLY,
                cause=event.went_back,
                details={"instance": event.instance},
            )
        digest = event.policy_digest or _digest(event.policy)
        before = self.condition("policy")
        version, version_before = str(event.policy_version or ""), self.condition("policy version")
        is_other = self.changes("policy", digest)
        if self.changes("policy version", version) and version and version_before:
            is_other = True  # perhaps with the same contents
        if is_other:
            source = event.policy_file or DEFAULTS
            if version:
                source = f"version {version}, {source}"
            yield AuditRecord(
                time=event.time,
                kind=K.POLICY_CHANGED,
                actor=event.by or event.policy_owner,
                owner=OPERATORS_ONLY,
                cause=f"{source}: {digest[:12]} in place of {before[:12] or 'none'}"
                + (f"; {event.policy_cause}" if event.policy_cause else ""),
                details={"file": event.policy_file, "digest": digest, "previous": before}
                | ({"version": event.policy_version} if version else {}),
            )
        if event.config_changes:
            yield AuditRecord(
                time=event.time,
                kind=K.CONFIGURATION_CHANGED,
                actor=event.by,
                owner=OPERATORS_ONLY,
                cause="; ".join(event.config_changes),
            )

    def _drained(self, event: ClusterDrained) -> Iterator[AuditRecord]:
        self._drains[event.cluster] = event
        details: dict[str, str | int | float] = (
            {"keep_pending": "yes"} if event.keep_pending else {}
        )
        if event.entry:
            details["entry"] = event.entry
        yield AuditRecord(
            time=event.time,
            kind=K.CLUSTER_DRAINED,
            actor=event.by,
            cluster=event.cluster,
            cause=event.reason,
            details=details,
        )

    def _resumed(self, event: ClusterResumed) -> Iterator[AuditRecord]:
        drain = self._drains.pop(event.cluster, None)
        yield AuditRecord(
            time=event.time,
            kind=K.CLUSTER_RESUMED,
            actor=event.by,
            cluster=event.cluster,
            cause="" if drain is None else str(drain),
            details={} if drain is None else {"drained_at": drain.time},
        )

    def _unreachable(self, event: ClusterUnreachable) -> Iterator[AuditRecord]:
        if self.changes(f"cluster {event.cluster}", "unreachable"):
            yield AuditRecord(
                time=event.time,
                kind=K.CLUSTER_UNREACHABLE,
                cluster=event.cluster,
                cause=event.reason,
            )

    def _listed(self, event: ListingReceived) -> Iterator[AuditRecord]:
        if not event.partial and self.changes(f"cluster {event.cluster}", ""):
            yield AuditRecord(time=event.time, kind=K.CLUSTER_ANSWERS, cluster=event.cluster)
        if event.quarantined or self.condition(f"rows of {event.cluster}"):
            yield from self._rows_set_aside(event)

    def _rows_set_aside(self, event: ListingReceived) -> Iterator[AuditRecord]:
        """Yield a record for each row that is newly set aside, for `MAX_ROWS_SET_ASIDE` at most."""
        subject, listed = f"rows of {event.cluster}", dict.fromkeys(event.quarantined)
        before = self._set_aside.get(event.cluster)
        if before is None:  # the daemon has started since
            stored = json.loads(self.condition(subject) or "[]")
            before = {(tag, index) for tag, index in stored}
        new = [row for row in listed if row not in before]
        self._set_aside[event.cluster] = set(listed)
        remembered = list(listed)[:MAX_REMEMBERED_ROWS]
        self.changes(subject, json.dumps(remembered) if remembered else "")
        defects = {(tag, index): defect for tag, index, defect in event.defects}
        new.sort(key=lambda row: row not in defects)  # stable: those with a text first
        for tag, index in new[:MAX_ROWS_SET_ASIDE]:
            yield AuditRecord(
                time=event.time,
                kind=K.ROW_SET_ASIDE,
                owner=OPERATORS_ONLY,
                job=tag_job(tag),
                task=index if index >= 0 else None,
                cluster=event.cluster,
                cause=defects.get((tag, index), "it cannot be used"),
                details={"tag": tag},
            )
        if (omitted := len(new) - MAX_ROWS_SET_ASIDE) > 0:
            yield AuditRecord(
                time=event.time,
                kind=K.ROW_SET_ASIDE,
                owner=OPERATORS_ONLY,
                cluster=event.cluster,
                cause=f"{omitted} more rows of this listing",
                count=omitted,
            )

    def _requested(self, event: UserRequested) -> Iterator[AuditRecord]:
        is_resolution = event.action in ("lost", "ran")
        if not is_resolution and event.owner in ("", event.by):
            return
        indices = event.indices
        details: dict[str, str | int | float] = {}
        if event.exit_code is not None:
            details["exit_code"] = event.exit_code
        if indices is None or event.with_remainder:
            details["tasks"] = "all" if not indices else f"{len(indices)} and the rest of the array"
        yield AuditRecord(
            time=event.time,
            kind=_ACTIONS[event.action],
            actor=event.by,
            owner=event.owner or OPERATORS_ONLY,
            job=event.job,
            task=indices[0] if indices is not None and len(indices) == 1 else None,
            count=max(len(indices or ()), 1),
            details=details,
        )

    def _modified(self, event: JobModified) -> Iterator[AuditRecord]:
        if event.by not in ("", event.job.user):
            yield AuditRecord(
                time=event.time,
                kind=K.JOB_MODIFIED,
                actor=event.by,
                owner=event.job.user,
                job=event.job.id,
                cause=event.change_summary,
            )

    def _licences_released(self, event: LicencesReleased) -> Iterator[AuditRecord]:
        indices = event.indices or ()
        yield AuditRecord(
            time=event.time,
            kind=K.LICENCE_RELEASED,
            actor=event.by,
            owner=event.owner or OPERATORS_ONLY,
            job=event.job,
            task=indices[0] if len(indices) == 1 else None,
            count=max(len(indices), 1),
        )

    # Outcomes

    def _licences(self, event: CoreEvent, outcome: Outcome) -> Iterator[AuditRecord]:
        """Yield changes of totals, and of the use outside metasched."""
        act = event if isinstance(event, LicenceSet) else None
        if act is not None:
            before = self.condition(f"total of licence {act.name}") or "unknown"
            new = "as configured" if act.total is None else str(act.total)
            yield AuditRecord(
                time=event.time,
                kind=K.LICENCE_SET,
                actor=act.by,
                licence=act.name,
                cause=f"total {new}; it was {before}",
            )
        for name, status in outcome.licence_statuses.items():
            if status.total is None or status.unknown_reason:
                continue  # not counted, or not yet
            before = self.condition(f"total of licence {name}")
            changed = self.changes(f"total of licence {name}", str(status.total))
            if changed and act is None:
                yield AuditRecord(
                    time=event.time,
                    kind=K.LICENCE_TOTAL,
                    licence=name,
                    cause=f"total {status.total}; it was {before or 'unknown'}",
                )
            subject = f"use outside of licence {name}"
            recorded = int(self.condition(subject) or 0)
            if abs(status.outside - recorded) < max(1.0, DRIFT_SHARE * status.total):
                continue
            self.changes(subject, str(status.outside) if status.outside else "")
            yield AuditRecord(
                time=event.time,
                kind=K.LICENCE_DRIFT,
                licence=name,
                cause=f"{status.outside} of {status.total} used outside; it was {recorded}",
                details={"outside": status.outside, "leased": status.leased_tokens},
            )

    def _reservation_changes(self, event: CoreEvent, outcome: Outcome) -> Iterator[AuditRecord]:
        for id, after in outcome.reservations.items():
            before = self._reservations.get(id)
            kind = _reservation_kind(before, after)
            if after.state in OPEN_STATES or after.known_to_manager:
                self._reservations[id] = after
            else:
                self._reservations.pop(id, None)
            if kind is None:
                continue
            actor = ""
            if isinstance(event, ReservationRequested) and kind is K.RESERVATION_PROMISED:
                actor = event.by or event.user
            elif isinstance(event, ReservationCancelled) and kind is K.RESERVATION_CANCELLED:
                actor = event.by
            yield AuditRecord(
                time=event.time,
                kind=kind,
                actor=actor,
                owner=after.user,
                reservation=id,
                cluster=after.cluster,
                cause=after.cause,
                details={"start": after.start, "end": after.end},
            )

    def _calendar_changes(self, event: CoreEvent, outcome: Outcome) -> Iterator[AuditRecord]:
        """Yield what happened to entries of the calendar; a granted occurrence has its own."""
        for id, after in outcome.calendar.items():
            before = self._calendar.get(id)
            if after is None:
                self._calendar.pop(id, None)
            else:
                self._calendar[id] = after
            entry = after or before
            if entry is None:
                continue
            record = _calendar_record(event, entry, after)
            is_granted = (
                isinstance(event, ReservationRequested) and event.id in outcome.reservations
            )
            if record is not None and not is_granted:
                yield record


_RUN_KINDS: Final = {
    RunResult.DONE: K.CALENDAR_RAN,
    RunResult.FAILED: K.CALENDAR_FAILED,
    RunResult.SKIPPED: K.CALENDAR_SKIPPED,
}


def _calendar_record(
    event: CoreEvent, entry: CalendarEntry, after: CalendarEntry | None
) -> AuditRecord | None:
    """Return the record of an event that changed an entry; None: it needs none."""
    actor, cause, count, details = "", "", 1, dict[str, str | int | float]()
    match event:
        case CalendarEntrySet():
            kind = K.SERIES_MADE if entry.is_series else K.CALENDAR_CHANGED
            actor, cause = event.by, event.cause
        case CalendarEntryRemoved():
            kind = K.SERIES_ENDED if entry.is_series else K.CALENDAR_CHANGED
            actor, cause = event.by, event.cause
        case CalendarRun(result=result) if result is not RunResult.STARTED:
            kind = K.RESERVATION_SKIPPED if entry.is_series else _RUN_KINDS[result]
            cause, count, details["due"] = event.cause, event.count, event.due
            if event.last is not None:
                details["last"] = event.last
        case ReservationRequested():
            kind, cause = K.RESERVATION_SKIPPED, "that is not free on any cluster"
            details["due"] = event.request.ready
        case _:
            return None
    if entry.is_series:
        details["series"] = entry.id
    else:
        details["entry"] = entry.name
    text = f"{entry.describe()}: {cause}" if cause else entry.describe()
    return AuditRecord(
        time=event.time,
        kind=kind,
        actor=actor,
        owner=entry.owner if entry.is_series else PUBLIC,
        cluster=entry.act.cluster if isinstance(entry.act, DrainCluster | ResumeCluster) else "",
        cause=text,
        count=count,
        details=details,
    )


def _reservation_kind(before: Reservation | None, after: Reservation) -> AuditKind | None:
    """Return what happened to a reservation, or None; `before` None: it is new.

    Both may be steps apart: what happened last is recorded.
    """
    if before is None:
        # a reservation that is over was closed and recorded while its manager kept it
        return K.RESERVATION_PROMISED if after.state in OPEN_STATES else None
    if before.state is not after.state:
        was_promised = before.state is ReservationState.REQUESTED
        if was_promised and after.state is ReservationState.CONFIRMED:
            return None
        return _RESERVATION_KINDS[after.state]
    if after.rejections > before.rejections:
        # a manager may refuse the same for hours
        is_new = after.rejections == 1 or after.cause != before.cause
        return K.RESERVATION_REJECTED if is_new else None
    if before.bound_nodes and after.bound_nodes != before.bound_nodes:
        return K.RESERVATION_MOVED
    return None


def _unknown_jobs(event: CoreEvent, outcome: Outcome) -> Iterator[AuditRecord]:
    """Yield a record for the tasks of a job that became unknown, or are no longer so.

    Tasks of a job with the same cluster, new state and cause share a record.
    """
    unknown, tasks = State.UNKNOWN, dict[tuple[Any, ...], list[int]]()
    for change in outcome.changes:
        if (change.before is unknown) is (change.after is unknown):
            continue
        key = (change.job, change.cluster, change.before, change.after, change.cause)
        tasks.setdefault(key, []).append(change.index)
    for (job, cluster, before, after, cause), indices in tasks.items():
        became_unknown = after is unknown
        task = outcome.tasks[job, indices[0]]
        single = len(indices) == 1 and task.job.array is not None
        yield AuditRecord(
            time=event.time,
            kind=K.JOB_UNKNOWN if became_unknown else K.JOB_KNOWN,
            owner=task.job.user,
            job=job,
            task=indices[0] if single else None,
            cluster=cluster or "",
            cause=cause,
            count=len(indices),
            details={"state": str(before if became_unknown else after)},
        )


def _unbegun_jobs(event: CoreEvent, outcome: Outcome) -> Iterator[AuditRecord]:
    """Yield a record for the tasks of a job that the same hosts could not begin."""
    tasks = dict[tuple[int, str, str], list[Task]]()
    for task, attempt in outcome.closed_attempts:
        if attempt.unbegun_on and attempt.state is State.NODE_FAIL:
            key = (task.job.id, attempt.cluster, attempt.unbegun_on)
            tasks.setdefault(key, []).append(task)
    for (job, cluster, hosts), unbegun in tasks.items():
        single = len(unbegun) == 1 and unbegun[0].job.array is not None
        yield AuditRecord(
            time=event.time,
            kind=K.JOB_UNBEGUN,
            owner=unbegun[0].job.user,
            job=job,
            task=unbegun[0].index if single else None,
            cluster=cluster,
            cause=f"{name_nodes(hosts)} could not begin it",
            count=len(unbegun),
            details={"nodes": hosts},
        )


def _digest(policy: object) -> str:
    return hashlib.sha256(msgspec.json.encode(policy, order="deterministic")).hexdigest()
