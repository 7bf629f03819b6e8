"""Matchings of jobs (rows) and machines (columns): greedy, optimal, incremental. Pure.

A matching maximises first the number of pairs, then the sum of their preferences. Entries of -inf
are impossible pairs. Pasquali 2008, §3.2.2: MIS, MFS and IMFS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
from scipy.optimize import linear_sum_assignment

from metasched.policies.local.convergent.table import NONE, FloatArray, IndexArray

Pairs = dict[int, int]  # machine by job
# From the matrix and the pairs of the last plan: the new pairs.
Matcher = Callable[[FloatArray, Mapping[int, int]], Pairs]
CHANGED_SHARE = 8  # a repair of more than 1 / CHANGED_SHARE of the pairs costs more than a new plan
_TOLERANCE = 1e-6  # of a gain


def match_greedy(preferences: FloatArray, previous: Mapping[int, int]) -> Pairs:
    """Take the greatest entry whose job and machine are free, and repeat: MIS.

    O(N M log N M). It may have fewer pairs than the optimum.
    """
    positions = np.flatnonzero(preferences > -math.inf)
    order = positions[np.argsort(-preferences.ravel()[positions], kind="stable")]
    rows, columns = np.unravel_index(order, preferences.shape)
    pairs: Pairs = {}
    taken = set[int]()
    limit = min(preferences.shape)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        if row not in pairs and column not in taken:
            pairs[row] = column
            taken.add(column)
            if len(pairs) == limit:
                break
    return pairs


def match_optimal(preferences: FloatArray, previous: Mapping[int, int]) -> Pairs:
    """Solve the assignment problem with SciPy, in place of MFS. At most O(N M min(N, M))."""
    rows, columns = linear_sum_assignment(_weights(preferences, 0.0), maximize=True)
    possible = preferences[rows, columns] > -math.inf
    return dict(zip(rows[possible].tolist(), columns[possible].tolist(), strict=True))


def match_incremental(preferences: FloatArray, previous: Mapping[int, int]) -> Pairs:
    """Repair the pairs of the last plan by exchanges along longest paths, as IMFS does.

    Unlike IMFS the result is an optimum: paths start at every machine, so that a matching that no
    path improves is optimal; and if a cycle of exchanges improves it, or if much has changed,
    `match_optimal` solves the problem anew. O(M^2) per step of a path.
    """
    count = min(preferences.shape)
    kept = {row: column for row, column in previous.items() if preferences[row, column] > -math.inf}
    limit = max(count // CHANGED_SHARE, 1)
    if count - len(kept) > limit:
        return match_optimal(preferences, previous)
    repaired = _Repair(_weights(preferences, -math.inf), kept)
    for _ in range(2 * limit):
        gain = repaired.improve()
        if gain is None:
            break
        if not gain:
            return repaired.pairs
    return match_optimal(preferences, previous)


MATCHERS: dict[str, Matcher] = {
    "greedy": match_greedy,
    "optimal": match_optimal,
    "incremental": match_incremental,
}


def _weights(preferences: FloatArray, impossible: float) -> FloatArray:
    """Return weights whose greatest sum has the most pairs, then the greatest preferences."""
    possible = preferences > -math.inf
    if not possible.any():
        return np.full(preferences.shape, impossible)
    lowest = preferences.min(where=possible, initial=math.inf)
    highest = preferences.max()
    per_pair = min(preferences.shape) * (highest - lowest) + 1.0
    return np.where(possible, preferences + (per_pair - lowest), impossible)


class _Repair:
    """A matching, and the search for the exchange that improves it most.

    A path takes over a machine with an unmatched job, or empties it; the job of that machine takes
    over the next, and so on. `reached[m]` is the greatest gain of paths that take over machine m,
    without the loss of its present pair.
    """

    def __init__(self, weights: FloatArray, pairs: Mapping[int, int]) -> None:
        self._weights, self.pairs = weights, dict(pairs)
        self._job_on: IndexArray = np.full(weights.shape[1], NONE, dtype=np.intp)
        for row, column in pairs.items():
            self._job_on[column] = row

    def improve(self) -> bool | None:
        """Exchange along the best path; False: none improves, None: a cycle improves."""
        weights, job_on = self._weights, self._job_on
        machines = weights.shape[1]
        occupied = np.flatnonzero(job_on != NONE)
        jobs = job_on[occupied]
        waiting = np.ones(len(weights), dtype=bool)
        waiting[jobs] = False
        rows = np.flatnonzero(waiting)
        reached, first = np.zeros(machines), np.full(machines, NONE, dtype=np.intp)
        if len(rows):
            outside = weights if len(rows) == len(weights) else weights[rows]
            best = outside.argmax(axis=0)
            values = outside[best, np.arange(machines)]
            first = np.where(values > 0, rows[best], NONE)
            reached = np.maximum(values, 0.0)
        current = np.zeros(machines)
        current[occupied] = weights[jobs, occupied]
        before = np.full(machines, NONE, dtype=np.intp)
        exchanges = weights[jobs] - current[occupied, np.newaxis]
        exchanges[np.arange(len(occupied)), occupied] = -math.inf
        for _ in range(machines + 1):
            if not len(occupied):
                break
            gains = reached[occupied, np.newaxis] + exchanges
            sources = gains.argmax(axis=0)
            values = gains[sources, np.arange(machines)]
            improved = values > reached + _TOLERANCE
            if not improved.any():
                break
            reached = np.where(improved, values, reached)
            before = np.where(improved, occupied[sources], before)
        else:
            return None
        last = int((reached - current).argmax())
        if reached[last] - current[last] <= _TOLERANCE:
            return False
        return self._exchange(last, first, before)

    def _exchange(self, last: int, first: IndexArray, before: IndexArray) -> bool | None:
        """Apply the path that ends at machine `last`; None if it is a cycle."""
        path = [last]
        while before[path[-1]] != NONE:
            path.append(int(before[path[-1]]))
            if len(path) > len(before):
                return None
        displaced = int(self._job_on[last])
        if displaced != NONE:
            del self.pairs[displaced]
        for column, source in pairwise(path):
            self._assign(int(self._job_on[source]), column)
        self._assign(int(first[path[-1]]), path[-1])
        return True

    def _assign(self, row: int, column: int) -> None:
        self._job_on[column] = row
        if row != NONE:
            self.pairs[row] = column
