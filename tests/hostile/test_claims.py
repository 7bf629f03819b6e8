"""Account b attacks the claims of account a's jobs, on local clusters and on real Slurm."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from metasched.adapters.claims import FenceError, new_claim_folder, read_end, revoke_claim
from metasched.model.listing import TaskClaim
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite, slurm_tables
from tests.harness import accounts
from tests.harness.accounts import KEEPER, A, B
from tests.harness.slurm import SlurmCluster, SlurmSite

pytestmark = pytest.mark.root

# Each attack runs as b in the fence, with mode 1777, which a site may have given it. jobs-0 has the
# claims of the next jobs. `DATABASE` is the daemon's.
ATTACKS = {
    "link": "ln -s $DATABASE jobs-0",
    "claims": "mkdir -m 777 jobs-0; echo x >jobs-0/task.0",
    "closed": "mkdir -m 700 jobs-0",
    "owner": "mkdir -m 777 jobs-0",
}


def as_b(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", command],
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        check=False,
        **{**accounts.as_(B), "cwd": folder},
    )


def make_fence(folder: Path, mode: int) -> Path:
    folder.mkdir()
    folder.chmod(mode)
    keeper = pwd.getpwnam(KEEPER)
    os.chown(folder, keeper.pw_uid, keeper.pw_gid)
    return folder


@pytest.fixture(scope="module")
def local(common_folder: Path) -> Iterator[MultiUserSite]:
    """A site with a local cluster, and a fence, for each attack."""
    site = MultiUserSite(common_folder / "claims-local")
    tables, programs = [], []
    for attack in ATTACKS:
        fence = make_fence(site.folder / f"fence-{attack}", 0o1777)
        tables.append(
            f'[[cluster]]\nname = "{attack}"\nadapter = "local"\ncpus = 4\npoll_interval = 0.2\n'
            f'fence_dir = "{fence}"\n'
        )
        programs.append(f"[cluster.{attack}]\n{SUPERVISE}")
    site.set_up("".join(tables), "".join(programs))
    try:
        site.start()
        yield site
    finally:
        site.close()


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_on_the_fence_fails_no_job_and_opens_no_file(
    local: MultiUserSite, attack: str
) -> None:
    fence, a = local.folder / f"fence-{attack}", local.by(A)
    local.database.chmod(0o600)
    done = as_b(ATTACKS[attack], fence, DATABASE=str(local.database))
    assert done.returncode == 0, done
    go = local.folder / A / f"go-{attack}"
    wait = f"until test -e {go}; do sleep 0.1; done; exit 4"
    job = a.submit("--cluster", attack, "-t", "5", "-o", "/dev/null", "--wrap", wait)
    a.until(lambda: a.row(job)["state"] == "running")
    # b can neither find nor remove the claim of the payload
    as_b("rm -rf jobs-0 foreign-*", fence)
    claims = [path for path in fence.rglob("*.0") if path.stat().st_uid == uid_of(A)]
    assert len(claims) == 1, list(fence.rglob("*"))
    assert as_b("ls . jobs-0", fence).stdout == ""
    go.touch()
    [row] = a.until_ended(job)
    assert (row["state"], row["exit_code"]) == ("failed", 4)
    assert stat.S_IMODE(local.database.stat().st_mode) == 0o600


def uid_of(account: str) -> int:
    return pwd.getpwnam(account).pw_uid


def test_the_claim_of_another_account_proves_nothing(tmp_path: Path) -> None:
    fence = new_claim_folder(str(tmp_path), 1)
    claim = TaskClaim(fence, "ms-cafe-1-1", 0, user=A)
    assert revoke_claim(TaskClaim(fence, "ms-cafe-1-1", 1, False, A))  # creates the folder
    path = Path(fence, "task.0")
    path.write_text("claimed\nstarted 7\nended 3 9\n")
    os.chown(path, uid_of(B), -1)
    with pytest.raises(FenceError, match="not to the job's owner"):
        revoke_claim(claim)
    assert read_end(claim) is None
    os.chown(path, uid_of(A), -1)
    assert not revoke_claim(claim)
    assert read_end(claim) is not None


@pytest.fixture(scope="module")
def beta(slurm_site: SlurmSite) -> SlurmCluster:
    return slurm_site["beta"]


@pytest.fixture(scope="module")
def over_slurm(common_folder: Path, beta: SlurmCluster) -> Iterator[MultiUserSite]:
    site = MultiUserSite(common_folder / "claims-slurm")
    fence = make_fence(site.folder / "fence", 0o711)
    site.set_up(*slurm_tables(beta, f'fence_dir = "{fence}"\n'))
    try:
        site.start()
        yield site
    finally:
        site.close()
        for account in (A, B):
            beta.run("scancel", "--user", account)


def test_the_name_of_a_claims_folder_is_secret(
    over_slurm: MultiUserSite, beta: SlurmCluster
) -> None:
    a = over_slurm.by(A)
    options = ("--cluster", "beta", "-t", "5", "-o", "out")
    job = a.submit(*options, "--wrap", "env; cat /proc/*/cmdline; sleep 600")
    a.until(lambda: a.row(job)["state"] == "running")
    [claim] = (over_slurm.folder / "fence").rglob("task.0")
    secret, native = claim.parent.name, a.row(job)["native_id"]
    assert stat.S_IMODE(claim.parent.stat().st_mode) == 0o1733
    assert claim.stat().st_uid == uid_of(A)
    shown = {
        "output": (over_slurm.folder / A / "out").read_text(),
        "log": over_slurm.log.read_text(),
        "launcher": (over_slurm.folder / "launcher.log").read_text(),
        "squeue": beta.run("squeue", "-j", native, "-O", "comment:200,command:500,wckey:200"),
        "job": beta.run("scontrol", "show", "job", "-dd", native),
        "script": as_b(
            f"scontrol write batch_script {native} -", Path("/"), **beta.environment
        ).stdout,
        **{
            command: a.run(command, str(job), "--json").stdout
            for command in ("story", "explain", "status")
        },
        **process_texts(),
    }
    assert [name for name, text in shown.items() if secret in text] == []
    a.run("cancel", str(job))
    a.until_ended(job)


def process_texts() -> dict[str, str]:
    """Return the arguments and environments of all processes."""
    texts = {}
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):  # it has ended
                text = (process / name).read_bytes()
                texts[str(process / name)] = text.decode(errors="replace")
    return texts
