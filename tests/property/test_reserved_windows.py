"""Reserved windows: no job runs in one, whatever arrives and however long jobs run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.laboratory.simulate.cluster_specs import parse_clusters
from metasched.laboratory.simulate.clusters import ClusterError, Machine, SimulatedCluster
from metasched.laboratory.simulate.engine import ScheduledJob, Simulation
from metasched.laboratory.simulate.workload import WindowRequest, Workload, WorkloadEntry
from metasched.model.job import Job
from metasched.policies.local.planning import EarliestGap
from metasched.policies.local.queueing import LocalPolicy, ReservedWindow
from metasched.policies.local.registry import POLICIES, keeps_windows, make_policy
from metasched.policies.local.reserved_windows import WindowUse
from metasched.policies.policy import Policy

PLANNING = ("eg-edf", "tabu", "rcbo")
KEEPING = sorted(name for name in POLICIES if keeps_windows(name))
SIZES = (8, 5)  # of machines
seconds = st.integers(1, 30).map(float)


spans = st.tuples(st.integers(-5, 30), st.integers(1, 30), st.integers(1, SIZES[0]))


@given(st.lists(spans, max_size=8), st.lists(st.tuples(st.integers(1, 40), st.integers(1, 8))))
def test_upcoming_windows_bar_the_jobs_that_all_windows_bar(
    drawn: list[tuple[int, int, int]], running: list[tuple[int, int]]
) -> None:
    """However many windows there are, a listing has no more than processors."""
    cpus = SIZES[0]
    windows = [ReservedWindow(start, start + length, held) for start, length, held in drawn]
    use = WindowUse(0.0, {str(n): window for n, window in enumerate(windows)}, {})
    upcoming = use.upcoming(cpus, running)
    assert len(upcoming) <= cpus + 1
    for moment in range(31):
        starts = [w.start for w in windows if 0 < w.start < moment]
        held = [
            sum(w.cpus for w in windows if w.start <= start < w.end)
            + sum(size for end, size in running if start < end)
            for start in starts
        ]
        for size in range(1, cpus + 1):
            barred = any(size > max(cpus - in_use, 0) for in_use in held)
            assert barred == any(size > left for start, left in upcoming if start < moment)


@st.composite
def clusters(draw: st.DrawFn) -> SimulatedCluster:
    """Draw counted processors or two machines, with windows that hold at most all of each."""
    cluster = SimulatedCluster(name="c1", cpus=SIZES[0])
    sizes: tuple[int, ...] = SIZES[:1]
    if draw(st.booleans()):
        machines = [Machine(size, 2.0 - index) for index, size in enumerate(SIZES)]
        cluster, sizes = SimulatedCluster.of_machines("c1", machines), SIZES
    windows = []
    for machine, size in enumerate(sizes):
        end = 0.0
        for _ in range(draw(st.integers(0, 3))):
            start = end + draw(st.integers(0, 25))
            end = start + draw(seconds)
            windows.append(ReservedWindow(start, end, draw(st.integers(1, size)), machine))
    return replace(cluster, windows=tuple(windows))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw jobs whose run times are drawn apart from their estimates."""
    entries, now = [], 0.0
    for number in range(1, draw(st.integers(1, 14)) + 1):
        now += draw(st.integers(0, 8))
        margin = draw(st.one_of(st.none(), st.integers(1, 60)))
        job = Job(
            id=number,
            submitted=now,
            estimated=draw(seconds),
            cpus=draw(st.integers(1, SIZES[0])),
            deadline=None if margin is None else now + margin,
        )
        entries.append(WorkloadEntry(job, draw(seconds), number))
    return Workload("drawn", tuple(entries))


def holds(cluster: SimulatedCluster, machine: int) -> list[tuple[float, float, int]]:
    return [(w.start, w.end, w.cpus) for w in cluster.windows if w.machine == machine]


