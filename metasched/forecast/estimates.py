"""Estimated starts: the interval of many forward runs with drawn run times. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import zip_longest
from random import Random
from typing import NamedTuple

from metasched.forecast.forward_run import ForwardRun
from metasched.forecast.run_times import RunTimeModel
from metasched.forecast.snapshot import Snapshot
from metasched.policies.local.queueing import NEVER

DRAWS = 39  # forward runs: the 4th and the 36th of 39 starts bound 80% of the next start
MIN_DRAWS = 9  # whose first and last start bound 80% of the next
MIN_LEARNT = 100  # ended tasks, below which nothing is forecast
EARLY, MEDIAN, LATE = 0.1, 0.5, 0.9  # quantiles
NOMINAL = LATE - EARLY  # probability of the interval


class StartEstimate(NamedTuple):
    """When a task starts, in seconds of the snapshot's clock; inf: not within the forward runs."""

    early: float  # 10% quantile
    median: float
    late: float  # 90% quantile


class Estimates(NamedTuple):
    """The result of the forward runs that ended in time."""

    draws: int
    # of each entry of `Snapshot.waiting`, in order; empty for others than the targets
    tasks: tuple[tuple[StartEstimate, ...], ...]
    probes: tuple[StartEstimate, ...] = ()  # of `Snapshot.probes`, in order


def estimate_starts(
    snapshot: Snapshot,
    model: RunTimeModel,
    seed: object,
    *,
    draws: int = DRAWS,
    targets: frozenset[int] | None = None,
    max_starts: int = 10_000,
    may_begin: Callable[[], bool] = lambda: True,
    may_continue: Callable[[], bool] = lambda: True,
) -> Estimates | None:
    """Run the snapshot forward with drawn run times; estimate the start of each waiting task.

    `targets`, `max_starts` and `may_continue` are those of `ForwardRun`. After MIN_DRAWS runs no
    other begins once `may_begin` returns False. Returns None if fewer than MIN_DRAWS runs (or
    `draws`) ended before `may_continue` returned False.
    """
    starts: list[list[list[float]]] = []  # of each run
    probe_starts: list[list[float]] = []  # likewise
    for number in range(draws):
        if number >= MIN_DRAWS and not may_begin():
            break
        drawn = _DrawnTimes(snapshot, model, Random(f"{seed}/{number}"))
        run = ForwardRun(
            snapshot, drawn.end_of, drawn.run_time, targets=targets, max_starts=max_starts
        )
        if not run.run(may_continue):
            break
        starts.append(run.starts)
        probe_starts.append(run.probe_starts)
    if len(starts) < min(MIN_DRAWS, draws):
        return None
    return Estimates(
        len(starts),
        tuple(
            tuple(_summary(list(of_task)) for of_task in zip_longest(*of_runs, fillvalue=NEVER))
            if targets is None or entry in targets
            else ()
            for entry, of_runs in enumerate(zip(*starts, strict=True))
        ),
        tuple(_summary(list(of_runs)) for of_runs in zip(*probe_starts, strict=True)),
    )


def _summary(starts: list[float]) -> StartEstimate:
    starts.sort()
    return StartEstimate(*(quantile(starts, share) for share in (EARLY, MEDIAN, LATE)))


def quantile(ascending: list[float], share: float) -> float:
    """Return the value below which a further draw lies with probability `share`.

    That is the value number share * (n + 1), rounded outwards; the last or the first if there is
    none. Values are draws of one distribution: Weibull 1939.
    """
    rank = round(share * (len(ascending) + 1), 9)
    number = math.floor(rank) if share < 0.5 else math.ceil(rank)
    return ascending[min(max(number, 1), len(ascending)) - 1]


class _DrawnTimes:
    """Run times of one forward run.

    A user's jobs are alike: all end early, or all late. So a run draws one quantile for each user;
    with independent draws the errors of many jobs would cancel, and intervals be too narrow.
    """

    def __init__(self, snapshot: Snapshot, model: RunTimeModel, rng: Random) -> None:
        self._snapshot, self._model, self._rng = snapshot, model, rng
        self._shares: dict[str, float] = {}  # by user

    def end_of(self, index: int) -> float:
        task, now = self._snapshot.running[index], self._snapshot.now
        share = self._share_of(task.user)
        elapsed = now - task.start
        ratio = self._model.ratio(share, task.user, task.user_class, task.limit, elapsed)
        return max(now, task.start + ratio * task.limit)

    def run_time(self, index: int, limit: float) -> float:
        entry = self._snapshot.waiting[index]
        share = self._share_of(entry.user)
        return limit * self._model.ratio(share, entry.user, entry.user_class, limit)

    def _share_of(self, user: str) -> float:
        """Return the quantile at which the run times of a user lie; others are independent."""
        if not user:
            return self._rng.random()
        share = self._shares.get(user)
        if share is None:
            share = self._shares[user] = self._rng.random()
        return share
