"""The simulator against a naive second simulator, and invariants of every run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from metasched.core.events import CoreEvent, Dispatch, Outcome
from metasched.laboratory.simulate.clusters import Machine, SimulatedCluster
from metasched.laboratory.simulate.engine import Schedule, Simulation
from metasched.laboratory.simulate.schemes import USER_CHOICES, SubmissionScheme
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.job import Job
from metasched.model.licence import LicencePool
from metasched.policies.local.conservative import planned_start
from metasched.policies.local.flexible_backfilling import (
    FlexibleBackfilling,
    UnmodifiedFlexibleBackfilling,
)
from metasched.policies.local.orders import EASY
from metasched.policies.local.queueing import FreeResources, RunningJob, WaitingJob
from metasched.policies.local.queueing import LocalPolicy as LocalPolicy
from metasched.policies.local.registry import make_policy
from metasched.policies.local.weights import Weights
from metasched.policies.policy import Policy
from tests.harness.examples import examples
from tests.harness.local_policies import LOCAL_POLICIES

CPUS = 8
PUSH = Policy(load="paper", pull=False)


class Plan(NamedTuple):
    """A job of the naive simulator, in seconds; it may run longer than its estimate."""

    submitted: float
    cpus: int
    estimated: float
    ran: float


seconds = st.integers(1, 30).map(float)
plans = st.lists(
    st.builds(Plan, st.integers(0, 60).map(float), st.integers(1, CPUS), seconds, seconds),
    min_size=1,
    max_size=16,
).map(sorted)
exact_plans = plans.map(lambda planned: [plan._replace(ran=plan.estimated) for plan in planned])


def workload(planned: list[Plan]) -> Workload:
    return Workload(
        "random",
        tuple(
            WorkloadEntry(
                Job(
                    id=number,
                    submitted=p.submitted,
                    estimated=p.estimated,
                    cpus=p.cpus,
                    user=f"u{number % 3}",
                    owner_priority=number % 4,
                ),
                p.ran,
                number,
            )
            for number, p in enumerate(planned, 1)
        ),
    )


def run(
    planned: list[Plan],
    local: Callable[[], LocalPolicy],
    clusters: tuple[SimulatedCluster, ...] = (SimulatedCluster(name="c1", cpus=CPUS),),
    policy: Policy = PUSH,
) -> Schedule:
    return Simulation(workload(planned), clusters, policy, lambda _: local()).run()


class Whole:
    """A non-incremental wrapper: the policy receives the whole queue at every pass."""

    incremental = False

    def __init__(self, policy: LocalPolicy) -> None:
        self.period, self.choose_starts = policy.period, policy.choose_starts


# A second simulator without events and core: it tries every time at which the state can change.


def naive(planned: list[Plan], backfilling: bool) -> list[float]:
    """Return the start of each job on one cluster of CPUS processors under FCFS or EASY."""
    starts: dict[int, float] = {}
    now = 0.0
    while len(starts) < len(planned):
        runs = {j: s for j, s in starts.items() if s + planned[j].ran > now}
        waits = [j for j, plan in enumerate(planned) if plan.submitted <= now and j not in starts]
        ends = [(starts[j] + planned[j].estimated, planned[j].cpus) for j in runs]
        ends = [(end if end > now else now + 1, cpus) for end, cpus in ends]
        free = CPUS - sum(planned[j].cpus for j in runs)
        while waits and planned[waits[0]].cpus <= free:
            job = waits.pop(0)
            starts[job], free = now, free - planned[job].cpus
            ends.append((now + planned[job].estimated, planned[job].cpus))
        if waits and backfilling:
            need = planned[waits[0]].cpus
            shadow = min(
                end for end, _ in ends if free + sum(c for e, c in ends if e <= end) >= need
            )
            extra = free + sum(c for e, c in ends if e <= shadow) - need
            for job in waits[1:]:
                cpus, in_time = planned[job].cpus, now + planned[job].estimated <= shadow
                if cpus <= free and (in_time or cpus <= extra):
                    starts[job], free = now, free - cpus
                    extra -= 0 if in_time else cpus
        moments = [plan.submitted for plan in planned]
        moments += [start + planned[j].ran for j, start in starts.items()]
        now = min((moment for moment in moments if moment > now), default=now)
    return [starts[j] for j in range(len(planned))]


@pytest.mark.parametrize("name", ["fcfs", "easy"])
@examples(600)
@given(plans)
def test_the_engine_agrees_with_a_naive_simulator(name: str, jobs: list[Plan]) -> None:
    schedule = run(jobs, lambda: make_policy(name))
    assert [p.start for p in schedule.jobs] == naive(jobs, name == "easy")


# Invariants of every run.


ONE = (SimulatedCluster(name="c1", cpus=CPUS),)
SOME = SimulatedCluster.of_machines("c1", [Machine(8, 2.0), Machine(4, 4.0), Machine(4, 1.0)])


@pytest.mark.parametrize("name", [name for name in LOCAL_POLICIES if make_policy(name).incremental])
@pytest.mark.parametrize("clusters", [ONE, (SOME,), (replace(SOME, shared=False),)])
@examples(100)
@given(jobs=plans)
def test_an_incremental_policy_decides_as_if_asked_of_the_whole_queue(
    name: str, clusters: tuple[SimulatedCluster, ...], jobs: list[Plan]
) -> None:
    incremental = run(jobs, lambda: make_policy(name), clusters)
    whole = run(jobs, lambda: Whole(make_policy(name)), clusters)
    assert incremental.jobs == whole.jobs


def check(schedule: Schedule, planned: list[Plan]) -> None:
    """Check that no job starts early or twice, and that jobs fit their clusters and machines."""
    assert len(schedule.jobs) + sum(schedule.dropped.values()) == len(planned)
    assert len({p.job.id for p in schedule.jobs}) == len(schedule.jobs)
    for p in schedule.jobs:
        assert p.start >= p.job.submitted
        assert (p.start, p.end) == (p.runs[0].start, p.runs[-1].end)
        assert all(first.end <= second.start for first, second in pairwise(p.runs))
    runs = [
        p._replace(start=r.start, end=r.end, cpus=r.cpus, machine=r.machine)
        for p in schedule.jobs
        for r in p.runs
    ]
    for moment in {run.start for run in runs}:
        there = [run for run in runs if run.start <= moment < run.end]
        for index, cluster in enumerate(schedule.clusters):
            on_cluster = [p for p in there if p.cluster == index]
            assert sum(p.cpus for p in on_cluster) <= cluster.cpus
            for name, copies in cluster.licences.items():
                assert sum(p.job.licences.get(name, 0) for p in on_cluster) <= copies
            for pool in schedule.pools:
                assert not (pool.clusters and cluster.name not in pool.clusters) or not any(
                    pool.name in p.job.licences for p in on_cluster
                )
            for number, machine in enumerate(cluster.machines):
                on_it = [p for p in on_cluster if p.machine == number]
                assert sum(p.job.cpus for p in on_it) <= machine.cpus
                assert cluster.shared or len(on_it) <= 1
                for p in on_it:
                    assert machine.licences is None or set(p.job.licences) <= machine.licences
        for pool in schedule.pools:
            assert pool.total is not None
            assert sum(p.job.licences.get(pool.name, 0) for p in there) <= pool.total


@pytest.mark.parametrize("name", LOCAL_POLICIES)
@examples(60)
@given(planned=plans)
def test_nothing_is_used_twice_on_counted_processors(name: str, planned: list[Plan]) -> None:
    schedule = run(planned, lambda: make_policy(name))
    check(schedule, planned)
    assert [p.run_time for p in schedule.jobs] == pytest.approx([plan.ran for plan in planned])


machines = st.lists(
    st.builds(
        Machine,
        st.integers(1, 4),
        st.sampled_from([1.0, 2.0, 4.0]),
        st.one_of(st.none(), st.frozensets(st.sampled_from(["l1", "l2"]))),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("name", LOCAL_POLICIES)
@examples(60)
@given(
    planned=plans,
    drawn=st.lists(machines, min_size=1, max_size=2),
    licences_asked=st.lists(st.frozensets(st.sampled_from(["l1", "l2"])), min_size=16, max_size=16),
    shared=st.booleans(),
    policy=st.sampled_from([PUSH, Policy()]),
)
def test_nothing_is_used_twice_on_machines(
    name: str,
    planned: list[Plan],
    drawn: list[list[Machine]],
    licences_asked: list[frozenset[str]],
    shared: bool,
    policy: Policy,
) -> None:
    copies = {"l1": 1, "l2": 2}
    clusters = tuple(
        SimulatedCluster.of_machines(f"c{n}", drawn_job, shared=shared, licences=copies)
        for n, drawn_job in enumerate(drawn)
    )
    jobs = workload(planned)
    requests = [
        WorkloadEntry(
            Job(
                id=r.job.id,
                submitted=r.job.submitted,
                estimated=r.job.estimated,
                cpus=min(r.job.cpus, 4),
                deadline=r.job.submitted + 50.0,
                licences=dict.fromkeys(sorted(licences), 1),
            ),
            r.run_time,
            r.number,
        )
        for r, licences in zip(jobs.entries, licences_asked, strict=False)
    ]
    jobs = Workload("random", tuple(requests))
    engine = Simulation(jobs, clusters, policy, lambda c: make_policy(name, licences=c.licences))
    schedule = engine.run()
    check(schedule, planned)
    for p in schedule.jobs:  # a suspended job has kept its progress
        machines_of_job = schedule.clusters[p.cluster].machines
        work = sum((r.end - r.start) * machines_of_job[r.machine].benchmark for r in p.runs)
        assert work == pytest.approx(p.entry.run_time * p.job.benchmark)


POOLS = (
    LicencePool(name="l1", total=1, linger=5.0),
    LicencePool(name="l2", total=3, clusters=("c2", "c8")),
)


@examples(100)
@given(
    planned=plans,
    licences_asked=st.lists(
        st.sampled_from([{}, {"l1": 1}, {"l2": 1}, {"l2": 3}, {"l1": 1, "l2": 2}]),
        min_size=16,
        max_size=16,
    ),
    sizes=st.sampled_from([(8,), (2, 4, 8)]),
    pull=st.booleans(),
    patience=st.sampled_from([1.0, 20.0, 600.0]),
)
def test_licences_that_all_share_are_leased_by_the_core(
    planned: list[Plan],
    licences_asked: list[dict[str, int]],
    sizes: tuple[int, ...],
    pull: bool,
    patience: float,
) -> None:
    requests = [
        r._replace(job=structs.replace(r.job, licences=licences))
        for r, licences in zip(workload(planned).entries, licences_asked, strict=False)
    ]
    engine = Simulation(
        Workload("random", tuple(requests)),
        tuple(SimulatedCluster(name=f"c{n}", cpus=n) for n in sizes),
        Policy(pull=pull, patience=patience),
        lambda _: make_policy("easy"),
        licence_pools=POOLS,
    )
    schedule = engine.run()
    check(schedule, planned)
    assert not schedule.dropped
    assert not engine.core.tasks
    assert not engine.core.licences.leases
    last: dict[str, float] = {}  # when returned tokens are free again
    for p in sorted(schedule.jobs, key=lambda p: p.start):
        if "l1" in p.job.licences:
            assert p.start >= last.get("l1", 0.0)
            last["l1"] = p.end + 5.0


@examples(60)
@given(planned=plans, pull=st.booleans(), load=st.sampled_from(["observed", "paper"]))
def test_a_federation_runs_every_job_once(planned: list[Plan], pull: bool, load: str) -> None:
    clusters = tuple(SimulatedCluster(name=f"c{n}", cpus=n) for n in (2, 4, CPUS))
    policy = Policy(load=load, pull=pull)  # type: ignore[arg-type]
    schedule = run(planned, lambda: make_policy("easy"), clusters, policy)
    check(schedule, planned)
    assert not schedule.dropped
    assert pull or not any(p.moves for p in schedule.jobs)


@pytest.mark.parametrize(
    ("scheme", "send"),
    [
        *((SubmissionScheme(user_choice=name), "at_once") for name in USER_CHOICES),
        (SubmissionScheme(planned_dispatch=True), "at_once"),
        (SubmissionScheme(), "late"),
    ],
    ids=[*USER_CHOICES, "plan", "late"],
)
@examples(40)
@given(
    planned=plans,
    outside=st.lists(st.booleans(), min_size=16, max_size=16),
    pull=st.booleans(),
    local=st.sampled_from(["easy", "priority", "fb-unmod", "priority-p", "sjf-p"]),
)
def test_every_scheme_runs_every_job_once(
    scheme: SubmissionScheme,
    send: Literal["at_once", "late"],
    planned: list[Plan],
    outside: list[bool],
    pull: bool,
    local: str,
) -> None:
    """Some users submit directly to their home clusters."""
    clusters = tuple(SimulatedCluster(name=f"c{n}", cpus=n) for n in (2, 4, CPUS))
    jobs = workload(planned)
    requests = [
        request._replace(home=f"c{2 << n % 3}", direct=direct)
        for n, (request, direct) in enumerate(zip(jobs.entries, outside, strict=False))
    ]
    jobs = Workload("random", tuple(requests))
    policy = Policy(load="observed", pull=pull, send=send)
    engine = Simulation(jobs, clusters, policy, lambda _: make_policy(local), scheme=scheme)
    schedule = engine.run()
    check(schedule, planned)
    assert not schedule.dropped
    assert not engine.core.tasks
    for p in schedule.jobs:
        if p.entry.direct and p.job.cpus <= int(p.entry.home[1:]):
            assert clusters[p.cluster].name == p.entry.home


class Flat(FlexibleBackfilling):
    """Flexible Backfilling with all priorities equal."""

    def __init__(self) -> None:
        super().__init__(Weights(age_factor=0, boost=0, most=0.1))


class FlatKept(UnmodifiedFlexibleBackfilling):
    def __init__(self) -> None:
        super().__init__(Weights(age_factor=0, boost=0, most=0.1))


@given(plans)
def test_flexible_backfilling_with_equal_priorities_is_easy(planned: list[Plan]) -> None:
    easy = [p.start for p in run(planned, EASY).jobs]
    assert [p.start for p in run(planned, Flat).jobs] == easy
    assert [p.start for p in run(planned, FlatKept).jobs] == easy


@given(exact_plans)
def test_conservative_backfilling_delays_no_job_behind_fcfs(planned: list[Plan]) -> None:
    """With exact estimates jobs start as planned at submission, never later than under FCFS."""
    conservative = run(planned, lambda: make_policy("conservative")).jobs
    fcfs = run(planned, lambda: make_policy("fcfs")).jobs
    assert all(
        unreserved.start <= in_order.start
        for unreserved, in_order in zip(conservative, fcfs, strict=True)
    )


class Watched:
    """Conservative backfilling that records every promise."""

    period, incremental = 0.0, False

    def __init__(self) -> None:
        self.policy = make_policy("conservative")
        self.promised: dict[int, list[float]] = {}

    def choose_starts(self, now, queue, running, free):  # type: ignore[no-untyped-def]
        begun = self.policy.choose_starts(now, queue, running, free)
        for job, promise in self.policy._planned.items():  # type: ignore[attr-defined]
            self.promised.setdefault(job, []).append(promise.start)
        return begun


@given(plans.map(lambda planned: [p._replace(ran=min(p.ran, p.estimated)) for p in planned]))
def test_conservative_promises_only_become_earlier(planned: list[Plan]) -> None:
    watched = Watched()
    schedule = run(planned, lambda: watched)
    for p in schedule.jobs:
        promised = [*watched.promised.get(p.job.id, []), p.start]
        assert promised == sorted(promised, reverse=True)


@given(exact_plans)
def test_a_planned_start_is_the_one_that_conservative_backfilling_keeps(
    planned: list[Plan],
) -> None:
    """All jobs are submitted at once with exact estimates; each is planned behind earlier jobs."""
    together = [plan._replace(submitted=0.0) for plan in planned]
    starts = [p.start for p in run(together, lambda: make_policy("conservative")).jobs]
    queue = [WaitingJob(n, plan.cpus, plan.estimated) for n, plan in enumerate(together)]
    for index, job in enumerate(queue):
        assert planned_start(0.0, queue[:index], [], FreeResources(CPUS), job) == starts[index]


# EASY on machines, compared with a naive version.


def naive_on_machines(
    now: float, queue: list[WaitingJob], running: list[RunningJob], free: list[int]
) -> list[tuple[int, int]]:
    """Run EASY on shared machines without licences, by trying every end in turn."""
    held = [(r.end, r.machine, r.cpus) for r in running]
    begun: list[tuple[int, int]] = []

    def left(machine: int, moment: float) -> int:
        returned = sum(cpus for end, m, cpus in held if m == machine and now < end <= moment)
        taken = sum(cpus for _, m, cpus in held[len(running) :] if m == machine)
        return free[machine] + returned - taken

    def start(job: WaitingJob, machine: int) -> None:
        held.append((now + job.machines[machine], machine, job.cpus))
        begun.append((job.id, machine))

    waiting = list(queue)
    while waiting:
        fit = [m for m in sorted(waiting[0].machines) if left(m, now) >= waiting[0].cpus]
        if not fit:
            break
        start(waiting.pop(0), fit[0])
    if not waiting:
        return begun
    head = waiting.pop(0)
    shadow, shadow_free = min(
        (end, m) for end, _, _ in held for m in head.machines if left(m, end) >= head.cpus
    )
    spare = left(shadow_free, shadow) - head.cpus
    for job in waiting:
        for machine in sorted(job.machines):
            if left(machine, now) < job.cpus:
                continue
            in_time = now + job.machines[machine] <= shadow
            if in_time or machine != shadow_free or job.cpus <= spare:
                spare -= job.cpus if machine == shadow_free and not in_time else 0
                start(job, machine)
                break
    return begun


@st.composite
def on_machines(draw: st.DrawFn) -> tuple[list[WaitingJob], list[RunningJob], list[int]]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    free, running = list(sizes), []
    for number in range(draw(st.integers(0, 5))):
        machine = draw(st.integers(0, len(sizes) - 1))
        if free[machine]:
            cpus = draw(st.integers(1, free[machine]))
            free[machine] -= cpus
            end = float(draw(st.integers(101, 130)))
            running.append(RunningJob(100 + number, cpus, end, machine=machine))
    queue = []
    for number in range(draw(st.integers(0, 7))):
        cpus = draw(st.integers(1, 4))
        able = {m: float(draw(st.integers(1, 30))) for m in range(len(sizes)) if sizes[m] >= cpus}
        if able:
            queue.append(WaitingJob(number, cpus, 10.0, {}, able))
    return queue, running, free


@examples(300)
@given(on_machines())
def test_easy_on_machines_agrees_with_a_naive_one(
    moment: tuple[list[WaitingJob], list[RunningJob], list[int]],
) -> None:
    queue, running, free = moment
    chosen = EASY().choose_starts(100.0, queue, running, FreeResources(sum(free), {}, tuple(free)))
    assert [tuple(start) for start in chosen] == naive_on_machines(100.0, queue, running, free)


@examples(100)
@given(plans, st.sampled_from(["fcfs", "easy", "first-fit"]), st.booleans())
def test_late_bound_jobs_start_when_they_are_dispatched(
    planned: list[Plan], local: str, shared_by_one: bool
) -> None:
    """The manager's queue stays empty, and processors are idle only if no first job fits."""
    clusters = (SimulatedCluster(name="a", cpus=CPUS), SimulatedCluster(name="b", cpus=CPUS // 2))
    simulation = Simulation(
        workload(planned),
        clusters[: 1 if shared_by_one else 2],
        Policy(send="late"),
        lambda _: make_policy(local),
    )
    dispatched: dict[int, float] = {}
    step = simulation.core.step

    def recording_step(event: CoreEvent) -> Outcome:
        outcome = step(event)
        for action in outcome.actions:
            assert isinstance(action, Dispatch), action
            assert dispatched.setdefault(action.job, event.time) == event.time
        return outcome

    setattr(simulation.core, "step", recording_step)  # noqa: B010 (a method)
    schedule = simulation.run()
    assert {placed.job.id: placed.start for placed in schedule.jobs} == dispatched
    idle = [placed.start for placed in schedule.jobs if placed.wait > 0]
    changes = {placed.end for placed in schedule.jobs} | {plan.submitted for plan in planned}
    assert set(idle) <= changes  # a job waits only until something ends or comes
