"""What a call of the drop-in and of our own commands costs, and ten loops of `sbatch` at once."""

from __future__ import annotations

import compileall
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

import pytest

import metasched
from tests.bench.conftest import Record
from tests.e2e.conftest import Site

COMMANDS = Path(metasched.__file__).parent / "drop_in/slurm"
OWN = Path(sys.executable).with_name("metasched")
BARE = ["/usr/bin/python3", "-I", "-S", "-c", "import json, socket"]
CALLS, ROUNDS, LOOPS, SUBMISSIONS = 40, 3, 10, 30
LOOP = (
    'i=0; while [ $i -lt "$1" ]; do "$2" -H -Q -o /dev/null --wrap true || exit; i=$((i+1)); done'
)


@pytest.fixture(scope="module", autouse=True)
def bytecode() -> None:
    """An installation has the bytecode of its modules; a checkout may lack it."""
    compileall.compile_dir(Path(metasched.__file__).parent, quiet=1)


def cpu_milliseconds(site: Site, command: Sequence[str | Path]) -> float:
    """Return the lower quartile of the processor time of a call."""
    environment = site.environment | {"METASCHED_SOCKET": str(site.folder / "ms.sock")}
    del environment["METASCHED_CONFIG"]
    used = []
    for _ in range(CALLS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return quantiles(used)[0] * 1e3


@pytest.mark.bench
def test_processor_time_of_a_call(running: Site, record: Record) -> None:
    # as pip does; a checkout may lack bytecode, and then each call compiles
    assert compileall.compile_dir(Path(metasched.__file__).parent, quiet=1)
    script = running.folder / "script"
    script.write_text("#!/bin/sh\n#SBATCH -H -J bench -t 5 --mem=100M -o /dev/null\ntrue\n")
    commands: dict[str, Sequence[str | Path]] = {
        "sbatch": [COMMANDS / "sbatch", script],
        "squeue": [COMMANDS / "squeue", "-h", "-j", "1"],
        "metasched status": [OWN, "status", "1"],
        "metasched hold": [OWN, "hold", "1"],
        "metasched submit": [OWN, "submit", script],
    }
    used: dict[str, list[float]] = {name: [] for name in ("python3", *commands)}
    for _ in range(ROUNDS):
        used["python3"].append(cpu_milliseconds(running, BARE))
        for name, command in commands.items():
            used[name].append(cpu_milliseconds(running, command))
    for name in commands:
        record(
            f"a call of {name}",
            median(used[name]),
            "ms of CPU",
            peers={"python3 -I -S -c 'import json, socket'": median(used["python3"])},
            target="at most 1.5 x peer",
        )


@pytest.mark.bench
def test_ten_loops_of_sbatch(running: Site, record: Record) -> None:
    environment = running.environment | {"METASCHED_SOCKET": str(running.folder / "ms.sock")}
    del environment["METASCHED_CONFIG"]

    def rate(loops: int) -> float:
        words = ["sh", "-c", LOOP, "sh", str(SUBMISSIONS), os.fspath(COMMANDS / "sbatch")]
        begun = time.perf_counter()
        processes = [subprocess.Popen(words, env=environment) for _ in range(loops)]
        assert [process.wait() for process in processes] == [0] * loops
        return loops * SUBMISSIONS / (time.perf_counter() - begun)

    alone, together = zip(*((rate(1), rate(LOOPS)) for _ in range(ROUNDS)), strict=True)
    record(
        "ten loops of sbatch",
        median(together),
        "/s",
        peers={"a loop alone": median(alone)},
        target="at least 1.5 x peer",
    )
