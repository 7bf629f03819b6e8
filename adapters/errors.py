"""What a call of an adapter may raise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


class AdapterError(Exception):
    """A call that did not do what was asked.

    AdapterError
     +-- Refused       certainly not done; the manager said no
     +-- Unreachable   perhaps done; look for the tag before trying again
    """


class Refused(AdapterError):
    """The manager said no: nothing is queued and nothing has changed.

    `again` is True when the same request may be taken later (a submit limit, a full queue,
    a partition that is down), False when it never will be.
    """

    def __init__(self, reason: str, retryable: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.retryable = reason, retryable


class Unreachable(AdapterError):
    """The manager gave no answer in time: the request may or may not have been carried out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
