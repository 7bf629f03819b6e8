"""Arrays of a recorded period: the simulation places each task as the daemon has placed it."""

from __future__ import annotations

from pathlib import Path

from metasched.db.sqlite import Sqlite
from metasched.model.job import Job
from metasched.policies.policy import Policy
from metasched.simulate.clusters import SimulatedCluster
from tests.harness.polled_site import PolledSite, Request
from tests.harness.recorded_periods import assert_simulated_as_recorded

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
