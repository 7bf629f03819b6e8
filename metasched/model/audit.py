"""Audit records: who did what to a cluster, licence, policy, reservation or job, and why. Pure.

`KINDS` is the whole list; docs/admin/events.md repeats it. Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

MAX_CAUSE_LENGTH = 500  # characters
MAX_NAME_LENGTH = 200  # characters of any other text
TIME_DETAILS = ("drained_at", "start", "end", "due", "last")  # keys of `details` with epoch seconds
OPERATORS_ONLY: str | None = None  # `AuditRecord.owner` of records that only operators see
PUBLIC = ""  # `AuditRecord.owner` of records that concern no user: everybody sees them


class AuditKind(StrEnum):
    """What happened. Stored: do not rename a value."""

    CLUSTER_DRAINED = "cluster_drained"
    CLUSTER_RESUMED = "cluster_resumed"
    CLUSTER_UNREACHABLE = "cluster_unreachable"
    CLUSTER_ANSWERS = "cluster_answers"
    CLUSTER_REFUSES = "cluster_refuses"
    CLUSTER_ACCEPTS = "cluster_accepts"
    BREAKER_OPEN = "breaker_open"
    BREAKER_CLOSED = "breaker_closed"
    LOCAL_POLICY_EXCLUDED = "local_policy_excluded"
    LOCAL_POLICY_DECIDES = "local_policy_decides"
    ROW_SET_ASIDE = "row_set_aside"
    DEFECT = "defect"
    DATABASE_WENT_BACK = "database_went_back"
    LICENCE_SET = "licence_set"
    LICENCE_TOTAL = "licence_total"
    LICENCE_DRIFT = "licence_drift"
    LICENCE_RELEASED = "licence_released"
    LICENCE_SERVER_SILENT = "licence_server_silent"
    LICENCE_SERVER_ANSWERS = "licence_server_answers"
    POLICY_CHANGED = "policy_changed"
    SHADOW_STARTED = "shadow_started"
    SHADOW_ENDED = "shadow_ended"
    CONFIGURATION_CHANGED = "configuration_changed"
    RESERVATION_PROMISED = "reservation_promised"
    RESERVATION_BOUND = "reservation_bound"
    RESERVATION_REJECTED = "reservation_rejected"
    RESERVATION_MOVED = "reservation_moved"
    RESERVATION_LOST = "reservation_lost"
    RESERVATION_BEGAN = "reservation_began"
    RESERVATION_ENDED = "reservation_ended"
    RESERVATION_CANCELLED = "reservation_cancelled"
    RESERVATION_BROKEN = "reservation_broken"
    RESERVATION_SKIPPED = "reservation_skipped"
    SERIES_MADE = "series_made"
    SERIES_ENDED = "series_ended"
    CALENDAR_CHANGED = "calendar_changed"
    CALENDAR_RAN = "calendar_ran"
    CALENDAR_SKIPPED = "calendar_skipped"
    CALENDAR_FAILED = "calendar_failed"
    CALENDAR_SLOW = "calendar_slow"
    JOB_CANCELLED = "job_cancelled"
    JOB_HELD = "job_held"
    JOB_RELEASED = "job_released"
    JOB_REQUEUED = "job_requeued"
    JOB_MODIFIED = "job_modified"
    JOB_DECLARED_LOST = "job_declared_lost"
    JOB_DECLARED_RAN = "job_declared_ran"
    JOB_UNKNOWN = "job_unknown"
    JOB_KNOWN = "job_known"
    JOB_UNBEGUN = "job_unbegun"
    TOKEN_CREATED = "token_created"
    TOKEN_REVOKED = "token_revoked"
    SESSION_ACTED = "session_acted"
    CREDENTIAL_REFUSED = "credential_refused"
    NOTIFICATION_FAILED = "notification_failed"
    NOTIFICATION_UNCERTAIN = "notification_uncertain"


Severity = Literal["info", "warning", "error"]
# Who sees a kind besides operators: all users, the owner of the job, reservation or token, none
Audience = Literal["all", "owner", "operators"]


@dataclass(frozen=True)
class KindInfo:
    """A kind: its line in the log, who sees it, and what it means."""

    severity: Severity
    audience: Audience
    meaning: str


K = AuditKind
KINDS: Mapping[AuditKind, KindInfo] = {
    K.CLUSTER_DRAINED: KindInfo("info", "all", "An operator drained a cluster."),
    K.CLUSTER_RESUMED: KindInfo("info", "all", "An operator resumed a drained cluster."),
    K.CLUSTER_UNREACHABLE: KindInfo(
        "warning", "all", "The manager does not answer: its jobs are unknown."
    ),
    K.CLUSTER_ANSWERS: KindInfo("info", "all", "The manager answers again."),
    K.CLUSTER_REFUSES: KindInfo(
        "warning", "all", "It refuses jobs of several users with the same words."
    ),
    K.CLUSTER_ACCEPTS: KindInfo("info", "all", "It has accepted a job again."),
    K.BREAKER_OPEN: KindInfo("warning", "all", "A poll failed; the next waits longer."),
    K.BREAKER_CLOSED: KindInfo("info", "all", "A poll succeeded after failures."),
    K.LOCAL_POLICY_EXCLUDED: KindInfo(
        "warning", "operators", "FCFS decides in place of the policy of a local cluster."
    ),
    K.LOCAL_POLICY_DECIDES: KindInfo(
        "info", "operators", "The policy of a local cluster decides again."
    ),
    K.ROW_SET_ASIDE: KindInfo(
        "warning", "operators", "A listing has a row that cannot be used; see Quarantine."
    ),
    K.DEFECT: KindInfo(
        "error", "operators", "A defect of metasched: the row is set aside, or its source pauses."
    ),
    K.DATABASE_WENT_BACK: KindInfo(
        "error", "operators", "The database is an earlier state of itself; tasks are held."
    ),
    K.LICENCE_SET: KindInfo("info", "all", "An operator set the total of a licence."),
    K.LICENCE_TOTAL: KindInfo("info", "all", "Configuration or server give another total."),
    K.LICENCE_DRIFT: KindInfo(
        "info", "all", "Use outside metasched moved by a tenth of the total or more."
    ),
    K.LICENCE_RELEASED: KindInfo("info", "owner", "An operator released the leases of a job."),
    K.LICENCE_SERVER_SILENT: KindInfo("warning", "all", "A licence server does not answer."),
    K.LICENCE_SERVER_ANSWERS: KindInfo("info", "all", "A licence server answers again."),
    K.POLICY_CHANGED: KindInfo(
        "info", "operators", "Another policy is in force, by a file, an activation or an undo."
    ),
    K.SHADOW_STARTED: KindInfo(
        "info", "operators", "A candidate policy runs beside the one in force."
    ),
    K.SHADOW_ENDED: KindInfo("info", "operators", "An operator ended the candidate."),
    K.CONFIGURATION_CHANGED: KindInfo(
        "info", "operators", "The daemon took a changed configuration over without a restart."
    ),
    K.RESERVATION_PROMISED: KindInfo("info", "owner", "A reservation was granted."),
    K.RESERVATION_BOUND: KindInfo("info", "owner", "The manager keeps its nodes."),
    K.RESERVATION_REJECTED: KindInfo("warning", "owner", "The manager refused it."),
    K.RESERVATION_MOVED: KindInfo("info", "owner", "It has other nodes."),
    K.RESERVATION_LOST: KindInfo("warning", "owner", "The manager forgot it; it is bound again."),
    K.RESERVATION_BEGAN: KindInfo("info", "owner", "Its window has begun."),
    K.RESERVATION_ENDED: KindInfo("info", "owner", "Its window is over."),
    K.RESERVATION_CANCELLED: KindInfo("info", "owner", "The actor cancelled it."),
    K.RESERVATION_BROKEN: KindInfo("warning", "owner", "It could not be kept."),
    K.RESERVATION_SKIPPED: KindInfo(
        "warning", "owner", "An occurrence of a series could not be reserved."
    ),
    K.SERIES_MADE: KindInfo("info", "owner", "A series of reservations was made."),
    K.SERIES_ENDED: KindInfo("info", "owner", "A series was cancelled, or is over."),
    K.CALENDAR_CHANGED: KindInfo("info", "all", "An entry of the site's calendar changed."),
    K.CALENDAR_RAN: KindInfo("info", "all", "An entry of the calendar ran."),
    K.CALENDAR_SKIPPED: KindInfo(
        "warning", "all", "The daemon was down for longer than its grace, or a later run counts."
    ),
    K.CALENDAR_FAILED: KindInfo("error", "all", "A run of the calendar failed."),
    K.CALENDAR_SLOW: KindInfo(
        "warning", "all", "A run of the calendar has not ended after an hour."
    ),
    K.JOB_CANCELLED: KindInfo("info", "owner", "Another user asked to cancel tasks."),
    K.JOB_HELD: KindInfo("info", "owner", "Another user asked to hold tasks."),
    K.JOB_RELEASED: KindInfo("info", "owner", "Another user asked to release tasks."),
    K.JOB_REQUEUED: KindInfo("info", "owner", "Another user asked to requeue tasks."),
    K.JOB_MODIFIED: KindInfo("info", "owner", "Another user changed the job."),
    K.JOB_DECLARED_LOST: KindInfo("info", "owner", "An operator declared unknown tasks lost."),
    K.JOB_DECLARED_RAN: KindInfo("info", "owner", "An operator declared unknown tasks ended."),
    K.JOB_UNKNOWN: KindInfo("warning", "owner", "Tasks became unknown."),
    K.JOB_KNOWN: KindInfo("info", "owner", "Unknown tasks have a state again, or ended."),
    K.JOB_UNBEGUN: KindInfo("warning", "owner", "A node could not begin tasks."),
    K.TOKEN_CREATED: KindInfo("info", "owner", "A user created a token."),
    K.TOKEN_REVOKED: KindInfo("info", "owner", "The actor revoked a token."),
    K.SESSION_ACTED: KindInfo("info", "owner", "A user asked for an act by a page of the web."),
    K.CREDENTIAL_REFUSED: KindInfo(
        "warning", "operators", "A caller showed no valid credential, or may not call."
    ),
    K.NOTIFICATION_FAILED: KindInfo(
        "warning", "owner", "Mails, or events of a webhook, were given up."
    ),
    K.NOTIFICATION_UNCERTAIN: KindInfo(
        "warning", "owner", "Mails may have been sent; they are not sent again."
    ),
}


@dataclass(frozen=True, kw_only=True)
class AuditRecord:
    """One act or change. Texts are single lines of bounded length: see `cleaned`."""

    time: float
    kind: AuditKind
    actor: str = ""  # user; "": metasched or a manager
    # user whom it concerns; `PUBLIC` or `OPERATORS_ONLY`
    owner: str | None = PUBLIC
    job: int | None = None
    task: int | None = None  # index; None: the whole job, or several tasks
    reservation: int | None = None
    cluster: str = ""
    licence: str = ""
    cause: str = ""
    count: int = 1  # tasks, or equal acts that this record stands for
    details: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind].severity


def one_line(text: str, limit: int = MAX_NAME_LENGTH) -> str:
    """Return text without control characters, shortened: it may be of a user or a manager."""
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def cleaned(record: AuditRecord) -> AuditRecord:
    """Return the record with texts that forge no line of a log or terminal."""
    return replace(
        record,
        actor=one_line(record.actor),
        owner=None if record.owner is None else one_line(record.owner),
        cluster=one_line(record.cluster),
        licence=one_line(record.licence),
        cause=one_line(record.cause, MAX_CAUSE_LENGTH),
        details={
            one_line(key): one_line(value, MAX_CAUSE_LENGTH) if isinstance(value, str) else value
            for key, value in record.details.items()
        },
    )
