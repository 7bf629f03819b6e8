"""Real Slurm jobs whose tag is changed by their owner, or by a plug-in of the controller."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.conftest import Site
from tests.harness.slurm import ClusterSpec, SlurmCluster, SlurmSite

pytestmark = pytest.mark.slow("boots two clusters and restarts a controller")

GAMMA = ClusterSpec("gamma", "g", nodes=2, cpus=2)
DELTA = ClusterSpec("delta", "d", nodes=1, cpus=8)
POOL = """
[[licence]]
name = "sim"
total = 3
"""
# A site that keeps something of its own in the comment. It also changes the limit of some jobs.
PLUG_IN = """
function slurm_job_submit(job_desc, part_list, submit_uid)
  job_desc.comment = "project 12"
  if job_desc.name == "longer" then job_desc.time_limit = 20 end
  return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
return slurm.SUCCESS
"""


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    with SlurmSite(tmp_path_factory.mktemp("moved"), (GAMMA, DELTA)) as slurm_site:
        yield slurm_site


@pytest.fixture
def gamma(clusters: SlurmSite, site: Site) -> SlurmCluster:
    """A cluster of four processors behind a running daemon; its neighbour is drained."""
    for cluster in clusters:
        cluster.empty()
    site.configure("".join(c.table("poll_interval = 0.5\n") for c in clusters), POOL)
    site.start()
    site.run("cluster", "drain", "delta")
    return clusters["gamma"]


@pytest.fixture
def plug_in(gamma: SlurmCluster) -> Iterator[None]:
    """Let a plug-in of the controller replace each job's comment."""
    plain = gamma.conf.read_text()
    (gamma.conf.parent / "job_submit.lua").write_text(PLUG_IN)
    gamma.stop_controller()
    gamma.conf.write_text(f"{plain}JobSubmitPlugins=lua\n")
    gamma.start_controller()
    yield
    gamma.stop_controller()
    gamma.conf.write_text(plain)
    gamma.start_controller()


class Runs:
    """Payloads that note their starts, and run until they may end."""

    def __init__(self, folder: Path) -> None:
        self._log, self._go_on = folder / "ran", folder / "go-on"

    def payload(self, word: str = "$METASCHED_JOB_ID.$METASCHED_TASK") -> str:
        return f"echo {word} >> '{self._log}'; until [ -e '{self._go_on}' ]; do sleep 0.2; done"

    def let_end(self) -> None:
        self._go_on.touch()

    @property
    def started(self) -> list[str]:
        return sorted(self._log.read_text().split()) if self._log.exists() else []


@pytest.fixture
def runs(site: Site) -> Runs:
    return Runs(site.folder)


def remove_tags(cluster: SlurmCluster, site: Site, *jobs: int | str, text: str = "x") -> None:
    """Change the comments of jobs, as their owner may."""
    for native in sorted({row["native_id"].partition("_")[0] for row in site.rows(*jobs)}):
        cluster.run("scontrol", "update", f"job={native}", f"comment={text}")


def wait_for_listings(site: Site, count: int = 2) -> None:
    """Wait until the first cluster was listed anew."""

    def listed() -> str:
        return str(site.cluster_rows()[0]["listed"])

    for _ in range(count):
        site.until(partial(lambda last: listed() > last, listed()))


def states(site: Site, *jobs: int | str) -> list[str]:
    return [row["state"] for row in site.rows(*jobs)]


def assert_story_right(site: Site, *jobs: int) -> None:
    """Assert that nothing was concluded in the course of the jobs, and that they replay."""
    for job in jobs:
        assert not {line["to"] for line in site.json("story", str(job))} & {"unknown"}
    assert site.stop() == 0
    site.replayed()


def test_running_jobs_without_a_tag_keep_state_and_licences(
    site: Site, gamma: SlurmCluster, runs: Runs
) -> None:
    jobs = [
        site.submit("--wrap", runs.payload(), "-t", "5", "--licenses", "sim:1") for _ in range(4)
    ]
    site.until(lambda: states(site, *jobs) == ["running"] * 3 + ["queued"])
    remove_tags(gamma, site, *jobs[:3])
    wait_for_listings(site)
    assert states(site, *jobs) == ["running"] * 3 + ["queued"]
    assert site.stop() == 0
    site.start("drained")  # neither daemon nor worker has listed the jobs
    wait_for_listings(site)
    assert states(site, *jobs) == ["running"] * 3 + ["queued"]
    site.run("cancel", str(jobs[0]))
    site.until(lambda: states(site, jobs[0], jobs[3]) == ["cancelled", "running"])
    native = site.row(jobs[0])["native_id"]
    assert gamma.run("squeue", "-h", "-t", "all", "-j", native, "-o", "%T").strip() == "CANCELLED"
    runs.let_end()
    assert [r["state"] for r in site.until_ended(*jobs)] == ["cancelled"] + ["completed"] * 3
    assert runs.started == sorted(f"{job}.0" for job in jobs)
    assert_story_right(site, *jobs)


