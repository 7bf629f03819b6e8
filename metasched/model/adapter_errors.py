"""Exceptions that calls of an adapter raise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metasched.model.refusal_scope import RefusalScope


class AdapterError(Exception):
    """A call of an adapter that failed.

    AdapterError
     +-- Refused       certainly not carried out: the manager rejected the request
     +-- Unreachable   perhaps carried out: search for the tag before a retry
          +-- SiteFault     certainly not carried out: a fault of the site, for all users alike
          +-- PartlySubmitted  some tasks of a submission are certainly not queued
    """


class Refused(AdapterError):
    """The manager rejected the request: nothing is queued and nothing has changed.

    `retryable` is True if the same request may be accepted later (a submit limit, a full queue,
    a partition that is down), False if it never will be. A retryable refusal holds for `scope`.
    A refused reservation: after "; " in the reason comes a remedy that no other window replaces.
    """

    def __init__(
        self, reason: str, retryable: bool = False, scope: RefusalScope = "cluster"
    ) -> None:
        super().__init__(reason)
        self.reason, self.retryable, self.scope = reason, retryable, scope


class Unreachable(AdapterError):
    """There is no answer that can be used: the request may or may not have been carried out.

    `sentence`: what a program said that ended by itself. If the request turns out not to have been
    carried out, this is the refusal. "": the connection failed, or the time was over.
    """

    def __init__(self, reason: str, sentence: str = "") -> None:
        super().__init__(reason)
        self.reason, self.sentence = reason, sentence


class SiteFault(Unreachable):
    """The site's own configuration prevents the request of any user: nothing was executed.

    No job and no user is at fault. The cluster is down until the site repairs it.
    """


class PartlySubmitted(Unreachable):
    """A submission that stopped, because its time was over or a task was rejected.

    `native_ids` are those of queued tasks; `untried` are the indices of tasks that are certainly
    not queued. Any other task may or may not be queued.
    """

    def __init__(
        self,
        reason: str,
        native_ids: Mapping[int, str],
        untried: Sequence[int],
        sentence: str = "",
    ) -> None:
        super().__init__(reason, sentence)
        self.native_ids, self.untried = dict(native_ids), tuple(untried)
