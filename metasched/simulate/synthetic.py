"""Generated workloads, each with the clusters that it is meant for. Seeded.

Uniform ranges of Pasquali 2008 (Tables 1, 4, 6 and 13), and the statistical model of Lublin and
Feitelson 2003 for scale.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from metasched.model.job import Job
from metasched.simulate.clusters import Machine, SimulatedCluster
from metasched.simulate.workload import Request, Workload

Range = tuple[float, float]


class Grid(NamedTuple):
    """A workload and the clusters that it runs on."""

    workload: Workload
    clusters: tuple[SimulatedCluster, ...]


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Jobs and machines drawn from uniform ranges, with exponential times between submissions.

    `machines` is the size of each cluster, the most powerful first. `estimated` and `margin`
    (seconds) make a deadline at submission + estimated + margin, which the share `no_deadline` of
    the jobs lacks. `cpus` of a job, `machine_cpus` of a machine. `needs` is the probability that a
    job asks for a licence: for each of the `licences` if `each`, else that it asks for one to all
    of them. A licence can be used on a machine with probability `suitability`, and has `ratio`
    times as many copies as there are such machines. `shared`: several jobs on one machine.
    """

    machines: tuple[int, ...]
    licences: int
    jobs: int
    inter_arrival: float
    estimated: Range
    benchmark: Range
    margin: Range
    cpus: tuple[int, int] = (1, 8)
    machine_cpus: tuple[int, int] = (1, 8)
    needs: float = 0.3
    each: bool = True
    ratio: Range = (0.5, 0.7)
    suitability: float = 0.9
    no_deadline: float = 0.0
    shared: bool = False

    def grid(self, name: str, seed: int) -> Grid:
        """The workload and the clusters of one seed."""
        clusters = tuple(
            self._cluster(f"c{place}", size, Random(f"{seed}/cluster/{place}"))
            for place, size in enumerate(self.machines, 1)
        )
        return Grid(Workload(name, self._requests(Random(f"{seed}/jobs"))), clusters)

    def _cluster(self, called: str, size: int, draw: Random) -> SimulatedCluster:
        machines = [
            Machine(
                draw.randint(*self.machine_cpus),
                draw.uniform(*self.benchmark),
                frozenset(name for name in self._names() if draw.random() < self.suitability),
            )
            for _ in range(size)
        ]
        # the largest job must fit somewhere, whatever was drawn
        largest = max(range(size), key=lambda place: machines[place].cpus)
        if machines[largest].cpus < self.cpus[1]:
            machines[largest] = replace(machines[largest], cpus=self.cpus[1])
        usable = Counter(licence for machine in machines for licence in machine.licences or ())
        copies = {
            licence: max(1, round(draw.uniform(*self.ratio) * usable[licence]))
            for licence in self._names()
        }
        return SimulatedCluster.of_machines(called, machines, shared=self.shared, licences=copies)

    def _requests(self, draw: Random) -> tuple[Request, ...]:
        requests, now = [], 0.0
        for place in range(1, self.jobs + 1):
            estimated, margin = draw.uniform(*self.estimated), draw.uniform(*self.margin)
            bound = draw.random() >= self.no_deadline
            job = Job(
                id=place,
                submitted=now,
                estimated=estimated,
                cpus=draw.randint(*self.cpus),
                deadline=now + estimated + margin if bound else None,
                benchmark=draw.uniform(*self.benchmark),
                licences=self._asked(draw),
            )
            requests.append(Request(job, estimated, place))
            now += draw.expovariate(1 / self.inter_arrival) if self.inter_arrival > 0 else 0.0
        return tuple(requests)

    def _asked(self, draw: Random) -> Mapping[str, int]:
        names = self._names()
        if self.each:
            return {name: 1 for name in names if draw.random() < self.needs}
        if draw.random() >= self.needs:
            return {}
        return dict.fromkeys(draw.sample(names, draw.randint(1, len(names))), 1)

    def _names(self) -> list[str]:
        return [f"l{number}" for number in range(1, self.licences + 1)]


# Pasquali 2008; what the tables leave open is said in docs/experiments.md.
FLEXIBLE = Uniform(  # Table 1
    machines=(100,),
    licences=20,
    jobs=1000,
    inter_arrival=12,
    estimated=(500, 3000),
    benchmark=(100, 500),
    margin=(30, 250),
)
CONVERGENT = Uniform(  # Table 4
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
)
TWO_LEVEL = Uniform(  # Table 6
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
PLANS = Uniform(  # Table 13
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
_SLOTS = (8.1737, 3.9631)  # gamma of the half hour of the day, from _DAYBREAK on
_DAYBREAK, _HALF_HOURS = 11, 48


def lublin(jobs: int, cpus: int, seed: int) -> Grid:
    """`jobs` jobs for one cluster of `cpus` counted processors; estimates are exact.

    Lublin and Feitelson 2003: sizes two-stage uniform in their logarithm with serial jobs and
    powers of two favoured, run times hyper-gamma in their logarithm and correlated with the size,
    times between submissions gamma in their logarithm with a daily cycle.
    """
    draw = Random(f"{seed}/lublin")
    cycle = _daily_cycle()
    requests, now = [], 0.0
    for place in range(1, jobs + 1):
        size = _size(draw, math.log2(cpus)) if cpus > 1 else 1
        share = min(max(_SLOPE * size + _INTERCEPT, 0.0), 1.0)
        shape_and_scale = _SHORT if draw.random() < share else _LONG
        ran = max(1.0, round(math.exp(min(draw.gammavariate(*shape_and_scale), _LONGEST))))
        job = Job.plain(id=place, submitted=now, estimated=ran, cpus=size, user="")
        requests.append(Request(job, ran, place))
        now += _next_gap(draw, cycle, now)
    cluster = SimulatedCluster(name="c1", cpus=cpus)
    return Grid(Workload("lublin", tuple(requests), cpus), (cluster,))


def _size(draw: Random, highest: float) -> int:
    if draw.random() < _SERIAL:
        return 1
    middle = max(highest - _MIDDLE_BELOW_HIGH, _LOW)
    low, high = (_LOW, middle) if draw.random() < _PROBABILITY_LOW else (middle, highest)
    exponent = draw.uniform(low, high)
    if draw.random() < _POWER_OF_TWO:
        exponent = round(exponent)
    return max(1, min(round(2**exponent), int(2**highest)))


def _daily_cycle() -> list[float]:
    """How fast the clock of submissions runs in each half hour of the day: its mean is 1."""
    shape, scale = _SLOTS
    weights = [0.0] * _HALF_HOURS
    for slot in range(_HALF_HOURS):
        x = slot + 0.5
        weights[(slot + _DAYBREAK) % _HALF_HOURS] = x ** (shape - 1) * math.exp(-x / scale)
    total = sum(weights)
    return [weight * _HALF_HOURS / total for weight in weights]


def _next_gap(draw: Random, cycle: list[float], now: float) -> float:
    """Seconds to the next submission: the drawn gap, passed at the speed of the time of day."""
    left, passed = math.exp(min(draw.gammavariate(*_GAP), _LONGEST_GAP)), 0.0
    while True:
        inside = 1800.0 - (now + passed) % 1800.0
        speed = cycle[int((now + passed) // 1800.0) % _HALF_HOURS]
        if left <= inside * speed:
            return passed + left / speed
        left -= inside * speed
        passed += inside