def test_pending_jobs_without_a_tag_are_held_released_and_moved_once(
    site: Site, gamma: SlurmCluster, runs: Runs
) -> None:
    gamma.run("sbatch", "--job-name=others", "-N2", "--exclusive", "--wrap", "sleep 600")
    single = site.submit("--wrap", runs.payload(), "-t", "5")
    array = site.submit("--wrap", runs.payload(), "-t", "5", "--array", "1-4")
    tasks = [f"{array}_{index}" for index in range(1, 5)]
    all_tasks = [str(single), *tasks]
    site.until(lambda: all(r["reason"].startswith("manager:") for r in site.rows(*all_tasks)))
    remove_tags(gamma, site, *all_tasks)
    wait_for_listings(site)
    assert states(site, *all_tasks) == ["pending"] * 5

    site.run("hold", str(single), tasks[0])
    site.until(lambda: states(site, single, tasks[0]) == ["held"] * 2)
    site.run("cancel", tasks[1])
    site.until(lambda: states(site, tasks[1]) == ["cancelled"])
    wait_for_listings(site)
    assert states(site, *tasks[2:]) == ["pending"] * 2
    site.run("release", str(single), tasks[0])
    site.until(lambda: states(site, single, tasks[0]) == ["pending"] * 2)
    site.until(lambda: all(site.row(t)["native_id"] for t in (single, tasks[0])))
    remove_tags(gamma, site, single, tasks[0])
    wait_for_listings(site)

    site.run("cluster", "resume", "delta")
    site.run("cluster", "drain", "gamma")
    site.until(lambda: {r["cluster"] for r in site.rows(single, *tasks[2:])} == {"delta"})
    gamma.run("scancel", "--name=others")
    runs.let_end()
    ended = [row["state"] for row in site.until_ended(*all_tasks)]
    assert sorted(ended) == ["cancelled"] + ["completed"] * 4
    moved = [t.replace("_", ".") for t in (f"{single}_0", tasks[0], *tasks[2:])]
    assert runs.started == sorted(moved)
    assert_story_right(site, single, array)


def test_jobs_whose_tag_a_plug_in_replaces_run_once_and_are_reported(
    site: Site, gamma: SlurmCluster, plug_in: None, runs: Runs
) -> None:
    site.until(lambda: site.cluster_rows()[0]["state"] == "up")
    gamma.run("sbatch", "--job-name=others", "-N2", "--exclusive", "--wrap", "sleep 600")
    array = site.submit("--wrap", runs.payload(), "-t", "5", "--array", "1-4")
    single = site.submit("--wrap", runs.payload(), "-t", "5", "-J", "longer")
    site.until(lambda: all(r["reason"].startswith("manager:") for r in site.rows(array, single)))
    site.run("cancel", f"{array}_2")
    site.run("hold", f"{array}_3")
    site.until(lambda: states(site, f"{array}_2", f"{array}_3") == ["cancelled", "held"])
    site.run("release", f"{array}_3")
    gamma.run("scancel", "--name=others")
    site.until(lambda: len(runs.started) == 4)
    wait_for_listings(site)
    assert sorted(states(site, array, single)) == ["cancelled"] + ["running"] * 4
    findings = [row["text"] for row in site.json("doctor") if row["id"] == "job-altered"]
    assert len(findings) == 2
    assert any("without its tag" in text for text in findings)
    assert any("limit 300 s, and is listed with 1200 s" in text for text in findings)
    runs.let_end()
    ended = site.until_ended(array, single)
    assert sorted(r["state"] for r in ended) == ["cancelled"] + ["completed"] * 4
    expected = [f"{array}.1", f"{array}.3", f"{array}.4", f"{single}.0"]
    assert runs.started == sorted(expected)
    assert_story_right(site, array, single)


def test_a_dispatch_without_an_answer_whose_tag_is_removed_runs_once(
    site: Site, gamma: SlurmCluster, plug_in: None, runs: Runs
) -> None:
    assert site.stop() == 0
    commands = site.folder / "commands"
    commands.mkdir()
    for program in ("scancel", "scontrol", "sinfo", "squeue", "sacct", "sacctmgr"):
        (commands / program).symlink_to(f"/usr/bin/{program}")
    silent = site.folder / "silent"
    (commands / "sbatch").write_text(
        f"#!/bin/sh\n[ -e '{silent}' ] || exec /usr/bin/sbatch \"$@\"\n"
        '/usr/bin/sbatch "$@" >/dev/null 2>&1\nkill -9 $$\n'
    )
    (commands / "sbatch").chmod(0o755)
    lines = f'poll_interval = 0.5\nsettle = 1\naccess = "commands"\nbin_dir = "{commands}"\n'
    site.configure(gamma.table(lines), POOL)
    site.start()
    first = site.submit("--wrap", runs.payload(), "-t", "5")
    site.until(lambda: runs.started == [f"{first}.0"])
    wait_for_listings(site)
    silent.touch()
    second = site.submit("--wrap", runs.payload(), "-t", "5")
    site.until(lambda: f"{second}.0" in runs.started)
    silent.unlink()
    wait_for_listings(site, 20)
    assert states(site, first, second) == ["running", "dispatching"]
    assert runs.started == [f"{first}.0", f"{second}.0"]
    runs.let_end()
    assert site.until_ended(first)[0]["state"] == "completed"


def test_a_job_without_a_tag_that_its_manager_requeues_is_still_known(
    site: Site, gamma: SlurmCluster, runs: Runs
) -> None:
    """A requeue renews the time of submission; the former run takes seconds to end."""
    slow_end = f"trap 'sleep 1; exit 0' TERM; {runs.payload()}"
    job = site.submit("--wrap", slow_end, "-t", "5", "--requeue")
    site.until(lambda: states(site, job) == ["running"] and runs.started)
    remove_tags(gamma, site, job)
    wait_for_listings(site)
    gamma.run("scontrol", "requeue", site.row(job)["native_id"])
    site.until(lambda: len(runs.started) == 2)
    wait_for_listings(site)
    assert states(site, job) == ["running"]
    runs.let_end()
    assert site.until_ended(job)[0]["state"] == "completed"
    assert runs.started == [f"{job}.0"] * 2
    assert_story_right(site, job)
