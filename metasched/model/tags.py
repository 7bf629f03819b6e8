"""Tags: the names of dispatches in their managers, and the folders of their claims. Pure.

Any account can write any text where a manager keeps tags. So only text that metasched itself
writes is a tag, and its numbers fit into the columns of both databases.
"""

from __future__ import annotations

import re
from pathlib import PurePath

MAX_ID_DIGITS = 18  # of a job or dispatch id; such numbers fit into 64 bits with a sign
_DISPATCH_FOLDER = re.compile(r"claims-[0-9a-f]{32}")


def is_claim_folder(fence: str) -> bool:
    """Return whether `fence` is the folder of one dispatch; else it is a whole `fence_dir`.

    In a whole `fence_dir`, as in the release before, the names of claims contain the tag.
    """
    return _DISPATCH_FOLDER.fullmatch(PurePath(fence).name) is not None


def tag_of(instance: str, job: int, dispatch_id: int) -> str:
    """Return the unique name of a dispatch: `ms-<instance>-<job>-<dispatch id>`."""
    return f"ms-{instance}-{job}-{dispatch_id}"


def parse_tag(tag: str, instance: str) -> tuple[int, int] | None:
    """Return (job, dispatch id) if `tag_of` can have made the tag for this instance, else None."""
    match tag.split("-", 4):
        case ["ms", name, job, dispatch_id] if name == instance:
            job_number = parse_number(job)
            dispatch_number = parse_number(dispatch_id)
            if job_number is not None and dispatch_number is not None:
                return job_number, dispatch_number
    return None


def parse_number(digits: str, maximum: int = 10**MAX_ID_DIGITS - 1) -> int | None:
    """Return the number from 0 to `maximum` that `str` writes as `digits`; None for other text."""
    if len(digits) > MAX_ID_DIGITS or not (digits.isascii() and digits.isdecimal()):
        return None
    number = int(digits)
    if number > maximum or (digits[0] == "0" and digits != "0"):
        return None
    return number
