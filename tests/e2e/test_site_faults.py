"""Faults of the site close a cluster until they are repaired; a user's own do not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite, slurm_tables
from tests.harness import accounts
from tests.harness.accounts import KEEPER, PRIVILEGED, A, B
from tests.harness.slurm import SlurmSite

pytestmark = pytest.mark.root

LOCAL = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\npoll_interval = 0.2\n'
TRUE = ("-t", "5", "-o", "/dev/null", "--wrap", "true")


class FaultySite(MultiUserSite):
    @property
    def launcher_file(self) -> Path:
        return self.folder / "launcher.toml"

    @contextmanager
    def changed_launcher_file(self, change: Callable[[str], str]) -> Iterator[None]:
        """Change launcher.toml, and restore it in the end."""
        text = self.launcher_file.read_text()
        self.launcher_file.write_text(change(text))
        try:
            yield
        finally:
            self.launcher_file.write_text(text)

    def cause(self) -> str:
        """Return why the cluster is down, or "" if it is up."""
        [row] = self.cluster_rows()
        state: str = row["state"]
        return state.removeprefix("down: ") if state.startswith("down: ") else ""

    def until_down(self, cause: str) -> None:
        self.until(lambda: cause in self.cause())

    def findings(self) -> dict[str, dict[str, Any]]:
        """Return the results of the doctor by the name of the check."""
        with_faults = self.by(KEEPER).run("doctor", "--json", code=1).stdout
        return {finding["check"]: finding for finding in json.loads(with_faults)}

    def completes(self, user: MultiUserSite, job: int) -> None:
        [row] = user.until_ended(job)
        assert row["state"] == "completed", user.run("story", str(job)).stdout


@pytest.fixture(scope="module")
def local(common_folder: Path) -> Iterator[FaultySite]:
    """A site whose launcher.toml misspells the name of the cluster; the first test corrects it."""
    accounts.make_privileged()
    site = FaultySite(common_folder / "faults")
    site.set_up(LOCAL, f"[cluster.lfet]\n{SUPERVISE}")
    try:
        site.start("down:")
        yield site
    finally:
        site.close()


def test_a_misspelt_cluster_is_down_until_it_is_corrected(local: FaultySite) -> None:
    cause = "launcher.toml has no cluster 'left', only lfet"
    local.until_down(cause)
    a = local.by(A)
    job = a.submit(*TRUE)
    finding = local.findings()["launcher.toml for left"]
    assert (finding["ok"], cause in finding["text"]) == (False, True)
    assert finding["mend"] == "make the names agree with metasched.toml"
    assert a.row(job)["state"] == "queued"
    assert cause in local.cause()
    local.launcher_file.write_text(local.launcher_file.read_text().replace("lfet", "left"))
    local.completes(a, job)
    assert local.by(KEEPER).run("doctor").returncode == 0


def test_an_invalid_launcher_file_closes_the_cluster_and_rejects_nothing(
    local: FaultySite,
) -> None:
    a = local.by(A)
    job = a.submit("--hold", *TRUE)
    with local.changed_launcher_file(lambda text: f"{text}["):
        local.until_down("correct that line")
        local.run("release", str(job))
        assert "correct that line" in a.error("submit", *TRUE, code=4)
        assert a.row(job)["state"] == "queued"
    local.completes(a, job)


def test_a_state_folder_closed_to_users_ends_no_job(local: FaultySite) -> None:
    a = local.by(A)
    local.until(lambda: not local.cause())
    job = a.submit("--hold", *TRUE)
    local.state.chmod(0o700)
    try:
        local.run("release", str(job))
        local.until_down(f"{local.state} is closed to the owners of jobs; chmod o+x it")
        assert local.row(job)["state"] not in ("failed", "rejected")
    finally:
        local.state.chmod(0o711)
    local.completes(a, job)


def test_a_user_at_fault_closes_nothing_to_others(local: FaultySite) -> None:
    """A missing directory and a denied group are refused; the jobs of other users continue."""
    a, b = local.by(A), local.by(B)
    local.until(lambda: not local.cause())
    folder = local.folder / A / "gone"
    a.run("submit", *TRUE)  # makes the folder of A
    folder.mkdir()
    shutil.chown(folder, A)
    job = a.submit("--hold", "--chdir", folder, *TRUE)
    folder.rmdir()
    a.run("release", str(job))
    refused = local.by(PRIVILEGED).error("submit", *TRUE, code=3)
    assert f"user {PRIVILEGED} is in group docker, which may not have jobs here" in refused
    assert a.until_ended(job)[0]["state"] == "rejected"
    local.completes(b, b.submit(*TRUE))
    [row] = local.cluster_rows()
    assert (row["state"], row["breaker"]["failures"]) == ("up", 0)


def test_local_jobs_gain_no_privileges_unless_the_site_says_so(local: FaultySite) -> None:
    def flag() -> str:
        b = local.by(B)
        command = "grep NoNewPrivs /proc/self/status"
        local.completes(b, b.submit("-t", "5", "-o", "privileges", "--wrap", command))
        return (local.folder / B / "privileges").read_text().split()[-1]

    assert flag() == "1"


def test_the_launcher_logs_who_did_what_for_which_job(local: FaultySite) -> None:
    log = (local.folder / "launcher.log").read_text()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    started = re.compile(
        rf'{time} verb="supervise" cluster="left" uid=\d+ user="{A}" directory="/" {{"pid": \d+}}'
    )
    assert started.search(log), log


def test_a_fault_at_a_dispatch_keeps_the_job_queued(
    common_folder: Path, slurm_site: SlurmSite
) -> None:
    """Between two polls the launcher loses a program: the job is not rejected."""
    cluster = slurm_site["beta"]
    site = FaultySite(common_folder / "faults-slurm")
    site.set_up(*slurm_tables(cluster))
    try:
        site.start()
        a = site.by(A)
        job = a.submit("--hold", *TRUE)
        with site.changed_launcher_file(
            lambda text: text.replace('submit = ["/usr/bin/sbatch"]\n', "")
        ):
            site.run("release", str(job))
            site.until_down("launcher.toml has no 'submit' for cluster 'beta'; add its program")
            assert a.row(job)["state"] == "queued"
        site.completes(a, job)
        submitted = f'verb="submit" cluster="beta" uid=\\d+ user="{A}" job="ms-[0-9a-f]+-{job}-'
        log = (site.folder / "launcher.log").read_text()
        assert re.search(submitted, log), log
    finally:
        site.close()
