"""Limits of the site in simulations: worked examples, bad input, and the daemon's own decisions."""

from __future__ import annotations

from pathlib import Path

import pytest

from metasched.core.events import DaemonStarted, JobSubmitted, ListingReceived
from metasched.core.scheduler import Core
from metasched.laboratory.simulate.clusters import ClusterError, SimulatedCluster
from metasched.laboratory.simulate.engine import REFUSED, Schedule, Simulation
from metasched.laboratory.simulate.metrics import summary
from metasched.laboratory.simulate.settings import read_settings, read_workload, simulate
from metasched.laboratory.simulate.swf import read_trace
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry, from_trace
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Reason
from metasched.model.licence import LicencePool
from metasched.model.limits import LimitSettings, LimitTable
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy
from tests.unit.core_site import facts

RUN = 100.0  # seconds of each job


def a_job(id: int, user: str, submitted: float = 0.0, **fields: object) -> Job:
    return Job(id=id, submitted=submitted, estimated=RUN, user=user, **fields)  # type: ignore[arg-type]


def run(
    limits: LimitSettings,
    *jobs: Job,
    clusters: tuple[int, ...] = (8,),
    pools: tuple[LicencePool, ...] = (),
) -> Schedule:
    """Run the jobs on clusters of these sizes."""
    return Simulation(
        Workload("limited", tuple(WorkloadEntry(job, RUN, job.id) for job in jobs)),
        [SimulatedCluster(name=f"c{number}", cpus=cpus) for number, cpus in enumerate(clusters)],
        Policy(),
        lambda cluster: make_policy("easy", licences=cluster.licences),
        licence_pools=pools,
        limits=limits,
    ).run()


def starts(schedule: Schedule) -> dict[int, float]:
    return {placed.job.id: placed.start for placed in schedule.jobs}


def test_processors_of_each_user() -> None:
    """Two of ada's fit into her 4 processors; bob's start at once on what she may not take."""
    limits = LimitSettings(each_user=LimitTable(processors=4))
    jobs = [a_job(id, "ada", cpus=2) for id in (1, 2, 3, 4, 5)]
    schedule = run(limits, *jobs, a_job(6, "bob", cpus=4))
    assert starts(schedule) == {1: 0.0, 2: 0.0, 3: RUN, 4: RUN, 5: 2 * RUN, 6: 0.0}


def test_a_limit_holds_over_all_clusters_and_counts_pending_tasks() -> None:
    limits = LimitSettings(for_all=LimitTable(running=3))
    schedule = run(limits, *(a_job(id, "ada") for id in range(1, 8)), clusters=(2, 2))
    assert sorted(starts(schedule).values()) == [0.0] * 3 + [RUN] * 3 + [2 * RUN]


def test_groups_and_classes() -> None:
    single = LimitTable(running=1)
    limits = LimitSettings(groups={"aero": single}, classes={"gold": single})
    jobs = [
        a_job(1, "a", groups=("aero",)),
        a_job(2, "b", groups=("aero",)),
        a_job(3, "c", user_class="gold"),
        a_job(4, "d", user_class="gold"),
        a_job(5, "e"),
    ]
    late = {id for id, start in starts(run(limits, *jobs)).items() if start == RUN}
    assert late == {2, 4}


def test_tokens_of_a_user() -> None:
    """There are 3 tokens, but ada may take 1 at a time."""
    limits = LimitSettings(users={"ada": LimitTable(licences={"m": 1})})
    jobs = [a_job(id, "ada", licences={"m": 1}) for id in (1, 2)]
    jobs.append(a_job(3, "bob", licences={"m": 2}))
    schedule = run(limits, *jobs, pools=(LicencePool(name="m", total=3),))
    assert starts(schedule) == {1: 0.0, 2: RUN, 3: 0.0}


def test_refused_submissions_are_left_out_and_counted() -> None:
    """Ada may have 2 open jobs: the third is refused, the fourth comes when one has ended."""
    limits = LimitSettings(users={"ada": LimitTable(open_tasks=2, processors=4)})
    jobs = [a_job(1, "ada"), a_job(2, "ada", 50.0), a_job(3, "ada", 60.0), a_job(4, "ada", RUN)]
    too_wide = a_job(5, "ada", 300.0, cpus=5)  # no limit will ever let it go
    schedule = run(limits, *jobs, too_wide, a_job(6, "bob", 310.0))
    assert starts(schedule) == {1: 0.0, 2: 50.0, 4: RUN, 6: 310.0}
    assert schedule.dropped == {REFUSED: 2}
    assert summary(schedule, "easy", 1.0)["dropped"] == {REFUSED: 2}


