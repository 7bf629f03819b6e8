"""Subjects and texts of mails, and bodies of webhooks.

Subjects are like those of Slurm, so that filters of users need few changes. No line of a text
begins with words from outside: mail programs interpret leading characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from metasched.core.notifications import GOOD_ENDS
from metasched.model.notice import DIGEST, JOB_BEGAN, JOB_ENDED, LIMIT_KINDS, Notice
from metasched.model.reservation import Reservation
from metasched.model.units import iso

_TIMES = ("time", "submitted", "started", "ended")


def job_message(notice: Notice) -> tuple[str, str]:
    """Return subject and text of a mail about a job, a task or an array."""
    name = str(notice.job) if notice.task is None else f"{notice.job}_{notice.task}"
    title = f"Job_id={name}"
    if notice.task is not None:
        title = f"Array Task Job_id={name} ({notice.job})"
    elif notice.array is not None:
        title = f"Array Summary Job_id={notice.job}_* ({notice.job})"
    subject = f"metasched {title} Name={notice.name} {', '.join(_happenings(notice))}"
    facts = {
        "Job": name,
        "Name": notice.name,
        "User": notice.user,
        "Array": notice.array,
        "Cluster": notice.cluster,
        "State": notice.state,
        "Reason": notice.reason,
        "Exit code": notice.exit_code,
        "Signal": notice.signal,
        "Submitted": iso(notice.submitted),
        "Started": iso(notice.started),
        "Ended": iso(notice.ended),
        **{f"Tasks {state}": number for state, number in sorted(notice.counts.items())},
    }
    lines = [f"{label}: {fact}" for label, fact in facts.items() if fact not in (None, "")]
    lines += [f"Output: {path}" for path in notice.output]
    command = "status --all" if notice.array and notice.task is None else "story"
    lines.append(f"Details: metasched {command} {name}")
    return subject, "\n".join(lines) + "\n"


def _happenings(notice: Notice) -> list[str]:
    """Return the words of a subject, as Slurm has them."""
    if notice.kind == JOB_BEGAN:
        if notice.submitted is None or notice.started is None:
            return ["Began"]
        return ["Began", f"Queued time {clock_time(notice.started - notice.submitted)}"]
    for percent, kind in LIMIT_KINDS.items():
        if notice.kind == kind:
            used = notice.time - (notice.time if notice.started is None else notice.started)
            return [f"Reached {percent}% time limit", f"Run time {clock_time(used)}"]
    if notice.kind != JOB_ENDED:
        return ["Requeued"]
    parts = ["Ended" if notice.state in GOOD_ENDS else "Failed"]
    if notice.started is not None and notice.ended is not None:
        parts.append(f"Run time {clock_time(notice.ended - notice.started)}")
    is_mixed = sum(map(bool, notice.counts.values())) > 1
    parts.append("Mixed" if is_mixed else notice.state.upper())
    if notice.exit_code is not None:
        parts.append(f"ExitCode {notice.exit_code}")
    return parts


def clock_time(seconds: float) -> str:
    """Format a duration as Slurm does: `1-02:03:04`."""
    minutes, second = divmod(max(int(seconds), 0), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hour:02}:{minute:02}:{second:02}"


def alert_message(notice: Notice) -> tuple[str, str]:
    """Return subject and text of a mail to operators about an audit record."""
    names = {"cluster": notice.cluster, "licence": notice.licence, "job": notice.job}
    objects = [f"{name} {value}" for name, value in names.items() if value]
    facts = {
        "Kind": notice.kind,
        "Severity": notice.severity,
        "Time": iso(notice.time),
        "Cluster": notice.cluster,
        "Licence": notice.licence,
        "Job": notice.job,
        "Reservation": notice.reservation,
        "User": notice.user,
        "Actor": notice.actor,
        "Cause": notice.reason,
        "Count": notice.count if notice.count > 1 else None,
    }
    lines = [f"{label}: {fact}" for label, fact in facts.items() if fact not in (None, "")]
    lines.append("Details: metasched events --since 1h")
    subject = " ".join([f"metasched {notice.severity}: {notice.kind}", *objects])
    return subject, "\n".join(lines) + "\n"


def digest_message(notice: Notice, per_hour: int) -> tuple[str, str]:
    """Return subject and text of the mail that stands for others."""
    assert notice.kind == DIGEST
    number = sum(notice.counts.values())
    lines = [
        f"{number} more notifications were not sent one by one.",
        f"This site sends at most {per_hour} an hour"
        f" {'of a kind of alert' if notice.user is None else 'to a user'}.",
        *(f"Of kind {kind}: {count}" for kind, count in sorted(notice.counts.items())),
        "Details: metasched status --all",
    ]
    return f"metasched: {number} more notifications", "\n".join(lines) + "\n"


def occurrence_message(notice: Notice) -> tuple[str, str]:
    """Return subject and text for the owner of a series whose occurrence was skipped or moved."""
    lines = [f"Of your reservations, {notice.reason}"]
    if notice.count > 1:
        lines.append(f"Occurrences: {notice.count}")
    if notice.reservation is None:
        subject = "metasched: a reservation of your series was skipped"
        lines.append("The others stay. Details: metasched calendar")
    else:
        subject = f"metasched: reservation {notice.reservation} has other nodes"
        lines.append("Details: metasched reservations")
    return subject, "\n".join(lines) + "\n"


def reservation_message(reservation: Reservation) -> tuple[str, str]:
    """Return subject and text for the owner of a broken reservation."""
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


def webhook_body(id: str, created: float, notices: Sequence[Notice]) -> bytes:
    """Return the body of a request to a webhook."""
    events = [_event(notice) for notice in notices]
    body = {"type": "metasched.events", "id": id, "timestamp": iso(created), "data": events}
    return msgspec.json.encode(body)


def _event(notice: Notice) -> Mapping[str, Any]:
    fields = msgspec.to_builtins(notice)
    return {name: iso(value) if name in _TIMES else value for name, value in fields.items()}
