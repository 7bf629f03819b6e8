"""Heuristics of the job x machine matrix: the seven of Pasquali 2008, §3.2.2. Pure.

Each adds a contribution to the preference of a job for a machine. A site adds its own as a
subclass of `MatrixHeuristic`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from metasched.policies.local.convergent.table import (
    NONE,
    FloatArray,
    IndexArray,
    JobMachineView,
    take_pairs,
)
from metasched.policies.local.convergent.weights import ConvergentWeights

_LONGEST = float(np.finfo(np.float64).max)  # seconds


class RowContributions(NamedTuple):
    """Contributions of which only some jobs have different values for different machines."""

    per_job: FloatArray  # N x 1
    rows: IndexArray  # R: those jobs, positions in the view
    values: FloatArray  # R x C, added to `per_job`

    def dense(self, shape: tuple[int, int]) -> FloatArray:
        """Return all contributions, N x C."""
        array = np.broadcast_to(self.per_job, shape).copy()
        array[self.rows] += self.values
        return array


Contribution = FloatArray | RowContributions


class MatrixHeuristic(ABC):
    """A contribution to the preferences; it keeps no state."""

    name: ClassVar[str]
    lasting: ClassVar[bool] = False
    """Whether a contribution depends on the run times and the input of its own job alone, and on
    `longest_of_queue`: that of a waiting job is not computed again while this is the same."""

    @abstractmethod
    def contribution(self, view: JobMachineView) -> Contribution:
        """Return an array that broadcasts to N x C; -inf forbids a pair, NaN is not allowed."""


class MinimalRequirements(MatrixHeuristic):
    """Forbid the pairs that cannot run; these machines are `M_aff` of the other heuristics."""

    name = "minimal-requirements"
    lasting = True

    def contribution(self, view: JobMachineView) -> FloatArray:
        # a fraction of the time of np.where
        forbidden = _LONGEST - view.run_times
        return np.minimum(forbidden, 0.0, out=forbidden)


class DeadlineUrgency(MatrixHeuristic):
    """Urgency of the deadline, shared among the machines: the more it helps, the larger.

    With x = (now - deadline) / run time, the urgency f is `least` while x <= -(1 + lead), rises to
    `most` at x = -1, and is `least` after it, when the machine misses the deadline: f1 of the
    thesis. The sum of f over all machines of the job is divided in proportion to `most - f`,
    (3.10). Ours: a machine that misses the deadline has no share while another meets it. Equal
    shares if all are 0. 0 without a deadline.
    """

    name = "deadline"

    def __init__(self, weights: ConvergentWeights) -> None:
        self._weights = weights

    def contribution(self, view: JobMachineView) -> RowContributions:
        weights = self._weights
        slack = view.now - view.deadlines  # -inf without a deadline
        result = np.where(np.isfinite(view.deadlines), weights.least, 0.0)[:, np.newaxis]
        # else every machine misses the deadline, or it is far for all: `least` for each
        active = (slack <= -view.shortest) & (slack > -(1 + weights.lead) * view.longest)
        rows = np.flatnonzero(active)
        if not len(rows):
            return RowContributions(result, rows, np.empty((0, len(view.machines))))
        # the sums are over all machines of the job; in place, by products and without masks, which
        # takes a fraction of the time of new arrays and of np.where
        inverse = 1 / view.queue_run_times.take(view.rows[rows], axis=0)
        left = view.left[rows]
        started = np.flatnonzero(left != 1)
        inverse[started] /= left[started, np.newaxis]
        x = slack[rows, np.newaxis] * inverse
        possible, meets = np.sign(inverse), (x <= -1).astype(float)  # 0 or 1
        x += 1 + weights.lead
        x /= weights.lead
        urgency = np.minimum(np.maximum(x, 0.0, out=x), 1.0, out=x)
        urgency *= meets
        urgency *= weights.most - weights.least
        urgency += weights.least
        total = (urgency * possible).sum(axis=1, keepdims=True)
        sharing = meets if weights.late == "none" else possible
        parts = weights.most - urgency
        parts *= sharing
        sums = parts.sum(axis=1, keepdims=True)
        equal = np.flatnonzero(sums == 0)
        # by rounding even the fastest machine may miss a deadline that it just meets
        any_shares = sharing[equal].any(axis=1, keepdims=True)
        parts[equal] = np.where(any_shares, sharing[equal], possible[equal])
        sums[equal] = parts[equal].sum(axis=1, keepdims=True)
        parts *= total / sums
        if len(view.machines) < parts.shape[1]:
            parts = parts[:, view.machines]
        result[rows] = 0.0
        return RowContributions(result, rows, parts)


class LicenceDemand(MatrixHeuristic):
    """Preference for jobs that ask for licences in demand: `w(i) / max w`, times the weight.

    w sums rho over the licences of a job; that of a critical licence (rho > 1) counts |L| times.
    """

    name = "licences"

    def __init__(self, weights: ConvergentWeights) -> None:
        self._weight = weights.licence

    def contribution(self, view: JobMachineView) -> FloatArray:
        values: FloatArray = np.where(view.rho > 1, len(view.rho) * view.rho, view.rho)
        demand: FloatArray = np.minimum(view.queue_requests, 1.0) @ values
        highest = float(demand.max(initial=0.0))
        scale = self._weight / highest if highest > 0 else 0.0
        contributions: FloatArray = scale * demand[view.rows, np.newaxis]
        return contributions


class InputTransfer(MatrixHeuristic):
    """Preference for machines to which little input has to be brought."""

    name = "input"
    lasting = True

    def __init__(self, weights: ConvergentWeights) -> None:
        self._weight = weights.input

    def contribution(self, view: JobMachineView) -> FloatArray:
        if view.queue_nearness is None:
            return np.zeros((1, 1))
        nearness = take_pairs(view.queue_nearness, view.rows, view.machines)
        contributions: FloatArray = nearness * self._weight
        return contributions


class WaitMinimisation(MatrixHeuristic):
    """Preference for short run times, relative to the longest of all jobs and machines.

    Ours: the thesis takes the longest of the job itself (`longest` is "job"), which cannot favour
    short jobs.
    """

    name = "wait-minimisation"
    lasting = True

    def __init__(self, weights: ConvergentWeights) -> None:
        self._weight, self._own_longest = weights.shortness, weights.longest == "job"

    def contribution(self, view: JobMachineView) -> FloatArray:
        if not (self._weight and view.longest_of_queue):
            return np.zeros((1, 1))
        longest: float | FloatArray = view.longest_of_queue
        if self._own_longest:
            longest = np.where(view.longest > 0, view.longest, 1.0)[:, np.newaxis]
        contributions: FloatArray = view.run_times * (-self._weight / longest)
        contributions += self._weight
        return contributions


class OverheadMinimisation(MatrixHeuristic):
    """Preference of a running job for its machine, against moves and suspensions."""

    name = "overhead-minimisation"

    def __init__(self, weights: ConvergentWeights) -> None:
        self._weight = weights.overhead

    def contribution(self, view: JobMachineView) -> RowContributions:
        running = np.flatnonzero(view.current != NONE)
        contributions = np.zeros((len(running), len(view.machines)))
        contributions[np.arange(len(running)), view.current[running]] = self._weight
        return RowContributions(np.zeros((1, 1)), running, contributions)


class AntiAging(MatrixHeuristic):
    """Preference in proportion to the time since the submission."""

    name = "anti-aging"

    def __init__(self, weights: ConvergentWeights) -> None:
        self._factor = weights.age_factor

    def contribution(self, view: JobMachineView) -> FloatArray:
        contributions: FloatArray = self._factor * (view.now - view.submitted)[:, np.newaxis]
        return contributions


def default_heuristics(weights: ConvergentWeights) -> tuple[MatrixHeuristic, ...]:
    """Return the seven heuristics of the thesis."""
    return (
        MinimalRequirements(),
        DeadlineUrgency(weights),
        LicenceDemand(weights),
        InputTransfer(weights),
        WaitMinimisation(weights),
        OverheadMinimisation(weights),
        AntiAging(weights),
    )


class Contributions(NamedTuple):
    """The contributions of several heuristics to the preferences of N jobs for C machines."""

    per_job: FloatArray  # N x 1: the sum of those without regard to machines
    of_rows: list[RowContributions]  # without their `per_job`
    others: list[FloatArray]  # N x C

    def add_to(self, matrix: FloatArray) -> FloatArray:
        """Add all to the matrix in place; return it."""
        for contribution in self.of_rows:
            if len(contribution.rows):
                matrix[contribution.rows] += contribution.values
        for others in self.others:
            matrix += others
        if self.per_job.any():
            matrix += self.per_job
        return matrix


def collect_contributions(
    heuristics: Sequence[MatrixHeuristic], view: JobMachineView
) -> Contributions:
    """Return the contributions of all heuristics."""
    result = Contributions(np.zeros((view.shape[0], 1)), [], [])
    for heuristic in heuristics:
        contribution = heuristic.contribution(view)
        if isinstance(contribution, RowContributions):
            result.of_rows.append(contribution)
            contribution = contribution.per_job
        if contribution.shape[1] == 1:
            result.per_job[:] += contribution
        else:
            result.others.append(contribution)
    return result


def check_numbers(
    matrix: FloatArray, heuristics: Sequence[MatrixHeuristic], view: JobMachineView
) -> None:
    """Raise ValueError, which names the heuristics, if a preference is NaN."""
    if np.isnan(matrix).any():
        causes = [each.name for each in heuristics if _has_nan(each.contribution(view))]
        raise ValueError(f"NaN from heuristic {', '.join(causes)}; correct its contribution")


def _has_nan(contribution: Contribution) -> bool:
    parts = contribution if isinstance(contribution, RowContributions) else (contribution,)
    return any(bool(np.isnan(part).any()) for part in parts)
