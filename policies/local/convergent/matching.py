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
    `match_optimal` solves the problem anew. O(M^2) per step of a path. Of several jobs that share a
    machine it keeps one.
    """
    count = min(preferences.shape)
    job_on = {
        column: row for row, column in previous.items() if preferences[row, column] > -math.inf
    }
    kept = {row: column for column, row in job_on.items()}
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
    highest = float(preferences.max(initial=-math.inf))
    if highest == -math.inf:
        return np.full(preferences.shape, impossible)
    lowest = lower_bound(preferences)
    per_pair = min(preferences.shape) * (highest - lowest) + 1.0
    weights: FloatArray = preferences + (per_pair - lowest)
    if impossible > -math.inf:
        np.maximum(weights, impossible, out=weights)
    return weights


def lower_bound(preferences: FloatArray) -> float:
    """Return a lower bound of the possible preferences, at most 0.

    Counts take a fraction of the time of a minimum over some of the entries.
    """
    negative = np.count_nonzero(preferences < 0)
    if not negative or negative == np.count_nonzero(preferences == -math.inf):
        return 0.0
    return float(preferences.min(where=preferences > -math.inf, initial=0.0))


class _Repair:
    """A matching, and the search for the exchange that improves it most.

    A path takes over a machine with an unmatched job, or empties it; the job of that machine takes
    over the next, and so on. `reached[m]` is the greatest gain of paths that take over machine m,
    without the loss of its present pair.
    """

    def __init__(self, weights: FloatArray, pairs: Mapping[int, int]) -> None:
        """`weights` are changed."""
        self.pairs = dict(pairs)
        machines = weights.shape[1]
        self._job_on: IndexArray = np.full(machines, NONE, dtype=np.intp)
        rows = np.fromiter(pairs, np.intp, len(pairs))
        columns = np.fromiter(pairs.values(), np.intp, len(pairs))
        self._job_on[columns] = rows
        # M x M: weights of the job on a machine; -inf without a job
        self._matched = np.full((machines, machines), -math.inf)
        self._matched[columns] = weights.take(rows, axis=0)
        # of unmatched jobs; other rows are -inf
        self._outside = weights
        self._outside[rows] = -math.inf
        self._best_outside = weights.max(axis=0, initial=0.0)  # of each machine
        # weights of the pairs
        self._current = np.where(self._job_on == NONE, 0.0, self._matched.diagonal())
        # M x M: gain of the job on a machine if it takes over another; -inf without a job
        self._exchanges = self._matched - self._current[:, np.newaxis]
        np.fill_diagonal(self._exchanges, -math.inf)
        self._gains = np.empty((machines, machines))  # fresh memory costs as much as filling it

    def improve(self) -> bool | None:
        """Exchange along the best path; False: none improves, None: a cycle improves."""
        machines = len(self._job_on)
        reached = self._best_outside.copy()
        before = np.full(machines, NONE, dtype=np.intp)
        sources, exchanges = np.arange(machines), self._exchanges
        for _ in range(machines + 1):
            gains = np.add(reached[sources, np.newaxis], exchanges, out=self._gains[: len(sources)])
            values = gains.max(axis=0, initial=-math.inf)
            improved = np.flatnonzero(values > reached + _TOLERANCE)
            if not len(improved):
                break
            before[improved] = sources[gains[:, improved].argmax(axis=0)]
            reached[improved] = values[improved]
            sources = improved  # paths over other machines are known
            exchanges = self._exchanges.take(sources, axis=0)
        else:
            return None
        last = int((reached - self._current).argmax())
        if reached[last] - self._current[last] <= _TOLERANCE:
            return False
        return self._exchange(last, before)

    def _exchange(self, last: int, before: IndexArray) -> bool | None:
        """Apply the path that ends at machine `last`; None if it is a cycle."""
        path = [last]
        while before[path[-1]] != NONE:
            path.append(int(before[path[-1]]))
            if len(path) > len(before):
                return None
        first = path[-1]
        entering = int(self._outside[:, first].argmax())
        if not self._outside[entering, first] > 0:
            entering = NONE  # the machine is emptied
        displaced = int(self._job_on[last])
        if displaced != NONE:
            del self.pairs[displaced]
            weights = self._matched[last]
            self._outside[displaced] = weights
            np.maximum(self._best_outside, weights, out=self._best_outside)
        for column, source in pairwise(path):
            self._assign(int(self._job_on[source]), self._matched[source], column)
        if entering == NONE:
            self._job_on[first] = NONE
            self._current[first] = 0.0
            self._matched[first] = self._exchanges[first] = -math.inf
            return True
        self._assign(entering, self._outside[entering], first)
        self._outside[entering] = -math.inf
        lost = np.flatnonzero(self._matched[first] >= self._best_outside)
        self._best_outside[lost] = self._outside[:, lost].max(axis=0, initial=0.0)
        return True

    def _assign(self, row: int, weights: FloatArray, column: int) -> None:
        self._job_on[column] = row
        self.pairs[row] = column
        self._matched[column] = weights
        self._current[column] = weights[column]
        self._exchanges[column] = weights - weights[column]
        self._exchanges[column, column] = -math.inf
