"""The worked example of the documents: its heuristics decide in a real daemon and in `simulate`.

Then a package whose heuristics hang and raise replaces it: jobs are accepted, and decided by the
other ratings.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.e2e.conftest import COMMAND, Site
from tests.harness.plug_in_packages import install

EXAMPLE = Path(__file__).parents[2] / "docs/examples/plug-in"
GROUPS = ("metasched.heuristics", "metasched.placement")
BROKEN = """\
import time
from metasched.policies.heuristic import Heuristic, PlacementHeuristic

class SmallFirst(Heuristic):
    def __init__(self, full):
        self.full = full

    def contribution(self, job):
        raise RuntimeError(f"a defect with {job.name}")

class LongToFast(PlacementHeuristic):
    def rating(self, job, cluster):
        while True:
            time.sleep(60)
"""
POLICY = (EXAMPLE / "policy.toml").read_text()


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the example in a folder on the search path of the daemon and of commands."""
    folder = tmp_path / "packages"
    folder.mkdir()
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    classes = {
        group: {name: value.partition(":")[2] for name, value in entries.items()}
        for group, entries in project["entry-points"].items()
    }
    assert set(classes) == set(GROUPS)
    install(folder, "site_heuristics", (EXAMPLE / "site_heuristics.py").read_text(), classes)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def hold(site: Site, *options: str) -> int:
    return site.submit("--hold", *options, "--wrap", "true")


def test_the_example_decides_in_the_daemon_and_its_values_are_replayed(
    site: Site, packages: Path
) -> None:
    (site.folder / "policy.toml").write_text(POLICY)
    site.configure(extra='[policy]\nfile = "policy.toml"\n')
    site.start()
    small, large = hold(site, "-n", "2"), hold(site, "-n", "8")
    explained = site.json("explain", str(small))
    parts = {part["heuristic"]: part["contribution"] for part in explained["parts"]}
    assert parts == {"deadline": 1, "licence": 1, "user": 1, "small_first": 7.5}
    assert explained["priority"] == 4  # (3 + 2 x 7.5) / 5 = 3.6
    assert site.json("explain", str(large))["priority"] == 1
    assert explained["ratings"]["excluded"] == {}
    # left is fast, right is not; `-t` is in minutes
    chosen = {}
    for minutes in ("120", "30"):
        row = site.json("submit", "--dry-run", "-t", minutes, "--wrap", "true")
        [chosen[minutes]] = [c["cluster"] for c in row["why"]["clusters"] if c["chosen"]]
        assert row["why"]["ratings"]["placements"]["long_to_fast"][chosen[minutes]] == 1.0
    assert chosen == {"120": "left", "30": "right"}
    placed = site.submit("-t", "30", "--wrap", "true")
    site.until(lambda: site.json("status", str(placed))[0]["state"] == "completed")
    assert site.json("status", str(placed))[0]["cluster"] == "right"
    assert (
        "long_to_fast rates the clusters: left 0, right 1."
        in site.run("explain", str(placed)).stdout
    )

    # a package that fails takes its place; what was decided is replayed without any of it
    site.stop()
    (packages / "site_heuristics.py").write_text(BROKEN)
    site.run("db", "check")
    site.start()
    job = hold(site, "-n", "2", "--job-name", "wing")
    explained = site.json("explain", str(job))
    assert explained["priority"] == 1
    assert explained["ratings"]["excluded"]["small_first"] == ("RuntimeError: a defect with wing")
    assert "no answer within 2 s" in explained["ratings"]["excluded"]["long_to_fast"]
    assert site.json("explain", str(small))["priority"] == 4
    shown = {row["heuristic"]: row for row in site.json("policy", "show")["plug_ins"]}
    assert shown["small_first"]["excluded"] == 1
    assert "small_first was excluded for 1 jobs" in site.run("policy", "show").stdout
    assert site.log.read_text().count("heuristic [heuristics.small_first] is excluded") == 1
    site.run("db", "check")


def test_the_example_keeps_the_rules_and_is_simulated(tmp_path: Path, packages: Path) -> None:
    def run(*arguments: str) -> str:
        return subprocess.run(
            arguments, capture_output=True, text=True, check=True, timeout=300
        ).stdout

    assert "small_first keeps the rules" in run(
        str(COMMAND), "policy", "check-plugin", "small_first", "--set", "full=8"
    )
    own_tests = str(EXAMPLE / "test_site_heuristics.py")
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", own_tests, "-n", "0")
    clusters = tmp_path / "clusters.toml"
    clusters.write_text(
        '[[cluster]]\nname = "fast"\ncpus = 64\nbenchmark = 300\n'
        '[[cluster]]\nname = "slow"\ncpus = 64\nbenchmark = 100\n'
    )
    workload = ("lublin", "--set", "jobs=200", "--set", "cpus=32", "--clusters", str(clusters))

    def share_of_fast(policy: str) -> float:
        file = tmp_path / "policy.toml"
        file.write_text("pull = false\n" + policy)
        text = run(str(COMMAND), "simulate", *workload, "--policy", str(file), "--json")
        share: float = json.loads(text)["load_share"]["fast"]
        return share

    assert share_of_fast(POLICY) != share_of_fast("")
