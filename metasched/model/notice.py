"""Facts that mails and webhooks report. Pure. Times are epoch seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from metasched.model.audit import KINDS, AuditKind, AuditRecord

JOB_BEGAN: Final = "job_began"
JOB_ENDED: Final = "job_ended"
JOB_REQUEUED: Final = "job_requeued"
# a job has used this share of its time limit, in percent
LIMIT_KINDS: Final = {percent: f"job_time_limit_{percent}" for percent in (50, 80, 90)}
DIGEST: Final = "digest"  # stands for other mails: `Notice.counts`
ALERTS: Final = "alerts"  # in a configuration: `ALERT_KINDS`
# Reports of failed notifications would cause others.
UNREPORTED: Final = frozenset({AuditKind.NOTIFICATION_FAILED, AuditKind.NOTIFICATION_UNCERTAIN})
# Notices about a job or reservation of a user are none: one user could hide those of others.
ALERT_KINDS: Final = frozenset(
    kind.value
    for kind, info in KINDS.items()
    if info.severity != "info" and info.audience != "owner" and kind not in UNREPORTED
)

# mailed to the owner of a series of reservations
OCCURRENCE_KINDS: Final = frozenset({AuditKind.RESERVATION_MOVED, AuditKind.RESERVATION_SKIPPED})

MAIL: Final = "mail"  # the receiver of all mails; webhooks have their own names


def expand_kinds(kinds: Iterable[str]) -> frozenset[str]:
    """Return kinds with those that `alerts` stands for."""
    return frozenset(
        name for kind in kinds for name in (ALERT_KINDS if kind == ALERTS else {kind})
    ).difference(kind.value for kind in UNREPORTED)


class DeliveryState(StrEnum):
    """State of a row of the outbox."""

    PENDING = "pending"
    SENDING = "sending"  # a mail that has been given to the mail program, or is about to be
    DELIVERED = "delivered"
    UNCERTAIN = "uncertain"  # a mail that may have been sent; it is not sent again
    FAILED = "failed"  # given up


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fact that is reported. `kind`: a kind above, or the kind of an audit record."""

    kind: str
    time: float
    user: str | None = None  # whom it concerns
    job: int | None = None
    task: int | None = None  # index; None: the whole job
    array: str | None = None
    name: str = ""  # of the job
    state: str = ""
    reason: str = ""
    cluster: str = ""
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    output: tuple[str, ...] = ()  # paths
    # of an array: number of tasks by state; of a digest: number of mails by kind
    counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    # of audit records
    severity: str = ""
    actor: str = ""
    reservation: int | None = None
    licence: str = ""
    count: int = 1


def of_record(record: AuditRecord) -> Notice:
    """Return the notice of an audit record."""
    return Notice(
        kind=record.kind.value,
        time=record.time,
        user=record.owner or None,
        job=record.job,
        task=record.task,
        reason=record.cause,
        cluster=record.cluster,
        severity=record.severity,
        actor=record.actor,
        reservation=record.reservation,
        licence=record.licence,
        count=record.count,
    )
