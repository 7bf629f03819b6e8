"""Plans: EG-EDF, Tabu Search and RCBO on cases worked by hand, and bad input."""

from __future__ import annotations

import pytest

from metasched.laboratory.simulate.settings import SettingError, read_settings
from metasched.policies.local.insertion import (
    Comparison,
    _best_by_deadline,
    insert_job,
    weight,
)
from metasched.policies.local.plan import ClusterPlan, PlanQuality
from metasched.policies.local.plan_search import BoundedMemory, ResourceOptimisation, TabuSearch
from metasched.policies.local.planning import EarliestGap
from metasched.policies.local.queueing import (
    FreeResources,
    JobStart,
    ReservedWindow,
    RunningJob,
    WaitingJob,
)
from metasched.policies.local.registry import make_policy


def job(number: int, cpus: int, *seconds: float, deadline: float | None = None) -> WaitingJob:
    """Return a job with a run time for each machine, the fastest first."""
    machines = dict(enumerate(seconds))
    return WaitingJob(number, cpus, seconds[0], machines=machines, deadline=deadline)


def plan_of(*cpus: int, running: tuple[RunningJob, ...] = ()) -> ClusterPlan:
    """Return an empty plan at time 0 on machines with these free processors."""
    plan = ClusterPlan()
    plan.observe(0.0, [], running, FreeResources(sum(cpus), machines=cpus))
    return plan


def places(plan: ClusterPlan) -> dict[int, tuple[int, float, float]]:
    return {number: (run.machine, run.start, run.end) for number, run in plan.runs.items()}


def test_the_weight_is_the_sum_of_the_relative_gains() -> None:
    old = PlanQuality(makespan=100.0, in_time=10, late=5)
    assert weight(old, PlanQuality(90.0, 11, 4)) == pytest.approx(0.1 + 0.1)
    assert weight(old, PlanQuality(120.0, 8, 8)) == pytest.approx(-0.2 - 0.2)
    assert weight(PlanQuality(0.0, 0, 0), PlanQuality(5.0, 1, 0)) == -5 + 1  # an empty plan


def test_a_job_goes_into_the_only_gap() -> None:
    """Job 2 waits for the whole first machine; beside the running job is a gap of 10 s."""
    plan = plan_of(2, 0, running=(RunningJob(98, 2, 10.0), RunningJob(99, 4, 60.0, machine=1)))
    insert_job(plan, job(2, 4, 20.0), "plan")
    insert_job(plan, job(3, 2, 8.0, 16.0), "plan")
    assert places(plan) == {2: (0, 10.0, 30.0), 3: (0, 0.0, 8.0)}


def test_of_two_gaps_the_plan_with_the_greater_weight_wins() -> None:
    """In the later gap of the slow machine job 4 would be late."""
    running = (RunningJob(98, 2, 10.0), RunningJob(99, 2, 10.0, machine=1))
    plan = plan_of(2, 2, running=running)
    for number, machine in ((2, 0), (3, 1)):
        plan.place(job(number, 4, 20.0, 20.0), machine, 10.0)
    insert_job(plan, job(4, 2, 8.0, 10.0, deadline=9.0), "plan")
    assert places(plan)[4] == (0, 0.0, 8.0)


def test_without_a_gap_the_job_goes_before_later_deadlines() -> None:
    plan = plan_of(0, running=(RunningJob(99, 4, 10.0),))
    for number, deadline in ((1, 100.0), (2, 300.0), (3, None)):
        insert_job(plan, job(number, 4, 20.0, deadline=deadline), "plan")
    insert_job(plan, job(4, 4, 20.0, deadline=200.0), "plan")
    insert_job(plan, job(5, 4, 20.0), "plan")
    starts = {number: start for number, (_, start, _) in places(plan).items()}
    assert starts == {1: 10.0, 4: 30.0, 2: 50.0, 3: 70.0, 5: 90.0}


@pytest.mark.parametrize(("comparison", "machine"), [("plan", 1), ("pairs", 0)])
def test_the_comparisons_differ_where_a_gap_comes_after_a_better_insertion(
    comparison: Comparison, machine: int
) -> None:
    """Only the second machine has a gap, in which the job is late.

    Printed as pairs, the insertion on the first machine takes part, since no gap was found before.
    """
    running = (RunningJob(98, 4, 10.0), RunningJob(99, 2, 30.0, machine=1))
    plan = plan_of(0, 2, running=running)
    plan.place(job(2, 4, 50.0, 50.0), 1, 30.0)
    insert_job(plan, job(3, 2, 15.0, 29.0, deadline=26.0), comparison)
    assert places(plan)[3][0] == machine


