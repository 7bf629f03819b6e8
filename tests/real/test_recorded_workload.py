"""Recorded periods in real databases: under their own policy they come out the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert, update

from metasched.core.events import (
    ClusterDrained,
    ClusterResumed,
    DaemonStarted,
    StartsForecast,
)
from metasched.core.scheduler import DECISION_VERSION, Core
from metasched.db.ledger import Ledger
from metasched.db.recovery import recorded_events
from metasched.db.replay import replay
from metasched.db.schema import attempt, checkpoint, dependency, event, job, task
from metasched.db.store import Database
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import Simulation
from metasched.laboratory.simulate.recorded_workload import (
    NOT_ENDED,
    NOT_STARTED,
    NothingRecorded,
    RecordedPeriod,
    read_period,
)
from metasched.laboratory.simulate.synthetic import generate_lublin
from metasched.laboratory.simulate.workload import Overlay, Workload, WorkloadEntry
from metasched.model.job import Job
from metasched.model.licence import LicencePool
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy
from tests.harness.recorded_site import record

START = 1_000_000.0
CLUSTERS = [SimulatedCluster(name=name, cpus=8, queue_depth=0) for name in ("left", "right")]


def simulation(
    workload: Workload, clusters: Sequence[SimulatedCluster] = CLUSTERS, **settings: Any
) -> Simulation:
    return Simulation(
        workload, clusters, Policy(), lambda _: make_policy("easy", {}, {}), **settings
    )


def small(**fields: Any) -> Workload:
    """Four jobs of all processors of a cluster, a second apart."""
    jobs = [
        Job(id=id, submitted=START + id, estimated=100.0, cpus=8, user="ada", **fields)
        for id in (1, 2, 3, 4)
    ]
    return Workload("small", tuple(WorkloadEntry(each, 50.0, each.id) for each in jobs))


def read(
    database: Database, since: float | None = None, until: float | None = None
) -> RecordedPeriod:
    engine = database.open_existing()
    try:
        with engine.connect() as connection:
            return read_period(connection, since, until)
    finally:
        engine.dispose()


def change_rows(database: Database, *statements: Any) -> None:
    engine = database.open_existing()
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(statement)
    engine.dispose()


def with_arrays(workload: Workload) -> Workload:
    """Make every fourth job an array of three tasks, of which two may run at a time."""
    entries: list[WorkloadEntry] = []
    for entry in workload.entries:
        indices = [2, 3, 5] if entry.number % 4 == 0 else [0]
        for index in indices:
            job = msgspec.structs.replace(
                entry.job, id=len(entries) + 1, array="2,3,5%2" if index else None
            )
            entries.append(entry._replace(job=job, task=(entry.number, index)))
    return replace(workload, entries=tuple(entries))


def test_a_recorded_run_comes_out_the_same_under_its_policy(database: Database) -> None:
    """With arrays, a faster cluster, licences, deadlines, pulls and a drain; not under another."""
    clusters = [CLUSTERS[0], replace(CLUSTERS[1], benchmark=1.5)]
    workload, _ = generate_lublin(150, 8, 3)
    workload = with_arrays(Overlay(deadlines=0.5, gold=0.3, licences=1).apply(workload, 3))
    first = workload.entries[20].job.submitted
    settings: dict[str, Any] = {
        "licence_pools": (LicencePool(name="l1", total=2, linger=5.0),),
        "drains": (
            ClusterDrained(first, "left", by="root"),
            ClusterResumed(first + 50_000, "left", by="root"),
        ),
    }
    schedule = record(simulation(workload, clusters, **settings), database)
    period = read(database)
    assert period.pools == settings["licence_pools"]
    assert period.drains == settings["drains"]
    assert period.policy == replace(Policy(), pull=True)
    again = period.run(period.policy)
    starts = [(each.start, each.cluster) for each in schedule.jobs]
    for mine, (start, cluster) in zip(again.jobs, starts, strict=True):
        assert mine.cluster == cluster
        assert mine.start == pytest.approx(start, abs=1e-3)
    assert [each.started for each in period.tasks] == [start for start, _ in starts]
    arrays = Counter(each.job for each in period.tasks if each.task)
    assert set(arrays.values()) == {3}
    assert any(each.moves and each.entry.job.array for each in schedule.jobs)
    other = period.run(replace(period.policy, weights={"deadline": 9.0, "user": 0.0}))
    assert [each.cluster for each in other.jobs] != [cluster for _, cluster in starts]


def test_tasks_arrive_when_only_the_scheduling_kept_them_back(database: Database) -> None:
    record(simulation(small()), database)
    spec = small().entries[0].job
    fields: dict[int, dict[str, Any]] = {
        1: {"begin": START + 1.5},
        3: {"dependency": "afterok:1"},
        4: {"held": True},
    }
    change_rows(
        database,
        *(
            update(job)
            .where(job.c.id == id)
            .values(
                modified_spec=msgspec.json.encode(
                    msgspec.structs.replace(spec, id=id, submitted=START + id, **values)
                ).decode()
            )
            for id, values in fields.items()
        ),
        update(attempt).where(attempt.c.job == 1).values(started=START + 2),
        update(attempt).where(attempt.c.job == 4).values(dispatched=START + 40),
        insert(dependency).values(job=3, target=1),
    )
    period = read(database)
    arrivals = {
        recorded.job: entry.job.submitted - START
        for entry, recorded in zip(period.workload.entries, period.tasks, strict=True)
    }
    # job 3 could start when job 1 had ended, and did
    assert arrivals == {1: 1.5, 2: 2.0, 3: 51.0, 4: 40.0}
    assert [entry.job.id for entry in period.workload.entries] == [1, 2, 3, 4]
    assert {recorded.submitted for recorded in period.tasks} == {START + n for n in (1, 2, 3, 4)}


def test_a_period_has_what_was_submitted_in_it_and_ran(database: Database) -> None:
    record(simulation(small(time_limit=120.0)), database)
    change_rows(
        database,
        update(attempt).where(attempt.c.job == 2).values(started=None),
        update(task).where(task.c.job == 3).values(state="running", ended=None),
    )
    assert [each.job for each in read(database).tasks] == [1, 4]
    assert read(database).workload.dropped == {NOT_STARTED: 1, NOT_ENDED: 1}
    # not the time that a heuristic of the policy of then expected
    assert {entry.job.estimated for entry in read(database).workload.entries} == {120.0}
    assert [each.job for each in read(database, START + 2, START + 9).tasks] == [4]
    with pytest.raises(NothingRecorded, match=r"1 ended without a start, 1 still open.*--trace"):
        read(database, START + 2, START + 4)
    with pytest.raises(NothingRecorded, match="no start of a daemon"):
        read(database, None, START)


def test_jobs_keep_to_the_clusters_that_can_run_them_and_where_they_ran(database: Database) -> None:
    record(simulation(small(clusters=("right",))), database)
    [names] = {entry.job.clusters for entry in read(database).workload.entries}
    assert names == ("right",)


def test_a_gap_and_other_policies_are_reported(database: Database) -> None:
    record(simulation(small()), database)
    assert read(database).notes == ()
    ledger = Ledger(database.open())
    core = Core()
    ledger.restore(core, 100)
    started = next(each for each in _starts(database) if isinstance(each, DaemonStarted))
    later = msgspec.structs.replace(
        started, time=START + 40_000, policy=Policy(age=9.0), policy_version=2
    )
    ledger.record_start(later, core.step(later), None)
    ledger.close()
    period = read(database)
    assert period.policy == Policy(age=9.0)
    gap, policies = period.notes
    assert gap.startswith("no daemon ran for 11.1 h of the period, 11.1 h at a time")
    assert policies == (
        "the policy changed once in the period; compared is its last one, version 2"
    )
    [note] = read(database, START - 86400 * 2, START + 9).notes
    assert note == "nothing is stored of the first 2.0 days of the period"


def test_a_cluster_is_simulated_under_its_declared_local_policy(database: Database) -> None:
    """Job 2 needs all processors; 3 needs half of them until after the end of 1."""
    jobs = [
        Job(id=id, submitted=START + id, estimated=limit, cpus=cpus, user="ada")
        for id, cpus, limit in ((1, 4, 100.0), (2, 8, 100.0), (3, 4, 200.0))
    ]
    workload = Workload("three", tuple(WorkloadEntry(each, 90.0, each.id) for each in jobs))
    record(simulation(workload, CLUSTERS[:1]), database)
    assert read(database).local_policies == {"left": "easy"}
    starts = {}
    for declared in ("fcfs", "first-fit", ""):
        _change_start(database, declared)
        period = read(database)
        starts[declared] = [round(each.start - START) for each in period.run(period.policy).jobs]
        assert any("FCFS stands for" in note for note in period.notes) == (not declared)
    assert starts == {"fcfs": [1, 91, 181], "first-fit": [1, 93, 3], "": [1, 91, 181]}
    _change_start(database, "theirs")
    with pytest.raises(NothingRecorded, match="policy theirs of cluster left is not installed"):
        read(database)


def _change_start(database: Database, local_policy: str) -> None:
    """Let the recorded start of the daemon declare this local policy of each cluster."""
    [started] = [each for each in _starts(database) if isinstance(each, DaemonStarted)]
    clusters = tuple(
        msgspec.structs.replace(each, local_policy=local_policy) for each in started.clusters
    )
    data = msgspec.json.encode(msgspec.structs.replace(started, clusters=clusters)).decode()
    is_start = event.c.kind == DaemonStarted.__name__
    change_rows(database, update(event).where(is_start).values(data=data))


def _starts(database: Database) -> list[Any]:
    engine = database.open_existing()
    with engine.connect() as connection:
        found = list(recorded_events(connection))
    engine.dispose()
    return found


def test_a_replay_gives_each_decision_again(database: Database) -> None:
    """A priority or a cluster that is another in the tables is found."""
    schedule = record(simulation(small(deadline=START + 500)), database)
    moves = sum(each.moves for each in schedule.jobs)
    result = replayed(database)
    assert (result.problems, result.tasks) == ([], 4)
    assert result.decisions == 4 + 4 + moves  # priorities, dispatches
    change_rows(
        database,
        update(attempt).where(attempt.c.job == 2).values(cluster="elsewhere"),
        update(job).where(job.c.id == 3).values(priority=99),
    )
    priority, place = replayed(database).problems
    assert priority.startswith("job 3 has priority 99, replayed ")
    assert place == "task 2_0 was sent to elsewhere, replayed to right"


def test_a_replay_has_the_forecasts_that_placed_jobs(database: Database) -> None:
    """They are stored: a forecast that is made again need not be the same."""
    entries = [
        WorkloadEntry(
            Job(id=n, submitted=START + 400 * n, estimated=3000.0, cpus=8, user="ada"), 790.0, n
        )
        for n in range(1, 121)
    ]
    workload = Workload("one after another", tuple(entries))
    site = Simulation(
        workload,
        CLUSTERS,
        Policy(load="forecast", pull=False),
        lambda _: make_policy("easy", {}, {}),
    )
    record(site, database)
    told = [event for event in _starts(database) if isinstance(event, StartsForecast)]
    assert len(told) > 10
    result = replayed(database)
    assert (result.problems, result.tasks) == ([], 120)


def test_events_of_another_release_are_not_replayed(database: Database) -> None:
    record(simulation(small()), database)
    change_rows(database, update(checkpoint).values(decision_version=DECISION_VERSION - 1))
    assert replayed(database) is None


def replayed(database: Database) -> Any:
    engine = database.open_existing()
    with engine.connect() as connection:
        result = replay(connection)
    engine.dispose()
    return result
