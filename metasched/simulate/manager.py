"""A simulated resource manager: a queue, what runs, and a local policy that decides what starts."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Mapping
from functools import lru_cache

from metasched.model.cluster import Facts, Nodes, Partition
from metasched.model.job import Job
from metasched.policies.local.capacity import earliest_fit
from metasched.policies.local.conservative import planned_start
from metasched.policies.local.queueing import NEVER, NOTHING, Free, Policy, Running, Waiting
from metasched.simulate.clusters import SimulatedCluster

# A job that has just started, its machine, and for how many seconds it will really run.
Begun = tuple[int, int, float]


class Manager:
    """One simulated cluster. Its clock is given; it never looks at true run times to decide."""

    def __init__(self, cluster: SimulatedCluster, policy: Policy, *, leased: bool = False) -> None:
        """`leased`: licences are counted above, and a job that comes here has them."""
        self.cluster, self.policy, self._leased = cluster, policy, leased
        self.queue: dict[int, Waiting] = {}
        self.running: dict[int, Running] = {}
        self.free = cluster.cpus
        self._counts = dict(cluster.licences)
        self._sizes = [machine.cpus for machine in cluster.machines]
        self._machines = list(self._sizes) if cluster.machines else None  # what is free of each
        self._ends: list[tuple[float, int]] = []  # of what runs, by estimates, with its processors
        self._ran: dict[int, float] = {}  # of what waits
        self._true_ends: dict[int, float] = {}  # of what runs
        self._owed: dict[int, float] = {}  # cpu seconds of other people's jobs that wait
        usable = [m.licences for m in cluster.machines if m.licences is not None]
        self._everywhere = frozenset[str]().union(*usable).intersection(*usable)  # usable licences
        self._able: dict[tuple[int, frozenset[str]], tuple[int, ...]] = {}
        self._refused = 0  # so many at the head of the queue do not start before something ends
        self._facts: Facts | None = None  # until something changes
        self._partitions: dict[int, Partition] = {}  # by what is free of counted processors

    def able(self, job: Job) -> bool:
        """Whether the cluster could run the job if it were empty."""
        licences = self.cluster.licences
        if not self._leased and any(
            licences.get(name, 0) < count for name, count in job.licences.items()
        ):
            return False
        if self._machines is None:
            return job.cpus <= self.cluster.cpus
        return bool(self._machines_for(job))

    def _machines_for(self, job: Job) -> tuple[int, ...]:
        """The machines that meet the job's minimal requirements (Pasquali 2008, §3.2.1)."""
        needs = (job.cpus, frozenset(job.licences) - self._everywhere)
        known = self._able.get(needs)
        if known is None:
            cpus, licences = needs
            known = self._able[needs] = tuple(
                place
                for place, machine in enumerate(self.cluster.machines)
                if machine.cpus >= cpus
                and (machine.licences is None or licences <= machine.licences)
            )
        return known

    def submit(self, job: Job, priority: int, ran: float, *, ours: bool = True) -> None:
        """Queue a job that runs `ran` seconds on a machine of its own benchmark.

        `ours`: the meta-scheduler sent it; else it is told of the job only in sums.
        """
        counted = self._machines is None
        speed = job.benchmark / self.cluster.benchmark if counted else job.benchmark
        self._ran[job.id] = ran * speed
        self._facts = None
        self.queue[job.id] = self._waiting(job, priority)
        if not ours:
            self._owed[job.id] = job.cpus * job.estimated

    def _waiting(self, job: Job, priority: int) -> Waiting:
        """The job as this cluster's local policy sees it."""
        machines: Mapping[int, float] = NOTHING
        estimated = job.estimated
        if self._machines is None:
            estimated *= job.benchmark / self.cluster.benchmark
        else:
            work = job.estimated * job.benchmark
            machines = {
                place: work / self.cluster.machines[place].benchmark
                for place in self._machines_for(job)
            }
        return Waiting(
            job.id,
            job.cpus,
            estimated,
            NOTHING if self._leased else job.licences,
            machines,
            job.submitted,
            job.deadline,
            priority,
            job.user,
        )

    def withdraw(self, job: int) -> None:
        """Let go of a job that waits. KeyError if it does not."""
        del self.queue[job], self._ran[job]
        self._facts, self._refused = None, 0
        self._owed.pop(job, None)

    def schedule(self, now: float) -> list[Begun]:
        """One pass of the local policy: what it starts now."""
        queue = self.queue
        if not queue or self.free <= 0:
            return []
        begun = []
        asked: Collection[Waiting] = queue.values()
        if self._refused and self._ends and self._ends[0][0] > now:
            jobs = list(asked)
            asked = [jobs[0], *jobs[self._refused :]]
        for start in self.policy.starts(now, asked, self.running.values(), self._free()):
            job = queue.pop(start.id)
            self._facts = None
            seconds, cpus, ran = job.estimated, job.cpus, self._ran.pop(job.id)
            self._owed.pop(job.id, None)
            if self._machines is not None:
                machine = self.cluster.machines[start.machine]
                seconds, ran = job.machines[start.machine], ran / machine.benchmark
                if not self.cluster.shared:
                    cpus = self._machines[start.machine]
                self._machines[start.machine] -= cpus
            self.free -= cpus
            for name, amount in job.counts.items():
                self._counts[name] -= amount
            self._true_ends[job.id] = now + ran
            end = now + seconds
            self.running[job.id] = Running(job.id, cpus, end, job.counts, start.machine, job.user)
            insort(self._ends, (end, cpus))
            begun.append((job.id, start.machine, ran))
        if self.policy.steady:
            self._refused = len(queue)
        return begun

    def end(self, job: int) -> None:
        """A running job has ended: what it held is free."""
        gone = self.running.pop(job)
        self._facts, self._refused = None, 0
        del self._true_ends[job]
        self.free += gone.cpus
        if self._machines is not None:
            self._machines[gone.machine] += gone.cpus
        for name, amount in gone.counts.items():
            self._counts[name] += amount
        del self._ends[bisect_left(self._ends, (gone.end, gone.cpus))]

    def _free(self) -> Free:
        return Free(self.free, self._counts, self._machines, self.cluster.shared)

    # When a job that is not here would start: what those go by who choose a cluster

    def fits_at(self, job: Job, now: float) -> float:
        """When the job would fit if nothing waited, by the limits of what runs; NEVER if never."""
        if self._machines is None:
            return earliest_fit(job.cpus, self.free, self._ends, now)[0]
        ends: dict[int, list[tuple[float, int]]] = {}
        for r in self.running.values():
            ends.setdefault(r.machine, []).append((r.end, r.cpus))
        able = self._machines_for(job)
        fits = (earliest_fit(job.cpus, self._machines[m], ends.get(m, ()), now)[0] for m in able)
        return min(fits, default=NEVER)

    def waiting_work(self) -> float:
        """Seconds of the whole cluster that what waits asks for."""
        return sum(job.cpus * job.estimated for job in self.queue.values()) / self.cluster.cpus

    def plans_at(self, job: Job, now: float, *, ran: float | None = None) -> float:
        """Its start in a plan in which all that waits has its place, by limits.

        With `ran`, its own true run time, by the true run times of all: an oracle, which no
        scheduler has, where processors are counted; machines go by estimates.
        """
        queue, running = list(self.queue.values()), list(self.running.values())
        own = self._waiting(job, 1)
        if ran is not None:
            queue = [_lasting(waiting, self._ran[waiting.id]) for waiting in queue]
            running = [r._replace(end=self._true_ends[r.id]) for r in running]
            own = _lasting(own, ran * job.benchmark / self.cluster.benchmark)
        return planned_start(now, queue, running, self._free(), own)

    def facts(self) -> Facts:
        """What the cluster says of itself to the meta-scheduler."""
        if self._facts is None:
            self._facts = self._told()
        return self._facts

    def _told(self) -> Facts:
        if self._machines is not None:
            shapes = Counter(zip(self._sizes, self._machines, strict=True))
            nodes = tuple([_nodes(count, *shape) for shape, count in shapes.items()])
            partition = Partition("all", nodes, default=True)
        elif (known := self._partitions.get(self.free)) is not None:
            partition = known
        else:
            nodes = (_nodes(1, self.cluster.cpus, self.free),)
            partition = self._partitions[self.free] = Partition("all", nodes, default=True)
        head = next(iter(self.queue.values()), None)
        return Facts(
            cpus=self.cluster.cpus,
            used=self.cluster.cpus - self.free,
            partitions=(partition,),
            running=tuple(self._ends),
            owed=sum(self._owed.values()),
            pending=len(self.queue),
            head=None if head is None else (head.cpus, head.estimated),
        )


@lru_cache(maxsize=10_000)
def _nodes(count: int, cpus: int, free: int) -> Nodes:
    return Nodes(count, cpus, free)


def _lasting(job: Waiting, seconds: float) -> Waiting:
    """The job as if it had asked for so long where processors are counted."""
    return job._replace(estimated=seconds)