def test_a_machine_wins_where_the_job_lets_a_late_one_be_in_time() -> None:
    """Behind job 3, job 1 no longer fills the first machine at 10 s, and job 2 goes before it."""
    running = (RunningJob(98, 2, 10.0), RunningJob(99, 4, 30.0, machine=2))
    plan = plan_of(2, 4, 0, running=running)
    plan.place(job(1, 4, 10.0), 0, 10.0)
    plan.place(job(2, 2, 5.0, deadline=16.0), 0, 20.0)
    best = _best_by_deadline(plan, job(3, 2, 15.0, 10.0, deadline=15.0), plan.quality())
    assert best is not None
    assert (best.machine, best.quality) == (0, PlanQuality(30.0, 3, 0))


def test_tabu_search_moves_the_last_job_of_the_machine_with_most_late_jobs() -> None:
    plan = plan_of(4, 2)
    plan.place(job(1, 4, 10.0, deadline=10.0), 0, 0.0)
    plan.place(job(2, 2, 10.0, 12.0, deadline=15.0), 0, 10.0)
    search = TabuSearch(plan, memory=5, stop="late")
    search.run(100)
    assert places(plan) == {1: (0, 0.0, 10.0), 2: (1, 0.0, 12.0)}
    assert (search.moves, search.iterations, search.finished) == (1, 2, True)


def test_rcbo_takes_the_last_job_from_the_slowest_machine() -> None:
    plan = plan_of(4, 4)
    plan.place(job(1, 4, 10.0, 20.0), 1, 0.0)
    plan.place(job(2, 4, 10.0, 20.0), 1, 20.0)
    search = ResourceOptimisation(plan, memory=5)
    search.run(1)
    assert places(plan) == {1: (1, 0.0, 20.0), 2: (0, 0.0, 10.0)}


def test_tabu_search_tries_large_machines_first_and_the_faster_of_equals() -> None:
    """The job is in time on each; the order of machines alone decides."""
    plan = plan_of(4, 2, 8, 8)  # the fastest first
    plan.place(job(1, 4, 10.0, deadline=10.0), 0, 0.0)
    late = job(2, 2, 10.0, 11.0, 12.0, 13.0, deadline=15.0)
    plan.place(late, 0, 10.0)
    search = TabuSearch(plan, memory=5, stop="late")
    assert search.order_targets() == [2, 3, 0, 1]
    search.run(1)
    assert places(plan)[2] == (2, 0.0, 12.0)


def test_rcbo_counts_late_jobs_and_tabu_search_jobs_in_time() -> None:
    """A late job less among two is worth more than a job in time more among ten."""
    old, new = PlanQuality(100.0, 10, 2), PlanQuality(120.0, 11, 1)
    plan = plan_of(4)
    assert ResourceOptimisation(plan, 5).weight(old, new) == pytest.approx(-0.2 + 0.5)
    assert TabuSearch(plan, 5, "late").weight(old, new) == pytest.approx(-0.2 + 0.1)
    assert ResourceOptimisation(plan, 5).weight(old._replace(late=0), old) == -2


def full_machines(*jobs: int) -> ClusterPlan:
    """Return a plan of machines with so many jobs each, none of which can move."""
    plan = plan_of(*[4] * len(jobs))
    number = 0
    for machine, count in enumerate(jobs):
        for index in range(count):
            number += 1
            only = WaitingJob(number, 4, 10.0, machines={machine: 10.0})
            plan.place(only, machine, 10.0 * index)
    return plan


def test_rcbo_marks_a_machine_whose_jobs_were_all_selected_and_frees_these() -> None:
    """Du 2010, Figure 4-1, steps 3 and 4."""
    search = ResourceOptimisation(full_machines(1, 2), memory=5)
    search.run(2)  # both jobs of the slower machine
    assert (list(search._remembered._items), search._sources) == ([3, 2], [0, 1])
    search.run(1)
    assert (list(search._remembered._items), search._sources) == ([], [0])
    search.iterate()
    assert list(search._remembered._items) == [1]


def test_rcbo_returns_to_the_machine_that_it_forgets() -> None:
    """Step 5: the memory of machines is bounded, too."""
    search = ResourceOptimisation(full_machines(0, 0, 0), memory=2)
    sources = []
    for _ in range(4):
        search.iterate()
        sources.append(list(search._sources))
    assert sources == [[0, 1], [0], [2], [1]]


def test_a_search_of_an_empty_plan_ends() -> None:
    for search in (
        TabuSearch(plan_of(4, 2), 5, "late"),
        TabuSearch(plan_of(4, 2), 5, "rounds"),
        ResourceOptimisation(plan_of(4, 2), 5),
    ):
        search.run(50)
        assert search.moves == 0


