"""Local policies against slow reference implementations, and the promises that they keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.policies.local.backfilling import backfill
from metasched.policies.local.capacity import make_capacity
from metasched.policies.local.flexible_backfilling import (
    FlexibleBackfilling,
    UnmodifiedFlexibleBackfilling,
)
from metasched.policies.local.orders import EASY, FCFS, BoundedEDF
from metasched.policies.local.queueing import (
    FreeResources,
    JobStart,
    LocalPolicy,
    RunningJob,
    WaitingJob,
)
from tests.harness.examples import examples

CPUS, MEMORY, GPUS = 8, 20, 2
AMOUNTS = {"cpus": CPUS, "memory": MEMORY, "gpu": GPUS}


@dataclass(frozen=True)
class Plan:
    """A job of the simulated cluster: its request and its true run time."""

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
    drawn = []
    for number in range(draw(st.integers(1, 14))):
        waiting = WaitingJob(number, draw(cpus), draw(seconds), draw(counts))
        runs = waiting.estimated if exact else draw(seconds)
        drawn.append(Plan(float(draw(st.integers(0, 40))), waiting, runs))
    return sorted(drawn, key=lambda plan: (plan.submitted, plan.waiting.id))


def naive_earliest(
    job: WaitingJob, held: Sequence[tuple[float, dict[str, int]]], now: float
) -> tuple[float, dict[str, int]]:
    """Return when the job fits and the amounts left over then, by trying every end in turn."""
    for moment in sorted({now, *(end for end, _ in held)}):
        used = [amounts for end, amounts in held if end > moment]
        remaining = {
            name: total - sum(amounts.get(name, 0) for amounts in used) - needs(job).get(name, 0)
            for name, total in AMOUNTS.items()
        }
        if min(remaining.values()) >= 0:
            return moment, remaining
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
                extra = {
                    name: remaining - needs(job).get(name, 0) for name, remaining in extra.items()
                }
    return chosen


@st.composite
def moments(draw: st.DrawFn) -> tuple[list[WaitingJob], list[RunningJob], FreeResources]:
    """Draw a queue, and running jobs that together fit the cluster."""
    free = dict(AMOUNTS)
    running = []
    for number in range(draw(st.integers(0, 6))):
        job = RunningJob(100 + number, draw(cpus), float(draw(st.integers(90, 130))), draw(counts))
        if all(amount <= free[name] for name, amount in needs(job).items()):
            free = {name: remaining - needs(job).get(name, 0) for name, remaining in free.items()}
            running.append(job)
    queue = [
        WaitingJob(number, draw(cpus), draw(seconds), draw(counts))
        for number in range(draw(st.integers(0, 8)))
    ]
    remaining = {name: amount for name, amount in free.items() if name != "cpus"}
    return queue, running, FreeResources(free["cpus"], remaining)


@given(moments())
def test_easy_agrees_with_a_naive_implementation(
    moment: tuple[list[WaitingJob], list[RunningJob], FreeResources],
) -> None:
    queue, running, free = moment
    chosen = [start.id for start in EASY().choose_starts(100.0, queue, running, free)]
    assert chosen == naive_easy(100.0, queue, running)


def naive_bounded(
    now: float,
    queue: Sequence[WaitingJob],
    running: Sequence[RunningJob],
    starving_after: float,
) -> list[int]:
    starving = [job for job in queue if now - job.waiting_since >= starving_after]
    others = [job for job in queue if job not in starving]
    others.sort(key=lambda job: 1e9 if job.deadline is None else job.deadline)
    chosen = naive_easy(now, starving, running)
    if len(chosen) < len(starving):
        return naive_easy(now, [*starving, *others], running)
    held = [(r.end if r.end > now else now + 1, needs(r)) for r in running]
    held += [(now + job.estimated, needs(job)) for job in starving]
    for job in others:
        if naive_earliest(job, held, now)[0] == now:
            held.append((now + job.estimated, needs(job)))
            chosen.append(job.id)
    return chosen


@examples(300)
@given(moments(), st.integers(0, 8), st.permutations(range(8)))
def test_a_bound_agrees_with_a_naive_implementation(
    moment: tuple[list[WaitingJob], list[RunningJob], FreeResources],
    starving: int,
    ranks: list[int],
) -> None:
    """The first jobs starve; the ranks give the deadlines of all but two."""
    jobs, running, free = moment
    queue = [
        job._replace(
            waiting_since=0.0 if position < starving else 60.0,
            deadline=100.0 + ranks[position] if ranks[position] < 6 else None,
        )
        for position, job in enumerate(jobs)
    ]
    policy = BoundedEDF(starving_after=50.0)
    chosen = [start.id for start in policy.choose_starts(100.0, queue, running, free)]
    assert chosen == naive_bounded(100.0, queue, running, 50.0)


@given(plans(exact=True))
def test_a_starving_head_starts_when_promised_if_estimates_are_exact(jobs: list[Plan]) -> None:
    """All jobs starve at once: then the bound is EASY, which keeps its promises."""
    starts, promises = simulate(BoundedEDF(starving_after=0.0), jobs)
    for number, promised in promises.items():
        assert starts[number] <= promised


@given(moments())
def test_fcfs_starts_the_longest_beginning_of_the_queue_that_fits(
    moment: tuple[list[WaitingJob], list[RunningJob], FreeResources],
) -> None:
    queue, running, free = moment
    remaining = {"cpus": free.cpus, **free.resources}
    fitting = 0
    for length in range(1, len(queue) + 1):
        sums = {name: sum(needs(j).get(name, 0) for j in queue[:length]) for name in remaining}
        if all(sums[name] <= remaining[name] for name in remaining):
            fitting = length
    chosen = [start.id for start in FCFS().choose_starts(100.0, queue, running, free)]
    assert chosen == [job.id for job in queue[:fitting]]


def simulate(policy: LocalPolicy, jobs: list[Plan]) -> tuple[dict[int, float], dict[int, float]]:
    """Return (start of each job, first promise to each job that was the blocked head)."""
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


class Forgetful:
    """Flexible Backfilling that remembers only which job holds the reservation of the head."""

    def __init__(self, policy_type: type[FlexibleBackfilling], copies: dict[str, int]) -> None:
        self.policy_type, self.copies = policy_type, copies
        self.reserved: int | None = None

    def starts(
        self, now: float, queue: list[WaitingJob], running: list[RunningJob], free: FreeResources
    ) -> list[JobStart]:
        ranks = self.policy_type(licences=self.copies).priorities(now, queue, free.rho)
        order = sorted(range(len(queue)), key=lambda n: (-ranks[n], n))
        if self.policy_type is UnmodifiedFlexibleBackfilling:
            order.sort(key=lambda n: queue[n].id != self.reserved)
        space = make_capacity(now, running, free)
        if queue and not space.full:
            head = backfill([queue[n] for n in order], space)
            self.reserved = None if head is None else head.id
        return space.starts


@dataclass(frozen=True)
class Site:
    """A cluster under Flexible Backfilling."""

    copies: dict[str, int]  # tokens of each licence
    sizes: list[int] | None  # processors of each machine; None: processors are counted
    cpus: int  # processors of all machines
    shared: bool  # whether jobs share a machine


@dataclass(frozen=True)
class Submission:
    """A job that is submitted before a pass."""

    cpus: int
    estimated: float
    resources: dict[str, int]
    slow: frozenset[int]  # machines on which it takes twice as long
    unable: frozenset[int]  # machines on which it cannot run; ignored if all
    deadline: bool
    at_site: bool  # whether it asks for a licence of the site
    lasts: float  # run time / estimate, unless jobs are punctual


@dataclass(frozen=True)
class Pass:
    """Events before a scheduling pass, and the value of the site's licence in the pass."""

    after: float  # seconds since the previous pass
    submitted: list[Submission]
    withdrawn: int | None  # position in the queue, modulo its length
    sorted: bool  # whether the queue is sorted by size
    rho: float


