"""Workloads: jobs with their true run times, from a trace or a generator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from msgspec import structs

from metasched.core.tasks import TaskId
from metasched.laboratory.simulate.clusters import StoredInput
from metasched.laboratory.simulate.swf import SwfRecord, SwfTrace
from metasched.model.job import Job

MIN_ESTIMATE = 1.0  # seconds: the estimate of a job without a requested time and with run time 0


class WindowRequest(NamedTuple):
    """A request for a reservation; times are seconds from the trace's origin."""

    submitted: float
    ready: float  # the first start that suits
    duration: float  # seconds
    cpus: int
    slack: float = 0.0  # seconds by which it may start later
    user: str = ""
    clusters: tuple[str, ...] = ()  # to choose from; empty: all
    or_later: bool = False  # granted for the first later time instead of refused


class WorkloadEntry(NamedTuple):
    """A job to simulate, or a task of an array."""

    # its id counts from 1 in the order of the workload; of a task, `array` has at least its own
    # index, and the limit
    job: Job
    run_time: float  # true seconds, on a machine of the job's benchmark
    number: int  # in the trace
    home: str = ""  # cluster that its owner would use; "": none
    direct: bool = False  # its owner submits it to the home cluster, bypassing metasched
    inputs: tuple[StoredInput, ...] = ()
    window: WindowRequest | None = None  # requested for it when it is submitted
    task: TaskId | None = None  # id by which the daemon knows it; None: (job.id, 0)


@dataclass(frozen=True)
class Workload:
    """Jobs in the order of their submission."""

    name: str
    entries: tuple[WorkloadEntry, ...]
    processors: int | None = None  # of the machine of the trace
    dropped: Mapping[str, int] = field(default_factory=dict)  # jobs left out, by cause
    windows: tuple[WindowRequest, ...] = ()  # without jobs of the workload, in order

    @property
    def has_windows(self) -> bool:
        """Whether reservations are requested."""
        return bool(self.windows) or any(entry.window is not None for entry in self.entries)

    def subset(self, first: int | None, last: int | None) -> Workload:
        """Return the jobs with indexes first..last-1, renumbered; indexes as in Python slices."""
        return replace(self, entries=tuple(_renumber(self.entries[first:last])))


def from_trace(name: str, trace: SwfTrace, partitions: bool = False) -> Workload:
    """Return the jobs of a trace, without those that have no processors or a negative run time.

    `partitions`: each job's home is its partition in the trace.
    """
    dropped: Counter[str] = Counter()
    entries: list[WorkloadEntry] = []
    user_names: dict[float, str] = {}  # by SWF user number
    groups: dict[float, tuple[str, ...]] = {}  # by SWF group number
    for record in trace.records:
        cpus = record.cpus
        if cpus <= 0:
            dropped["no processors"] += 1
        elif record.run_time < 0:
            dropped["negative run time"] += 1
        else:
            user = user_names.get(record.user)
            if user is None:
                user = user_names[record.user] = f"{record.user:.0f}" if record.user >= 0 else ""
            of_group = groups.get(record.group)
            if of_group is None:
                of_group = (f"{record.group:.0f}",) if record.group >= 0 else ()
                groups[record.group] = of_group
            job_id = len(entries) + 1
            entries.append(_make_entry(record, cpus, job_id, user, of_group, partitions))
    return Workload(name, tuple(entries), trace.processors, dict(dropped))


def _make_entry(
    record: SwfRecord,
    cpus: int,
    job_id: int,
    user: str,
    groups: tuple[str, ...],
    partitions: bool,
) -> WorkloadEntry:
    job = Job(
        id=job_id,
        submitted=record.submitted,
        estimated=record.estimated or MIN_ESTIMATE,
        time_limit=record.requested_time if record.requested_time > 0 else None,
        cpus=cpus,
        user=user,
        groups=groups,
    )
    home = f"{record.partition:.0f}" if partitions and record.partition >= 0 else ""
    return WorkloadEntry(job, record.run_time, record.number, home)


def to_trace(workload: Workload) -> SwfTrace:
    """Convert the workload to records of a trace; properties without an SWF field are lost."""
    records = [
        SwfRecord(
            number=entry.number,
            submitted=entry.job.submitted,
            wait_time=-1,
            run_time=entry.run_time,
            allocated=-1,
            cpu_time=-1,
            memory=-1,
            requested_cpus=entry.job.cpus,
            requested_time=_requested_time(entry),
            requested_memory=-1,
            status=1,
            user=int(entry.job.user) if entry.job.user.isdecimal() else -1,
            group=int(entry.job.groups[0]) if _has_number(entry.job.groups) else -1,
            application=-1,
            queue=-1,
            partition=int(entry.home) if entry.home.isdecimal() else -1,
            preceding_job=-1,
            think_time=-1,
        )
        for entry in workload.entries
    ]
    header = {"Version": ["2.2"], "MaxJobs": [str(len(records))]}
    if workload.processors is not None:
        header["MaxProcs"] = [str(workload.processors)]
    return SwfTrace(header, records)


