"""The licence queue: its use of tokens, and its decision times beside a check of every task.

Only licences are simulated: a task starts as soon as it has its tokens.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean, quantiles

import pytest

from metasched.core.licences.queue import LicenceQueue
from metasched.core.tasks import TaskId
from metasched.model.licence import Lease, LicencePool
from tests.bench.conftest import Record

TOTAL, JOBS, LOAD, DRAWS = 4, 400, 0.95, 12
POOLS, WAITING, RETURNS, PEER_RETURNS = 200, 10_000, 400, 40


@dataclass(frozen=True)
class TokenRequest:
    """A job; times in seconds."""

    submitted: float
    runs: float
    limit: float
    tokens: int


def batches(seed: int) -> list[TokenRequest]:
    """Return jobs in batches of 1 to 10 that request `LOAD` of the token capacity."""
    drawn = random.Random(seed)
    runs = [drawn.lognormvariate(math.log(900.0), 1.0) for _ in range(JOBS)]
    tokens = [drawn.randint(1, TOTAL) for _ in runs]
    span = sum(map(math.prod, zip(runs, tokens, strict=True))) / (TOTAL * LOAD)
    moments: list[float] = []
    while len(moments) < JOBS:
        moments += [drawn.uniform(0.0, span)] * drawn.randint(1, 10)
    limits = [seconds * drawn.uniform(1.1, 5.0) for seconds in runs]
    return [
        TokenRequest(*of) for of in zip(sorted(moments[:JOBS]), runs, limits, tokens, strict=True)
    ]


def short(seed: int) -> list[TokenRequest]:
    """Return 24 jobs of 10 s that request 1, 2 or 3 tokens, submitted two per second."""
    tokens = random.Random(seed).sample([1, 2, 3] * 8, 24)
    return [TokenRequest(n / 2, 10.0, 120.0, requested) for n, requested in enumerate(tokens)]


def use(requests: list[TokenRequest], patience: float) -> tuple[float, float]:
    """Return the share of token-seconds used until the last end, and the mean wait."""
    line = LicenceQueue()
    line.configure([LicencePool(name="a", total=TOTAL)], patience)
    happens: list[tuple[float, TaskId]] = [(w.submitted, (n, 0)) for n, w in enumerate(requests)]
    heapq.heapify(happens)
    waits, now = [], 0.0
    while happens:
        now, task_id = heapq.heappop(happens)
        request = requests[task_id[0]]
        if task_id in line.leases:
            line.return_lease(task_id, now, was_used=True)
        else:
            line.join(task_id, now, {"a": request.tokens}, request.limit)
        while (goes := line.next_ready(now)) is not None:
            went = requests[goes[0]]
            line.take(Lease(*goes, 1, {"a": went.tokens}, now), now + went.limit)
            heapq.heappush(happens, (now + went.runs, goes))
            waits.append(now - went.submitted)
    assert len(waits) == len(requests)
    used = sum(request.runs * request.tokens for request in requests)
    return used / (TOTAL * (now - requests[0].submitted)), fmean(waits)


@pytest.mark.bench
@pytest.mark.cpu
@pytest.mark.parametrize(
    ("name", "requests"), [("400 jobs in batches", batches), ("24 jobs of 10 s", short)]
)
def test_how_well_the_line_uses_tokens(
    name: str, requests: Callable[[int], list[TokenRequest]], record: Record
) -> None:
    """Patience 600 s orders by size within steps of 600 s; patience 0 orders by arrival."""
    by_size, by_arrival = (
        [use(requests(seed), patience) for seed in range(DRAWS)] for patience in (600.0, 0.0)
    )
    for index, figure, scale, unit in ((0, "tokens used", 100, "%"), (1, "mean wait", 1, "s")):
        mean, peer = (scale * fmean(run[index] for run in runs) for runs in (by_size, by_arrival))
        record(f"{name}: {figure}", mean, unit, peers={"by arrival": peer})


class TaskByTask(LicenceQueue):
    """The same rule without groups: after each change, check every waiting task in order."""

    def next_ready(self, now: float) -> TaskId | None:
        if self.settled(now):
            return None
        queue_keys = [
            (key, group)
            for groups in self._groups.values()
            for group in groups.values()
            for line in group.lines.values()
            for key in line.queue_keys.values()
        ]
        for key, group in sorted(queue_keys, key=itemgetter(0)):
            if all(
                self.lookahead.may_take(self._state.pools[name], count, key, group.terms, now)
                for name, count in group.requested.items()
            ):
                return key[3:]
        self._checked_version, self._checked_at, self._next_change = self._state.version, now, now
        return None


def decision_times(
    queue: LicenceQueue, requests: int, returns: int
) -> tuple[list[float], list[TaskId]]:
    """Return the CPU seconds of each decision after a return, and the tasks in start order.

    `requests` is the number of distinct requests, 0: every request is drawn anew.
    """
    draws = random.Random(1)
    names = [f"l{n}" for n in range(POOLS)]
    queue.configure([LicencePool(name=name, total=8) for name in names], 600.0)

    def draw() -> tuple[dict[str, int], float]:
        tokens = {name: draws.randint(1, 8) for name in draws.sample(names, draws.randint(1, 3))}
        return tokens, draws.lognormvariate(7, 1.5)

    distinct = [draw() for _ in range(requests)]
    jobs = [draws.choice(distinct) if distinct else draw() for _ in range(WAITING + RETURNS)]
    started: list[TaskId] = []
    held: list[TaskId] = []

    def settle(now: float) -> list[float]:
        times = []
        while True:
            begin = time.thread_time()
            task_id = queue.next_ready(now)
            if task_id is not None:
                requested, limit = jobs[task_id[0]]
                queue.take(Lease(*task_id, 1, requested, now), now + limit)
                held.append(task_id)
                started.append(task_id)
            times.append(time.thread_time() - begin)
            if task_id is None:
                return times

    for job in range(WAITING):
        queue.join((job, 0), float(job), *jobs[job])
    settle(0.0)
    times = []
    for turn in range(returns):
        begin = time.thread_time()
        queue.return_lease(held.pop(draws.randrange(len(held))), float(turn), was_used=True)
        spent = time.thread_time() - begin
        first, *later = settle(float(turn))
        times += [spent + first, *later]
        queue.join((WAITING + turn, 0), float(WAITING + turn), *jobs[WAITING + turn])
        settle(float(turn))
    return times, started


@pytest.mark.bench
@pytest.mark.cpu
@pytest.mark.parametrize(
    ("requests", "target"), [(1000, "under 1 ms"), (0, "under 3 ms")], ids=["1000", "0"]
)
def test_a_decision_beside_a_check_of_every_task(
    requests: int, target: str, record: Record
) -> None:
    """Many tasks wait; whenever a lease ends, all tasks that fit start."""
    times, order = decision_times(LicenceQueue(), requests, RETURNS)
    peer_times, peer_order = decision_times(TaskByTask(), requests, PEER_RETURNS)
    assert order[: len(peer_order)] == peer_order
    distinct = f"with {requests:,} distinct" if requests else "with different"
    for percent in (50, 99):
        p, peer = (quantiles(t, n=100)[percent - 1] * 1e3 for t in (times, peer_times))
        record(
            f"a decision, {WAITING:,} tasks wait {distinct} requests: p{percent}",
            p,
            "ms of CPU",
            peers={"task by task": peer},
            target=target,
        )