MACHINES = st.frozensets(st.integers(0, 4), max_size=3)
SITES = {
    False: st.builds(
        lambda a, b, cpus: Site({"a": a, "b": b}, None, cpus, True),
        *(st.integers(1, 3), st.integers(1, 2), st.integers(2, 12)),
    ),
    True: st.builds(
        lambda a, b, sizes, shared: Site({"a": a, "b": b}, sizes, sum(sizes), shared),
        *(st.integers(1, 3), st.integers(1, 2)),
        *(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.booleans()),
    ),
}
SUBMISSIONS = st.builds(
    Submission,
    cpus=st.integers(1, 12),
    estimated=st.integers(1, 20).map(float),
    resources=st.fixed_dictionaries(
        {}, optional={"a": st.just(1), "b": st.just(1), "memory": st.integers(1, 9)}
    ),
    slow=MACHINES,
    unable=MACHINES,
    deadline=st.booleans(),
    at_site=st.booleans(),
    lasts=st.sampled_from([1.0, 0.5, 1.3]),
)
PASSES = st.lists(
    st.builds(
        Pass,
        after=st.sampled_from([0.0, 1.0, 1.0, 5.0]),
        submitted=st.lists(SUBMISSIONS, max_size=3),
        withdrawn=st.sampled_from([None] * 9) | st.integers(0, 9),
        sorted=st.sampled_from([False] * 9 + [True]),
        rho=st.sampled_from([0.5, 2.0]),
    ),
    min_size=1,
    max_size=20,
)


