"""Local policies against slow second implementations, and the promises that they keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.policies.local.backfilling import backfill
from metasched.policies.local.capacity import make_capacity
from metasched.policies.local.flexible_backfilling import (
    FlexibleBackfilling,
    UnmodifiedFlexibleBackfilling,
)
from metasched.policies.local.orders import EASY, FCFS
from metasched.policies.local.queueing import (
    FreeResources,
    JobStart,
    LocalPolicy,
    RunningJob,
    WaitingJob,
)

CPUS, MEMORY, GPUS = 8, 20, 2
AMOUNTS = {"cpus": CPUS, "memory": MEMORY, "gpu": GPUS}


@dataclass(frozen=True)
class Plan:
    """A job of the simulated cluster: what it asks for, and how long it really runs."""

    submitted: float
    waiting: WaitingJob
    runs: float


def needs(job: WaitingJob | RunningJob) -> dict[str, int]:
    return {"cpus": job.cpus, **job.resources}


counts = st.fixed_dictionaries(
    {}, optional={"memory": st.integers(1, MEMORY), "gpu": st.integers(1, GPUS)}
)
seconds = st.integers(1, 30).map(float)
cpus = st.integers(1, CPUS)


@st.composite
def plans(draw: st.DrawFn, exact: bool = False) -> list[Plan]:
    found = []
    for number in range(draw(st.integers(1, 14))):
        waiting = WaitingJob(number, draw(cpus), draw(seconds), draw(counts))
        runs = waiting.estimated if exact else draw(seconds)
        found.append(Plan(float(draw(st.integers(0, 40))), waiting, runs))
    return sorted(found, key=lambda plan: (plan.submitted, plan.waiting.id))


def naive_earliest(
    job: WaitingJob, held: Sequence[tuple[float, dict[str, int]]], now: float
) -> tuple[float, dict[str, int]]:
    """When all needs of the job fit and what is left over then, by trying every end in turn."""
    for moment in sorted({now, *(end for end, _ in held)}):
        used = [amounts for end, amounts in held if end > moment]
        left = {
            name: total - sum(amounts.get(name, 0) for amounts in used) - needs(job).get(name, 0)
            for name, total in AMOUNTS.items()
        }
        if min(left.values()) >= 0:
            return moment, left
    raise AssertionError("a job of this test fits an empty cluster")


def naive_easy(now: float, queue: Sequence[WaitingJob], running: Sequence[RunningJob]) -> list[int]:
    held = [(r.end if r.end > now else now + 1, needs(r)) for r in running]
    chosen: list[int] = []
    waiting = list(queue)
    while waiting and naive_earliest(waiting[0], held, now)[0] == now:
        job = waiting.pop(0)
        held.append((now + job.estimated, needs(job)))
        chosen.append(job.id)
    if not waiting:
        return chosen
    head = waiting.pop(0)
    shadow, extra = naive_earliest(head, held, now)
    for job in waiting:
        fits = naive_earliest(job, held, now)[0] == now
        ends_in_time = now + job.estimated <= shadow
        spares_the_head = all(
            amount <= extra[name]
            for name, amount in needs(job).items()
            if needs(head).get(name, 0) > 0
        )
        if fits and (ends_in_time or spares_the_head):
            held.append((now + job.estimated, needs(job)))
            chosen.append(job.id)
            if not ends_in_time:
                extra = {name: left - needs(job).get(name, 0) for name, left in extra.items()}
    return chosen


@st.composite
def moments(draw: st.DrawFn) -> tuple[list[WaitingJob], list[RunningJob], FreeResources]:
    """A queue, and running jobs that together fit the cluster."""
    free = dict(AMOUNTS)
    running = []
    for number in range(draw(st.integers(0, 6))):
        job = RunningJob(100 + number, draw(cpus), float(draw(st.integers(90, 130))), draw(counts))
        if all(amount <= free[name] for name, amount in needs(job).items()):
            free = {name: left - needs(job).get(name, 0) for name, left in free.items()}
            running.append(job)
    queue = [
        WaitingJob(number, draw(cpus), draw(seconds), draw(counts))
        for number in range(draw(st.integers(0, 8)))
    ]
    left = {name: amount for name, amount in free.items() if name != "cpus"}
    return queue, running, FreeResources(free["cpus"], left)


@given(moments())
def test_easy_agrees_with_a_naive_implementation(
    moment: tuple[list[WaitingJob], list[RunningJob], FreeResources],
) -> None:
    queue, running, free = moment
    chosen = [start.id for start in EASY().choose_starts(100.0, queue, running, free)]
    assert chosen == naive_easy(100.0, queue, running)


@given(moments())
def test_fcfs_starts_the_longest_beginning_of_the_queue_that_fits(
    moment: tuple[list[WaitingJob], list[RunningJob], FreeResources],
) -> None:
    queue, running, free = moment
    left = {"cpus": free.cpus, **free.resources}
    fitting = 0
    for length in range(1, len(queue) + 1):
        sums = {name: sum(needs(j).get(name, 0) for j in queue[:length]) for name in left}
        if all(sums[name] <= left[name] for name in left):
            fitting = length
    chosen = [start.id for start in FCFS().choose_starts(100.0, queue, running, free)]
    assert chosen == [job.id for job in queue[:fitting]]


def simulate(policy: LocalPolicy, jobs: list[Plan]) -> tuple[dict[int, float], dict[int, float]]:
    """(start of each job, the first promise made to each that ever was the blocked head)."""
    waiting: list[Plan] = []
    running: dict[int, tuple[float, Plan]] = {}
    starts: dict[int, float] = {}
    promises: dict[int, float] = {}
    ahead = list(jobs)
    while ahead or waiting or running:
        events = [plan.submitted for plan in ahead[:1]]
        events += [start + plan.runs for start, plan in running.values()]
        now = min(events)
        running = {n: (s, plan) for n, (s, plan) in running.items() if s + plan.runs > now}
        while ahead and ahead[0].submitted <= now:
            waiting.append(ahead.pop(0))
        views = [
            RunningJob(n, p.waiting.cpus, s + p.waiting.estimated, p.waiting.resources)
            for n, (s, p) in running.items()
        ]
        free = {
            name: total - sum(needs(view).get(name, 0) for view in views)
            for name, total in AMOUNTS.items()
        }
        counted = {name: amount for name, amount in free.items() if name != "cpus"}
        queue = [plan.waiting for plan in waiting]
        begun = policy.choose_starts(now, queue, views, FreeResources(free["cpus"], counted))
        chosen = [start.id for start in begun]
        assert len(set(chosen)) == len(chosen)
        for plan in [plan for plan in waiting if plan.waiting.id in chosen]:
            waiting.remove(plan)
            running[plan.waiting.id] = now, plan
            starts[plan.waiting.id] = now
        for name, total in AMOUNTS.items():
            used = sum(needs(plan.waiting).get(name, 0) for _, plan in running.values())
            assert used <= total, f"{used} {name} in use at {now}"
        if waiting:
            held = [
                (s + p.waiting.estimated, needs(p.waiting))
                for s, p in running.values()
                if s + p.waiting.estimated > now
            ]
            head = waiting[0].waiting
            promises.setdefault(head.id, naive_earliest(head, held, now)[0])
    return starts, promises


@given(plans())
def test_never_more_in_use_than_there_is_and_everything_runs(jobs: list[Plan]) -> None:
    for policy in (FCFS(), EASY()):
        starts, _ = simulate(policy, jobs)
        assert starts.keys() == {plan.waiting.id for plan in jobs}


@given(plans(exact=True))
def test_easy_keeps_its_promise_to_the_head_when_estimates_are_exact(jobs: list[Plan]) -> None:
    starts, promises = simulate(EASY(), jobs)
    for number, promised in promises.items():
        assert starts[number] <= promised


# Flexible Backfilling keeps its table and its promise from pass to pass; this has no memory but
# for whose the reservation is.


class Forgetful:
    def __init__(self, kind: type[FlexibleBackfilling], copies: dict[str, int]) -> None:
        self.kind, self.copies = kind, copies
        self.reserved: int | None = None

    def starts(
        self, now: float, queue: list[WaitingJob], running: list[RunningJob], free: FreeResources
    ) -> list[JobStart]:
        ranks = self.kind(licences=self.copies).priorities(now, queue, free.rho)
        order = sorted(range(len(queue)), key=lambda n: (-ranks[n], n))
        if self.kind is UnmodifiedFlexibleBackfilling:
            order.sort(key=lambda n: queue[n].id != self.reserved)
        space = make_capacity(now, running, free)
        if queue and not space.full:
            head = backfill([queue[n] for n in order], space)
            self.reserved = None if head is None else head.id
        return space.starts


def site(draw: Random, machines: bool) -> tuple[dict[str, int], list[int] | None, int, bool]:
    """Copies of licences, processors of machines if there are any, of all, whether shared."""
    copies = {"a": draw.randint(1, 3), "b": draw.randint(1, 2)}
    if not machines:
        return copies, None, draw.randint(2, 12), True
    sizes = [draw.randint(1, 4) for _ in range(draw.randint(1, 5))]
    return copies, sizes, sum(sizes), draw.random() < 0.7


@pytest.mark.parametrize("machines", [False, True])
@pytest.mark.parametrize("kind", [FlexibleBackfilling, UnmodifiedFlexibleBackfilling])
def test_flexible_backfilling_decides_as_if_it_had_no_memory(
    kind: type[FlexibleBackfilling], machines: bool
) -> None:
    """Jobs end on time, early or late; some are withdrawn; now and then the queue is sorted."""
    for seed in range(100):
        draw = Random(seed)
        copies, sizes, cpus, shared = site(draw, machines)
        ours, naive = kind(licences=copies), Forgetful(kind, copies)
        queue: list[WaitingJob] = []
        running: dict[int, tuple[RunningJob, float]] = {}  # with its true end
        punctual = draw.random() < 0.5
        now = 0.0
        for number in range(60):
            now += draw.choice([0.0, 1.0, 1.0, 5.0])
            running = {id: (r, end) for id, (r, end) in running.items() if end > now}
            for place in range(draw.choice([0, 1, 1, 3])):
                most = max(sizes) if sizes else cpus
                estimated = float(draw.randint(1, 20))
                wants = {name: 1 for name in copies if draw.random() < 0.4}
                speeds = {m: estimated / draw.choice([1, 2]) for m in range(len(sizes or ()))}
                able = {m: s for m, s in speeds.items() if draw.random() < 0.8} or speeds
                queue.append(
                    WaitingJob(
                        10 * number + place,
                        draw.randint(1, most),
                        estimated,
                        {**wants, "memory": draw.randint(1, 9)} if draw.random() < 0.3 else wants,
                        able,
                        now,
                        draw.choice([None, now + 2 * estimated]),
                        licences=("site",) if draw.random() < 0.2 else (),
                    )
                )
            if queue and draw.random() < 0.1:
                del queue[draw.randrange(len(queue))]
            if draw.random() < 0.03:
                queue.sort(key=lambda job: job.cpus)
            held = [r for r, _ in running.values()]
            left = {
                name: total - sum(r.resources.get(name, 0) for r in held)
                for name, total in {**copies, "memory": 12}.items()
            }
            free_on = None
            if sizes is not None:
                used = Counter[int]()
                for r in held:
                    used[r.machine] += r.cpus
                free_on = [size - used[m] for m, size in enumerate(sizes)]
            rho = {"site": draw.choice([0.5, 2.0])}
            free = FreeResources(cpus - sum(r.cpus for r in held), left, free_on, shared, rho)
            begun = ours.choose_starts(now, list(queue), held, free)
            assert begun == naive.starts(now, list(queue), held, free), (seed, number)
            for id, machine in begun:
                job = next(job for job in queue if job.id == id)
                queue.remove(job)
                seconds = job.machines.get(machine, job.estimated)
                took = job.cpus if free_on is None or shared else free_on[machine]
                row = RunningJob(id, took, now + seconds, job.resources, machine)
                ran = seconds if punctual else seconds * draw.choice([0.5, 1.0, 1.3])
                running[id] = row, now + ran
