"""Listings and accounting records of managers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import structs

from metasched.model.cluster import ClusterInfo
from metasched.model.job import State


class JobStatus(msgspec.Struct):
    """One row of a manager's listing: the status of a task that metasched dispatched.

    Rows that differ in `expected` alone are equal. Not frozen: listings have thousands of rows,
    and setting the fields of a frozen struct is slower. Treat it as read-only.
    """

    tag: str
    task: int  # index of the task in its job's array
    native_id: str
    state: State
    # epoch seconds; None after the end proves that the task never started and may run elsewhere
    started: float | None = None
    ended: float | None = None  # epoch seconds
    exit_code: int | None = None  # of the payload; None if a signal ended it
    signal: int | None = None  # number of that signal
    manager_reason: str = ""  # reason as the manager spells it
    node: str = ""
    cpu_seconds: float | None = None
    max_memory: int | None = None  # MiB
    restarts: int = 0  # by the manager itself
    # restarted, and not to be taken back: held at its manager, or its former run may still end
    restart_stays: bool = False
    # never accepted, though it has a record: if nobody has confirmed it, this is the refusal
    refused: bool = False
    # hosts, as in n[1-3], that its manager took out of service when it was to begin there; evidence
    # that the payload did not begin, and by whose fault
    unbegun_on: str = ""
    owner: str = ""  # site mode: account that the manager reports; a row counts for its tasks only
    # epoch seconds of the manager's clock; a requeue by the manager may change it
    submitted: float | None = None
    expected: float | None = None  # epoch seconds; start that the manager expects

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobStatus) and (
            structs.astuple(self)[:-1] == structs.astuple(other)[:-1]
        )


class KnownJob(msgspec.Struct, frozen=True, array_like=True):
    """A job of a live attempt, by what its owner cannot change. Times are epoch seconds."""

    native_id: str  # "": a dispatch that was never answered
    tag: str  # of the attempt; the job may carry another text by now
    task: int  # index of the task in its job's array
    owner: str  # as in `JobStatus`
    dispatched: float  # when the intent was stored
    accepted: float | None  # when the manager confirmed the dispatch
    submitted: float | None  # as last listed, see `JobStatus`; None: it was never listed
    restarts: int  # by the manager, as last listed


class JobTerms(msgspec.Struct, frozen=True):
    """Terms of a job as its manager lists them; a plug-in there may have changed them."""

    cpus: int
    pending: bool  # before a start its processors are as requested, then as allocated
    account: str | None = None  # None: not asked for
    partition: str = ""
    limit: float | None = None  # seconds; None: no limit


# "copy": a job carries the tag of another job
AlterationKind = Literal["tag", "account", "partition", "limit", "processors", "copy"]


class Alteration(msgspec.Struct, frozen=True):
    """A term of a job that its manager lists otherwise than metasched sent it."""

    kind: AlterationKind
    tag: str  # of the dispatch
    task: int  # index of the task in its job's array
    native_id: str
    sent: str
    listed: str
    jobs: int = 1  # number of jobs in this listing with an alteration of this kind


class PendingJob(msgspec.Struct, frozen=True, array_like=True):
    """A pending job that could start: of metasched, of others, or a part of an array."""

    native_id: str  # of a job of this instance, without a task; "": of others
    cpus: int  # of a task; 1 or more
    limit: float  # seconds, above 0
    tasks: int = 1
    owner: str = ""  # as the manager spells it


class StartedJob(msgspec.Struct, frozen=True, array_like=True):
    """A running job of anybody."""

    end: float  # epoch seconds by its limit, as in `ClusterInfo.running_jobs`
    cpus: int
    limit: float  # seconds, above 0
    owner: str  # as the manager spells it


class ListedQueue(msgspec.Struct, frozen=True):
    """The pending jobs of all users that could start, in the order of their manager."""

    jobs: tuple[PendingJob, ...]  # at most MAX_LISTED_JOBS
    complete: bool = True  # whether there are no more
    running: tuple[StartedJob, ...] = ()  # the first to end, at most MAX_LISTED_JOBS


class QuarantinedRow(msgspec.Struct, frozen=True):
    """A row of a listing that is set aside: its task is present, but its status is unusable.

    A task that the row may describe is never absent. Only a manager can leave the tag open: the
    owner of a job cannot change how its row is delimited.
    """

    tag: str  # "": unusable, too; the row may be any task of this instance
    task: int  # index of the task in its job's array; -1: any task of the dispatch
    owner: str = ""  # as in `JobStatus`; "" also if it cannot be read
    defect: str = ""  # why the row is set aside


MAX_LISTED_JOBS = 2000  # of a `ListedQueue`: managers look no deeper for jobs to backfill


@dataclass(frozen=True)
class Listing:
    """A complete listing: all tasks of metasched that the manager still remembers.

    The listing proves absence for the span `since`..`until`: a task that reached the manager within
    the span is in `rows`. With Slurm the span begins at the controller's boot, at most MinJobAge
    ago, and ends when the listing began. A command that ended before `until` without an answer may
    reach the manager later: `answered_calls` judges that. Times are epoch seconds.

    With a `cursor` a task that has ended is listed once, see `Adapter.resume_after`: `rows` contain
    all open tasks, and the tasks that ended since. A `partial` listing contains the first of very
    many ends alone, and proves nothing.
    """

    taken: float
    since: float
    until: float
    rows: tuple[JobStatus, ...]
    info: ClusterInfo
    up_since: float = 0.0  # last start of the manager; 0: it loses nothing at a restart
    quarantined: tuple[QuarantinedRow, ...] = ()  # rows that the adapter cannot read
    cursor: str = ""  # position after the last end in `rows`; "": all ends are in `rows`
    partial: bool = False  # further ends and the open tasks follow in the next listing
    queue: ListedQueue | None = None  # None: its order is unknown; no decision depends on it
    # Jobs of `Adapter.known_jobs` that carry no tag, or another one than they should. `tag` is ""
    # and `task` 0. Also jobs without a tag that may be dispatches without an answer.
    untagged: tuple[JobStatus, ...] = ()
    clock_lead: float = 0.0  # seconds; of the manager's clock, `least_clock_lead`
    terms: Mapping[str, JobTerms] = field(default_factory=dict)  # of `Adapter.new_jobs`, by id


class PolicyExclusions(msgspec.Struct, frozen=True):
    """The passes of a local policy that FCFS decided in its place."""

    passes: int  # since the start of the worker
    excluded: bool  # whether the last pass was decided by FCFS
    reason: str  # of the last of them; "": there is none


class MissingTask(msgspec.Struct, frozen=True):
    """A dispatched task that is missing from a complete listing. Times are epoch seconds."""

    tag: str
    task: int  # index of the task in its job's array
    native_id: str | None  # None: the manager never confirmed the dispatch
    dispatched: float  # when the intent was stored
    # when the manager confirmed the dispatch; without native id: since when it can arrive no more
    accepted: float | None = None
    user: str = ""  # site mode: owner of the job; records of other users do not count
    submitted: float | None = None  # as last listed, see `JobStatus`; None: it was never listed


@dataclass(frozen=True)
class TaskClaim:
    """A claim that the payload of a task takes before it starts."""

    fence: str  # folder of the dispatch's claims
    tag: str
    task: int  # index of the task in its job's array
    accepted: bool = True  # the manager confirmed the dispatch, so the folder did exist
    user: str = ""  # site mode: owner of the job; claims of other users do not count
    started: bool = False  # the payload has started: only its end is asked for


@dataclass(frozen=True)
class ClaimEnd:
    """The end of a payload, as recorded in its claim by the job's owner."""

    started: float  # epoch seconds
    ended: float  # epoch seconds
    exit_code: int  # 128 + number of the signal that ended it


class AccountingAnswer(msgspec.Struct, frozen=True):
    """Records of a manager's accounting about missing tasks; it may omit tasks."""

    rows: tuple[JobStatus, ...] = ()  # tasks that have ended
    never_started: tuple[tuple[str, int], ...] = ()  # (tag, index); proved never to start
