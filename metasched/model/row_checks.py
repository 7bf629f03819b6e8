"""Checks of the rows that managers report, before they reach the core. Pure.

Owners of jobs control parts of a row. A row is checked before it changes anything. A value that
the core cannot use, or a database cannot store, sets this row aside and no other.
"""

from __future__ import annotations

from metasched.model.arrays import MAX_INDEX
from metasched.model.host_lists import UNKNOWN_HOSTS, count_hosts
from metasched.model.job import State
from metasched.model.listing import JobStatus, QuarantinedRow
from metasched.model.manager_options import MAX_NAMED_HOSTS

MAX_TIME = 2.0**37  # epoch seconds (year 6325); dates of later years cannot be printed
MAX_TEXT_LENGTH = 1000  # characters of a reason, node list or defect
_MAX_ID_LENGTH = 200  # characters of a tag, native id or owner
_MAX_STATUS = 2**31 - 1  # of exit codes, signals and restarts
_MAX_AMOUNT = 2**62  # of memory and of processor seconds
_LISTED_STATES = frozenset(State) - {State.QUEUED, State.HELD, State.REJECTED, State.DISPATCHING}


class RowDefect(Exception):
    """A valid row made the core fail: a defect of metasched. `row` must not be applied again."""

    def __init__(self, row: JobStatus) -> None:
        super().__init__(f"row {row.tag!r}, task {row.task}")
        self.row = row


def clean_text(text: str, limit: int = MAX_TEXT_LENGTH) -> str:
    """Return text that every database stores: without NUL and half characters, shortened."""
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def is_time(value: float | None) -> bool:
    """Return whether a reported time is absent or plausible; NaN is not."""
    return value is None or 0.0 <= value <= MAX_TIME


def row_defect(row: JobStatus) -> str:
    """Return why a row cannot be used, or ""."""
    if not _is_identifier(row.tag) or not _is_identifier(row.native_id):
        return "its tag or native id is no identifier"
    if not 0 <= row.task <= MAX_INDEX:
        return "its task index is out of range"
    if row.state not in _LISTED_STATES:
        return f"state {row.state} is none of a manager"
    if not (is_time(row.started) and is_time(row.ended)):
        return "its start or end is no time"
    for name, value in (("exit code", row.exit_code), ("signal", row.signal)):
        if value is not None and not 0 <= value <= _MAX_STATUS:
            return f"its {name} is out of range"
    if not 0 <= row.restarts <= _MAX_STATUS:
        return "its number of restarts is out of range"
    return ""


def clean_row(row: JobStatus) -> JobStatus:
    """Make the parts of a row storable that decide nothing; changes and returns the row."""
    row.manager_reason, row.node = clean_text(row.manager_reason), clean_text(row.node)
    row.unbegun_on = row.unbegun_on and _clean_hosts(row.unbegun_on)
    if not is_time(row.expected):
        row.expected = None
    if row.cpu_seconds is not None and not 0 <= row.cpu_seconds <= _MAX_AMOUNT:
        row.cpu_seconds = None
    if row.max_memory is not None and not 0 <= row.max_memory <= _MAX_AMOUNT:
        row.max_memory = None
    return row


def _clean_hosts(host_list: str) -> str:
    """Return a list of hosts that can be stored, or one without hosts in its place."""
    try:
        count_hosts(host_list, MAX_NAMED_HOSTS)
    except ValueError:
        return UNKNOWN_HOSTS
    return host_list if clean_text(host_list) == host_list else UNKNOWN_HOSTS


def quarantined(row: JobStatus, defect: str) -> QuarantinedRow:
    """Return the record of a row that is set aside; its texts can be sent and logged."""
    tag, owner = clean_text(row.tag, _MAX_ID_LENGTH), clean_text(row.owner, _MAX_ID_LENGTH)
    index = row.task if 0 <= row.task <= MAX_INDEX else -1
    return QuarantinedRow(tag, index, owner, clean_text(defect))


def _is_identifier(text: str) -> bool:
    return 0 < len(text) <= _MAX_ID_LENGTH and text.isascii() and text.isprintable()
