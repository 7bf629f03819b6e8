"""Generated workloads, each with its clusters. Seeded.

Uniform ranges of Pasquali 2008 (Tables 1, 4, 6 and 13), and the statistical model of Lublin and
Feitelson 2003 for large runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from metasched.laboratory.simulate.clusters import Machine, SimulatedCluster, StoredInput
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.job import Job

Range = tuple[float, float]  # lowest, highest
MAX_JOBS = 10**7  # of a generated workload


class Scenario(NamedTuple):
    """A workload and the clusters that it runs on."""

    workload: Workload
    clusters: tuple[SimulatedCluster, ...]


def check_jobs(jobs: int) -> None:
    """Raise ValueError if a generator cannot draw so many jobs."""
    if not 1 <= jobs <= MAX_JOBS:
        raise ValueError(f"jobs is {jobs}; it must be 1 to {MAX_JOBS}")


@dataclass(frozen=True, kw_only=True)
class UniformGenerator:
    """Draws jobs and machines from uniform ranges, with exponential times between submissions.

    The field names are keys of `--set`. ValueError if a value is out of range.
    """

    machines: tuple[int, ...]  # number per cluster, the most powerful cluster first
    licences: int  # different licences
    jobs: int
    inter_arrival: float  # mean seconds between submissions
    estimated: Range  # seconds
    benchmark: Range  # of machines and of estimates
    margin: Range  # seconds: the deadline is at submission + estimated + margin
    cpus: tuple[int, int] = (1, 8)  # of a job
    machine_cpus: tuple[int, int] = (1, 8)
    needs: float = 0.3  # probability that a job requests a licence ...
    each: bool = True  # ... of each kind; False: that it requests from one kind to all
    ratio: Range = (0.5, 0.7)  # copies of a licence / machines on which it is usable
    suitability: float = 0.9  # probability that a licence is usable on a machine
    no_deadline: float = 0.0  # share of the jobs without a deadline
    input_size: Range = (0.0, 0.0)  # megabytes of a job's input, on a machine that is drawn
    bandwidth: Range = (100.0, 100.0)  # megabytes per second of a machine's link
    shared: bool = False  # several jobs on one machine

    def __post_init__(self) -> None:
        check_jobs(self.jobs)
        for name in ("needs", "suitability", "no_deadline"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0..1")
        positive = ("estimated", "benchmark", "cpus", "machine_cpus", "bandwidth")
        for name in (*positive, "margin", "ratio", "input_size"):
            low, high = getattr(self, name)
            if not low <= high < math.inf:
                raise ValueError(f"{name} is {low}:{high}; write the lower number first")
            if low < 0 or (low == 0 and name in positive):
                above = "above 0" if name in positive else "0 or more"
                raise ValueError(f"{name} is {low}:{high}; it must be {above}")

    def generate(self, name: str, seed: int) -> Scenario:
        """Return the workload and the clusters of a seed."""
        clusters = tuple(
            self._draw_cluster(f"c{number}", size, Random(f"{seed}/cluster/{number}"))
            for number, size in enumerate(self.machines, 1)
        )
        entries = self._draw_entries(Random(f"{seed}/jobs"))
        if self.input_size[1] > 0:
            clusters = self._with_links(clusters, Random(f"{seed}/links"))
            entries = self._with_inputs(entries, clusters, Random(f"{seed}/inputs"))
        return Scenario(Workload(name, entries), clusters)

    def _with_links(
        self, clusters: Iterable[SimulatedCluster], rng: Random
    ) -> tuple[SimulatedCluster, ...]:
        """Draw the bandwidth of each machine."""
        return tuple(
            replace(
                cluster,
                machines=tuple(
                    replace(machine, bandwidth=rng.uniform(*self.bandwidth))
                    for machine in cluster.machines
                ),
            )
            for cluster in clusters
        )

    def _with_inputs(
        self,
        entries: Iterable[WorkloadEntry],
        clusters: Iterable[SimulatedCluster],
        rng: Random,
    ) -> tuple[WorkloadEntry, ...]:
        """Draw the size of each job's input, and the machine that stores it."""
        places = [
            (cluster.name, index, machine.bandwidth)
            for cluster in clusters
            for index, machine in enumerate(cluster.machines)
        ]

        def draw() -> StoredInput:
            cluster, machine, bandwidth = rng.choice(places)
            return StoredInput(cluster, machine, rng.uniform(*self.input_size), bandwidth)

        return tuple(entry._replace(inputs=(draw(),)) for entry in entries)

    def _draw_cluster(self, cluster_name: str, size: int, rng: Random) -> SimulatedCluster:
        machines = [
            Machine(
                rng.randint(*self.machine_cpus),
                rng.uniform(*self.benchmark),
                frozenset(
                    name for name in self._licence_names() if rng.random() < self.suitability
                ),
            )
            for _ in range(size)
        ]
        # the largest job must fit on some machine
        largest = max(range(size), key=lambda index: machines[index].cpus)
        if machines[largest].cpus < self.cpus[1]:
            machines[largest] = replace(machines[largest], cpus=self.cpus[1])
        usable = Counter(licence for machine in machines for licence in machine.licences or ())
        copies = {
            licence: max(1, round(rng.uniform(*self.ratio) * usable[licence]))
            for licence in self._licence_names()
        }
        return SimulatedCluster.of_machines(
            cluster_name, machines, shared=self.shared, licences=copies
        )

    def _draw_entries(self, rng: Random) -> tuple[WorkloadEntry, ...]:
        entries, now = [], 0.0
        for number in range(1, self.jobs + 1):
            estimated, margin = rng.uniform(*self.estimated), rng.uniform(*self.margin)
            has_deadline = rng.random() >= self.no_deadline
            job = Job(
                id=number,
                submitted=now,
                estimated=estimated,
                cpus=rng.randint(*self.cpus),
                deadline=now + estimated + margin if has_deadline else None,
                benchmark=rng.uniform(*self.benchmark),
                licences=self._draw_licences(rng),
            )
            entries.append(WorkloadEntry(job, estimated, number))
            now += rng.expovariate(1 / self.inter_arrival) if self.inter_arrival > 0 else 0.0
        return tuple(entries)

    def _draw_licences(self, rng: Random) -> Mapping[str, int]:
        names = self._licence_names()
        if self.each:
            return {name: 1 for name in names if rng.random() < self.needs}
        if rng.random() >= self.needs:
            return {}
        return dict.fromkeys(rng.sample(names, rng.randint(1, len(names))), 1)

    def _licence_names(self) -> list[str]:
        return [f"l{number}" for number in range(1, self.licences + 1)]


