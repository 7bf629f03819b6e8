"""Tags: the names of dispatches in their managers, and the folders of their claims. Pure.

Any account can write any text where a manager keeps tags. So only text that metasched itself
writes is a tag, and its numbers fit into the columns of both databases. A digest by the key of the
database ends a tag. It is computed again only where the tag alone would prove something.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import NamedTuple

MAX_ID_DIGITS = 18  # of a job or dispatch id; such numbers fit into 64 bits with a sign
_NUMBER = f"(0|[1-9][0-9]{{0,{MAX_ID_DIGITS - 1}}})"
TAG_PREFIX = "ms-"
DIGEST_LENGTH = 12  # characters of a digest, of 5 bits each
_DIGEST = f"[a-z2-7]{{{DIGEST_LENGTH}}}"  # base32 in lower case
_TAG = re.compile(f"{TAG_PREFIX}([^-]*)-{_NUMBER}-{_NUMBER}(?:-({_DIGEST}))?")
_DISPATCH_FOLDER = re.compile(r"claims-[0-9a-f]{32}")


def is_claim_folder(fence: str) -> bool:
    """Return whether `fence` is the folder of one dispatch; before its call it is a `fence_dir`."""
    return _DISPATCH_FOLDER.fullmatch(PurePath(fence).name) is not None


class TagKey(NamedTuple):
    """The secret by which metasched knows its own tags. Never logged, sent or shown."""

    key: str
    first_dispatch: int  # the tags of lower dispatch ids have no digest


NO_KEY = TagKey("", 0)


def tag_of(instance: str, job: int, dispatch_id: int, key: str = "") -> str:
    """Return the unique name of a dispatch: `ms-<instance>-<job>-<dispatch id>-<digest>`.

    Without a key it ends before the digest.
    """
    name = f"{TAG_PREFIX}{instance}-{job}-{dispatch_id}"
    if not key:
        return name
    digest = hmac.digest(key.encode(), name.encode(), hashlib.sha256)
    return f"{name}-{base64.b32encode(digest)[:DIGEST_LENGTH].decode().lower()}"


def without_digest(tag: str) -> str:
    """Return the text of a tag before its digest, if it may have one."""
    name, _, digest = tag.rpartition("-")
    return name if len(digest) == DIGEST_LENGTH and tag.count("-") == 4 else tag


def parse_tag(tag: str, instances: frozenset[str]) -> tuple[int, int] | None:
    """Return (job, dispatch id) if `tag_of` can have made the tag for an instance, else None."""
    match = _TAG.fullmatch(tag)
    if match is None or match[1] not in instances:
        return None
    return int(match[2]), int(match[3])


def tag_job(tag: str) -> int | None:
    """Return the job that a tag of any instance names, or None: anybody can write such a text."""
    match = _TAG.fullmatch(tag)
    return None if match is None else int(match[2])


class Instances:
    """The names that a database has had. A restored backup gets a new name.

    Each name has the dispatch ids from its first id until the first id of the next name. So a
    dispatch id determines the tag. A dispatch after the backup is none of the restored database.
    """

    def __init__(self, first_dispatches: Mapping[str, int], key: TagKey = NO_KEY) -> None:
        """`first_dispatches`: first dispatch id by name, oldest first; never empty."""
        self._key = key
        names, firsts = list(first_dispatches), list(first_dispatches.values())
        self.names = frozenset(names)
        self.newest, self.first_dispatch = names[-1], firsts[-1]
        self._ranges = dict(
            zip(names, zip(firsts, [*firsts[1:], math.inf], strict=True), strict=True)
        )

    def is_former(self, dispatch_id: int) -> bool:
        """Return whether a dispatch is in the backup from which the database was restored."""
        return dispatch_id < self.first_dispatch

    def tag_of(self, job: int, dispatch_id: int) -> str:
        """Return the tag of a dispatch, with the name that the database had then."""
        key = self._key.key if dispatch_id >= self._key.first_dispatch else ""
        return tag_of(self._name_of(dispatch_id), job, dispatch_id, key)

    def _name_of(self, dispatch_id: int) -> str:
        for name, (first, end) in self._ranges.items():
            if first <= dispatch_id < end:
                return name
        return self.newest

    def parse_tag(self, tag: str) -> tuple[int, int] | None:
        """Return (job, dispatch id) of a tag that `tag_of` can have made, else None.

        The digest may be missing or wrong: see `is_proved`.
        """
        match = _TAG.fullmatch(tag)
        if match is None or match[1] not in self.names:
            return None
        dispatch_id = int(match[3])
        if len(self.names) > 1 and match[1] != self._name_of(dispatch_id):
            return None
        return int(match[2]), dispatch_id

    def is_proved(self, tag: str) -> bool:
        """Return whether metasched has made a tag: nobody else knows its digest."""
        match = _TAG.fullmatch(tag)
        if match is None or match[4] is None or not self._key.key:
            return False
        expected = tag_of(match[1], int(match[2]), int(match[3]), self._key.key)
        return match[1] in self.names and hmac.compare_digest(tag, expected)


def parse_number(digits: str, maximum: int = 10**MAX_ID_DIGITS - 1) -> int | None:
    """Return the number from 0 to `maximum` that `str` writes as `digits`; None for other text."""
    if len(digits) > MAX_ID_DIGITS or not (digits.isascii() and digits.isdecimal()):
        return None
    number = int(digits)
    if number > maximum or (digits[0] == "0" and digits != "0"):
        return None
    return number
