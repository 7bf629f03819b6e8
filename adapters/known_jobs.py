"""Which jobs of a listing are those of known attempts, though their tags were changed. Pure.

The owner of a job, and plug-ins of its manager, can change or copy the text that carries the tag.
They can change neither native id nor owner nor the time of submission. A native id alone proves
nothing: a killed manager issues ids again, but for later submissions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from msgspec import structs

from metasched.model.job import Job
from metasched.model.listing import (
    Alteration,
    AlterationKind,
    JobStatus,
    JobTerms,
    KnownJob,
    QuarantinedRow,
)
from metasched.model.tags import without_digest

CLOCK_TOLERANCE = 2.0  # seconds; managers round times, and clocks are compared by commands
TaskKey = tuple[str, int, str]  # tag, task, owner


class Identified(NamedTuple):
    """The jobs of a listing."""

    rows: list[JobStatus]  # under the tags of their attempts
    copies: list[JobStatus]  # with a copied tag
    undecided: list[QuarantinedRow]  # known jobs that may be these or later ones with their ids


def is_same_job(known: JobStatus | KnownJob, row: JobStatus, clock_lead: float) -> bool | None:
    """Return whether a row with the native id of a known job is that job; None: it may be.

    Its owner agrees, and its submission or start is the one listed before, or its submission lies
    between the dispatch and its answer. A manager that requeued the job counts a restart and lists
    a later submission. `clock_lead`: of the manager's clock, in seconds.
    """
    if row.owner != known.owner:
        return False
    if isinstance(known, JobStatus) and None is not known.started == row.started:
        return True  # Grid Engine lists no submission of a running job
    submitted = row.submitted
    if submitted is None:
        return None
    if known.submitted is not None:
        was_requeued = row.restarts > known.restarts and submitted > known.submitted
        return submitted == known.submitted or was_requeued
    if isinstance(known, JobStatus) or known.accepted is None:
        return None
    latest = math.inf if row.restarts > known.restarts else known.accepted + CLOCK_TOLERANCE
    return known.dispatched - CLOCK_TOLERANCE <= submitted - clock_lead <= latest


class KnownJobs:
    """The jobs of the last listing, and those of live attempts that it lacked."""

    def __init__(
        self, listed: Mapping[TaskKey, JobStatus], unlisted: Iterable[KnownJob] = ()
    ) -> None:
        self._listed = listed
        self._by_name: dict[TaskKey, JobStatus | KnownJob] | None = None  # see `_claimed`
        self._unlisted, self._unanswered = dict[TaskKey, KnownJob](), list[KnownJob]()
        for job in unlisted:
            if job.native_id:
                self._unlisted[job.tag, job.task, job.owner] = job
            else:
                self._unanswered.append(job)
        self.by_id: dict[str, JobStatus | KnownJob] = {
            row.native_id: row for row in listed.values() if _is_dated(row)
        }
        for key, job in self._unlisted.items():
            row = self.by_id.get(job.native_id)
            if row is None or (row.tag, row.task, row.owner) != key:
                self.by_id[job.native_id] = job

    def identify(
        self, tagged: Iterable[JobStatus], untagged: Iterable[JobStatus], clock_lead: float
    ) -> Identified:
        """Identify the jobs of a listing.

        `untagged`: see `Listing.untagged`. If two rows claim an attempt, its stored native id
        decides. Of an attempt that was listed before, no other id is followed.
        """
        rows: list[JobStatus] = []
        undecided: list[QuarantinedRow] = []
        contested: list[tuple[JobStatus | KnownJob, JobStatus]] = []
        for row in chain(tagged, untagged):
            known = self.by_id.get(row.native_id)
            if known is not None:
                if row.tag == known.tag and row.task == known.task and row.owner == known.owner:
                    rows.append(row)
                    continue
                is_same = is_same_job(known, row, clock_lead)
                if is_same:
                    rows.append(structs.replace(row, tag=known.tag, task=known.task))
                    continue
                if is_same is None:
                    defect = f"job {row.native_id} has lost its tag, and shows no submission"
                    undecided.append(QuarantinedRow(known.tag, known.task, row.owner, defect))
            if not row.tag:
                continue  # the manager has issued the id again
            claimed = self._claimed(row)
            if claimed is not None and claimed.tag != row.tag:
                row = structs.replace(row, tag=claimed.tag)
            if claimed is None or claimed.native_id == row.native_id or not _is_dated(row):
                rows.append(row)
            else:
                contested.append((claimed, row))
        if not contested:
            return Identified(rows, [], undecided)
        found = {(row.tag, row.task, row.owner) for row in rows}
        copies: list[JobStatus] = []
        for claimed, row in contested:
            was_listed = isinstance(claimed, JobStatus) or claimed.submitted is not None
            is_copy = was_listed or (row.tag, row.task, row.owner) in found
            (copies if is_copy else rows).append(row)
        return Identified(rows, copies, undecided)

    def unanswered_since(self, clock_lead: float) -> dict[str, float]:
        """Return, by owner, the earliest submission of a dispatch that was never answered."""
        since: dict[str, float] = {}
        for job in self._unanswered:
            earliest = job.dispatched + clock_lead - CLOCK_TOLERANCE
            since[job.owner] = min(earliest, since.get(job.owner, math.inf))
        return since

    def may_have_arrived(
        self, untagged: Iterable[JobStatus], clock_lead: float
    ) -> Iterator[QuarantinedRow]:
        """Yield the dispatches without an answer that may be jobs without a tag.

        Such a job has no native id that is known, the same owner, and a later submission.
        """
        last: dict[str, tuple[float, str]] = {}  # submission and native id, by owner
        for row in untagged if self._unanswered else ():
            if row.native_id not in self.by_id:
                submitted = math.inf if row.submitted is None else row.submitted
                last[row.owner] = max((submitted, row.native_id), last.get(row.owner, (0.0, "")))
        for job in self._unanswered:
            submitted, native_id = last.get(job.owner, (-math.inf, ""))
            if job.dispatched - CLOCK_TOLERANCE <= submitted - clock_lead:
                defect = f"job {native_id} has no tag, and may be this dispatch"
                yield QuarantinedRow(job.tag, -1, job.owner, defect)

    def _claimed(self, row: JobStatus) -> JobStatus | KnownJob | None:
        """Return the known job whose tag a row carries, with any digest or without one.

        Only the database has the key of the digests. But a text that is a tag but for its digest is
        taken for it later on.
        """
        key = (row.tag, row.task, row.owner)
        exact = self._unlisted.get(key) or self._listed.get(key)
        if exact is not None:
            return exact
        if self._by_name is None:
            known: dict[TaskKey, JobStatus | KnownJob] = {**self._listed, **self._unlisted}
            self._by_name = {
                (without_digest(tag), task, owner): job for (tag, task, owner), job in known.items()
            }
        return self._by_name.get((without_digest(row.tag), row.task, row.owner))


def _is_dated(row: JobStatus) -> bool:
    return row.submitted is not None or row.started is not None


class SentJob:
    """A job as it was sent, until a listing shows it."""

    def __init__(self, tag: str, task: int, job: Job, has_options: bool) -> None:
        """`has_options`: its owner's native options may say otherwise."""
        self.tag, self.task, self.job, self.has_options = tag, task, job, has_options

    def alterations(
        self, native_id: str, listed_tag: bool, terms: JobTerms | None, granularity: float
    ) -> Iterator[Alteration]:
        """Yield what its manager lists otherwise. `granularity`: of time limits, in seconds."""

        def altered(kind: AlterationKind, sent: object, listed: object) -> Alteration:
            return Alteration(kind, self.tag, self.task, native_id, str(sent), str(listed))

        if not listed_tag:
            yield altered("tag", self.tag, "another text")
        if terms is None or self.has_options:
            return
        job = self.job
        if job.account is not None and terms.account not in (None, job.account):
            yield altered("account", job.account, terms.account)
        if job.partition is not None and not (
            set(terms.partition.split(",")) <= set(job.partition.split(","))
        ):
            yield altered("partition", job.partition, terms.partition)
        if job.time_limit is not None:
            limit = math.ceil(job.time_limit / granularity) * granularity
            if terms.limit is None or abs(terms.limit - limit) >= 1.0:
                yield altered("limit", f"{limit:g} s", _seconds(terms.limit))
        # a job that has started may have got whole cores or nodes
        most = max(job.cpus, job.nodes or 1) if terms.pending else math.inf
        if not job.cpus <= terms.cpus <= most:
            yield altered("processors", job.cpus, terms.cpus)


def _seconds(limit: float | None) -> str:
    return "none" if limit is None else f"{limit:g} s"


def merge_alterations(alterations: Iterable[Alteration]) -> tuple[Alteration, ...]:
    """Return the first alteration of each kind, with the number of all."""
    first: dict[str, Alteration] = {}
    counts = Counter[str]()
    for alteration in alterations:
        first.setdefault(alteration.kind, alteration)
        counts[alteration.kind] += 1
    return tuple(structs.replace(item, jobs=counts[kind]) for kind, item in first.items())