def test_queued_counts_what_waits_in_metasched() -> None:
    limits = LimitSettings(for_all=LimitTable(running=1, queued=2))
    schedule = run(limits, *(a_job(id, "ada") for id in range(1, 6)))
    assert starts(schedule) == {1: 0.0, 2: RUN, 3: 2 * RUN}
    assert schedule.dropped == {REFUSED: 2}


def test_the_decisions_are_those_of_the_core() -> None:
    """A daemon that is told of the same jobs at one time lets the same jobs wait."""
    limits = LimitSettings(each_user=LimitTable(processors=3), for_all=LimitTable(running=4))
    jobs = [a_job(id, f"u{id % 3}", cpus=1 + id % 2) for id in range(1, 13)]
    simulation = Simulation(
        Workload("same", tuple(WorkloadEntry(job, RUN, job.id) for job in jobs)),
        [SimulatedCluster(name="c", cpus=64)],
        Policy(),
        lambda _: make_policy("easy"),
        limits=limits,
    )
    at_once = {id for id, start in starts(simulation.run()).items() if start == 0.0}
    core = Core()
    clusters = (Cluster(name="c", adapter="local"),)
    core.step(DaemonStarted(0.0, "cafe", Policy(), clusters, limits=limits))
    core.step(ListingReceived(0.0, "c", info=facts(64), full=True))
    for job in jobs:
        core.step(JobSubmitted(0.0, job))
    assert {id for id, _ in core.tasks if core.tasks[id, 0].attempt is not None} == at_once
    waiting = {task.reason for task in core.tasks.values() if task.attempt is None}
    assert waiting == {Reason.LIMIT_USER, Reason.LIMIT_CLASS}


def test_groups_of_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.swf"
    rows = [f"{id} 0 -1 100 1 -1 -1 1 100 -1 1 {id} {id % 2} -1 -1 -1 -1 -1" for id in range(1, 5)]
    trace.write_text("\n".join([*rows, "5 0 -1 100 1 -1 -1 1 100 -1 1 7 -1 -1 -1 -1 -1 -1\n"]))
    groups = [entry.job.groups for entry in from_trace("t", read_trace(trace)).entries]
    assert groups == [("1",), ("0",), ("1",), ("0",), ()]


def test_limits_in_a_file_of_clusters(tmp_path: Path) -> None:
    trace, file = tmp_path / "trace.swf", tmp_path / "clusters.toml"
    rows = [f"{id} 0 -1 100 1 -1 -1 1 100 -1 1 7 1 -1 -1 -1 -1 -1" for id in range(1, 4)]
    trace.write_text("\n".join(rows) + "\n")
    cluster = '[[cluster]]\nname = "a"\ncpus = 4\n'
    file.write_text(f"{cluster}[limits.users.7]\nrunning = 1\nopen_tasks = 2\n")
    settings = read_settings("easy", [], 0, str(file))
    assert settings.limits == LimitSettings(users={"7": LimitTable(open_tasks=2, running=1)})
    schedule = simulate(*read_workload(str(trace), str(file), None, settings), settings)
    assert starts(schedule) == {1: 0.0, 2: 100.0}
    assert schedule.dropped == {REFUSED: 1}
    for tables, problem in (
        ("[limits]\nrunning = 5\ndispatched = 4\n", "running = 5 exceeds dispatched = 4"),
        ("[limits.classes.lead]\nrunning = 1\n", 'no user class "lead"'),
        ("[limits.each_user]\nlicences = { m = 1 }\n", 'no licence "m"'),
        ("[limits]\nrunning = -1\n", r"running = -1, .*\[limits\]"),
    ):
        file.write_text(cluster + tables)
        with pytest.raises(ClusterError, match=problem):
            read_settings("easy", [], 0, str(file))
    file.write_text(f"{cluster}[limits]\nlicences = {{ l2 = 1 }}\n")
    assert read_settings("easy", ["licences=2"], 0, str(file)).limits.configured
    file.write_text(f"{cluster}[limits.users.7]\nrunning = 1\n")
    late = read_settings("easy", ["send=late"], 0, str(file))
    schedule = simulate(*read_workload(str(trace), str(file), None, late), late)
    assert starts(schedule) == {1: 0.0, 2: 100.0, 3: 200.0}
