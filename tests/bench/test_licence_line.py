"""How well the line for licences uses tokens, by size within steps of patience and by arrival.

A simulation of one licence alone: whoever is leased tokens begins at once.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import pytest

from metasched.core.licences.queue import LicenceQueue
from metasched.core.tasks import TaskId
from metasched.model.licence import Lease, LicencePool
from tests.bench.conftest import Record

TOTAL, JOBS, LOAD, DRAWS = 4, 400, 0.95, 12


@dataclass(frozen=True)
class Wish:
    """A job: seconds, tokens."""

    submitted: float
    runs: float
    limit: float
    wanted: int


def batches(seed: int) -> list[Wish]:
    """Jobs in batches of 1 to 10 that want together `LOAD` of what the tokens can do."""
    drawn = random.Random(seed)
    runs = [drawn.lognormvariate(math.log(900.0), 1.0) for _ in range(JOBS)]
    wants = [drawn.randint(1, TOTAL) for _ in runs]
    span = sum(map(math.prod, zip(runs, wants, strict=True))) / (TOTAL * LOAD)
    moments: list[float] = []
    while len(moments) < JOBS:
        moments += [drawn.uniform(0.0, span)] * drawn.randint(1, 10)
    limits = [seconds * drawn.uniform(1.1, 5.0) for seconds in runs]
    return [Wish(*of) for of in zip(sorted(moments[:JOBS]), runs, limits, wants, strict=True)]


def short(seed: int) -> list[Wish]:
    """24 jobs of 10 s with one time limit that want 1, 2 or 3 tokens, two in a second."""
    wants = random.Random(seed).sample([1, 2, 3] * 8, 24)
    return [Wish(n / 2, 10.0, 120.0, wanted) for n, wanted in enumerate(wants)]


def use(wishes: list[Wish], patience: float) -> tuple[float, float]:
    """The share of the token-seconds used from the first submission to the last end; mean wait."""
    line = LicenceQueue()
    line.configure([LicencePool(name="a", total=TOTAL)], patience)
    happens: list[tuple[float, TaskId]] = [(w.submitted, (n, 0)) for n, w in enumerate(wishes)]
    heapq.heapify(happens)
    waits, now = [], 0.0
    while happens:
        now, place = heapq.heappop(happens)
        wish = wishes[place[0]]
        if place in line.leases:
            line.return_lease(place, now, was_used=True)
        else:
            line.join(place, now, {"a": wish.wanted}, wish.limit)
        while (goes := line.next_ready(now)) is not None:
            went = wishes[goes[0]]
            line.take(Lease(*goes, 1, {"a": went.wanted}, now), now + went.limit)
            heapq.heappush(happens, (now + went.runs, goes))
            waits.append(now - went.submitted)
    assert len(waits) == len(wishes)
    used = sum(wish.runs * wish.wanted for wish in wishes)
    return used / (TOTAL * (now - wishes[0].submitted)), fmean(waits)


@pytest.mark.bench
@pytest.mark.cpu
@pytest.mark.parametrize(
    ("name", "wishes"), [("400 jobs in batches", batches), ("24 jobs of 10 s", short)]
)
def test_how_well_the_line_uses_tokens(
    name: str, wishes: Callable[[int], list[Wish]], record: Record
) -> None:
    """By size within steps of 600 s of patience, beside patience 0, which is by arrival."""
    by_size, by_arrival = (
        [use(wishes(seed), patience) for seed in range(DRAWS)] for patience in (600.0, 0.0)
    )
    for index, figure, scale, unit in ((0, "tokens used", 100, "%"), (1, "mean wait", 1, "s")):
        mean, peer = (scale * fmean(run[index] for run in runs) for runs in (by_size, by_arrival))
        record(f"{name}: {figure}", mean, unit, peers={"by arrival": peer})