def exceeds(held: list[tuple[float, float, int]], size: int) -> bool:
    """Whether more than `size` processors are held at any time; each is (start, end, cpus)."""
    return any(
        sum(cpus for start, end, cpus in held if start <= moment < end) > size
        for moment, _, _ in held
    )


def size_of(cluster: SimulatedCluster, machine: int) -> int:
    return cluster.machines[machine].cpus if cluster.machines else cluster.cpus


@pytest.mark.parametrize("name", PLANNING)
@given(clusters(), workloads())
def test_no_planned_job_overlaps_a_window(
    name: str, cluster: SimulatedCluster, workload: Workload
) -> None:
    policy = make_policy(name, {"every": 3.0} if name != "eg-edf" else None)
    assert isinstance(policy, EarliestGap)
    decide = policy.choose_starts

    def watched(now, queue, running, free):  # type: ignore[no-untyped-def]
        starts = decide(now, queue, running, free)
        for machine, schedule in enumerate(policy.plan.machines):
            runs = [(run.start, run.end, run.cpus) for run in schedule.runs]
            assert not exceeds([*holds(cluster, machine), *runs], size_of(cluster, machine))
        return starts

    policy.choose_starts = watched  # type: ignore[method-assign]
    assert_windows_are_kept(cluster, workload, policy)


@pytest.mark.parametrize("name", sorted(set(KEEPING) - set(PLANNING)))
@given(clusters(), workloads())
def test_no_job_overlaps_a_window(name: str, cluster: SimulatedCluster, workload: Workload) -> None:
    if not cluster.machines:
        assert_windows_are_kept(cluster, workload, make_policy(name))


def assert_windows_are_kept(
    cluster: SimulatedCluster, workload: Workload, policy: LocalPolicy
) -> None:
    """Jobs hold their processors until they end, or at most until their estimates are over."""
    schedule = Simulation(workload, (cluster,), Policy(), lambda _: policy).run()
    assert len(schedule.jobs) == len(workload.entries)
    ends_of_estimates = {
        p.job.id: p.start + p.job.estimated / speed_of(cluster, p) for p in schedule.jobs
    }
    for machine in range(len(cluster.machines) or 1):
        held = [
            (p.start, min(p.end, ends_of_estimates[p.job.id]), p.cpus)
            for p in schedule.jobs
            if p.machine == machine
        ]
        assert not exceeds([*holds(cluster, machine), *held], size_of(cluster, machine))


def speed_of(cluster: SimulatedCluster, scheduled: ScheduledJob) -> float:
    return cluster.machines[scheduled.machine].benchmark if cluster.machines else 1.0


def test_a_job_waits_for_the_end_of_a_window_and_a_short_one_goes_before_it() -> None:
    cluster = SimulatedCluster(name="c1", cpus=4, windows=(ReservedWindow(10.0, 50.0, 3),))
    jobs = [
        Job(id=1, submitted=0.0, estimated=20.0, cpus=2),
        Job(id=2, submitted=1.0, estimated=9.0, cpus=4),
        Job(id=3, submitted=2.0, estimated=100.0, cpus=1),
    ]
    workload = Workload("by hand", tuple(WorkloadEntry(job, job.estimated, job.id) for job in jobs))
    schedule = Simulation(workload, (cluster,), Policy(), lambda _: make_policy("eg-edf")).run()
    assert {p.job.id: p.start for p in schedule.jobs} == {1: 50.0, 2: 1.0, 3: 10.0}


@pytest.mark.parametrize("name", ["easy", "conservative", "fb-mod", "fb-unmod", "fair-share"])
def test_no_job_that_is_filled_in_delays_the_head_beside_a_window(name: str) -> None:
    """The head needs the window's processors at its end; what would still run then may not."""
    cluster = SimulatedCluster(name="c1", cpus=4, windows=(ReservedWindow(10.0, 50.0, 2),))
    jobs = [
        Job(id=1, submitted=0.0, estimated=20.0, cpus=4),
        Job(id=2, submitted=1.0, estimated=100.0, cpus=1),
        Job(id=3, submitted=2.0, estimated=48.0, cpus=2),
    ]
    workload = Workload("by hand", tuple(WorkloadEntry(job, job.estimated, job.id) for job in jobs))
    schedule = Simulation(workload, (cluster,), Policy(), lambda _: make_policy(name)).run()
    assert {p.job.id: p.start for p in schedule.jobs} == {1: 50.0, 2: 70.0, 3: 2.0}


