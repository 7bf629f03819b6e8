"""How fast the simulator is, whole commands: seconds, seconds of CPU, MiB at the most, jobs/s."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest

from tests.traces import trace

DEEP = 10_000
# pure Python, and what `make compile` has made
BUILDS = {"pure": Path(sys.executable), "compiled": Path(".compiled/bin/python").absolute()}
PUSHED = "--policy fb-unmod --set pull=false"


def deep_queue(path: Path) -> Path:
    """A trace of jobs for one processor each that are all submitted at once."""
    rows = (
        f"{id} 0 -1 {60 + id % 600} 1 -1 -1 1 900 -1 1 {id % 50} 1 -1 -1 -1 -1 -1"
        for id in range(1, DEEP + 1)
    )
    path.write_text("\n".join(rows) + "\n")
    return path


def measured(python: Path, *words: str) -> dict[str, float]:
    """One `metasched simulate`, from start to end."""
    begun = perf_counter()
    command = [str(python), "-P", "-m", "metasched", "simulate", *words, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    figures = json.loads(told)
    return {
        "jobs": figures["jobs"],
        "seconds": round(perf_counter() - begun, 2),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 2),
        "memory": used.ru_maxrss >> 10,
        "jobs_per_second": round(figures["jobs_per_second"]),
    }


@pytest.mark.bench
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(
    ("what", "workload", "words"),
    [
        ("EASY", "SDSC-SP2.swf.gz", "--policy easy --jobs :10000"),
        ("EASY", "SDSC-SP2.swf.gz", "--policy easy"),
        ("two levels", "table6", f"{PUSHED} --set inter_arrival=5"),
        ("two levels", "table6", f"{PUSHED} --set inter_arrival=0"),
        ("priorities anew at each event", "deep", "--policy fb-unmod --clusters 16"),
        ("40 clusters", "LCG-2005-1.swf.gz", "--policy easy --clusters 40x64"),
        ("memory", "lublin", "--set jobs=300000 --policy first-fit --clusters 512"),
    ],
)
def test_simulate(
    what: str,
    workload: str,
    words: str,
    build: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    python = BUILDS[build]
    if not python.exists():
        pytest.skip("there is no compiled build; make compile")
    if workload == "deep":
        place = str(deep_queue(tmp_path / "deep.swf"))
    else:
        place = str(trace(workload)) if workload.endswith(".gz") else workload
    figures = measured(python, place, *words.split())
    with capsys.disabled():
        told = {"bench": "simulate", "what": what, "of": workload, "with": words, "build": build}
        print("\n" + json.dumps({**told, "python": platform.python_version(), **figures}))
    assert figures["jobs"] > 4_000
