"""Plans of whole queues: nothing overlaps, searches keep their books, and promises are kept."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.policies.local.availability import AvailabilityProfile
from metasched.policies.local.insertion import (
    COMPARISONS,
    Comparison,
    _best_by_deadline,
    _by_deadline,
    insert_job,
    weight,
)
from metasched.policies.local.plan import ClusterPlan, PlanQuality
from metasched.policies.local.plan_search import (
    STOP_RULES,
    PlanSearch,
    ResourceOptimisation,
    StopRule,
    TabuSearch,
)
from metasched.policies.local.planning import EarliestGap
from metasched.policies.local.queueing import (
    NEVER,
    FreeResources,
    JobStart,
    RunningJob,
    WaitingJob,
)
from metasched.policies.local.registry import make_policy
from tests.property.test_queueing import AMOUNTS, Plan, cpus, needs, plans, seconds, simulate

SIZES = (8, 5, 3)  # processors of the machines, the fastest first
SPEEDS = (1.0, 1.5, 2.0)  # run times in units of those on the first machine
POLICIES = ("eg-edf", "tabu", "rcbo")

holds = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 10), st.integers(1, 4)), max_size=8)


@given(holds, st.data())
def test_gaps_agree_with_a_count_of_free_processors_in_each_second(
    held: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    profile, free = AvailabilityProfile(0.0, 8, ()), [8] * 60
    remaining = []
    for start, length, amount in held:
        profile.hold(start, start + length, amount)
        for second in range(start, start + length):
            free[second] -= amount
        if data.draw(st.booleans()):
            remaining.append((start, length, amount))
            continue
        profile.hold(start, start + length, -amount)
        for second in range(start, start + length):
            free[second] += amount
    assert len(profile.times) <= 2 * len(remaining) + 1
    amount, length = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 15))
    after, latest = data.draw(st.integers(0, 30)), data.draw(st.integers(0, 40))
    fits = [
        second
        for second in range(after, latest + 1)
        if all(count >= amount for count in free[second : second + length])
    ]
    earliest = profile.earliest_start(amount, float(length), float(after), float(latest))
    assert earliest == (fits[0] if fits else NEVER)


@st.composite
def queued_jobs(draw: st.DrawFn) -> list[WaitingJob]:
    jobs = []
    for number in range(draw(st.integers(1, 16))):
        size, run_time = draw(cpus), draw(seconds)
        deadline = draw(st.one_of(st.none(), st.integers(100, 180).map(float)))
        machines = {m: run_time * SPEEDS[m] for m in range(len(SIZES)) if SIZES[m] >= size}
        memory = draw(st.sampled_from([0, 0, 3, 10]))
        resources = {"memory": memory} if memory else {}
        jobs.append(WaitingJob(number, size, run_time, resources, machines, deadline=deadline))
    return jobs


def planned(jobs: list[WaitingJob], comparison: Comparison, memory: int | None) -> ClusterPlan:
    """Return the plan of the jobs at 100 s, beside a running job on the first machine."""
    plan = ClusterPlan()
    running = [RunningJob(99, 4, 120.0)]
    resources = {} if memory is None else {"memory": memory}
    free = FreeResources(12, resources, (4, 5, 3))
    assert plan.observe(100.0, jobs, running, free) == jobs
    for job in jobs:
        assert insert_job(plan, job, comparison)
    return plan


def check(plan: ClusterPlan, jobs: list[WaitingJob], memory: int | None) -> None:
    """Check that each job is planned once, that nothing exceeds a machine, and all figures."""
    runs = [run for schedule in plan.machines for run in schedule.runs]
    assert sorted(run.job.id for run in runs) == sorted(job.id for job in jobs)
    assert {run.job.id: run for run in runs} == plan.runs
    for moment in {100.0, *(run.start for run in runs)}:
        active = [run for run in runs if run.start <= moment < run.end]
        for machine, size in enumerate(SIZES):
            used = sum(run.cpus for run in active if run.machine == machine)
            assert used + (4 if machine == 0 and moment < 120 else 0) <= size
        if memory is not None:
            assert sum(run.job.resources.get("memory", 0) for run in active) <= memory
    for run in runs:
        assert run.start >= 100
        assert run.end == run.start + run.job.machines[run.machine]
    late = sum(run.late for run in runs)
    end = max([120.0, *(run.end for run in runs)])
    assert plan.quality() == PlanQuality(end - 100, len(runs) - late, late)
    assert all(s.runs == sorted(s.runs, key=lambda run: run.start) for s in plan.machines)


def searches(plan: ClusterPlan, memory: int, stop: StopRule) -> list[PlanSearch]:
    return [TabuSearch(plan, memory, stop), ResourceOptimisation(plan, memory)]


memories = st.sampled_from([None, 10, 15])


@given(queued_jobs(), st.sampled_from(COMPARISONS), memories)
def test_an_insertion_overlaps_nothing(
    jobs: list[WaitingJob], comparison: Comparison, memory: int | None
) -> None:
    check(planned(jobs, comparison, memory), jobs, memory)


@given(queued_jobs(), memories, st.integers(0, 20))
def test_the_bounds_of_an_insertion_rule_out_no_better_machine(
    jobs: list[WaitingJob], memory: int | None, passed: int
) -> None:
    """The choice is that of a trial of every machine, also after some time has passed."""
    plan = planned(jobs[:-1], "plan", memory)
    running = [RunningJob(99, 4, 120.0)]
    resources = {} if memory is None else {"memory": memory}
    if not any(run.start < 100 + passed for run in plan.runs.values()):
        plan.observe(100.0 + passed, jobs, running, FreeResources(12, resources, (4, 5, 3)))
    before, runs, job = plan.quality(), dict(plan.runs), jobs[-1]
    tried = [_by_deadline(plan, job, machine, before) for machine in job.machines]
    keys = [(weight(before, c.quality), -c.end) for c in tried if c is not None]
    best = _best_by_deadline(plan, job, before)
    assert best == tried[keys.index(max(keys))]
    assert (plan.runs, plan.quality()) == (runs, before)


@given(queued_jobs(), st.integers(1, 8), st.integers(1, 60), st.integers(100, 250))
def test_a_machine_without_a_gap_is_known_without_a_search(
    jobs: list[WaitingJob], needed: int, length: int, latest: int
) -> None:
    for schedule in planned(jobs, "plan", None).machines:
        limit = max(100.0, min(float(latest), schedule.end - length))
        if not schedule.may_start(needed, float(length), limit):
            profile = schedule.profile
            assert profile.earliest_start(needed, float(length), 100.0, limit) == NEVER


class LookingTabuSearch(TabuSearch):
    """Tabu Search that looks at all machines in each iteration."""

    def iterate(self) -> None:
        used = self._used_machines
        unused = [m for m in range(len(self.plan.machines)) if m not in used]
        source = max(unused, key=lambda m: self.plan.machines[m].late_count, default=None)
        if self._stop == "late" and (source is None or self.plan.machines[source].late_count == 0):
            self.finished = True
        elif source is None:
            used.clear()
        elif (run := self._last_unremembered(source)) is None:
            used.add(source)
        else:
            self._try_move(run)


@given(queued_jobs(), st.sampled_from(STOP_RULES), st.integers(1, 20), memories)
def test_tabu_search_takes_the_machine_with_most_late_jobs(
    jobs: list[WaitingJob], stop: StopRule, size: int, memory: int | None
) -> None:
    plan, looked_at = planned(jobs, "plan", memory), planned(jobs, "plan", memory)
    search, looking = TabuSearch(plan, size, stop), LookingTabuSearch(looked_at, size, stop)
    for _ in range(60):
        search.run(1)
        looking.run(1)
        assert plan.runs == looked_at.runs
        assert search._used_machines == looking._used_machines
        assert search.finished == looking.finished


@given(queued_jobs(), st.sampled_from(STOP_RULES), st.integers(1, 20), memories, st.integers(0, 1))
def test_a_search_overlaps_nothing_and_can_be_resumed(
    jobs: list[WaitingJob], stop: StopRule, size: int, memory: int | None, kind: int
) -> None:
    plan, whole = planned(jobs, "plan", memory), planned(jobs, "plan", memory)
    search = searches(plan, size, stop)[kind]
    for _ in range(40):
        before, moves = plan.quality(), search.moves
        search.run(1)
        assert len(search._remembered) <= size
        check(plan, jobs, memory)
        if search.moves > moves:
            assert search.weight(before, plan.quality()) > 0
        else:
            assert plan.quality() == before
    uninterrupted = searches(whole, size, stop)[kind]
    uninterrupted.run(40)
    assert (whole.runs, uninterrupted.moves) == (plan.runs, search.moves)


@given(queued_jobs(), memories, st.integers(0, 4))
def test_jobs_that_end_early_or_leave_delay_no_planned_job(
    jobs: list[WaitingJob], memory: int | None, removed: int
) -> None:
    plan = planned(jobs, "plan", memory)
    promised = {job_id: run.start for job_id, run in plan.runs.items()}
    remaining = jobs[removed:]
    resources = {} if memory is None else {"memory": memory}
    plan.observe(100.0, remaining, [], FreeResources(16, resources, SIZES))  # job 99 has ended
    assert plan.runs.keys() == {job.id for job in remaining}
    assert all(run.start <= promised[job_id] for job_id, run in plan.runs.items())


class Promises:
    """A policy with a plan that checks its promises from pass to pass."""

    period, incremental = 0.0, False

    def __init__(self, name: str) -> None:
        policy = make_policy(name)
        assert isinstance(policy, EarliestGap)
        self.policy, self.promised, self.seen = policy, dict[int, float](), set[int]()

    def choose_starts(self, now, queue, running, free):  # type: ignore[no-untyped-def]
        is_known = {job.id for job in queue} <= self.seen
        begun: list[JobStart] = self.policy.choose_starts(now, queue, running, free)
        self.seen.update(job.id for job in queue)
        current = {**self.policy.planned_starts(), **{start.id: now for start in begun}}
        if is_known:
            assert all(start <= self.promised[job] for job, start in current.items())
        self.promised.update(current)
        return begun


@pytest.mark.parametrize("name", POLICIES)
@given(plans())
def test_everything_runs_and_nothing_is_exceeded(name: str, jobs: list[Plan]) -> None:
    """Run times are drawn apart from the estimates: jobs end early and late."""
    starts, _ = simulate(make_policy(name), jobs)
    assert starts.keys() == {plan.waiting.id for plan in jobs}


@pytest.mark.parametrize("name", POLICIES)
@given(plans(), st.booleans())
def test_between_arrivals_promises_are_kept(name: str, jobs: list[Plan], exact: bool) -> None:
    limited = [
        Plan(plan.submitted, plan.waiting, min(plan.runs, plan.waiting.estimated))
        if not exact
        else Plan(plan.submitted, plan.waiting, plan.waiting.estimated)
        for plan in jobs
    ]
    watched = Promises(name)
    starts, _ = simulate(watched, limited)
    assert all(start <= watched.promised[job] for job, start in starts.items())


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_estimates_wrong_by_a_hundred_lose_no_job(name: str, factor: float) -> None:
    draw = Random(7)
    jobs = [
        Plan(
            float(number // 3),
            WaitingJob(number, draw.randint(1, AMOUNTS["cpus"]), run_time * factor),
            run_time,
        )
        for number, run_time in enumerate(draw.uniform(1, 30) for _ in range(60))
    ]
    starts, _ = simulate(make_policy(name), jobs)
    assert len(starts) == len(jobs)
    assert all(needs(plan.waiting)["cpus"] <= AMOUNTS["cpus"] for plan in jobs)