def waiting_job(id: int, job: Submission, site: Site, now: float) -> WaitingJob:
    """Return the submitted job as the policy sees it on this site."""
    machines = range(len(site.sizes or ()))
    seconds = {m: job.estimated / (1 if m in job.slow else 2) for m in machines}
    return WaitingJob(
        id,
        min(job.cpus, max(site.sizes) if site.sizes else site.cpus),
        job.estimated,
        job.resources,
        {m: s for m, s in seconds.items() if m not in job.unable} or seconds,
        now,
        now + 2 * job.estimated if job.deadline else None,
        licences=("site",) if job.at_site else (),
    )


def free_resources(site: Site, running: Sequence[RunningJob], rho: float) -> FreeResources:
    """Return the resources that the running jobs leave free."""
    resources = {
        name: total - sum(r.resources.get(name, 0) for r in running)
        for name, total in {**site.copies, "memory": 12}.items()
    }
    on_machines = None
    if site.sizes is not None:
        used = Counter[int]()
        for r in running:
            used[r.machine] += r.cpus
        on_machines = [size - used[m] for m, size in enumerate(site.sizes)]
    cpus = site.cpus - sum(r.cpus for r in running)
    return FreeResources(cpus, resources, on_machines, site.shared, {"site": rho})


@pytest.mark.parametrize("machines", [False, True])
@pytest.mark.parametrize("policy_type", [FlexibleBackfilling, UnmodifiedFlexibleBackfilling])
@examples(200)
@given(data=st.data(), passes=PASSES, punctual=st.booleans())
def test_flexible_backfilling_decides_as_if_it_had_no_memory(
    policy_type: type[FlexibleBackfilling],
    machines: bool,
    data: st.DataObject,
    passes: list[Pass],
    punctual: bool,
) -> None:
    """Jobs end on time, early or late; some are withdrawn; sometimes the queue is sorted."""
    site = data.draw(SITES[machines])
    policy, naive = policy_type(licences=site.copies), Forgetful(policy_type, site.copies)
    queue: list[WaitingJob] = []
    running: dict[int, tuple[RunningJob, float]] = {}  # job and true end
    lasts: dict[int, float] = {}
    now = 0.0
    for step in passes:
        now += step.after
        running = {id: (r, end) for id, (r, end) in running.items() if end > now}
        for job in step.submitted:
            id = len(lasts)
            lasts[id] = 1.0 if punctual else job.lasts
            queue.append(waiting_job(id, job, site, now))
        if queue and step.withdrawn is not None:
            del queue[step.withdrawn % len(queue)]
        if step.sorted:
            queue.sort(key=lambda job: job.cpus)
        held = [r for r, _ in running.values()]
        free = free_resources(site, held, step.rho)
        begun = policy.choose_starts(now, list(queue), held, free)
        assert begun == naive.starts(now, list(queue), held, free)
        for id, machine in begun:
            [waiting] = [job for job in queue if job.id == id]
            queue.remove(waiting)
            seconds = waiting.machines.get(machine, waiting.estimated)
            whole = free.machines is not None and not site.shared
            cpus = free.machines[machine] if whole else waiting.cpus  # type: ignore[index]
            row = RunningJob(id, cpus, now + seconds, waiting.resources, machine)
            running[id] = row, now + seconds * lasts[id]
