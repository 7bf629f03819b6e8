"""A period under two policies: what changes in waits, deadlines, moves and the use of licences.

Both policies are simulated on the same arrivals, so differences are paired job by job. Their 95%
intervals come from a bootstrap over days: jobs of a day wait for each other, days hardly do. A
period of fewer days is divided into equal parts. Times and waits are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metasched.laboratory.simulate.engine import Schedule
from metasched.laboratory.simulate.metrics import TAU
from metasched.laboratory.simulate.recorded_workload import RecordedPeriod
from metasched.policies.policy import Policy

DAY = 86400.0
LEAST_DAYS, PARTS = 10, 20  # days for a bootstrap over days; parts of a shorter period
REPLICATES = 2000
Floats = NDArray[np.float64]


class JobRun(NamedTuple):
    """Where and when a job ran."""

    start: float
    end: float
    cluster: int  # index
    moves: int  # between clusters, before the start


class PeriodRun(NamedTuple):
    """The simulated run of a period under a policy."""

    placements: dict[int, JobRun]  # by job id
    dropped: dict[str, int]  # jobs left out, by cause
    pulls: int
    excluded: Mapping[str, int] = {}  # jobs that a heuristic of the site did not rate, by its name
    excluded_passes: Mapping[str, int] = {}  # decided by FCFS in place of a local policy, by name


def trial_of(schedule: Schedule) -> PeriodRun:
    """Return the data of a schedule for the comparison; it passes between processes quickly."""
    placements = {
        each.entry.job.id: JobRun(each.start, each.end, each.cluster, each.moves)
        for each in schedule.jobs
    }
    return PeriodRun(
        placements,
        dict(schedule.dropped),
        schedule.pulls,
        dict(schedule.excluded),
        dict(schedule.excluded_passes),
    )


@dataclass(frozen=True)
class Change:
    """A figure of the whole period. The interval of the change is None where none is given."""

    figure: str
    unit: str
    recorded: float | None  # as it was; None: unknown
    before: float  # simulated
    after: float  # simulated
    low: float | None
    high: float | None

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, kw_only=True)
class Group:
    """The jobs of a user, a class, a cluster, or those that request a licence."""

    name: str
    jobs: int  # of a cluster: before
    jobs_after: int  # other than `jobs` on a cluster only
    recorded_wait: float | None  # mean
    wait_before: float  # mean
    wait_after: float  # mean
    low: float | None  # of the difference of the means; None: other jobs, or too few
    high: float | None
    deadlines: int  # jobs with a deadline; of a cluster: before
    missed_before: float | None  # share of these; None: there are none
    missed_after: float | None
    use_before: float | None  # share of the processors or tokens of the period; None: unlimited
    use_after: float | None

    @property
    def change(self) -> float:
        return self.wait_after - self.wait_before


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The changes that a policy would have made."""

    jobs: int  # compared: those that ran under both policies
    first: float  # arrival of the first
    last: float  # of the last
    blocks: str  # unit that the bootstrap draws
    elsewhere: int  # jobs that run on another cluster
    changes: tuple[Change, ...]
    groups: Mapping[str, tuple[Group, ...]]  # by kind: class, user, cluster, licence
    waits: tuple[Floats, Floats]  # of each job, before and after
    days: tuple[Floats, Floats, Floats]  # arrivals of a day: its begin, mean waits before, after

    def as_json(self) -> dict[str, Any]:
        """Return the figures of `policy try --json`."""
        return {
            "jobs": self.jobs,
            "elsewhere": self.elsewhere,
            "interval_over": self.blocks,
            "figures": [{**asdict(each), "change": each.change} for each in self.changes],
            "groups": {
                kind: [{**asdict(each), "change": each.change} for each in groups]
                for kind, groups in self.groups.items()
            },
        }


def compare(
    period: RecordedPeriod, before: PeriodRun, after: PeriodRun, seed: int = 0
) -> Comparison:
    """Compare two trials of a period. ValueError if no job ran under both policies."""
    return _Comparer(period, before, after, seed).compare()


def run_policy(
    period: RecordedPeriod, policy: Policy, progress: Callable[[int], None] | None = None
) -> PeriodRun:
    """Simulate a period under a policy."""
    return trial_of(period.run(policy, progress))


