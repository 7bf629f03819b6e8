"""The simulator: engine, clusters, metrics and the command, on small cases."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from metasched.cli import main
from metasched.core.events import CoreEvent, JobSubmitted, ListingReceived, Outcome
from metasched.core.scheduler import Core
from metasched.laboratory.simulate import metrics, synthetic
from metasched.laboratory.simulate.cluster_specs import parse_clusters
from metasched.laboratory.simulate.clusters import (
    ClusterError,
    Machine,
    SimulatedCluster,
    StoredInput,
)
from metasched.laboratory.simulate.engine import Schedule, Simulation
from metasched.laboratory.simulate.manager import SimulatedManager
from metasched.laboratory.simulate.settings import (
    SettingError,
    SimulationSettings,
    read_settings,
    read_workload,
    simulate,
)
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.fair_share import FairShareSettings, ShareTree
from metasched.model.job import Job
from metasched.model.licence import LicencePool
from metasched.policies.local.queueing import ReservedWindow
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy

SWF = "; MaxProcs: 4\n" + "".join(
    f"{n} {submit} -1 {ran} -1 -1 -1 {cpus} {estimate} -1 1 1 1 1 1 1 -1 -1\n"
    for n, submit, ran, cpus, estimate in [
        (11, 0, 100, 3, 100),
        (12, 10, 50, 4, 50),
        (13, 20, 60, 1, 80),
        (14, 30, 60, 1, 90),
        (15, 30, 5, 9, 5),
    ]
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.swf"
    path.write_text(SWF)
    return path


def jobs(*specs: tuple[float, int, float]) -> Workload:
    """A workload of (submitted, cpus, seconds); estimates are exact."""
    return Workload(
        "small",
        tuple(
            WorkloadEntry(Job(id=number, submitted=s, estimated=t, cpus=c), t, number)
            for number, (s, c, t) in enumerate(specs, 1)
        ),
    )


def run(workload: Workload, clusters: str = "4", name: str = "easy", **policy: object) -> Schedule:
    return Simulation(
        workload,
        parse_clusters(clusters),
        Policy(**policy),  # type: ignore[arg-type]
        lambda c: make_policy(name, licences=c.licences),
    ).run()


def test_every_event_passes_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[CoreEvent] = []
    step = Core.step

    def watched(core: Core, event: CoreEvent) -> Outcome:
        events.append(event)
        return step(core, event)

    monkeypatch.setattr(Core, "step", watched)
    schedule = run(jobs((0, 2, 30), (1, 4, 10), (2, 1, 9), (2, 3, 9), (50, 4, 1)), "4,2")
    assert schedule.event_count == len(events)
    assert sum(isinstance(event, JobSubmitted) for event in events) == 5
    rows = [row for event in events if isinstance(event, ListingReceived) for row in event.rows]
    completed = [(row.started, row.ended) for row in rows if row.state == "completed"]
    assert len(completed) == 5
    assert set(completed) == {(p.start, p.end) for p in schedule.jobs}


def test_a_pull_moves_a_job_to_where_it_starts_now() -> None:
    """Job 3 goes to the first cluster, whose queue is empty; the second cluster is free earlier."""
    workload = jobs((0, 4, 100), (0, 2, 50), (1, 2, 50))
    (*_, pushed) = run(workload, "4,2", load="paper", pull=False).jobs
    (*_, pulled) = run(workload, "4,2", load="paper", pull=True).jobs
    assert (pushed.cluster, pushed.start, pushed.moves) == (0, 100, 0)
    assert (pulled.cluster, pulled.start, pulled.moves) == (1, 50, 1)


def test_a_pull_waits_for_its_patience_and_then_looks_by_itself() -> None:
    """The first cluster has no queue and gets job 2, which waits there 7 s before its pull."""
    workload = jobs((0, 4, 100), (1, 4, 100), (2, 4, 100))
    placed = run(workload, "4,4,4", load="paper", pull=True, pull_after=7.0).jobs
    assert [(p.cluster, p.start, p.moves) for p in placed] == [(0, 0, 0), (2, 8, 1), (1, 2, 0)]


def test_licences_of_a_site_are_leased_above_its_clusters() -> None:
    """Both clusters share two tokens. Job 3 waits for a token although processors are free; job 4
    needs no token. The token of job 1 is free 5 s after its end."""
    workload = jobs((0, 1, 30), (1, 1, 50), (2, 1, 10), (3, 1, 10))
    licensed = [
        r._replace(job=structs.replace(r.job, licences={"l": 1})) for r in workload.entries[:3]
    ]
    workload = replace(workload, entries=(*licensed, workload.entries[3]))
    pool = LicencePool(name="l", total=2, linger=5.0)
    engine = Simulation(
        workload,
        parse_clusters("4,4"),
        Policy(),
        lambda _: make_policy("easy"),
        licence_pools=[pool],
    )
    schedule = engine.run()
    assert [p.start for p in schedule.jobs] == [0, 1, 35, 3]
    late = Simulation(
        workload,
        parse_clusters("4,4"),
        Policy(send="late"),
        lambda _: make_policy("easy"),
        licence_pools=[pool],
    )
    assert [p.start for p in late.run().jobs] == [0, 1, 35, 3]


def test_late_binding_gives_users_turns_and_keeps_shares() -> None:
    """A user's four jobs come first, then two of another; a single job runs at a time."""
    entries = [
        entry._replace(job=structs.replace(entry.job, user="ada" if number < 4 else "bob"))
        for number, entry in enumerate(jobs(*[(0.0, 4, 10.0)] * 4, *[(1.0, 4, 10.0)] * 2).entries)
    ]
    workload = Workload("two users", tuple(entries))
    shares = FairShareSettings(tree=ShareTree(users={"ada": 1.0, "bob": 9.0}))
    for fair_share, order in ((None, [1, 2, 5, 3, 6, 4]), (shares, [1, 5, 6, 2, 3, 4])):
        schedule = Simulation(
            workload,
            parse_clusters("4"),
            Policy(send="late"),
            lambda _: make_policy("fcfs"),
            fair_share=fair_share,
        ).run()
        by_start = sorted(schedule.jobs, key=lambda placed: placed.start)
        assert [placed.job.id for placed in by_start] == order
        assert [placed.start for placed in by_start] == [0, 10, 20, 30, 40, 50]