# Pasquali 2008; docs/experiments/settings.md documents the choices that the tables leave open.
FLEXIBLE = UniformGenerator(  # Table 1
    machines=(100,),
    licences=20,
    jobs=1000,
    inter_arrival=12,
    estimated=(500, 3000),
    benchmark=(100, 500),
    margin=(30, 250),
)
CONVERGENT = UniformGenerator(  # Table 4
    machines=(150,),
    licences=20,
    jobs=1500,
    inter_arrival=10,
    estimated=(500, 3000),
    benchmark=(200, 600),
    margin=(25, 150),
    needs=0.2,
    ratio=(0.55, 0.65),
    no_deadline=0.3,
    input_size=(100, 800),
    bandwidth=(10, 100),
)
TWO_LEVEL = UniformGenerator(  # Table 6
    machines=(120, 60, 30, 15),
    licences=20,
    jobs=5000,
    inter_arrival=5,
    estimated=(8000, 10000),
    benchmark=(100, 500),
    margin=(1500, 5500),
    machine_cpus=(4, 32),
    each=False,
    suitability=1.0,
    no_deadline=0.3,
    shared=True,
)
PLANS = UniformGenerator(  # Table 13
    machines=(150,),
    licences=0,
    jobs=3000,
    inter_arrival=5,
    estimated=(500, 3000),
    benchmark=(200, 600),
    margin=(30, 250),
    machine_cpus=(1, 16),
    no_deadline=0.3,
    shared=True,
)
TABLES = {"table1": FLEXIBLE, "table4": CONVERGENT, "table6": TWO_LEVEL, "table13": PLANS}