class _Comparer:
    def __init__(
        self, period: RecordedPeriod, before: PeriodRun, after: PeriodRun, seed: int
    ) -> None:
        both = before.placements.keys() & after.placements.keys()
        entries = [entry for entry in period.workload.entries if entry.job.id in both]
        if not entries:
            raise ValueError("no job runs under both policies")
        self._period, self._jobs = period, [entry.job for entry in entries]
        self._before = [before.placements[job.id] for job in self._jobs]
        self._after = [after.placements[job.id] for job in self._jobs]
        self._arrivals = self._column(lambda job: job.submitted)
        self._deadlines = self._column(
            lambda job: math.inf if job.deadline is None else job.deadline
        )
        self._cpus = self._column(lambda job: job.cpus)
        self._starts = tuple(
            np.array([each.start for each in placed]) for placed in (self._before, self._after)
        )
        self._ends = tuple(
            np.array([each.end for each in placed]) for placed in (self._before, self._after)
        )
        self._waits = self._starts[0] - self._arrivals, self._starts[1] - self._arrivals
        self._missed = tuple((ends > self._deadlines).astype(float) for ends in self._ends)
        tasks = [period.tasks[job.id - 1] for job in self._jobs] if period.tasks else []
        self._recorded_waits = self._recorded_missed = self._recorded_slowdowns = None
        if tasks:
            started, ended = (
                np.array([task.started for task in tasks]),
                np.array([task.ended for task in tasks]),
            )
            self._recorded_waits = np.maximum(started - self._arrivals, 0.0)
            self._recorded_missed = (ended > self._deadlines).astype(float)
            self._recorded_slowdowns = _slowdowns(self._recorded_waits, ended - started)
        self._blocks, self._about_blocks = _blocks(self._arrivals)
        # how often each block is drawn, by replicate
        rng, count = np.random.default_rng(seed), int(self._blocks.max()) + 1
        draws = rng.integers(0, count, (REPLICATES, count))
        self._draws = np.zeros((REPLICATES, count))
        np.add.at(self._draws, (np.arange(REPLICATES)[:, None], draws), 1.0)

    def _column(self, value: Callable[[Any], float]) -> Floats:
        return np.array([value(job) for job in self._jobs], dtype=float)

    def compare(self) -> Comparison:
        period, every = self._period, np.ones(len(self._jobs), dtype=bool)
        names = [cluster.name for cluster in period.clusters]
        with_deadline = np.isfinite(self._deadlines)
        slowdowns = [
            _slowdowns(wait, end - start)
            for wait, start, end in zip(self._waits, self._starts, self._ends, strict=True)
        ]
        moves = [
            np.array([each.moves for each in placed], dtype=float)
            for placed in (self._before, self._after)
        ]
        changes = [
            self._mean("mean wait", "s", self._recorded_waits, self._waits, every),
            *(
                Change(
                    name,
                    "s",
                    None
                    if self._recorded_waits is None
                    else float(np.quantile(self._recorded_waits, share)),
                    float(np.quantile(self._waits[0], share)),
                    float(np.quantile(self._waits[1], share)),
                    None,
                    None,
                )
                for name, share in (("median wait", 0.5), ("90% wait", 0.9), ("longest wait", 1.0))
            ),
            self._mean("bounded slowdown", "", self._recorded_slowdowns, slowdowns, every),
            self._mean("moves per job", "", None, moves, every),
        ]
        if with_deadline.any():
            changes.append(
                self._mean(
                    *("missed deadlines", "share", self._recorded_missed),
                    *(self._missed, with_deadline),
                )
            )
        places = [[each.cluster for each in placed] for placed in (self._before, self._after)]
        return Comparison(
            jobs=len(self._jobs),
            first=float(self._arrivals[0]),
            last=float(self._arrivals[-1]),
            blocks=self._about_blocks,
            elsewhere=sum(a != b for a, b in zip(*places, strict=True)),
            changes=tuple(changes),
            groups={
                "class": self._groups([job.user_class for job in self._jobs]),
                "user": self._groups([job.user for job in self._jobs]),
                "cluster": tuple(
                    self._cluster(index, name, places) for index, name in enumerate(names)
                ),
                "licence": self._licences(),
            },
            waits=self._waits,
            days=self._days(),
        )

    def _mean(
        self,
        name: str,
        unit: str,
        recorded: Floats | None,
        values: Sequence[Floats],
        chosen: NDArray[np.bool_],
    ) -> Change:
        """Return the mean of values before and after, over chosen jobs."""
        low, high = self._interval(values[1] - values[0], chosen)
        return Change(
            figure=name,
            unit=unit,
            recorded=None if recorded is None else float(recorded[chosen].mean()),
            before=float(values[0][chosen].mean()),
            after=float(values[1][chosen].mean()),
            low=low,
            high=high,
        )

    def _interval(
        self, values: Floats, chosen: NDArray[np.bool_]
    ) -> tuple[float, float] | tuple[None, None]:
        """Return the 95% interval of the mean of chosen jobs; None: they are in a single block."""
        blocks = self._blocks[chosen]
        if len(np.unique(blocks)) < 2:
            return None, None
        size = self._draws.shape[1]
        sums = np.bincount(blocks, values[chosen], size)
        counts = np.bincount(blocks, minlength=size)
        drawn = self._draws @ counts
        means = (self._draws @ sums)[drawn > 0] / drawn[drawn > 0]
        low, high = np.quantile(means, (0.025, 0.975))
        return float(low), float(high)

    def _groups(self, names: Sequence[str]) -> tuple[Group, ...]:
        """Return the jobs of each name, the most numerous first."""
        numbers: dict[str, list[int]] = {}
        for number, name in enumerate(names):
            numbers.setdefault(name, []).append(number)
        ordered = sorted(numbers, key=lambda name: (-len(numbers[name]), name))
        return tuple(self._group(name, numbers[name]) for name in ordered)

    def _group(
        self,
        name: str,
        numbers: Sequence[int],
        use: tuple[float | None, float | None] = (None, None),
    ) -> Group:
        chosen = np.zeros(len(self._jobs), dtype=bool)
        chosen[list(numbers)] = True
        due = chosen & np.isfinite(self._deadlines)
        low, high = self._interval(self._waits[1] - self._waits[0], chosen)
        recorded = self._recorded_waits
        return Group(
            name=name,
            jobs=len(numbers),
            jobs_after=len(numbers),
            recorded_wait=None if recorded is None else float(recorded[chosen].mean()),
            wait_before=float(self._waits[0][chosen].mean()),
            wait_after=float(self._waits[1][chosen].mean()),
            low=low,
            high=high,
            deadlines=int(due.sum()),
            missed_before=float(self._missed[0][due].mean()) if due.any() else None,
            missed_after=float(self._missed[1][due].mean()) if due.any() else None,
            use_before=use[0],
            use_after=use[1],
        )

    def _cluster(self, index: int, name: str, places: Sequence[Sequence[int]]) -> Group:
        """Return the jobs that run on a cluster, before and after: these jobs may differ."""
        cpus = self._period.clusters[index].cpus
        on_it = [np.array(each) == index for each in places]
        due = [chosen & np.isfinite(self._deadlines) for chosen in on_it]
        homes = np.array(
            [task.cluster == name for task in self._period.tasks] if self._period.tasks else [],
            dtype=bool,
        )
        ids = np.array([job.id - 1 for job in self._jobs])
        recorded = self._recorded_waits
        at_home = homes[ids] if recorded is not None else None
        return Group(
            name=name,
            jobs=int(on_it[0].sum()),
            jobs_after=int(on_it[1].sum()),
            recorded_wait=_mean(recorded[at_home])
            if recorded is not None and at_home is not None and at_home.any()
            else None,
            wait_before=_mean(self._waits[0][on_it[0]]),
            wait_after=_mean(self._waits[1][on_it[1]]),
            low=None,
            high=None,
            deadlines=int(due[0].sum()),
            missed_before=_mean(self._missed[0][due[0]]) if due[0].any() else None,
            missed_after=_mean(self._missed[1][due[1]]) if due[1].any() else None,
            use_before=self._share(0, self._cpus * on_it[0], cpus),
            use_after=self._share(1, self._cpus * on_it[1], cpus),
        )

    def _share(self, side: int, amounts: Floats, total: float) -> float | None:
        """Return the share of a resource that is used until the last job of either policy ends."""
        span = max(ends.max() for ends in self._ends) - self._arrivals[0]
        if total <= 0 or span <= 0:
            return None
        return float(((self._ends[side] - self._starts[side]) * amounts).sum() / (total * span))

    def _licences(self) -> tuple[Group, ...]:
        """Return the jobs that request each licence."""
        groups = []
        for pool in self._period.pools:
            tokens = self._column(lambda job, name=pool.name: job.licences.get(name, 0))  # type: ignore[misc]
            if tokens.any():
                total = pool.total or 0
                use = self._share(0, tokens, total), self._share(1, tokens, total)
                groups.append(self._group(pool.name, list(np.flatnonzero(tokens)), use))
        return tuple(groups)

    def _days(self) -> tuple[Floats, Floats, Floats]:
        days, positions = np.unique(np.floor(self._arrivals / DAY), return_inverse=True)
        counts = np.bincount(positions)
        before, after = (np.bincount(positions, waits) / counts for waits in self._waits)
        return days * DAY, before, after


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else 0.0


def _slowdowns(waits: Floats, run_times: Floats) -> Floats:
    """Return bounded slowdowns, see `simulate.metrics`."""
    return np.maximum(1.0, (waits + run_times) / np.maximum(run_times, TAU))


def _blocks(arrivals: Floats) -> tuple[NDArray[np.int64], str]:
    """Return the block of each job, counted from 0, and the unit of the blocks."""
    days, of_day = np.unique(np.floor(arrivals / DAY), return_inverse=True)
    if len(days) >= LEAST_DAYS:
        return of_day.astype(np.int64), f"{len(days)} days with arrivals"
    parts = min(PARTS, len(arrivals))
    position = np.arange(len(arrivals)) * parts // len(arrivals)
    return position.astype(np.int64), f"{parts} parts of equally many jobs"
