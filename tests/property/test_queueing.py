"""FCFS and EASY against a slow second implementation, and the promises that they keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from metasched.policies.queueing import EASY, FCFS, Free, Policy, Running, Waiting

CPUS, MEMORY, GPUS = 8, 20, 2
AMOUNTS = {"cpus": CPUS, "memory": MEMORY, "gpu": GPUS}


@dataclass(frozen=True)
class Plan:
    """A job of the simulated cluster: what it asks for, and how long it really runs."""

    submitted: float
    waiting: Waiting
    runs: float


def needs(job: Waiting | Running) -> dict[str, int]:
    return {"cpus": job.cpus, **job.counts}


counts = st.fixed_dictionaries(
    {}, optional={"memory": st.integers(1, MEMORY), "gpu": st.integers(1, GPUS)}
)
seconds = st.integers(1, 30).map(float)
cpus = st.integers(1, CPUS)


@st.composite
def plans(draw: st.DrawFn, exact: bool = False) -> list[Plan]:
    found = []
    for number in range(draw(st.integers(1, 14))):
        waiting = Waiting(number, draw(cpus), draw(seconds), draw(counts))
        runs = waiting.estimated if exact else draw(seconds)
        found.append(Plan(float(draw(st.integers(0, 40))), waiting, runs))
    return sorted(found, key=lambda plan: (plan.submitted, plan.waiting.id))


def naive_earliest(
    job: Waiting, held: Sequence[tuple[float, dict[str, int]]], now: float
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


def naive_easy(now: float, queue: Sequence[Waiting], running: Sequence[Running]) -> list[int]:
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
def moments(draw: st.DrawFn) -> tuple[list[Waiting], list[Running], Free]:
    """A queue, and running jobs that together fit the cluster."""
    free = dict(AMOUNTS)
    running = []
    for number in range(draw(st.integers(0, 6))):
        job = Running(100 + number, draw(cpus), float(draw(st.integers(90, 130))), draw(counts))
        if all(amount <= free[name] for name, amount in needs(job).items()):
            free = {name: left - needs(job).get(name, 0) for name, left in free.items()}
            running.append(job)
    queue = [
        Waiting(number, draw(cpus), draw(seconds), draw(counts))
        for number in range(draw(st.integers(0, 8)))
    ]
    left = {name: amount for name, amount in free.items() if name != "cpus"}
    return queue, running, Free(free["cpus"], left)


@given(moments())
def test_easy_agrees_with_a_naive_implementation(
    moment: tuple[list[Waiting], list[Running], Free],
) -> None:
    queue, running, free = moment
    chosen = [start.id for start in EASY().starts(100.0, queue, running, free)]
    assert chosen == naive_easy(100.0, queue, running)


@given(moments())
def test_fcfs_starts_the_longest_beginning_of_the_queue_that_fits(
    moment: tuple[list[Waiting], list[Running], Free],
) -> None:
    queue, running, free = moment
    left = {"cpus": free.cpus, **free.counts}
    fitting = 0
    for length in range(1, len(queue) + 1):
        sums = {name: sum(needs(j).get(name, 0) for j in queue[:length]) for name in left}
        if all(sums[name] <= left[name] for name in left):
            fitting = length
    chosen = [start.id for start in FCFS().starts(100.0, queue, running, free)]
    assert chosen == [job.id for job in queue[:fitting]]


def simulate(policy: Policy, jobs: list[Plan]) -> tuple[dict[int, float], dict[int, float]]:
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
            Running(n, p.waiting.cpus, s + p.waiting.estimated, p.waiting.counts)
            for n, (s, p) in running.items()
        ]
        free = {
            name: total - sum(needs(view).get(name, 0) for view in views)
            for name, total in AMOUNTS.items()
        }
        counted = {name: amount for name, amount in free.items() if name != "cpus"}
        queue = [plan.waiting for plan in waiting]
        begun = policy.starts(now, queue, views, Free(free["cpus"], counted))
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
