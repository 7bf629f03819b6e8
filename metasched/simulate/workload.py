"""What is simulated: jobs with their true run times, from a trace or a generator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from metasched.model.job import Job
from metasched.simulate.swf import Record, Trace

LEAST = 1.0  # seconds: the estimate of a job that asks for no time and took none


class Request(NamedTuple):
    """One job to simulate. `job.id` counts from 1 in the order of the workload.

    `number` is its name in the trace; it runs `ran` seconds on a machine of its `benchmark`;
    `home` is the cluster that its owner would have used ("": none); `direct`: its owner submits
    it there, past the meta-scheduler.
    """

    job: Job
    ran: float
    number: int
    home: str = ""
    direct: bool = False


@dataclass(frozen=True)
class Workload:
    """Jobs in the order of their submission. `dropped` counts those left out, by cause."""

    name: str
    requests: tuple[Request, ...]
    processors: int | None = None  # of the machine that the trace comes from
    dropped: Mapping[str, int] = field(default_factory=dict)

    def part(self, first: int | None, last: int | None) -> Workload:
        """The jobs at places first..last-1, counted from 0 as Python's slices are."""
        return replace(self, requests=tuple(_renumbered(self.requests[first:last])))


def from_trace(name: str, trace: Trace, partitions: bool = False) -> Workload:
    """The jobs of a trace; those without processors or with a negative run time are dropped.

    `partitions`: each job's home is the partition that the trace names.
    """
    dropped: Counter[str] = Counter()
    requests: list[Request] = []
    names: dict[float, str] = {}  # of users
    for record in trace.records:
        cpus = record.cpus
        if cpus <= 0:
            dropped["no processors"] += 1
        elif record.ran < 0:
            dropped["negative run time"] += 1
        else:
            user = names.get(record.user)
            if user is None:
                user = names[record.user] = f"{record.user:.0f}" if record.user >= 0 else ""
            requests.append(_request(record, cpus, len(requests) + 1, user, partitions))
    return Workload(name, tuple(requests), trace.processors, dict(dropped))


def _request(record: Record, cpus: int, place: int, user: str, partitions: bool) -> Request:
    estimated = record.estimated or LEAST
    job = Job.plain(id=place, submitted=record.submitted, estimated=estimated, cpus=cpus, user=user)
    home = f"{record.partition:.0f}" if partitions and record.partition >= 0 else ""
    return Request(job, record.ran, record.number, home)


def to_trace(workload: Workload) -> Trace:
    """The workload as records of a trace; what SWF has no field for is lost."""
    records = [
        Record(
            number=request.number,
            submitted=request.job.submitted,
            waited=-1,
            ran=request.ran,
            allocated=-1,
            cpu_time=-1,
            memory=-1,
            requested_cpus=request.job.cpus,
            requested_time=request.job.estimated,
            requested_memory=-1,
            status=1,
            user=int(request.job.user) if request.job.user.isdecimal() else -1,
            group=-1,
            application=-1,
            queue=-1,
            partition=int(request.home) if request.home.isdecimal() else -1,
            preceding=-1,
            think_time=-1,
        )
        for request in workload.requests
    ]
    header = {"Version": ["2.2"], "MaxJobs": [str(len(records))]}
    if workload.processors is not None:
        header["MaxProcs"] = [str(workload.processors)]
    return Trace(header, records)


def _renumbered(requests: Iterable[Request]) -> list[Request]:
    return [
        request if request.job.id == place else request._replace(job=replace(request.job, id=place))
        for place, request in enumerate(requests, 1)
    ]


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """What a trace lacks, laid over it by seeded rules; each draw depends on seed and job alone.

    `deadlines`: that share of the jobs gets one, at submission + estimate * (1 + u), u uniform in
    `margin`. `gold` and `silver`: those shares of the users (of the jobs, where the trace tells
    no user) are in these classes. `licences`: each job asks for a copy of each of that many
    licences with probability `needs`. `pace` multiplies the times between submissions.
    ValueError if a share is none.
    """

    deadlines: float = 0.0
    margin: tuple[float, float] = (0.5, 8.0)
    gold: float = 0.0
    silver: float = 0.0
    licences: int = 0
    needs: float = 0.3
    pace: float = 1.0

    def __post_init__(self) -> None:
        for name in ("deadlines", "gold", "silver", "needs"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0..1")
        if self.gold + self.silver > 1:
            raise ValueError("gold and silver together are more than 1; lower one of them")
        if not 0 <= self.margin[0] <= self.margin[1]:
            raise ValueError(f"margin is {self.margin}; it must be two numbers, the lower first")
        if self.licences < 0:
            raise ValueError(f"licences is {self.licences}; it must be 0 or more")
        if not 0 < self.pace < 1e6:
            raise ValueError(f"pace is {self.pace}; it must be a positive number")

    def over(self, workload: Workload, seed: int) -> Workload:
        """The workload with these rules laid over it."""
        if self == Overlay():
            return workload
        origin = workload.requests[0].job.submitted if workload.requests else 0.0
        requests = [
            request._replace(job=self._changed(request, seed, origin))
            for request in workload.requests
        ]
        return replace(workload, requests=tuple(requests))

    def _changed(self, request: Request, seed: int, origin: float) -> Job:
        job = request.job
        draw = Random(f"{seed}/{request.number}")
        submitted = origin + (job.submitted - origin) * self.pace
        deadline = None if job.deadline is None else job.deadline + submitted - job.submitted
        if draw.random() < self.deadlines:
            deadline = submitted + job.estimated * (1 + draw.uniform(*self.margin))
        licences = dict(job.licences)
        licences.update(
            {f"l{n}": 1 for n in range(1, self.licences + 1) if draw.random() < self.needs}
        )
        owner = Random(f"{seed}/user/{job.user}") if job.user else draw
        rank = owner.random()
        belongs = (
            "gold" if rank < self.gold else "silver" if rank < self.gold + self.silver else None
        )
        return replace(
            job,
            submitted=submitted,
            deadline=deadline,
            licences=licences,
            user_class=belongs or job.user_class,
        )


def merged(name: str, workloads: Iterable[Workload]) -> Workload:
    """Several workloads as one federation: each starts at 0, its jobs' home is its name."""
    requests = [
        request._replace(
            job=replace(
                request.job,
                submitted=request.job.submitted - workload.requests[0].job.submitted,
                user=f"{workload.name}/{request.job.user}" if request.job.user else "",
            ),
            home=workload.name,
        )
        for workload in workloads
        if workload.requests
        for request in workload.requests
    ]
    requests.sort(key=lambda request: request.job.submitted)
    return Workload(name, tuple(_renumbered(requests)))
