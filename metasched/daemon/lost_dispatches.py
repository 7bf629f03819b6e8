"""Rows of dispatches that the ledger lacks: its database went back without its mark.

A dispatch is stored before its call. So a listed dispatch that the ledger never made was made after
the state to which the database went back. Any account can write a text that looks like that. Only
the digest in the tag proves it, and the owner where the job is known. Each text without proof is
left out of the listing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable

from metasched.daemon.host import SchedulerHost
from metasched.db.instances import FirstIds
from metasched.db.store import StorageFailed
from metasched.model.listing import JobStatus

log = logging.getLogger("metasched")

WARNING_INTERVAL = 86400.0  # seconds between two warnings of texts without proof
# Other clusters may list later dispatches of the same span: room for their ids
SPARE_DISPATCHES = 1000
MAX_SPARE_JOBS = 1_000_000  # ids of the tasks of an array that are left out at most


class DatabaseWentBack(StorageFailed):
    """The database is an earlier state of itself: the service starts again as from a backup."""


class LostDispatches:
    """Sifts the rows of a cluster's listings."""

    def __init__(self, host: SchedulerHost, cluster: str) -> None:
        self._host, self._cluster = host, cluster
        self._warned = -math.inf  # monotonic seconds

    def sift(self, rows: Iterable[JobStatus]) -> tuple[JobStatus, ...]:
        """Return the rows without those that only look like dispatches of metasched.

        Raises DatabaseWentBack, and ends the service, if rows prove that the database went back.
        """
        core, ledger = self._host.core, self._host.ledger
        parse_tag, dispatches = core.instances.parse_tag, core.state.dispatches
        kept, lost = [], FirstIds()
        cause, asked = "", False
        for row in rows:
            dispatch = parse_tag(row.tag)
            if dispatch is None or dispatch in dispatches:
                kept.append(row)
                continue
            job, dispatch_id = dispatch
            is_new = job >= ledger.next_job_id
            if not (is_new or core.lacks_dispatch(job, row.task, dispatch_id)):
                kept.append(row)
            elif not self._is_proved(row):
                self._warn(row)
            elif core.instances.is_former(dispatch_id):
                kept.append(row)  # the restored core follows it if it has the job
                if is_new:
                    ledger.skip_ids(_ids_above(row, job, dispatch_id))
            elif not (is_new or core.state.is_open(job)) and (
                asked or dispatch_id <= ledger.last_dispatch(job)
            ):
                # The core remembers parts of an ended job, and its owner chooses the task in a row.
                # So the database decides, for a single row of each listing.
                asked = True
                kept.append(row)
            else:
                cause = cause or (
                    f"{self._cluster} lists {row.tag} (there {row.native_id}), which metasched has "
                    "made, but the database lacks"
                )
                lost = lost.above(_ids_above(row, job, dispatch_id))
        if cause:
            ledger.note_loss(cause, lost)
            error = DatabaseWentBack(f"it went back: {cause}")
            self._host.fail(error)
            raise error
        return tuple(kept)

    def _is_proved(self, row: JobStatus) -> bool:
        """Return whether metasched wrote the tag of a row, for the owner of the row."""
        if not self._host.core.instances.is_proved(row.tag):
            return False
        owner = self._host.owner_of(row.tag)
        return not owner or self._host.is_owner(row.tag, row.owner)

    def _warn(self, row: JobStatus) -> None:
        now = time.monotonic()
        if now - self._warned < WARNING_INTERVAL:
            return
        self._warned = now
        log.warning(
            "%s lists %.100r of %s (there %s), which looks like a tag of a dispatch that was never "
            "made; without proof it counts for nothing",
            self._cluster,
            row.tag,
            row.owner or "this account",
            row.native_id,
        )


def _ids_above(row: JobStatus, job: int, dispatch_id: int) -> FirstIds:
    """Return ids that were not issued before a lost dispatch, as far as its row shows."""
    spare = min(max(row.task, 0), MAX_SPARE_JOBS)
    return FirstIds(job=job + spare + 1, dispatch=dispatch_id + SPARE_DISPATCHES)