def test_only_a_plan_keeps_windows_of_machines() -> None:
    machines = SimulatedCluster.of_machines("c1", [Machine(4), Machine(4)])
    cluster = replace(machines, windows=(ReservedWindow(10.0, 50.0, 3),))
    with pytest.raises(ClusterError, match="machines and reservations"):
        Simulation(Workload("none", ()), (cluster,), Policy(), lambda _: make_policy("easy"))


@pytest.mark.parametrize("name", sorted(set(POLICIES) - set(KEEPING)))
def test_a_policy_that_keeps_no_windows_is_refused(name: str) -> None:
    cluster = SimulatedCluster(name="c1", cpus=4, windows=(ReservedWindow(10.0, 50.0, 3),))
    with pytest.raises(ClusterError, match=r"^cluster \"c1\" has reservations, which its policy"):
        Simulation(Workload("none", ()), (cluster,), Policy(), lambda _: make_policy(name))


@st.composite
def reserving_workloads(draw: st.DrawFn) -> Workload:
    """Draw jobs that end by their estimates, some with reservations, and windows without jobs."""
    entries = []
    for entry in draw(workloads()).entries:
        job, window = entry.job, None
        if draw(st.booleans()):
            ready = job.submitted + draw(st.integers(0, 40))
            slack = float(draw(st.sampled_from([0, 30])))
            window = WindowRequest(job.submitted, ready, job.estimated, job.cpus, slack)
        run_time = min(entry.run_time, job.estimated)
        entries.append(entry._replace(run_time=run_time, window=window))
    windows = [
        WindowRequest(start - draw(st.integers(0, start)), start, draw(seconds), 1)
        for start in draw(st.lists(st.integers(0, 60), max_size=4))
    ]
    windows.sort(key=lambda window: window.submitted)
    return Workload("drawn", tuple(entries), windows=tuple(windows))


@pytest.mark.parametrize("name", ["conservative", "easy", "fb-unmod", "sjf-bounded", "tabu"])
@given(st.sampled_from(["8", "8,5"]), reserving_workloads(), st.booleans())
def test_all_promises_are_kept_while_jobs_end_by_their_limits(
    name: str, sizes: str, workload: Workload, pull: bool
) -> None:
    clusters = parse_clusters(sizes)
    policy = Policy(pull=pull, load="observed")
    simulation = Simulation(workload, clusters, policy, lambda _: make_policy(name))
    schedule = simulation.run()
    requested = len(workload.windows) + sum(e.window is not None for e in workload.entries)
    assert len(schedule.reservations) == requested
    assert not schedule.dropped
    assert len(schedule.jobs) == len(workload.entries)
    granted = [result for result in schedule.reservations if result.granted]
    assert [result for result in granted if not result.kept] == []
    started = {scheduled.job.id: scheduled for scheduled in schedule.jobs}
    for result in granted:
        wish = result.request
        ready = max(wish.ready, wish.submitted, workload.entries[0].job.submitted)
        assert ready <= result.start <= ready + wish.slack
        assert result.end - result.start == wish.duration
        if result.job is not None:
            job = started[result.job]
            assert (job.start, clusters[job.cluster].name) == (result.start, result.cluster)
    inside = {result.job for result in granted}
    for index, cluster in enumerate(clusters):
        held = [(r.start, r.end, r.request.cpus) for r in granted if r.cluster == cluster.name]
        held += [
            (job.start, job.end, job.cpus)
            for job in schedule.jobs
            if job.cluster == index and job.job.id not in inside
        ]
        assert not exceeds(held, cluster.cpus)
