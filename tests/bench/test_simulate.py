"""Speed of whole `metasched simulate` commands: CPU seconds, peak MiB, reported jobs/s.

Also what pulls cost: CPU seconds of a simulation with and without them, in turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.conftest import Record
from tests.harness.traces import trace

DEEP = 10_000
# pure Python, and the build of `make compile`
BUILDS = {"pure": Path(sys.executable), "compiled": Path(".compiled/bin/python").absolute()}
SDSC, LCG = "SDSC-SP2.swf.gz", "LCG-2005-1.swf.gz"
LUBLIN = "--set jobs=300000 --policy first-fit"  # of the Lublin-Feitelson model
# run a command from a small process, since a child's peak starts at its parent's memory
WRAPPER = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)
"""
TIME, RATE, MEMORY = "cpu_seconds", "jobs_per_second", "memory"
PUSHED = "--policy fb-unmod --set pull=false"


def deep_queue(path: Path) -> Path:
    """Write a trace of one-processor jobs that are all submitted at once."""
    rows = (
        f"{id} 0 -1 {60 + id % 600} 1 -1 -1 1 900 -1 1 {id % 50} 1 -1 -1 -1 -1 -1"
        for id in range(1, DEEP + 1)
    )
    path.write_text("\n".join(rows) + "\n")
    return path


def measured(python: Path, *arguments: str) -> dict[str, float]:
    """Run `metasched simulate` and return its figures."""
    command = [str(python), "-P", "-m", "metasched", "simulate", *arguments, "--json"]
    done = subprocess.run(
        [sys.executable, "-c", WRAPPER, *command], capture_output=True, text=True, check=True
    )
    figures = json.loads(done.stdout)
    seconds, kilobytes = done.stderr.split()[-2:]
    return {
        "jobs": figures["jobs"],
        "cpu_seconds": float(seconds),
        "memory": int(kilobytes) / 1024,
        "jobs_per_second": figures["jobs_per_second"],
    }


@pytest.mark.bench
@pytest.mark.cpu
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(
    ("name", "workload", "arguments", "targets"),
    [
        ("EASY, 10,000 jobs of SDSC SP2", SDSC, "--policy easy --jobs :10000", {}),
        ("EASY, all 54,006 of them", SDSC, "--policy easy", {TIME: "3 s", RATE: "30,000/s"}),
        ("Table 6, inter-arrival 5 s", "table6", f"{PUSHED} --set inter_arrival=5", {TIME: "3 s"}),
        ("Table 6, all at once", "table6", f"{PUSHED} --set inter_arrival=0", {TIME: "10 s"}),
        ("a queue of 10,000", "deep", "--policy fb-unmod --clusters 16", {RATE: "1,000/s"}),
        ("LCG on 40 clusters", LCG, "--policy easy --clusters 40x64", {TIME: "30 s"}),
        ("300,000 jobs, first fit", "lublin", f"{LUBLIN} --clusters 512", {MEMORY: "500 MiB"}),
    ],
)
def test_simulate(
    name: str,
    workload: str,
    arguments: str,
    targets: dict[str, str],
    build: str,
    tmp_path: Path,
    record: Record,
) -> None:
    python = BUILDS[build]
    if not python.exists():
        pytest.skip("there is no compiled build; make compile")
    if workload == "deep":
        source = str(deep_queue(tmp_path / "deep.swf"))
    else:
        source = str(trace(workload)) if workload.endswith(".gz") else workload
    figures = measured(python, source, *arguments.split())
    assert figures["jobs"] > 4_000
    about = name if build == "pure" else f"{name}, {build}"
    for figure, bound, unit in (
        (TIME, "at most", "s of CPU"),
        (RATE, "at least", "jobs/s"),
        (MEMORY, "at most", "MiB"),
    ):
        target = f"{bound} {targets[figure]}" if figure in targets else ""
        if figure == TIME or target:
            record(about, figures[figure], unit, target=target)


ROUNDS = 3  # of simulations with pull and without
# runs in a process of its own; prints CPU seconds without start-up and reading
ALONE = """
import sys, time
from metasched.laboratory.experiments.catalogue import EXPERIMENTS
name, row, column, seed = sys.argv[1:]
(case,) = [case for case in EXPERIMENTS[name].cases() if (case.row, case.column) == (row, column)]
case.scenario(int(seed))  # the trace is read once
started = time.process_time()
case.run(int(seed))
print(time.process_time() - started)
"""


@pytest.mark.bench
@pytest.mark.cpu
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("experiment", "row"),
    [
        ("better-table6", "inter-arrival 5"),
        ("better-table6", "inter-arrival 10"),
        ("better", "SP2 0.85"),
        ("better", "CERIT 0.85"),
        ("better", "LCG 0.85"),
    ],
)
def test_pulls(experiment: str, row: str, record: Record) -> None:
    """The traces are read and the machines drawn before the time is taken."""
    for name in (SDSC, "KTH-SP2.swf.gz", "CERIT-wagap-2013.swf.gz", LCG):
        folder = trace(name).parent
    environment = {**os.environ, "METASCHED_TRACES": str(folder)}
    seconds: dict[str, list[float]] = {"observed": [], "observed+pull": []}
    for _ in range(ROUNDS):
        for column, figures in seconds.items():
            command = [sys.executable, "-P", "-c", ALONE, experiment, row, column, "1"]
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, env=environment
            )
            figures.append(float(done.stdout))
    without, with_pull = map(statistics.median, seconds.values())
    peers = {"without pull": without}
    record(f"{experiment}, {row}, with pull", with_pull, "s of CPU", peers=peers)
