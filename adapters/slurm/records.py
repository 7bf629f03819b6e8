"""The output of squeue, sinfo and sacct as records of delimited fields, and numbers in it. Pure.

The delimiter is random, so free text of users cannot contain it. Lines that are no record were
not written by the command's own format: a wrapper's message, or a defect of the manager.
"""

from __future__ import annotations

from typing import NamedTuple

EMPTY_VALUES = {"", "(null)", "None", "N/A", "Unknown", "NONE"}
_MAX_DIGITS = 18  # such numbers fit into 64 bits with a sign


class Records(NamedTuple):
    """The records of an answer, and what else it contains."""

    records: list[list[str]]  # the fields of each
    unreadable: str  # start of the first text that is no record; "": there is none


def split_records(text: str, delimiter: str, width: int) -> Records:
    """Split text into records of `width` fields, each ending in `delimiter`, a newline after each.

    Fields may contain newlines, except the first of a record. Lines between records, and records
    with another number of fields, are left out. Raises ValueError for a truncated text, and for a
    text without any delimiter.
    """
    if not text.strip():
        return Records([], "")
    fields = text.split(delimiter)
    if not fields[-1].endswith("\n"):
        raise ValueError(f"the output is truncated after {fields[-1][-20:]!r}")
    records: list[list[str]] = []
    unreadable = ""
    start, end = 0, len(fields) - 1
    fields[0] = "\n" + fields[0]
    while start < end:
        following = start + width
        if following <= end and fields[following].startswith("\n"):
            before, _, first = fields[start].rpartition("\n")
            unreadable = unreadable or before.strip()
            records.append([first, *fields[start + 1 : following]])
            start = following
            continue
        unreadable = unreadable or delimiter.join(fields[start : start + 2]).strip() or "a record"
        start += 1
        while start < end and not fields[start].startswith("\n"):
            start += 1
        if start == end and not fields[start].startswith("\n"):
            raise ValueError(f"the output is truncated within {fields[start][-20:]!r}")
    unreadable = unreadable or fields[-1].strip()
    if end == 0:  # no delimiter: a message in place of a listing
        raise ValueError(f"{unreadable[:80]!r} cannot be read as lines of {width} fields")
    return Records(records, unreadable[:80])


def parse_int(text: str) -> int:
    """Return the number that a field contains. Raises ValueError, also for more than 18 digits."""
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"{text[:40]!r} is no number")
    return int(text)
