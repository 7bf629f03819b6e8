"""Preferences of jobs for machines in a pass; rows are computed when they are needed. Pure."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from metasched.policies.local.convergent.matching import lower_bound
from metasched.policies.local.convergent.table import NONE, FloatArray, IndexArray


class Preferences(Protocol):
    """The job x machine matrix of a pass, N x C; -inf: an impossible pair."""

    @property
    def means(self) -> FloatArray:
        """Mean preference of each job for the machines that can run it, N; -inf: there is none."""
        ...

    def take(self, positions: IndexArray, out: FloatArray | None = None) -> FloatArray:
        """Return some rows, in `out` if that is given."""
        ...


class MatrixPreferences:
    """Preferences that are all known. The matrix is kept, not copied."""

    def __init__(self, matrix: FloatArray) -> None:
        self._matrix = matrix
        self.means = mean_of_possible(matrix)

    def take(self, positions: IndexArray, out: FloatArray | None = None) -> FloatArray:
        # without the mode `out` would be filled by way of another array
        return np.take(self._matrix, positions, axis=0, out=out, mode="clip")


class SummedPreferences:
    """Preferences for all machines: those in the table, plus a number for each job.

    Most jobs of a pass are not chosen, and for most of them only what disregards machines has
    changed. Neither their rows nor the means of these are summed again. Jobs with other changes
    have rows of their own.
    """

    def __init__(
        self, lasting: FloatArray, means: FloatArray, rows: IndexArray, per_job: FloatArray
    ) -> None:
        """`lasting` sums (Q x M) and their means (Q), of N `rows`; `per_job`: N x 1."""
        self._lasting, self._rows, self._per_job = lasting, rows, per_job
        self.means = means[rows] + per_job[:, 0]
        self._own_row = np.full(len(rows), NONE, dtype=np.intp)
        self._own_values = np.empty((0, lasting.shape[1]))

    def replace(self, positions: IndexArray, values: FloatArray) -> None:
        """Give jobs rows of their own, which are kept and not copied."""
        self._own_row[positions] = np.arange(len(positions))
        self._own_values = values
        self.means[positions] = mean_of_possible(values)

    def take(self, positions: IndexArray, out: FloatArray | None = None) -> FloatArray:
        matrix = np.take(self._lasting, self._rows[positions], axis=0, out=out, mode="clip")
        matrix += self._per_job[positions]
        own_rows = self._own_row[positions]
        replaced = np.flatnonzero(own_rows != NONE)
        matrix[replaced] = self._own_values[own_rows[replaced]]
        return matrix


def mean_of_possible(preferences: FloatArray) -> FloatArray:
    """Return the mean of the possible preferences of each row; -inf if there is none.

    By a sum over all entries, which takes a fraction of the time of a sum over some of them.
    """
    counts = np.count_nonzero(preferences > -math.inf, axis=1)
    lowest = lower_bound(preferences)
    sums = np.maximum(preferences, lowest).sum(axis=1)
    sums -= lowest * (preferences.shape[1] - counts)
    means = np.full(len(preferences), -math.inf)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means
