"""Quarantine: what made the daemon fail is set aside, so that everything else goes on.

Three levels. A row of a listing is set aside; its task is present, with an unknown status. A
source (a cluster, a licence server, a user's requests, the timers) pauses after a defect, longer
each time. The scheduler service itself starts again from the database, without the event that
failed: the core never continues from a half-applied event. The quarantine outlives the service.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import structs

from metasched.adapters.protocol import ListingDelta
from metasched.daemon.circuit_breaker import CircuitBreaker
from metasched.daemon.notices import Notices
from metasched.model.audit import OPERATORS_ONLY, AuditKind, AuditRecord
from metasched.model.listing import JobStatus, QuarantinedRow
from metasched.model.row_checks import RowDefect, clean_row, clean_text, quarantined, row_defect

log = logging.getLogger("metasched")

PAUSES = (10.0, 600.0)  # seconds for which a source pauses after a defect: first, longest
FORGET_AFTER = 3600.0  # seconds without a defect after which a source is trusted again
MAX_ROW_VERSIONS = 3  # versions of a row that failed, before every version is set aside
MAX_ENTRIES = 1000  # rows and sources that are remembered

RowKey = tuple[str, str, int, str]  # cluster, tag, task, owner


@dataclass
class FailedRow:
    """A row that made the core fail."""

    row: JobStatus  # its last version
    versions: int = 1  # that failed


@dataclass
class Quarantine:
    """Rows and sources that made the daemon fail."""

    notices: Notices = field(default_factory=Notices)
    _rows: OrderedDict[RowKey, FailedRow] = field(default_factory=OrderedDict)
    _sources: OrderedDict[str, CircuitBreaker] = field(default_factory=OrderedDict)

    def record(self, source: str, error: BaseException, cluster: str = "") -> str:
        """Set aside the row that caused an error, else let its source pause.

        `cluster` is the cluster whose row it may be. Return the id under which it is logged.
        """
        error_id = secrets.token_hex(4)
        if isinstance(error, RowDefect) and cluster:
            self._record_row(cluster, error.row)
            cause = (
                f"error {error_id}: {error} made the core fail; it is set aside, all others are "
                "applied; this is a defect of metasched, please report it"
            )
            self._record_defect(f"cluster {cluster}", cause, error, cluster)
            return error_id
        now = time.monotonic()
        breaker = self._sources.setdefault(source, CircuitBreaker(*PAUSES))
        if now - breaker.open_until > FORGET_AFTER:
            breaker.record_success()
        reason = clean_text(f"error {error_id}: {type(error).__name__}: {error}")
        pause = breaker.record_failure(reason, time.time(), now)
        self._sources.move_to_end(source)
        if len(self._sources) > MAX_ENTRIES:
            self._sources.popitem(last=False)
        cause = f"a defect of metasched with {source}, which pauses for {pause:g} s"
        self._record_defect(source, f"error {error_id}: {cause}; please report it", error)
        return error_id

    def _record_defect(
        self, source: str, cause: str, error: BaseException, cluster: str = ""
    ) -> None:
        record = AuditRecord(
            time=time.time(),
            kind=AuditKind.DEFECT,
            owner=OPERATORS_ONLY,
            cluster=cluster,
            cause=cause,
            details={"source": source},
        )
        self.notices.add(record, source, error)

    def _record_row(self, cluster: str, row: JobStatus) -> None:
        key = (cluster, row.tag, row.task, row.owner)
        failed = self._rows.setdefault(key, FailedRow(row, 0))
        failed.row, failed.versions = row, failed.versions + 1
        self._rows.move_to_end(key)
        if len(self._rows) > MAX_ENTRIES:
            self._rows.popitem(last=False)

    def row_defect(self, cluster: str, row: JobStatus) -> str:
        """Return why a row is set aside, or ""."""
        if defect := row_defect(row):
            return defect
        failed = self._rows.get((cluster, row.tag, row.task, row.owner))
        if failed is None or (failed.versions < MAX_ROW_VERSIONS and failed.row != row):
            return ""
        return "the core failed on it"

    def pause_of(self, source: str) -> CircuitBreaker | None:
        """Return the breaker of a source that pauses now, else None."""
        breaker = self._sources.get(source)
        return breaker if breaker and breaker.open_until > time.monotonic() else None

    @property
    def paused_sources(self) -> dict[str, CircuitBreaker]:
        """The breakers of all sources that failed within `FORGET_AFTER`, by source."""
        oldest = time.monotonic() - FORGET_AFTER
        return {
            source: breaker
            for source, breaker in self._sources.items()
            if breaker.open_until > oldest
        }


@dataclass
class RowFilter:
    """Sets rows of a cluster's listings aside, and remembers which of them are still listed."""

    cluster: str
    quarantine: Quarantine
    # rows of the current listing that the daemon set aside, and those of the worker
    _own: dict[tuple[str, int, str], QuarantinedRow] = field(default_factory=dict)
    _workers: tuple[QuarantinedRow, ...] = ()

    @property
    def rows(self) -> tuple[QuarantinedRow, ...]:
        """All rows that are set aside now."""
        return (*self._own.values(), *self._workers)

    def filter(self, delta: ListingDelta) -> ListingDelta:
        """Return a delta without unusable rows; its `quarantined` are all rows set aside now."""
        if delta.full and not delta.cursor:  # with a cursor an ended task is not listed again
            self._own.clear()
        for key in delta.vanished:
            self._own.pop(key, None)
        usable = []
        for row in delta.rows:
            key = (row.tag, row.task, row.owner)
            if defect := self.quarantine.row_defect(self.cluster, row):
                self._own[key] = quarantined(row, defect)
            else:
                self._own.pop(key, None)
                usable.append(clean_row(row))
        self._workers = delta.quarantined
        return structs.replace(delta, rows=tuple(usable), quarantined=self.rows)

    def usable(self, rows: Iterable[JobStatus]) -> tuple[JobStatus, ...]:
        """Return records of accounting without unusable rows, which are logged."""
        usable = []
        for row in rows:
            if defect := self.quarantine.row_defect(self.cluster, row):
                entry = quarantined(row, defect)
                log.warning(
                    "cluster %s: its accounting of %s, task %d, is set aside: %s",
                    *(self.cluster, entry.tag, entry.task, entry.defect),
                )
            else:
                usable.append(clean_row(row))
        return tuple(usable)


def first_error(errors: BaseException) -> BaseException:
    """Return the first error of nested groups."""
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return errors
