"""Looks up listed attempts of which the core remembers nothing, a bounded number in each listing.

A manager whose state was put back lists jobs that ended long ago, and would run them again.
"""

from __future__ import annotations

from collections import Counter

from msgspec import structs

from metasched.adapters.protocol import ListingDelta
from metasched.core.tasks import EndedTask
from metasched.core.transitions import LIVE
from metasched.daemon.host import SchedulerHost
from metasched.model.listing import JobStatus

MAX_LOOK_UPS = 500  # attempts in a listing; a few milliseconds of the scheduler's thread

AttemptKey = tuple[int, int, int]  # job, index, dispatch id


class ForgottenAttempts:
    """The look-ups for the listings of a cluster.

    Only live rows count: what has ended needs no act. Owners take turns, since a user may write
    any number of tags into his jobs.
    """

    def __init__(self, host: SchedulerHost) -> None:
        self._host = host
        self._not_stored: set[AttemptKey] = set()  # listed, and the database lacks them, too
        self._waiting: dict[AttemptKey, JobStatus] = {}  # rows for later listings

    def look_up(
        self, delta: ListingDelta
    ) -> tuple[ListingDelta, tuple[tuple[int, int, EndedTask], ...]]:
        """Return the listing with the rows that can be applied, and `ListingReceived.looked_up`."""
        core = self._host.core
        if delta.full:
            self._waiting.clear()
            self._not_stored.clear()
        for tag, index, _ in delta.vanished:
            if (dispatch := core.instances.parse_tag(tag)) is not None:
                key = (dispatch[0], index, dispatch[1])
                self._waiting.pop(key, None)
                self._not_stored.discard(key)
        rows: list[JobStatus] = []
        for row in delta.rows:
            dispatch = core.instances.parse_tag(row.tag)
            key = (0, 0, 0) if dispatch is None else (dispatch[0], row.task, dispatch[1])
            self._waiting.pop(key, None)
            may_be_stored = dispatch is not None and key not in self._not_stored
            if row.state in LIVE and may_be_stored and core.state.has_forgotten(*key):
                self._waiting[key] = row
            else:
                rows.append(row)
        if not self._waiting:
            return delta, ()
        keys = self._next_keys()
        rows += [self._waiting.pop(key) for key in keys]
        stored = self._host.ledger.stored_attempts(keys)
        looked_up = tuple((job, index, ended) for (job, index), ended in stored.items())
        self._not_stored |= set(keys) - {
            (job, index, dispatch_id)
            for job, index, ended in looked_up
            for dispatch_id in ended.past_attempts
        }
        return structs.replace(delta, rows=tuple(rows)), looked_up

    def _next_keys(self) -> list[AttemptKey]:
        """Return the attempts to be looked up now, as many of each owner as possible."""
        counts: Counter[str] = Counter()
        turns: dict[AttemptKey, int] = {}
        for key, row in self._waiting.items():
            turns[key] = counts[row.owner]
            counts[row.owner] += 1
        return sorted(turns, key=turns.__getitem__)[:MAX_LOOK_UPS]