# Lublin and Feitelson 2003, "The workload on parallel supercomputers", Tables 4, 6 and 7: the
# model without separate interactive and batch classes, for a machine of 128 processors.
_SERIAL, _POWER_OF_TWO = 0.244, 0.576
_LOW, _MIDDLE_BELOW_HIGH, _PROBABILITY_LOW = 0.8, 2.5, 0.86
_SHORT, _LONG = (4.2, 0.94), (312.0, 0.03)  # gamma (shape, scale) of the logarithm of run times
_LONGEST, _LONGEST_GAP = 12.0, 13.0  # logarithms of seconds: 45 hours, 5 days
_SLOPE, _INTERCEPT = -0.0054, 0.78  # of the share of short jobs, by processors
_GAP = (10.2303, 0.4871)  # gamma of the logarithm of the time to the next submission
_DAYTIME = (8.1737, 3.9631)  # gamma of the half hour of the day, from _DAYBREAK on
_DAYBREAK, _HALF_HOURS = 11, 48


def generate_lublin(jobs: int, cpus: int, seed: int) -> Scenario:
    """Generate `jobs` jobs for a cluster of `cpus` counted processors, with exact estimates.

    Lublin and Feitelson 2003. The logarithm of sizes is two-stage uniform; serial jobs and powers
    of two are favoured. The logarithm of run times is hyper-gamma and correlated with the size. The
    logarithm of times between submissions is gamma, with a daily cycle. ValueError if `jobs` is out
    of range.
    """
    check_jobs(jobs)
    rng = Random(f"{seed}/lublin")
    cycle = _daily_cycle()
    entries, now = [], 0.0
    for number in range(1, jobs + 1):
        size = _draw_size(rng, math.log2(cpus)) if cpus > 1 else 1
        short_share = min(max(_SLOPE * size + _INTERCEPT, 0.0), 1.0)
        shape_and_scale = _SHORT if rng.random() < short_share else _LONG
        run_time = max(1.0, round(math.exp(min(rng.gammavariate(*shape_and_scale), _LONGEST))))
        job = Job(id=number, submitted=now, estimated=run_time, cpus=size, user="")
        entries.append(WorkloadEntry(job, run_time, number))
        now += _draw_gap(rng, cycle, now)
    cluster = SimulatedCluster(name="c1", cpus=cpus)
    return Scenario(Workload("lublin", tuple(entries), cpus), (cluster,))


def _draw_size(rng: Random, highest: float) -> int:
    if rng.random() < _SERIAL:
        return 1
    middle = max(highest - _MIDDLE_BELOW_HIGH, _LOW)
    low, high = (_LOW, middle) if rng.random() < _PROBABILITY_LOW else (middle, highest)
    exponent = rng.uniform(low, high)
    if rng.random() < _POWER_OF_TWO:
        exponent = round(exponent)
    return max(1, min(round(2**exponent), int(2**highest)))


def _daily_cycle() -> list[float]:
    """Return the speed of the submission clock in each half hour of the day; the mean is 1."""
    shape, scale = _DAYTIME
    weights = [0.0] * _HALF_HOURS
    for slot in range(_HALF_HOURS):
        x = slot + 0.5
        weights[(slot + _DAYBREAK) % _HALF_HOURS] = x ** (shape - 1) * math.exp(-x / scale)
    total = sum(weights)
    return [weight * _HALF_HOURS / total for weight in weights]


def _draw_gap(rng: Random, cycle: list[float], now: float) -> float:
    """Return the seconds to the next submission: a drawn gap, at the speed of the time of day."""
    remaining, elapsed = math.exp(min(rng.gammavariate(*_GAP), _LONGEST_GAP)), 0.0
    while True:
        rest_of_slot = 1800.0 - (now + elapsed) % 1800.0
        speed = cycle[int((now + elapsed) // 1800.0) % _HALF_HOURS]
        if remaining <= rest_of_slot * speed:
            return elapsed + remaining / speed
        remaining -= rest_of_slot * speed
        elapsed += rest_of_slot