@pytest.mark.parametrize("kind", ["tabu", "rcbo"])
def test_a_search_ends_when_no_move_of_any_job_betters_the_plan(kind: str) -> None:
    """Three jobs fill the only machine; a cluster of counted processors is such a machine."""
    plan = plan_of(4)
    for number in (1, 2, 3):
        plan.place(job(number, 4, 10.0, deadline=5.0), 0, 10.0 * (number - 1))
    search = TabuSearch(plan, 5, "rounds") if kind == "tabu" else ResourceOptimisation(plan, 5)
    search.run(1000)
    assert (search.finished, search.moves, search.iterations) == (True, 0, 3)


def test_a_full_memory_forgets_the_oldest() -> None:
    memory = BoundedMemory(2)
    assert [memory.add(item) for item in (1, 2, 1, 3)] == [None, None, None, 2]
    assert (2 in memory, 1 in memory, 3 in memory, len(memory)) == (False, True, True, 2)


def test_a_late_end_delays_only_what_it_must_and_an_early_end_compresses() -> None:
    policy = EarliestGap()
    queue = [WaitingJob(1, 4, 10.0), WaitingJob(2, 4, 10.0), WaitingJob(3, 2, 5.0)]
    running = [RunningJob(9, 2, 10.0)]
    assert policy.choose_starts(0.0, queue, running, FreeResources(2)) == [JobStart(3)]
    assert policy.planned_starts() == {1: 10.0, 2: 20.0}
    running = [RunningJob(9, 2, 10.0)]
    assert policy.choose_starts(12.0, queue[:2], running, FreeResources(2)) == []
    assert policy.planned_starts() == {1: 13.0, 2: 23.0}
    assert policy.choose_starts(12.5, queue[:2], [], FreeResources(4)) == [JobStart(1)]
    assert policy.planned_starts() == {2: 22.5}


def test_a_new_window_moves_planned_jobs_and_its_end_brings_them_back() -> None:
    policy = EarliestGap()
    queue = [WaitingJob(1, 4, 10.0), WaitingJob(2, 2, 20.0)]
    running = [RunningJob(9, 4, 10.0)]
    policy.choose_starts(0.0, queue, running, FreeResources(0))
    assert policy.planned_starts() == {1: 10.0, 2: 20.0}
    window = ReservedWindow(15.0, 30.0, 3)
    policy.choose_starts(1.0, queue, running, FreeResources(0, windows=[window]))
    assert policy.planned_starts() == {1: 30.0, 2: 40.0}
    left_over = policy.left_over()
    assert (left_over.start, left_over.free.cpus) == (15.0, 0)  # nothing may run into the window
    policy.choose_starts(2.0, queue, running, FreeResources(0))
    assert policy.planned_starts() == {1: 10.0, 2: 20.0}


@pytest.mark.parametrize("name", ["eg-edf", "tabu", "rcbo"])
def test_a_job_that_fits_nowhere_delays_nobody(name: str) -> None:
    policy = make_policy(name)
    queue = [
        WaitingJob(1, 99, 10.0),
        WaitingJob(2, 1, 10.0, {"gpu": 3}),
        WaitingJob(3, 2, 10.0),
    ]
    free = FreeResources(4, {"gpu": 2})
    assert policy.choose_starts(0.0, queue, [], free) == [JobStart(3)]
    assert policy.choose_starts(5.0, [], [RunningJob(3, 2, 10.0)], free) == []


def test_no_more_than_depth_jobs_are_planned() -> None:
    policy = EarliestGap(depth=3)
    queue = [WaitingJob(number, 4, 10.0) for number in range(9)]
    policy.choose_starts(0.0, queue, [RunningJob(99, 4, 10.0)], FreeResources(0))
    assert list(policy.planned_starts()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "parameters", "complaint"),
    [
        ("eg-edf", {"compare": "best"}, 'compare is "best"; it must be plan or pairs'),
        ("eg-edf", {"depth": 0}, "depth is 0; it must be a whole number from 1 to 1000000"),
        ("tabu", {"iterations": 2.5}, "iterations is 2.5; it must be a whole number"),
        ("tabu", {"stop": "never"}, 'stop is "never"; it must be late or rounds'),
        ("rcbo", {"memory": -1}, "memory is -1; it must be a whole number"),
        ("rcbo", {"stop": "late"}, 'policy rcbo has no parameter "stop"; it has preset'),
    ],
)
def test_a_bad_parameter_is_refused(
    name: str, parameters: dict[str, float | str], complaint: str
) -> None:
    with pytest.raises(ValueError, match="^" + complaint):
        make_policy(name, parameters)


def test_parameters_are_read_from_the_command() -> None:
    settings = read_settings("tabu", ["stop=rounds", "iterations=50"], 1)
    assert settings.parameters == {"stop": "rounds", "iterations": 50.0}
    with pytest.raises(SettingError, match=r"^every is 0; it must be a whole number from 1"):
        read_settings("rcbo", ["every=0"], 1)
