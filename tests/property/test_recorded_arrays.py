"""Arrays and jobs of a daemon, and the simulation of its record: the same places and starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.db.sqlite import Sqlite
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.model.job import Job
from metasched.model.licence import LicencePool
from metasched.policies.policy import Policy
from tests.harness.examples import examples
from tests.harness.polled_site import PolledSite, Request
from tests.harness.recorded_periods import assert_simulated_as_recorded

START = 1_000_000.0
SMALLEST = 2  # processors of a cluster

policies = st.builds(
    Policy,
    load=st.sampled_from(["observed", "paper"]),
    ordering=st.sampled_from(["array", "equal"]),
    send=st.sampled_from(["at_once", "late"]),
    seed=st.integers(0, 9),
    tolerance=st.sampled_from([0.0, 0.5]),
    pull=st.just(False),
)
# processors and benchmarks of clusters: limits are as long on fast ones, run times are not
shapes = st.lists(
    st.tuples(st.sampled_from([SMALLEST, 2, 3, 8]), st.sampled_from([1.0, 1.0, 2.0])),
    min_size=2,
    max_size=3,
)


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    """Jobs, and arrays of up to eight tasks, some with a limit, which arrive within 20 seconds."""
    drawn, id = [], draw(st.integers(1, 10**9))
    for arrival in sorted(draw(st.lists(st.integers(0, 20), min_size=1, max_size=6))):
        tasks = draw(st.sampled_from([None, "1-8", "0-6:3", "2,3,5", "1-6%1", "1-8%3"]))
        id, submitted = id + draw(st.integers(1, 9)), START + arrival
        seconds = float(draw(st.sampled_from([5, 10, 10, 60])))
        job = Job(
            id=id,
            submitted=submitted,
            estimated=seconds,
            time_limit=draw(st.sampled_from([None, seconds])),
            cpus=draw(st.integers(1, SMALLEST)),
            user=draw(st.sampled_from(["ada", "bob"])),
            owner_priority=draw(st.integers(0, 3)),
            deadline=draw(st.sampled_from([None, submitted + 30.0])),
            licences=draw(st.sampled_from([{}, {}, {"solver": 1}])),
            array=tasks,
        )
        drawn.append(Request(job, float(draw(st.integers(1, 12)))))
    return drawn


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new database, of which each example takes a copy: migrations take longer than the rest."""
    path = tmp_path_factory.mktemp("records") / "empty.db"
    Sqlite(path).open().dispose()
    return path


@pytest.mark.slow("each example is a run of the daemon's core, simulated again")
@examples(20)
@given(policy=policies, drawn_shapes=shapes, drawn=requests(), tokens=st.integers(1, 4))
def test_a_simulation_places_tasks_as_the_daemon_did(
    empty: Path,
    policy: Policy,
    drawn_shapes: list[tuple[int, float]],
    drawn: list[Request],
    tokens: int,
) -> None:
    """Where listings are as prompt as in a simulation: polls alone may make a difference."""
    clusters = [
        SimulatedCluster(name=f"c{number}", cpus=cpus, benchmark=benchmark, queue_depth=0)
        for number, (cpus, benchmark) in enumerate(drawn_shapes)
    ]
    pools = (LicencePool(name="solver", total=tokens),)
    path = empty.with_name("record.db")
    shutil.copyfile(empty, path)
    assert_simulated_as_recorded(PolledSite(policy, clusters, pools), drawn, Sqlite(path))
