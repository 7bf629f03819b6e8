"""Dispatch: the cluster of a job, by Load, then Ordering, then a seeded draw.

Pasquali 2008, §3.1.2: a job goes to the cluster with the least queued work of its own priority and
above; among clusters of about equal load, to the cluster with the fewest such jobs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from metasched.model.job import MAX_PRIORITY, Job
from metasched.policies.placement_ratings import (
    best_rated,
    counting_ratings,
    in_order_of_rating,
)

LOADS = ("paper", "observed", "forecast")
ORDERINGS = ("array", "equal")
NO_WEIGHTS: Mapping[str, float] = MappingProxyType({})

# Sums are integers in units of the smallest float, 2**-1074. Every float is a whole number of these
# units, so subtracting all that was added leaves exactly zero: an idle cluster must have load 0.
_SMALLEST_EXPONENT = 1074
UNITS_PER_WORK = 1 << _SMALLEST_EXPONENT


class ClusterLoad(NamedTuple):
    """The figures of a cluster that a decision compares."""

    load: float  # work (seconds x benchmark), or observed seconds
    jobs: int  # queued jobs


class LoadArrays(NamedTuple):
    """What `LoadOrdering.choose` compares: rows by priority, a column per cluster."""

    loads: tuple[tuple[float, ...], ...]  # by priority; a single row if all priorities share it
    counts: tuple[tuple[int, ...], ...]


class LoadOrdering:
    """Load and Ordering over `clusters`, in the order of the site: the most powerful first.

    Per cluster and priority it holds the work (`estimated * benchmark`) and the number of jobs that
    are assigned and not yet started, with that priority or a higher priority. An assignment costs
    O(max_priority) and a decision O(clusters), whatever the number of queued jobs.

    `tolerance` is the relative distance from the least load that counts as equal to it.
    `load="observed"` and `"forecast"` compare the values given to `observe` instead of that work.
    `ordering="equal"` counts only jobs of equal priority (the principle stated in the thesis; its
    array also counts higher priorities). `placement_weights` are those of the site's heuristics
    that rate clusters, see `placement_ratings`. ValueError for no clusters, a cluster given twice,
    an unknown `load` or `ordering`, or a number out of range.
    """

    def __init__(
        self,
        clusters: Sequence[str],
        max_priority: int = MAX_PRIORITY,
        seed: int = 0,
        tolerance: float = 0.0,
        load: str = "paper",
        ordering: str = "array",
        placement_weights: Mapping[str, float] = NO_WEIGHTS,
    ) -> None:
        self.clusters = tuple(clusters)
        self._index = {name: i for i, name in enumerate(self.clusters)}
        if not self.clusters:
            raise ValueError("there are no clusters; dispatch needs one or more")
        if len(self._index) != len(self.clusters):
            raise ValueError(f"a cluster is named twice in {', '.join(self.clusters)}")
        if max_priority < 1:
            raise ValueError(f"max_priority is {max_priority}; it must be 1 or more")
        if not (math.isfinite(tolerance) and tolerance >= 0):
            raise ValueError(f"tolerance is {tolerance}; it must be 0 or more")
        if load not in LOADS:
            raise ValueError(f"load is {load!r}; it must be one of {', '.join(LOADS)}")
        if ordering not in ORDERINGS:
            raise ValueError(f"ordering is {ordering!r}; it must be one of {', '.join(ORDERINGS)}")
        self.max_priority, self.seed, self.tolerance = max_priority, seed, tolerance
        self._counts_equal_only = ordering == "equal"
        self._placement_weights = {name: w for name, w in placement_weights.items() if w > 0}
        # row p-1 holds priority p, a column per cluster; the additional last row stays zero
        rows, width = max_priority + 1, len(self.clusters)
        self._work_units = [[0] * width for _ in range(rows)]
        self._counts = [[0] * width for _ in range(rows)]
        self._observed_loads = [0.0] * width
        self._uses_estimated_work = load == "paper"
        if not self._uses_estimated_work:
            self._loads = [self._observed_loads] * rows
        else:
            self._loads = [[0.0] * width for _ in range(rows)]

    def choose(self, job: Job, priority: int, eligible: Collection[str] | None = None) -> str:
        """Return the cluster for the job, from `eligible` or all clusters, without recording it.

        The same job, arrays and seed give the same cluster, independent of earlier draws.
        ValueError if no cluster is eligible, or a cluster or the priority is unknown.
        """
        loads, columns = self._loads[self._row(priority)], self._columns(eligible)
        least_load = min(loads if eligible is None else [loads[i] for i in columns])
        ratings = None
        if self._placement_weights:
            names = [self.clusters[i] for i in columns]
            ratings = counting_ratings(job, self._placement_weights, names)
        if (
            eligible is None
            and not ratings
            and (least_load == 0 or (not self.tolerance and loads.count(least_load) == 1))
        ):
            return self.clusters[loads.index(least_load)]
        if ratings:
            by_name = {self.clusters[i]: loads[i] for i in columns}
            best = best_rated(ratings, by_name, self.tolerance)
            candidates = [self._index[name] for name in best]
        else:
            threshold = least_load * (1 + self.tolerance)
            candidates = [i for i in columns if loads[i] <= threshold]
        if least_load == 0 or len(candidates) == 1:
            return self.clusters[candidates[0]]
        counts, excluded_counts = self._count_rows(priority)
        queued_jobs = [counts[i] - excluded_counts[i] for i in candidates]
        fewest = min(queued_jobs)
        tied = [i for i, queued in zip(candidates, queued_jobs, strict=True) if queued == fewest]
        return self.clusters[tied[0] if len(tied) == 1 else tied[self._draw_tie(job, len(tied))]]

    def preferred(self, job: Job, eligible: Sequence[str]) -> Sequence[str]:
        """Return clusters in the order of the site's ratings, whatever their loads."""
        if not self._placement_weights:
            return eligible
        ratings = counting_ratings(job, self._placement_weights, eligible)
        return in_order_of_rating(ratings, eligible) if ratings else eligible

    def cluster_loads(self, job: Job, priority: int) -> dict[str, ClusterLoad]:
        """Return what `choose` would compare now, for every cluster. ValueError as in `choose`."""
        loads = self._loads[self._row(priority)]
        counts, excluded_counts = self._count_rows(priority)
        return {
            name: ClusterLoad(loads[i], counts[i] - excluded_counts[i])
            for i, name in enumerate(self.clusters)
        }

    def assigned(self, cluster: str, job: Job, priority: int) -> None:
        """Record that a job was dispatched to the cluster and is queued there.

        ValueError if the cluster or the priority is unknown.
        """
        units = _work_in_units(job) if self._uses_estimated_work else 0
        self._change_totals(self._column(cluster), self._row(priority), units, 1)

    def left_queue(self, cluster: str, job: Job, priority: int) -> None:
        """Record that a job assigned with that priority started, ended or was withdrawn.

        ValueError, with no change, if the arrays show that it was never assigned.
        """
        column, row = self._column(cluster), self._row(priority)
        remaining_jobs = self._counts[row][column] - self._counts[row + 1][column] - 1
        job_units = remaining_units = 0
        if self._uses_estimated_work:
            job_units = _work_in_units(job)
            remaining_units = (
                self._work_units[row][column] - self._work_units[row + 1][column] - job_units
            )
        if (
            remaining_jobs < 0
            or remaining_units < 0
            or (self._uses_estimated_work and (remaining_jobs == 0) != (remaining_units == 0))
        ):
            raise ValueError(f"job {job.id} was never assigned to {cluster} at priority {priority}")
        self._change_totals(column, row, -job_units, -1)

    def observe(self, cluster: str, seconds: float) -> None:
        """Set the load of the cluster at every priority to `seconds`; not for load="paper".

        ValueError if the cluster is unknown or `seconds` is negative or not finite.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"observed load of {cluster} is {seconds}; it must be 0 or more")
        self._observed_loads[self._column(cluster)] = seconds

    def observe_all(self, loads: Sequence[float]) -> None:
        """Call `observe` for all clusters, in their order."""
        if len(loads) != len(self.clusters) or not 0 <= min(loads) <= max(loads) < math.inf:
            for cluster, seconds in zip(self.clusters, loads, strict=True):
                self.observe(cluster, seconds)
        self._observed_loads[:] = loads

    def arrays(self) -> LoadArrays:
        """Return a copy of what `choose` compares. O(clusters x priorities)."""
        loads = self._loads if self._uses_estimated_work else [self._observed_loads]
        return LoadArrays(tuple(map(tuple, loads)), tuple(map(tuple, self._counts)))

    def take_arrays(self, arrays: LoadArrays) -> None:
        """Let `choose` compare the arrays of another ordering of the same clusters and priorities.

        Only for choices: `assigned` and `left_queue` do not fit such arrays.
        """
        if self._uses_estimated_work:
            self._loads = [list(row) for row in arrays.loads]
        else:
            self._observed_loads[:] = arrays.loads[0]
        self._counts = [list(row) for row in arrays.counts]

    def load(self, cluster: str) -> list[float]:
        """Return the load by priority; index p-1 holds priority p. ValueError if unknown."""
        column = self._column(cluster)
        return [row[column] for row in self._loads[:-1]]

    def count(self, cluster: str) -> list[int]:
        """Return the queued jobs of priority p and above at index p-1. ValueError if unknown."""
        column = self._column(cluster)
        return [row[column] for row in self._counts[:-1]]

    def _change_totals(self, column: int, highest_row: int, units: int, job_count: int) -> None:
        for row in range(highest_row + 1):
            self._counts[row][column] += job_count
            if self._uses_estimated_work:
                self._work_units[row][column] += units
                self._loads[row][column] = self._work_units[row][column] / UNITS_PER_WORK

    def _count_rows(self, priority: int) -> tuple[list[int], list[int]]:
        """Return the row of counts for a priority, and the row to subtract from it."""
        return self._counts[priority - 1], self._counts[priority if self._counts_equal_only else -1]

    def _draw_tie(self, job: Job, choice_count: int) -> int:
        # `random()` is the only draw whose sequence Python guarantees for a given seed
        return int(Random(f"{self.seed}/{job.id}").random() * choice_count)

    def _columns(self, eligible: Collection[str] | None) -> Sequence[int]:
        if eligible is None:
            return range(len(self.clusters))
        if not eligible:
            raise ValueError("no cluster is eligible; choose needs one or more")
        try:
            return sorted({self._index[name] for name in eligible})
        except KeyError as error:
            raise self._unknown_cluster_error(error.args[0]) from None

    def _column(self, cluster: str) -> int:
        try:
            return self._index[cluster]
        except KeyError:
            raise self._unknown_cluster_error(cluster) from None

    def _unknown_cluster_error(self, cluster: str) -> ValueError:
        return ValueError(f"unknown cluster {cluster!r}; there are {', '.join(self.clusters)}")

    def _row(self, priority: int) -> int:
        if not 1 <= priority <= self.max_priority:
            raise ValueError(f"priority is {priority}; it must be 1..{self.max_priority}")
        return priority - 1


def _work_in_units(job: Job) -> int:
    numerator, denominator = (job.estimated * job.benchmark).as_integer_ratio()
    return numerator << _SMALLEST_EXPONENT + 1 - denominator.bit_length()
