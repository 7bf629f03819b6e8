"""Heuristics of the job x machine matrix: the seven of Pasquali 2008, §3.2.2. Pure.

Each adds a contribution to the preference of a job for a machine. A site adds its own as a
subclass of `MatrixHeuristic`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from metasched.policies.local.convergent.table import NONE, FloatArray, JobMachineView
from metasched.policies.local.convergent.weights import ConvergentWeights


class MatrixHeuristic(ABC):
    """A contribution to the preferences; it keeps no state."""

    name: ClassVar[str]

    @abstractmethod
    def contribution(self, view: JobMachineView) -> FloatArray:
        """Return an array that broadcasts to N x C; -inf forbids a pair, NaN is not allowed."""


class MinimalRequirements(MatrixHeuristic):
    """Forbid the pairs that cannot run; these machines are `M_aff` of the other heuristics."""

    name = "minimal-requirements"

    def contribution(self, view: JobMachineView) -> FloatArray:
        return np.where(view.run_times < math.inf, 0.0, -math.inf)


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

    def contribution(self, view: JobMachineView) -> FloatArray:
        weights = self._weights
        slack = view.now - view.deadlines  # -inf without a deadline
        result = np.where(np.isfinite(view.deadlines), weights.least, 0.0)[:, np.newaxis]
        # else every machine misses the deadline, or it is far for all: `least` for each
        active = (slack <= -view.shortest) & (slack > -(1 + weights.lead) * view.longest)
        rows = np.flatnonzero(active)
        if not len(rows):
            return result
        contributions = np.broadcast_to(result, view.shape).copy()
        inverse = view.queue_inverse[view.rows[rows]]  # the sums are over all machines of the job
        x = slack[rows, np.newaxis] * inverse
        possible, meets = inverse > 0, x <= -1
        rise = np.clip((x + 1 + weights.lead) / weights.lead, 0.0, 1.0)
        urgency = weights.least + (weights.most - weights.least) * np.where(meets, rise, 0.0)
        total = np.where(possible, urgency, 0.0).sum(axis=1, keepdims=True)
        sharing = possible & meets if weights.late == "none" else possible
        shares = np.where(sharing, weights.most - urgency, 0.0)
        sums = shares.sum(axis=1, keepdims=True)
        equal = sharing / sharing.sum(axis=1, keepdims=True)
        parts = np.where(sums > 0, shares / np.where(sums > 0, sums, 1.0), equal)
        contributions[rows] = (total * parts)[:, view.machines]
        return contributions


class LicenceDemand(MatrixHeuristic):
    """Preference for jobs that ask for licences in demand: `w(i) / max w`, times the weight.

    w sums rho over the licences of a job; that of a critical licence (rho > 1) counts |L| times.
    """

    name = "licences"

    def __init__(self, weights: ConvergentWeights) -> None:
        self._weight = weights.licence

    def contribution(self, view: JobMachineView) -> FloatArray:
        values: FloatArray = np.where(view.rho > 1, len(view.rho) * view.rho, view.rho)
        highest = float(((view.queue_requests > 0) @ values).max(initial=0.0))
        scale = self._weight / highest if highest > 0 else 0.0
        demand: FloatArray = (view.queue_requests[view.rows] > 0) @ values
        contributions: FloatArray = scale * demand[:, np.newaxis]
        return contributions


class InputTransfer(MatrixHeuristic):
    """Preference for machines to which little input has to be brought."""

    name = "input"

    def __init__(self, weights: ConvergentWeights) -> None:
        self._weight = weights.input

    def contribution(self, view: JobMachineView) -> FloatArray:
        if view.queue_nearness is None:
            return np.zeros((1, 1))
        nearness = view.queue_nearness.take(view.rows, axis=0)
        contributions: FloatArray = nearness.take(view.machines, axis=1)
        contributions *= self._weight
        return contributions


class WaitMinimisation(MatrixHeuristic):
    """Preference for short run times, relative to the longest of all jobs and machines.

    Ours: the thesis takes the longest of the job itself, which cannot favour short jobs.
    """

    name = "wait-minimisation"

    def __init__(self, weights: ConvergentWeights) -> None:
        self._weight = weights.shortness

    def contribution(self, view: JobMachineView) -> FloatArray:
        longest = view.longest_of_queue
        if not (self._weight and longest):
            return np.zeros((1, 1))
        contributions: FloatArray = view.run_times * (-self._weight / longest)
        contributions += self._weight
        return contributions


class OverheadMinimisation(MatrixHeuristic):
    """Preference of a running job for its machine, against moves and suspensions."""

    name = "overhead-minimisation"

    def __init__(self, weights: ConvergentWeights) -> None:
        self._weight = weights.overhead

    def contribution(self, view: JobMachineView) -> FloatArray:
        running = np.flatnonzero(view.current != NONE)
        if not len(running):
            return np.zeros((1, 1))
        contributions = np.zeros(view.shape)
        contributions[running, view.current[running]] = self._weight
        return contributions


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


def sum_contributions(heuristics: Sequence[MatrixHeuristic], view: JobMachineView) -> FloatArray:
    """Return the matrix, N x C, -inf where a pair is impossible.

    ValueError if a heuristic returns NaN.
    """
    matrix: FloatArray = np.zeros(view.shape)
    # contributions without regard to machines: one addition
    vector: FloatArray = np.zeros((len(matrix), 1))
    for heuristic in heuristics:
        contribution = heuristic.contribution(view)
        if contribution.shape[1] == 1:
            vector = vector + contribution
        else:
            matrix += contribution
    matrix += vector
    if np.isnan(matrix).any():
        causes = [h.name for h in heuristics if np.isnan(h.contribution(view)).any()]
        raise ValueError(f"NaN from heuristic {', '.join(causes)}; correct its contribution")
    return matrix
