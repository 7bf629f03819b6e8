"""The worked example of the documents decides in a real daemon.

Then a package whose heuristics hang and raise replaces it: jobs are accepted, and decided by the
other ratings.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Site
from tests.harness.plug_in_packages import EXAMPLE, install, install_example

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
CHOOSY = """\
from metasched.policies.local.orders import FirstFit

class Choosy(FirstFit):
    def choose_starts(self, now, queue, running, free):
        if any(job.cpus == 2 for job in queue):
            raise ValueError("two are too many")
        return super().choose_starts(now, queue, running, free)
"""
LOCAL_WITH_POLICY = """
[[cluster]]
name = "here"
adapter = "local"
cpus = 2
policy = "choosy"
"""
POLICY = (EXAMPLE / "policy.toml").read_text()


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the example in a folder on the search path of the daemon."""
    folder = tmp_path / "packages"
    folder.mkdir()
    install_example(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def hold(site: Site, *options: str) -> int:
    return site.submit("--hold", *options, "--wrap", "true")


@pytest.mark.slow("starts a daemon twice; a heuristic hangs until its time limit; two replays")
def test_the_example_decides_in_the_daemon_and_its_values_are_replayed(
    site: Site, packages: Path
) -> None:
    (site.folder / "policy.toml").write_text(POLICY)
    site.configure(extra='[policy]\nfile = "policy.toml"\n')
    site.start()
    small = hold(site, "-n", "2")
    explained = site.json("explain", str(small))
    parts = {part["heuristic"]: part["contribution"] for part in explained["parts"]}
    assert parts == {"deadline": 1, "licence": 1, "user": 1, "small_first": 7.5}
    assert explained["priority"] == 4  # (3 + 2 x 7.5) / 5 = 3.6
    assert explained["ratings"]["excluded"] == {}
    # left is fast, right is not; `-t` is in minutes
    row = site.json("submit", "--dry-run", "-t", "120", "--wrap", "true")
    assert [c["cluster"] for c in row["why"]["clusters"] if c["chosen"]] == ["left"]
    assert row["why"]["ratings"]["placements"] == {"long_to_fast": {"left": 1.0, "right": 0.0}}
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
    assert "small_first was excluded for 1 jobs" in site.run("policy", "show").stdout
    assert site.log.read_text().count("heuristic [heuristics.small_first] is excluded") == 1
    site.run("db", "check")

    # a reload loads the repaired package, and ends suspensions
    (packages / "site_heuristics.py").write_text((EXAMPLE / "site_heuristics.py").read_text())
    site.run("reload")

    def excluded() -> object:
        row = site.json("submit", "--dry-run", "-n", "2", "--wrap", "true")
        return row["why"]["ratings"]["excluded"]

    site.until(lambda: excluded() == {})


@pytest.mark.slow("jobs run one by one, doctor runs, and all decisions are replayed")
def test_the_exclusion_of_a_local_policy_is_recorded(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {"metasched.policies": {"choosy": "Choosy"}}
    install(tmp_path, "choosy_policy", CHOOSY, groups)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    site.configure(clusters=LOCAL_WITH_POLICY)
    site.start()

    def complete(cpus: str) -> None:
        job = str(site.submit("-n", cpus, "--wrap", "true"))
        site.until(lambda: site.json("status", job)[0]["state"] == "completed")

    def kinds() -> list[str]:
        rows = site.json("events")
        return [row["kind"] for row in rows if row["kind"].startswith("local_policy")]

    assert site.cluster_rows()[0]["local_policy"] == {"excluded": False, "excluded_passes": 0}
    complete("1")
    assert kinds() == []
    complete("2")
    site.until(lambda: kinds() == ["local_policy_excluded"])
    row = site.cluster_rows()[0]["local_policy"]
    assert row["excluded"]
    assert row["excluded_passes"] >= 1
    [event] = site.json("events", "--kind", "local_policy_excluded")
    assert (event["cluster"], event["cause"]) == ("here", "ValueError: two are too many")
    assert "here: FCFS decides in place of its policy" in site.run("clusters").stdout
    [finding] = [
        row
        for row in site.json("doctor", "--timeout", "30")
        if row["id"] == "local-policy-excluded"
    ]
    assert finding["check"] == "local policy of here"

    complete("1")
    site.until(lambda: kinds() == ["local_policy_excluded", "local_policy_decides"])
    assert not site.cluster_rows()[0]["local_policy"]["excluded"]
    site.stop()
    (tmp_path / "choosy_policy.py").unlink()
    site.run("db", "check")  # decisions are replayed without the package


@pytest.mark.slow("waits until the time limit of an import, 20 s")
def test_an_import_that_hangs_leaves_a_cluster_that_fcfs_decides(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon gives the worker less time for an answer than an import may take."""
    groups = {"metasched.policies": {"choosy": "Choosy"}}
    install(tmp_path, "choosy_policy", "import time\ntime.sleep(600)\n", groups)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    site.configure(clusters=f"{LOCAL_WITH_POLICY}call_timeout = 2\n")
    site.start()
    jobs = [site.submit("-n", "2", "--wrap", "true") for _ in range(3)]
    assert {row["state"] for row in site.until_ended(*jobs)} == {"completed"}
    [excluded] = site.json("events", "--kind", "local_policy_excluded")
    assert excluded["cause"].startswith("no answer within 20 s")
