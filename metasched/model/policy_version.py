"""A version of the policy: its text, the event that put it in force, its author and why. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

DEFAULTS = "the defaults"  # the file of a policy that no file has


class PolicyChange(StrEnum):
    """How a version came into force. Stored: do not rename a value."""

    FILE = "file"  # the site's own file was read, or changed
    ACTIVATED = "activated"  # an operator sent it, or the calendar read it
    UNDONE = "undone"  # an operator took the version before back


@dataclass(frozen=True, kw_only=True)
class PolicyVersion:
    """A version. Texts but `text` are single lines of bounded length."""

    number: int  # from 1, in the order of coming into force
    time: float  # epoch seconds
    change: PolicyChange
    by: str  # operator, or owner of the file; "": the calendar
    reason: str  # "": none was given
    file: str  # path where its author has it; "": the defaults
    text: str  # contents of the file
    site_digest: str  # digest of the site's own file then; "": it had none
    previous: int | None  # version that an undo returns to; None: there is none
    copy_of: int | None = None  # version that an undo returned to

    @property
    def digest(self) -> str:
        """SHA-256 of the file; "" for the defaults."""
        return text_digest(self.text) if self.file else ""

    def describe_fully(self) -> str:
        """Describe how it came into force, why, and by whom, if that is an account."""
        return f"{self.describe()}, by {self.by}" if self.by else self.describe()

    def describe(self) -> str:
        """Describe how it came into force, and why."""
        match self.change:
            case PolicyChange.ACTIVATED:
                text = "activated"
            case PolicyChange.UNDONE:
                text = f"undone, as version {self.copy_of}"
            case PolicyChange.FILE:
                text = "read" if self.file else "as no file is named"
        return f"{text}: {self.reason}" if self.reason else text


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