def _requested_time(entry: WorkloadEntry) -> float:
    """Return the time limit; else the estimate, unless a reader would take the same; -1: none."""
    job, read_anyway = entry.job, entry.run_time or MIN_ESTIMATE
    return job.time_limit or (-1 if job.estimated == read_anyway else job.estimated)


def _has_number(groups: tuple[str, ...]) -> bool:
    return len(groups) == 1 and groups[0].isdecimal()


def _renumber(entries: Iterable[WorkloadEntry]) -> list[WorkloadEntry]:
    return [
        entry
        if entry.job.id == number
        else entry._replace(job=structs.replace(entry.job, id=number))
        for number, entry in enumerate(entries, 1)
    ]


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """Properties missing from traces, added by rules; draws depend on seed and job alone.

    The field names are keys of `--set`. ValueError if a value is out of range.
    """

    deadlines: float = 0.0  # share of the jobs that get a deadline
    margin: tuple[float, float] = (0.5, 8.0)
    """Range of u in the deadline, submission + estimate * (1 + u)."""
    gold: float = 0.0  # share of the users in this class; of the jobs, if without users
    silver: float = 0.0  # as `gold`
    licences: int = 0  # number of different licences
    needs: float = 0.3  # probability that a job requests a copy of a licence
    pace: float = 1.0  # factor of the times between submissions
    reserved: float = 0.0  # share of the jobs for which a reservation is requested
    reserved_ahead: tuple[float, float] = (3600.0, 86400.0)
    """Range of the seconds from submission to the first start that suits."""
    reserved_slack: tuple[float, float] = (0.0, 0.0)
    """Range of the seconds by which a reservation may start later."""

    def __post_init__(self) -> None:
        for name in ("deadlines", "gold", "silver", "needs", "reserved"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0..1")
        if self.gold + self.silver > 1:
            raise ValueError("gold and silver together are more than 1; lower one of them")
        for name in ("margin", "reserved_ahead", "reserved_slack"):
            low, high = getattr(self, name)
            if not 0 <= low <= high:
                raise ValueError(f"{name} is {low}:{high}; it must be two numbers, the lower first")
        if self.licences < 0:
            raise ValueError(f"licences is {self.licences}; it must be 0 or more")
        if not 0 < self.pace < 1e6:
            raise ValueError(f"pace is {self.pace}; it must be a positive number")

    @property
    def licence_names(self) -> tuple[str, ...]:
        """The names of its licences."""
        return tuple(f"l{number}" for number in range(1, self.licences + 1))

    def apply(self, workload: Workload, seed: int) -> Workload:
        """Return the workload with these rules applied."""
        if self == Overlay():
            return workload
        origin = workload.entries[0].job.submitted if workload.entries else 0.0
        entries = [
            entry._replace(job=self._apply_to_job(entry, seed, origin))
            for entry in workload.entries
        ]
        if self.reserved:
            entries = [entry._replace(window=self._draw_window(entry, seed)) for entry in entries]
        return replace(workload, entries=tuple(entries))

    def _draw_window(self, entry: WorkloadEntry, seed: int) -> WindowRequest | None:
        """Return the reservation that is requested for a job, if it is drawn."""
        rng, job = Random(f"{seed}/reservation/{entry.number}"), entry.job
        if rng.random() >= self.reserved:
            return None
        ahead, slack = rng.uniform(*self.reserved_ahead), rng.uniform(*self.reserved_slack)
        # some logs let jobs run longer than they asked for
        duration = max(job.estimated, entry.run_time)
        return WindowRequest(
            job.submitted, job.submitted + ahead, duration, job.cpus, slack, job.user
        )

    def _apply_to_job(self, entry: WorkloadEntry, seed: int, origin: float) -> Job:
        job = entry.job
        rng = Random(f"{seed}/{entry.number}")
        submitted = origin + (job.submitted - origin) * self.pace
        deadline = None if job.deadline is None else job.deadline + submitted - job.submitted
        if rng.random() < self.deadlines:
            deadline = submitted + job.estimated * (1 + rng.uniform(*self.margin))
        licences = dict(job.licences)
        licences.update({name: 1 for name in self.licence_names if rng.random() < self.needs})
        owner = Random(f"{seed}/user/{job.user}") if job.user else rng
        class_draw = owner.random()
        user_class = job.user_class
        if class_draw < self.gold + self.silver:
            user_class = "gold" if class_draw < self.gold else "silver"
        return structs.replace(
            job,
            submitted=submitted,
            deadline=deadline,
            licences=licences,
            user_class=user_class,
        )


def merge_workloads(name: str, workloads: Iterable[Workload]) -> Workload:
    """Merge several workloads into a federation: each starts at 0 and is the home of its jobs."""
    entries = [
        entry._replace(
            job=structs.replace(
                entry.job,
                submitted=entry.job.submitted - workload.entries[0].job.submitted,
                user=f"{workload.name}/{entry.job.user}" if entry.job.user else "",
                groups=tuple(f"{workload.name}/{group}" for group in entry.job.groups),
            ),
            home=workload.name,
        )
        for workload in workloads
        if workload.entries
        for entry in workload.entries
    ]
    entries.sort(key=lambda entry: entry.job.submitted)
    return Workload(name, tuple(_renumber(entries)))
