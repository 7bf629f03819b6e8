"""Time of `metasched policy try` on a record of 50,000 jobs, which it also replays."""

from __future__ import annotations

import json
import resource
import subprocess
import time
from pathlib import Path

import pytest

from metasched.db.sqlite import Sqlite
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import Simulation
from metasched.laboratory.simulate.swf import read_trace
from metasched.laboratory.simulate.workload import from_trace, merge_workloads
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy
from tests.bench.conftest import Record
from tests.bench.test_simulate import BUILDS
from tests.harness import recorded_site
from tests.harness.traces import trace

TRACES = {"KTH-SP2": 100, "SDSC-SP2": 128}  # processors
JOBS = 50_000


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of both traces, whose jobs may run on both clusters."""
    path = tmp_path_factory.mktemp("record") / "ms.db"
    workloads = (from_trace(name, read_trace(trace(f"{name}.swf.gz"))) for name in TRACES)
    workload = merge_workloads("both", workloads).subset(None, JOBS)
    assert len(workload.entries) == JOBS
    clusters = [
        SimulatedCluster(name=name, cpus=cpus, queue_depth=0) for name, cpus in TRACES.items()
    ]
    simulation = Simulation(workload, clusters, Policy(), lambda _: make_policy("easy", {}, {}))
    recorded_site.record(simulation, Sqlite(path))
    return path


@pytest.mark.bench
@pytest.mark.parametrize("build", BUILDS)
def test_trying_a_policy_on_a_long_record(
    build: str, ledger: Path, tmp_path: Path, record: Record
) -> None:
    if not BUILDS[build].exists():
        pytest.skip("make compile builds it")
    candidate = tmp_path / "candidate.toml"
    candidate.write_text("pull = false\n[weights]\ndeadline = 5\n")
    command = [str(BUILDS[build]), "-P", "-m", "metasched", "policy", "try", str(candidate)]
    used, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        ["taskset", "-c", "0,1", *command, "--database", str(ledger), "--json"],
        capture_output=True,
        check=True,
    )
    seconds = time.monotonic() - begun
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = json.loads(done.stdout)
    assert answer["jobs"] == JOBS
    assert answer["replay"]["problems"] == []
    name = f"50,000 jobs, {answer['replay']['events']:,} events, {build}"
    cpu_seconds = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    record(f"{name}: processor time", cpu_seconds, "s")
    record(f"{name}: on two cores", seconds, "s", target="< 30 s")