def test_tasks_that_cannot_start_do_not_pass_a_licence_on_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Job 1 has the only processor; jobs 2 and 3 want the only token, and neither can start."""
    steps = 0
    step = Core.step

    def counted(core: Core, event: CoreEvent) -> Outcome:
        nonlocal steps
        steps += 1
        assert steps < 200, "the simulation does not end"
        return step(core, event)

    monkeypatch.setattr(Core, "step", counted)
    plain = jobs((0, 1, 100), (1, 1, 10), (2, 1, 10), (3, 1, 1))
    first, *middle, last = plain.entries
    licensed = [e._replace(job=structs.replace(e.job, licences={"l": 1})) for e in middle]
    schedule = Simulation(
        replace(plain, entries=(first, *licensed, last)),
        parse_clusters("1"),
        Policy(pull=False, patience=0.0),
        lambda _: make_policy("easy"),
        licence_pools=[LicencePool(name="l", total=1)],
    ).run()
    assert sorted(placed.start for placed in schedule.jobs)[-1] <= 121


def test_the_copies_of_clusters_become_those_of_the_site() -> None:
    """Each cluster has one copy; a job that needs two runs only when the copies are pooled."""
    job = Job(id=1, submitted=0.0, estimated=10.0, licences={"l": 2})
    workload = Workload("w", (WorkloadEntry(job, 10.0, 1),))
    clusters = [SimulatedCluster(name=name, cpus=4, licences={"l": 1}) for name in "ab"]
    settings = read_settings("easy", ["pooled=true"], 0)
    assert [p.start for p in simulate(workload, clusters, settings).jobs] == [0]
    apart = simulate(workload, clusters, read_settings("easy", [], 0))
    assert (apart.jobs, dict(apart.dropped)) == ((), {"fits on no cluster": 1})
    with pytest.raises(SettingError, match="--set pooled"):
        simulate(workload, parse_clusters("4"), settings)


def test_a_manager_plans_by_limits_and_not_by_what_an_estimator_expects() -> None:
    """A limit is as long on a fast cluster; an estimate without a limit is shorter there."""
    manager = SimulatedManager(
        SimulatedCluster(name="fast", cpus=1, benchmark=2.0), make_policy("fcfs")
    )
    fields: dict[str, Any] = {"submitted": 0.0, "estimated": 10.0}
    manager.submit(Job(id=1, time_limit=100.0, **fields), 1, 8.0)
    manager.submit(Job(id=2, **fields), 1, 8.0)
    assert [job.estimated for job in manager.queue.values()] == [100.0, 5.0]
    assert manager.cluster_info().queue_head == (1, 100.0)
    assert manager.run_policy(0.0).started == [(1, 0, 4.0)]
    assert manager.running[1].end == 100.0
    machines = SimulatedManager(
        SimulatedCluster.of_machines("c", [Machine(1, 2.0)]), make_policy("fcfs")
    )
    machines.submit(Job(id=1, time_limit=100.0, **fields), 1, 8.0)
    assert machines.queue[1].machines == {0: 50.0}


def test_seconds_on_a_machine_are_those_of_its_speed() -> None:
    cluster = SimulatedCluster.of_machines("c", [Machine(1, 100.0), Machine(1, 400.0)])
    requests = tuple(
        WorkloadEntry(Job(id=n, submitted=0.0, estimated=80.0, benchmark=200.0), 60.0, n)
        for n in (1, 2)
    )
    engine = Simulation(Workload("w", requests), [cluster], Policy(), lambda _: make_policy("easy"))
    fast, slow = engine.run().jobs
    assert (fast.machine, fast.end) == (0, 30.0)
    assert (slow.machine, slow.end) == (1, 120.0)


def test_periods_are_ticks() -> None:
    workload = jobs((0, 2, 30), (1, 4, 10), (12, 2, 10))
    settings = read_settings("lsf", ["period=10"], 0)
    placed = (
        Simulation(workload, parse_clusters("4"), Policy(), settings.policy_factory()).run().jobs
    )
    assert [p.start for p in placed] == [0, 30, 20]


def test_passes_are_timed_by_the_clock_of_the_caller() -> None:
    """The clock goes on by a second at each look, so each pass takes one."""
    workload, clusters = synthetic.TABLES["table13"].generate("t", 1)
    first, settings = workload.subset(0, 30), SimulationSettings(policy="tabu")
    seconds = count()
    timed = simulate(first, clusters, settings, clock=lambda: float(next(seconds)))
    assert timed.policy_seconds == timed.pass_count > 0
    assert timed.search_iterations > 0
    untimed = simulate(first, clusters, settings)
    assert untimed == timed._replace(policy_seconds=0.0)


def test_the_order_of_a_run_does_not_depend_on_anything_but_its_seed() -> None:
    grid = [synthetic.TABLES["table6"].generate("t", 5) for _ in range(2)]
    assert grid[0] == grid[1]
    workload = grid[0].workload.subset(0, 120)
    runs = [
        Simulation(
            workload, grid[0].clusters, Policy(seed=1), lambda c: make_policy("fb-unmod")
        ).run()
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_metrics_of_a_schedule_worked_by_hand() -> None:
    schedule = run(jobs((0, 4, 100), (0, 2, 50), (20, 1, 5)), "4", "fcfs")
    figures = metrics.summary(schedule, "fcfs", 2.0)
    assert [p.start for p in schedule.jobs] == [0, 100, 100]
    assert figures["makespan"] == 150
    assert figures["mean_wait"] == (0 + 100 + 80) / 3
    assert figures["mean_flow"] == (100 + 150 + 85) / 3
    assert figures["mean_slowdown"] == (1 + 3 + 17) / 3
    assert figures["mean_bounded_slowdown"] == (1 + 3 + 8.5) / 3
    assert figures["utilisation"] == (400 + 100 + 5) / 600
    assert figures["load_share"] == {"c1": 1.0}
    assert figures["jobs_per_second"] == 1.5
    moments = metrics.usage_over_time(schedule.jobs)
    assert moments[0] == (0, 4, 1, 1, 0)
    assert moments[-1] == (150, 0, 0, 0, 0)
    halves = metrics.average_usage(moments, 0, 150, 2)
    assert [m.time for m in halves] == [0, 75]
    assert [m.used for m in halves] == [4, (25 * 4 + 5 * 3 + 45 * 2) / 75]
    assert [m.waiting for m in halves] == [(75 + 55) / 75, 2 * 25 / 75]
    thirds = metrics.average_usage(moments, 0, 150, 7)
    assert sum(m.used for m in thirds) / 7 / 4 == pytest.approx(figures["utilisation"])


def test_the_figures_of_each_cluster() -> None:
    requests = tuple(
        WorkloadEntry(
            Job(id=n, submitted=0.0, estimated=10.0, cpus=cpus, deadline=15.0, clusters=(name,)),
            10.0,
            n,
        )
        for n, cpus, name in ((1, 2, "c1"), (2, 2, "c1"), (3, 1, "c2"))
    )
    engine = Simulation(
        Workload("w", requests), parse_clusters("2,2"), Policy(), lambda _: make_policy("easy")
    )
    of = metrics.summary(engine.run(), "easy", 1.0)["clusters"]
    assert (of["c1"]["jobs"], of["c2"]["jobs"]) == (2, 1)
    assert (of["c1"]["mean_wait"], of["c1"]["longest_wait"]) == (5, 10)
    assert (of["c1"]["mean_flow"], of["c2"]["mean_flow"]) == (15, 10)
    assert (of["c1"]["missed_deadlines"], of["c1"]["mean_tardiness"]) == (0.5, 2.5)
    assert (of["c2"]["missed_deadlines"], of["c2"]["utilisation"]) == (0, 0.25)
    assert of["c1"]["mean_slowdown"] == 1.5


def test_deadlines_and_licences_in_the_metrics() -> None:
    cluster = SimulatedCluster(name="c", cpus=4, licences={"l1": 1})
    requests = tuple(
        WorkloadEntry(
            Job(id=n, submitted=0.0, estimated=10.0, deadline=15.0, licences={"l1": 1}), 10.0, n
        )
        for n in (1, 2)
    )
    engine = Simulation(Workload("w", requests), [cluster], Policy(), lambda _: make_policy("easy"))
    figures = metrics.summary(engine.run(), "easy", 1.0)
    assert figures["missed_deadlines"] == 0.5
    assert figures["mean_tardiness"] == 2.5
    assert figures["licence_usage"] == 1.0


def test_licence_usage_is_a_mean_over_licences_at_each_instant() -> None:
    """Jobs keep l1 in use for 30 s and l2 for 10 of them; then job 6 waits 10 s for processors."""
    cluster = SimulatedCluster(name="c", cpus=8, licences={"l1": 1, "l2": 2, "l3": 2})
    jobs = [
        *[Job(id=n, submitted=0.0, estimated=10.0, licences={"l1": 1}) for n in (1, 2, 3)],
        Job(id=4, submitted=0.0, estimated=10.0, licences={"l2": 1}),
        Job(id=5, submitted=30.0, estimated=10.0, licences={"l3": 1}),
        Job(id=6, submitted=30.0, estimated=10.0, cpus=8, licences={"l3": 1}),
    ]
    entries = tuple(WorkloadEntry(job, job.estimated, job.id) for job in jobs)
    schedule = Simulation(
        Workload("w", entries), [cluster], Policy(), lambda _: make_policy("first-fit")
    ).run()
    # not the mean over licences of their means over time, (1 + 1 + 0.75) / 3
    assert metrics.licence_usage(schedule) == pytest.approx((30 * 1 + 10 * 0.5 + 10 * 1) / 50)


def test_input_is_brought_over_the_slower_link() -> None:
    machines = [Machine(1, 300.0, bandwidth=10.0), Machine(1, 200.0, bandwidth=40.0), Machine(1)]
    cluster = SimulatedCluster.of_machines("c", machines, shared=False)
    inputs = (StoredInput("c", 1, 80.0, 40.0), StoredInput("other", 1, 100.0, 20.0))
    assert [cluster.transfer_seconds(inputs, machine) for machine in range(3)] == [
        80 / 10 + 100 / 10,  # both over its own link
        100 / 20,  # it stores the first part
        80 / 40 + 100 / 20,  # over the links of those that store them
    ]


def test_the_input_heuristic_sees_where_the_input_is() -> None:
    """Of equal machines Convergent Scheduling takes the one that stores the input."""
    pytest.importorskip("scipy")
    machines = [Machine(1, 100.0, bandwidth=10.0) for _ in range(4)]
    cluster = SimulatedCluster.of_machines("c", machines, shared=False)
    for stored in range(4):
        entry = WorkloadEntry(
            Job(id=1, submitted=0.0, estimated=10.0, benchmark=100.0),
            10.0,
            1,
            inputs=(StoredInput("c", stored, 500.0, 10.0),),
        )
        schedule = Simulation(
            Workload("w", (entry,)), [cluster], Policy(), lambda _: make_policy("cs-ni-np")
        ).run()
        assert schedule.jobs[0].machine == stored
        assert metrics.input_transfer(schedule) == 0.0
        assert schedule.jobs[0].run_time == 10.0


def test_drawn_inputs_leave_the_other_draws_as_they_are() -> None:
    with_inputs = synthetic.CONVERGENT.generate("t", 3)
    without = replace(synthetic.CONVERGENT, input_size=(0.0, 0.0)).generate("t", 3)
    assert [e._replace(inputs=()) for e in with_inputs.workload.entries] == list(
        without.workload.entries
    )
    sizes = [stored.size for entry in with_inputs.workload.entries for stored in entry.inputs]
    assert len(sizes) == 1500
    assert 100 <= min(sizes) < 110 < 790 < max(sizes) <= 800
    links = [machine.bandwidth for machine in with_inputs.clusters[0].machines]
    assert 10 <= min(links) < max(links) <= 100
    assert {e.inputs[0].machine for e in with_inputs.workload.entries} == set(range(150))


@pytest.mark.parametrize(("shared", "usage"), [(True, 0.75), (False, 1.0)])
def test_usage_is_of_processors_where_machines_are_shared(shared: bool, usage: float) -> None:
    """Jobs of 2, 2 and 8 processors run on a machine of 8: first 4 are busy, then all."""
    cluster = SimulatedCluster.of_machines("c", [Machine(8, 100.0)], shared=shared)
    ask = tuple(
        WorkloadEntry(Job(id=n, submitted=0.0, estimated=10.0, cpus=cpus, benchmark=100.0), 10.0, n)
        for n, cpus in ((1, 2), (2, 2), (3, 8))
    )
    engine = Simulation(Workload("w", ask), [cluster], Policy(), lambda _: make_policy("fcfs"))
    assert metrics.system_usage(engine.run()) == pytest.approx(usage)


# Parsing


@pytest.mark.parametrize(
    ("text", "sizes"), [("128", [128]), ("2x64", [64, 64]), ("64, 2x32,1", [64, 32, 32, 1])]
)
def test_clusters_by_their_sizes(text: str, sizes: list[int]) -> None:
    clusters = parse_clusters(text)
    assert [c.cpus for c in clusters] == sizes
    assert [c.name for c in clusters] == [f"c{n}" for n in range(1, len(sizes) + 1)]


@pytest.mark.parametrize("text", ["", "0", "x", "-4", "1,,2", "2x", "0x4", "9999x9", "1e3", "٣"])
def test_impossible_clusters(text: str) -> None:
    with pytest.raises(ClusterError, match="--clusters"):
        parse_clusters(text)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("benchmark=0:10", "benchmark is 0.0:10.0; it must be above 0"),
        ("machine_cpus=0", "machine_cpus is 0:0; it must be above 0"),
        ("estimated=9:3", "estimated is 9.0:3.0; write the lower number first"),
        ("input_size=800:100", "write the lower number first"),
        ("bandwidth=0", "bandwidth is 0.0:0.0; it must be above 0"),
        ("no_deadline=2", "no_deadline is 2.0; it must be 0..1"),
        ("jobs=0", "jobs is 0; it must be 1 to"),
        ("jobs=1e9", "jobs is 1000000000; it must be 1 to"),
    ],
)
def test_a_workload_that_cannot_be_drawn_is_refused(setting: str, message: str) -> None:
    settings = read_settings("easy", [setting], 1)
    for source in ("table4", "lublin") if setting.startswith("jobs") else ("table4",):
        with pytest.raises(SettingError) as error:
            read_workload(source, None, None, settings)
        assert message in str(error.value)
        assert str(error.value).endswith("--set")


def test_jobs_that_fit_nowhere_are_counted_as_dropped() -> None:
    settings = read_settings("cs-ni-np", ["cpus=7:9", "machine_cpus=1:7", "jobs=60"], 1)
    settings.generator_settings.pop("suitability", None)
    workload, clusters = read_workload("table4", None, None, settings)
    large = sum(
        entry.job.cpus > max(m.cpus for m in clusters[0].machines) for entry in workload.entries
    )
    schedule = simulate(workload, clusters, settings)
    assert len(schedule.jobs) + sum(schedule.dropped.values()) == 60
    assert schedule.dropped.get("fits on no cluster", 0) >= large


def test_clusters_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        """
        [[cluster]]
        name = "counted"
        cpus = 64
        policy = "sjf"
        [[cluster]]
        name = "grid"
        shared = false
        licences = { matlab = 2 }
        [[cluster.machine]]
        cpus = 4
        benchmark = 100
        [[cluster.machine]]
        count = 2
        cpus = 8
        benchmark = 300
        licences = ["matlab"]
        """
    )
    counted, grid = parse_clusters(str(path))
    assert (counted.cpus, counted.policy) == (64, "sjf")
    assert [m.benchmark for m in grid.machines] == [300, 300, 100]
    assert (grid.cpus, grid.shared, dict(grid.licences)) == (20, False, {"matlab": 2})
    for text in ("[[cluster]]\nname='a'", "cluster = 3", "[[cluster]]\nname='a'\ncpus=0", "=", ""):
        path.write_text(text)
        with pytest.raises(ClusterError) as error:
            parse_clusters(str(path))
        assert str(path) in str(error.value)
    path.write_text("[[cluster]]\nname='a'\ncpus=1\n" * 2)
    with pytest.raises(ClusterError, match="two clusters"):
        parse_clusters(str(path))


def test_a_cluster_with_its_own_policy_gets_the_parameters_that_this_has() -> None:
    policies = ("fb-mod", "eg-edf", "rcbo", "sjf")
    clusters = [SimulatedCluster(name="a", cpus=4, policy=policy) for policy in policies]
    settings = SimulationSettings(policy="fb-unmod", parameters={"preset": "paper", "depth": 3.0})
    make_policy = settings.policy_factory()
    for cluster in clusters:
        make_policy(cluster)
    settings = SimulationSettings(policy="fb-unmod", parameters={"preset": "none", "lead": 1.0})
    with pytest.raises(SettingError, match=r'lead is 1.0; .* cluster "a"'):
        settings.policy_factory()(clusters[0])
    with pytest.raises(SettingError, match=r'preset is "none"; .*--policy or --set'):
        settings.policy_factory()(replace(clusters[0], policy=""))


def test_reservations_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    cluster = "[[cluster]]\nname = 'a'\ncpus = 4\n"
    reservation = "[[cluster.reservation]]\nstart = 10\nend = 50\ncpus = 3\n"
    path.write_text(cluster + 2 * reservation)
    assert parse_clusters(str(path))[0].windows == (ReservedWindow(10.0, 50.0, 3),) * 2
    machines = "[[cluster]]\nname = 'a'\n[[cluster.machine]]\ncpus = 4\n"
    for text, expected in (
        (machines + reservation, "counted processors"),
        (cluster + reservation.replace("50", "10"), "from 10 to 10"),
        (cluster + reservation.replace("3", "5"), "more than its 4 processors"),
        (cluster + reservation.replace("10", "nan"), r"start = nan, .*\[cluster.reservation\]"),
        (cluster + reservation.replace("50", "inf"), r"end = inf, .*\[cluster.reservation\]"),
    ):
        path.write_text(text)
        with pytest.raises(ClusterError, match=expected):
            parse_clusters(str(path))


def test_licences_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    cluster = "[[cluster]]\nname = 'a'\ncpus = 4\n"
    licence = "[[licence]]\nname = 'l'\ntotal = 2\n"
    path.write_text(f"{cluster}{licence}clusters = ['a']\nlinger = 5\n")
    settings = read_settings("easy", [], 0, str(path))
    assert settings.licence_pools == (LicencePool(name="l", total=2, clusters=("a",), linger=5.0),)
    for text, expected in (
        (cluster + 2 * licence, "twice"),
        (f"{cluster}{licence}clusters = ['b']\n", 'no cluster "b"'),
        (f"{cluster}licences = {{ l = 1 }}\n{licence}", "its own licences"),
        (cluster + licence.replace("'l'", "'a licence'"), "no name"),
        (cluster + licence.replace("2", "0"), "total = 0"),
        (cluster + licence.replace("2", "9999999999"), "must be"),
    ):
        path.write_text(text)
        with pytest.raises(ClusterError, match=expected) as error:
            read_settings("easy", [], 0, str(path))
        assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("policy", "setting", "message"),
    [
        ("esy", None, 'write "easy"'),
        ("easy", "period=3", 'unknown key "period"'),
        ("lsf", "perid=3", "write period"),
        ("lsf", "period=soon", "no duration"),
        ("fb-mod", "age_factor=x", "not a number"),
        ("cs-ni-np", "lead=1", "lead is 1.0; it must be more than 1"),
        ("cs-i-p", "least=20", "it must be at most most"),
        ("fb-mod", "run=never", 'must be "best", "estimate" or "fastest"'),
        ("easy", "load=heavy", "observed or paper"),
        ("easy", "pull=maybe", '"true" nor "false"'),
        ("easy", "deadlines=3", "must be 0..1"),
        ("easy", "deadlines", "write it as"),
        ("easy", "self_optimising=bass", "bass cannot optimise itself; available are base,"),
        ("easy", "self_optimising=base,base-span", "keep one of them"),
    ],
)
def test_wrong_settings_are_reported(policy: str, setting: str | None, message: str) -> None:
    with pytest.raises(SettingError) as error:
        read_settings(policy, [setting] if setting else [], 0)
    assert message in str(error.value)


def test_words_that_set_something() -> None:
    arguments = ["load=paper", "pull=false", "age=1h", "deadlines=0.5", "margin=1:2", "lead=2"]
    settings = read_settings("fb-mod", arguments, 3)
    assert (settings.meta_policy.load, settings.meta_policy.pull, settings.meta_policy.age) == (
        "paper",
        False,
        3600,
    )
    assert (settings.overlay.deadlines, settings.overlay.margin) == (0.5, (1.0, 2.0))
    assert settings.parameters == {"lead": 2.0}
    assert settings.meta_policy.seed == 3


# Generators


def test_tables_are_within_their_ranges() -> None:
    workload, clusters = synthetic.TABLES["table6"].generate("table6", 1)
    assert [len(c.machines) for c in clusters] == [120, 60, 30, 15]
    assert len(workload.entries) == 5000
    for job in (r.job for r in workload.entries):
        assert 8000 <= job.estimated <= 10000
        assert 1 <= job.cpus <= 8
        assert job.margin is None or 1500 <= job.margin <= 5500.001
    without = sum(r.job.deadline is None for r in workload.entries)
    assert 1350 < without < 1650
    asking = sum(bool(r.job.licences) for r in workload.entries)
    assert 1350 < asking < 1650
    assert all(
        4 <= m.cpus <= 32 and 100 <= m.benchmark <= 500 for c in clusters for m in c.machines
    )
    last = workload.entries[-1].job.submitted
    assert 4.5 < last / 5000 < 5.5


def test_lublin_looks_like_a_supercomputer() -> None:
    workload, (cluster,) = synthetic.generate_lublin(4000, 128, 1)
    sizes = [r.job.cpus for r in workload.entries]
    assert cluster.cpus == 128
    assert max(sizes) <= 128
    serial = sizes.count(1) / len(sizes)
    powers = sum(size & (size - 1) == 0 for size in sizes) / len(sizes)
    assert 0.22 < serial < 0.40
    assert powers > 0.6
    submitted = [r.job.submitted for r in workload.entries]
    assert submitted == sorted(submitted)
    hours = [int(s // 3600) % 24 for s in submitted]
    assert hours.count(14) > 2 * hours.count(5)


# The command


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["metasched", "simulate", *map(str, arguments)])
    return main()


def test_the_command_prints_json(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, trace, "--policy", "easy", "--json") == 0
    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert "1 jobs dropped (fits on no cluster)" in err
    assert err.count("\n") == 1
    assert {
        "policy",
        "jobs",
        "makespan",
        "mean_wait",
        "mean_flow",
        "mean_slowdown",
        "mean_bounded_slowdown",
        "utilisation",
        "missed_deadlines",
        "mean_tardiness",
        "licence_usage",
        "load_share",
        "wall_seconds",
        "cpu_seconds",
        "jobs_per_second",
    } <= figures.keys()
    assert figures["cpu_seconds"] > 0
    assert (figures["policy"], figures["jobs"]) == ("easy", 4)
    assert figures["dropped"] == {"fits on no cluster": 1}


def test_the_command_writes_a_schedule_and_a_picture(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, picture = tmp_path / "out.csv", tmp_path / "out.png"
    arguments = ["--policy", "easy", "--jobs", "0:3", "--schedule", out, "--plot", picture]
    assert command(monkeypatch, trace, *arguments) == 0
    with open(out, newline="") as file:
        rows = list(csv.reader(file))
    assert ",".join(rows[0]) == "job,submit,start,end,cpus,cluster,machine,priority,reservation"
    assert rows[1:] == [
        ["11", "0", "0", "100", "3", "c1", "", "1", ""],
        ["12", "10", "100", "150", "4", "c1", "", "1", ""],
        ["13", "20", "20", "80", "1", "c1", "", "1", ""],
    ]
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.swf"], "No such file"),
        (["{trace}", "--policy", "magic"], 'unknown policy "magic"'),
        (["{trace}", "--set", "speed=3"], 'unknown key "speed"'),
        (["{trace}", "--set", "inter_arrival=3"], "applies only to generated workloads"),
        (["{trace}", "--clusters", "many"], "describes no clusters"),
        (["{trace}", "--jobs", "one"], "is not a range"),
        (["{trace}", "--jobs", "50:60"], "has no jobs in this range"),
        (["{trace}", "--plot", "out.bmp"], "has no supported suffix"),
        (["{trace}", "--seed", "x"], "--seed"),
        (["table1", "--set", "jobs=1.5"], "not a whole number"),
        (["lublin", "--set", "ratio=1"], "lublin has no ratio"),
    ],
)
def test_wrong_usage_is_one_line(
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert command(monkeypatch, *(argument.format(trace=trace) for argument in arguments)) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.startswith("metasched: error: ")
    assert (out, err.count("\n")) == ("", 1)


def test_a_picture_without_matplotlib_is_refused_before_the_run(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert command(monkeypatch, trace, "--plot", "out.png") == 2
    assert "pip install 'metasched[plot]'" in capsys.readouterr().err


def test_shares_in_a_file_of_clusters(tmp_path: Path) -> None:
    file = tmp_path / "clusters.toml"
    text = '[[cluster]]\nname = "a"\ncpus = 4\nqueue_depth = 7\n'
    file.write_text(f"{text}[fair_share]\nhalf_life = 600\nusers = {{ ada = 2 }}\n")
    settings = read_settings("easy", [], 0, str(file))
    assert settings.fair_share == FairShareSettings(
        half_life=600.0, tree=ShareTree(users={"ada": 2.0})
    )
    assert [cluster.queue_depth for cluster in parse_clusters(str(file))] == [7]
    for tables, problem in (
        ('[fair_share]\nshares_from = "a"\n', "shares_from, .*; write the shares"),
        ('[fair_share.shares.x]\nparent = "x"\n', "cycle, x below x"),
        ("[fair_share.users]\nada = 0\n", "ada = 0, .*; write a number from 1e-09"),
    ):
        file.write_text(text + tables)
        with pytest.raises(ClusterError, match=problem):
            read_settings("easy", [], 0, str(file))


def test_self_optimisation_changes_the_priorities_of_a_run_and_repeats_itself() -> None:
    def priorities(*assignments: str) -> list[int]:
        settings = read_settings("easy", ["jobs=300", *assignments], 0)
        workload, clusters = read_workload("table6", None, None, settings)
        return [each.priority for each in simulate(workload, clusters, settings).jobs]

    plain, tuned = priorities(), priorities("self_optimising=base-span,weight-user")
    assert plain != tuned
    assert plain[:100] == tuned[:100]
    assert priorities("self_optimising=base-span,weight-user") == tuned
