"""Arrays of a recorded period: the simulation places each task as the daemon has placed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from sqlalchemy import update

from metasched.core.tasks import TaskId
from metasched.db.schema import attempt, job
from metasched.db.sqlite import Sqlite
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import REFUSED, Simulation
from metasched.laboratory.simulate.recorded_workload import read_period
from metasched.laboratory.simulate.submissions import array_arrivals
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.job import Job
from metasched.model.licence import LicencePool
from metasched.model.limits import LimitSettings, LimitTable
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy
from tests.harness.polled_site import PolledSite, Request
from tests.harness.recorded_periods import assert_simulated_as_recorded
from tests.harness.recorded_site import recording

START = 1_000_000.0
TWO = [SimulatedCluster(name=name, cpus=2, queue_depth=0) for name in ("alpha", "beta")]


def array(id: int, indices: str, submitted: float = 0.0, **fields: object) -> Job:
    fields = {"cpus": 2, "estimated": 60.0, "user": "ada", **fields}
    return Job(id=id, submitted=START + submitted, array=indices, **fields)  # type: ignore[arg-type]


def test_tied_tasks_of_two_arrays_go_where_the_daemon_sent_them(tmp_path: Path) -> None:
    """All clusters are equal, so draws decide: each task of an array draws the same."""
    site = PolledSite(Policy(pull=False), TWO)
    requests = [
        Request(array(100_000_017, "1-12"), 4.0),
        Request(array(100_000_021, "3-25:2", submitted=1.0), 5.0),
    ]
    assert_simulated_as_recorded(site, requests, Sqlite(tmp_path / "ms.db"))


def test_a_limit_and_more_tasks_than_a_step_releases(tmp_path: Path) -> None:
    """A thousand tasks and more wait in a remainder until a cluster takes them."""
    clusters = [SimulatedCluster(name=name, cpus=100, queue_depth=0) for name in ("alpha", "beta")]
    requests = [
        Request(array(7, "1-1200", cpus=1), 40.0),
        Request(array(9, "1-9%2", submitted=50.0, cpus=1), 7.0),
    ]
    site = PolledSite(Policy(pull=False, load="paper"), clusters)
    assert_simulated_as_recorded(site, requests, Sqlite(tmp_path / "ms.db"))
    starts = sorted(place.start for (id, _), place in site.places.items() if id == 9)
    assert starts[2] == starts[0] + 7.0


def test_what_a_listing_sends_to_another_cluster_counts_in_the_next(tmp_path: Path) -> None:
    """Tasks end on three clusters at a time; each listing frees a slot of the first array."""
    clusters = [SimulatedCluster(name=name, cpus=2, queue_depth=0) for name in ("a", "b", "c")]
    first = array(2101, "1-8%3", 18.0, cpus=1, estimated=5.0, owner_priority=3)
    second = array(2105, "1-8%3", 19.0, cpus=1, estimated=5.0, user="bob")
    third = array(2108, "0-6:3", 19.0, estimated=10.0)
    site = PolledSite(
        Policy(pull=False, ordering="equal", seed=9),
        clusters,
        (LicencePool(name="solver", total=2),),
    )
    requests = [Request(first, 5.0), Request(second, 1.0), Request(third, 10.0)]
    assert_simulated_as_recorded(site, requests, Sqlite(tmp_path / "ms.db"))


def test_limits_are_as_long_on_a_fast_cluster(tmp_path: Path) -> None:
    """There the first runs for 50 s, but it may for 100 s: the third ends before, by its limit."""
    fast = SimulatedCluster(name="fast", cpus=2, benchmark=2.0, queue_depth=0)

    def limited(id: int, submitted: float, cpus: int, seconds: float) -> Job:
        own = {"estimated": seconds, "time_limit": seconds, "user": "ada"}
        return Job(id=id, submitted=START + submitted, cpus=cpus, **own)  # type: ignore[arg-type]

    requests = [
        Request(limited(7, 0.0, 1, 100.0), 100.0),
        Request(limited(8, 10.0, 2, 10.0), 10.0),
        Request(limited(9, 30.0, 1, 60.0), 60.0),
    ]
    site = PolledSite(Policy(), [fast])
    period = assert_simulated_as_recorded(site, requests, Sqlite(tmp_path / "ms.db"))
    assert [entry.job.time_limit for entry in period.workload.entries] == [100.0, 10.0, 60.0]
    assert [site.places[id, 0].start - START for id in (7, 8, 9)] == [0.0, 60.0, 30.0]


def test_tasks_arrive_with_the_first_of_their_array_unless_it_was_held(tmp_path: Path) -> None:
    """A manager may report a start before the submission: clocks differ, or have no fractions."""
    database = Sqlite(tmp_path / "ms.db")
    choices = ({"solver": 1}, {"mesher": 1})
    jobs = [
        array(7, "1-3", cpus=1),
        array(8, "1-3", cpus=1),
        array(9, "1-3", cpus=1, licences=choices[0], licence_choices=choices),
    ]
    pools = tuple(LicencePool(name=name, total=2) for name in ("solver", "mesher"))
    site = PolledSite(Policy(pull=False), TWO, pools)
    with recording(site.core, database):
        site.run([Request(each, 10.0) for each in jobs])
    held = msgspec.json.encode(structs.replace(jobs[1], held=True)).decode()
    engine = database.open_existing()
    with engine.begin() as connection:
        of_first = (attempt.c.job == 7) & (attempt.c.task_index == 1)
        connection.execute(update(attempt).where(of_first).values(started=START - 0.4))
        connection.execute(update(job).where(job.c.id == 8).values(modified_spec=held))
        sent = START + 9.0 * attempt.c.task_index
        connection.execute(update(attempt).where(attempt.c.job == 8).values(dispatched=sent))
        period = read_period(connection)
    engine.dispose()
    arrivals: dict[int, list[float]] = {}
    for each, recorded in zip(period.workload.entries, period.tasks, strict=True):
        arrivals.setdefault(recorded.job, []).append(each.job.submitted - START)
    # of the held one each arrives when it was sent, at the latest when it started
    assert arrivals == {7: [pytest.approx(-0.4)] * 3, 8: [0.0, 10.0, 10.0], 9: [0.0] * 3}
    # an array is submitted once, but tasks with other licences are another array
    ids = {(each.task or (0, 0))[0] for each in period.workload.entries if each.job.licences}
    assert ids == {9, 10}


def entry(number: int, task: TaskId, submitted: float, **fields: object) -> WorkloadEntry:
    of_array = structs.replace(array(number, "1-9%3", submitted), **fields)
    return WorkloadEntry(of_array, 50.0, number, task=task)


def test_an_array_has_the_tasks_that_ran_and_suits_all_of_them() -> None:
    entries = [
        entry(1, (17, 1), 0.0, clusters=("alpha",)),
        entry(2, (17, 3), 0.0, clusters=("beta",), cpus=4),
        entry(3, (17, 5), 0.0, clusters=("alpha",)),
        entry(4, (18, 1), 0.0, clusters=("alpha",)),
        entry(5, (18, 2), 0.0, clusters=()),
    ]
    arrivals = array_arrivals(entries)
    assert arrivals.keys() == {1, 4}
    made = arrivals[1].job
    assert (made.id, made.array, made.held, made.cpus) == (17, "1-5:2%3", False, 4)
    assert made.clusters == ("alpha", "beta")
    assert arrivals[4].job.clusters == ()
    # a part of a period may have some of its tasks only
    rest = Workload("record", tuple(entries)).subset(1, 3)
    [arrival] = array_arrivals(rest.entries).values()
    assert (arrival.job.id, arrival.indices) == (17, (3, 5))


def simulated(*entries: WorkloadEntry, **settings: Any) -> tuple[Simulation, dict[TaskId, str]]:
    policy = Policy(pull_after=10.0)
    simulation = Simulation(
        Workload("record", entries), TWO, policy, lambda _: make_policy("easy"), **settings
    )
    places = {
        each.entry.task or (each.job.id, 0): f"{TWO[each.cluster].name} {each.start - START:g}"
        for each in simulation.run().jobs
    }
    return simulation, places


def test_tasks_that_arrive_later_are_released_then() -> None:
    entries = [entry(1, (17, 1), 0.0), entry(2, (17, 4), 20.0), entry(3, (17, 5), 20.0)]
    simulation, places = simulated(*entries)
    assert places == {(17, 1): "alpha 0", (17, 4): "beta 20", (17, 5): "alpha 50"}
    assert not simulation.core.tasks


def test_tasks_of_an_array_move_one_by_one() -> None:
    """Each cluster has three; those of beta end early, so it pulls the second of alpha."""
    long, short = 50.0, 5.0
    run_times = dict(zip(range(1, 7), (long, short, short, long, short, long), strict=True))
    entries = [
        entry(number, (17, number), 0.0, array="1-6")._replace(run_time=seconds)
        for number, seconds in run_times.items()
    ]
    simulation, places = simulated(*entries)
    assert places[17, 4] == "beta 15"
    assert places[17, 6] == "alpha 50"
    assert not simulation.core.tasks


def test_an_array_above_a_limit_of_the_site_is_refused_whole() -> None:
    limits = LimitSettings(each_user=LimitTable(open_tasks=2))
    entries = [entry(number, (17, number), 0.0) for number in (1, 2, 3)]
    simulation, places = simulated(*entries, entry(4, (18, 1), 1.0), limits=limits)
    assert places.keys() == {(18, 1)}
    assert simulation.dropped == {REFUSED: 3}
