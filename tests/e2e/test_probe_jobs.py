"""`metasched doctor --probe`: a small job on each cluster, as an ordinary account."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from metasched.daemon.doctor.probe_jobs import probe_script
from tests.e2e.conftest import COMMAND, ONE_LOCAL, Site
from tests.e2e.multi_user_site import (
    SUPERVISE,
    MultiUserSite,
    site_over_gridengine,
    site_over_slurm,
)
from tests.harness import accounts
from tests.harness.accounts import KEEPER, A
from tests.harness.gridengine import Cell
from tests.harness.slurm import SlurmSite


def probe(site: Site, *options: str, code: int = 0) -> dict[str, Any]:
    """Return the finding of the only cluster."""
    arguments = ("doctor", "--json", "--probe", "--timeout", "60", *options)
    rows = json.loads(site.run_beside_daemon(*arguments, code=code).stdout)
    [row] = [row for row in rows if row["check"].startswith("probe")]
    finding: dict[str, Any] = row
    return finding


@pytest.fixture(scope="module")
def local(common_folder: Path) -> Iterator[MultiUserSite]:
    site = MultiUserSite(common_folder / "probed")
    table = f'[doctor]\naccount = "{A}"\n{ONE_LOCAL}'
    site.set_up(table, f"[cluster.here]\n{SUPERVISE}")
    try:
        site.start()
        yield site
    finally:
        site.close()


def no_folder_is_left(site: MultiUserSite) -> bool:
    return not [path for path in site.state.rglob("probe-*") if path.is_dir()]


@pytest.mark.root
def test_a_job_on_a_local_cluster_beside_the_daemon(local: MultiUserSite) -> None:
    row = probe(local)
    assert (row["severity"], row["id"]) == ("ok", None)
    assert f"the job of {A} ended well" in row["text"]
    assert no_folder_is_left(local)
    assert local.rows() == []  # none of metasched's jobs


@pytest.mark.root
@pytest.mark.parametrize(
    ("account", "problem"),
    [
        ("root", "root is root or the daemon's account"),
        (KEEPER, f"{KEEPER} is root or the daemon's account"),
        ("no-such-user", "there is no account no-such-user on this host"),
    ],
)
def test_accounts_that_must_not_run_jobs(local: MultiUserSite, account: str, problem: str) -> None:
    row = probe(local, "--account", account, code=1)
    assert (row["id"], row["text"]) == ("probe-account", problem)


@pytest.mark.root
def test_other_accounts_cannot_use_the_launcher_by_doctor(local: MultiUserSite) -> None:
    """Whoever runs doctor has no more rights than before: A gets no job of B."""
    shown = local.by(A).run("doctor", "--json", "--probe", "--account", accounts.B, code=1)
    [row] = [r for r in json.loads(shown.stdout) if r["check"] == "probe of here"]
    assert row["id"] == "probe-failed"


@pytest.mark.root
def test_a_job_is_withdrawn_after_ctrl_c(local: MultiUserSite) -> None:
    text = local.config.read_text()
    local.config.write_text(f'{text}[cluster.job]\nprologue = "sleep 4712"\n')

    def sleeping() -> list[psutil.Process]:
        command = ["sleep", "4712"]
        return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == command]

    command = [*local.before, str(COMMAND), "doctor", "--probe"]
    try:
        with subprocess.Popen(
            command, env=local.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
        ) as doctor:
            local.until(lambda: bool(sleeping()))
            doctor.send_signal(signal.SIGINT)
            assert doctor.wait(60) == 130
        local.until(lambda: not sleeping())
        assert no_folder_is_left(local)
    finally:
        local.config.write_text(text)


@pytest.mark.root
def test_a_job_on_slurm(common_folder: Path, slurm_site: SlurmSite) -> None:
    alpha = slurm_site["alpha"]
    with site_over_slurm(common_folder / "probed-slurm", alpha) as site:
        row = probe(site, "--account", A)
        assert row["severity"] == "ok", row
        assert alpha.run("squeue", "--noheader", "--user", A) == ""


@pytest.mark.root
def test_a_job_on_gridengine(common_folder: Path, gridengine_cell: Cell) -> None:
    cell = gridengine_cell
    cell.run("qconf", "-au", KEEPER, "arusers")
    cell.script_folder.chmod(0o700)  # else that is an error of its own
    try:
        with site_over_gridengine(common_folder / "probed-cell", cell) as site:
            row = probe(site, "--account", A)
            assert row["severity"] == "ok", row
            assert cell.run("qstat", "-u", A) == ""
    finally:
        cell.run("qconf", "-du", KEEPER, "arusers")


def test_personal_mode_has_no_other_account(site: Site) -> None:
    site.configure(ONE_LOCAL)
    row = probe(site, code=1)
    assert row["id"] == "probe-account"
    assert row["text"].startswith("in personal mode all jobs are the daemon's own")


@pytest.mark.parametrize(
    ("changes", "url", "code"),
    [
        ({}, "", 32),
        ({"pw_uid": 4711}, "", 33),
        ({"pw_gid": 4711}, "", 34),
        ({}, "https://127.0.0.1:1", 40),
        ({"pw_uid": 4711}, "https://127.0.0.1:1", 41),
    ],
)
def test_what_the_script_finds(changes: dict[str, Any], url: str, code: int) -> None:
    me = pwd.getpwuid(os.geteuid())
    fields = {name: getattr(me, name) for name in ("pw_name", "pw_uid", "pw_gid", "pw_dir")}

    class Owner:
        pass

    owner: Any = Owner()
    owner.__dict__.update({**fields, **changes})
    script = probe_script(owner, url)
    assert subprocess.run(["/bin/sh", "-c", script], check=False).returncode == code
