"""Two accounts of a site over a bare Slurm: native jobs, and hostile options of jobs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import metasched
from tests.conftest import require
from tests.e2e.conftest import COMMAND
from tests.e2e.multi_user_site import MultiUserSite, slurm_tables
from tests.harness import pyslurm
from tests.harness.accounts import A, B, as_
from tests.harness.slurm import SlurmCluster, SlurmSite

pytestmark = pytest.mark.root

DROP_INS = Path(metasched.__file__).parent / "drop_in/slurm"
FIRST_ID = 100_000_001


@pytest.fixture(scope="module", params=["commands", "pyslurm"])
def site(
    request: pytest.FixtureRequest, common_folder: Path, slurm_site: SlurmSite
) -> Iterator[MultiUserSite]:
    options = f'access = "{request.param}"\n'
    if request.param == "pyslurm":
        if reason := pyslurm.missing():
            require("pyslurm", reason)
        path = f'environment = {{ PYTHONPATH = "{pyslurm.ROOT}" }}\n'
        options += f'python = "{pyslurm.PYTHON}"\n{path}'
    cluster = slurm_site["beta"]
    site = MultiUserSite(common_folder / f"job-options-{request.param}", cluster.inside)
    site.set_up(*slurm_tables(cluster, options), daemon=f"first_id = {FIRST_ID}\n")
    try:
        site.start()
        yield site
    finally:
        site.close()
        for account in (A, B):
            cluster.run("scancel", "--user", account)


def drop_in(
    user: MultiUserSite, cluster: SlurmCluster, *words: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(DROP_INS / words[0]), *words[1:]],
        env=user.environment | {"SLURM_CONF": str(cluster.conf)},
        capture_output=True,
        text=True,
        check=False,
        **user.caller,
    )


def native_job(cluster: SlurmCluster, *options: str) -> str:
    """Return the id of a running job that account a has submitted to Slurm itself."""
    command = ["/usr/bin/sbatch", "--parsable", "-D", "/", "-o", "/dev/null", "-t", "5", *options]
    done = subprocess.run(
        [*command, "--wrap", "sleep 600"],
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=True,
        **as_(A),
    )
    return str(done.stdout).strip()


def shown(cluster: SlurmCluster, job: str) -> str:
    """Return what only an owner or operator changes."""
    line: str = cluster.run("squeue", "-h", "-j", job, "-o", "%i|%t|%j|%l|%q|%y|%n|%k|%w")
    return line


def test_native_jobs_and_jobs_of_another_account_are_not_altered(
    site: MultiUserSite, slurm_site: SlurmSite
) -> None:
    cluster, a, b = slurm_site["beta"], site.by(A), site.by(B)
    native = native_job(cluster, "-H", "--comment=mine", "--nice=7")
    own = a.submit(
        *("--nice=5", "-w", "b1", "--comment", "secret words", "--wckey", "key", "-t", "5"),
        *("-o", "/dev/null", "--wrap", "sleep 600"),
    )
    a.until(lambda: a.row(own)["state"] == "running")
    sent = str(a.row(own)["native_id"])
    before = shown(cluster, native) + shown(cluster, sent)
    assert native in drop_in(a, cluster, "squeue", "-h", "-o", "%i").stdout
    for job in (native, sent, str(own)):
        for arguments in (
            ("scancel", job),
            ("scancel", "--signal=TERM", job),
            ("scancel", "-u", A),
            ("scontrol", "hold", job),
            ("scontrol", "release", job),
            ("scontrol", "requeue", job),
            ("scontrol", "update", f"JobId={job}", "TimeLimit=1"),
            ("scontrol", "update", f"JobId={job}", "JobName=mine"),
        ):
            done = drop_in(b, cluster, *arguments)
            assert "Traceback" not in done.stderr, done
            assert done.returncode or arguments[0] == "scancel", (arguments, done)  # as Slurm's
    assert shown(cluster, native) + shown(cluster, sent) == before
    # of a job that metasched hides, no command shows more than Slurm itself
    for listing in (
        ("squeue", "-h", "-j", str(own), "-o", "%all"),
        ("squeue", "-h", "-o", "%i %u %k %w"),
        ("scontrol", "show", "job", str(own)),
    ):
        done = drop_in(b, cluster, *listing)
        assert str(own) not in done.stdout
        assert "secret words" not in done.stdout
    assert a.row(own)["state"] == "running"
    own_view = drop_in(a, cluster, "squeue", "-h", "-j", str(own), "-o", "%k|%w|%y|%n").stdout
    assert own_view == "secret words|key|5|b1\n"
    assert drop_in(a, cluster, "scancel", native, str(own)).returncode == 0
    assert a.until_ended(own)[0]["state"] == "cancelled"


@pytest.mark.slow("52 commands submit jobs with hostile options, and the jobs run")
def test_hostile_options_of_a_job_harm_nobody(site: MultiUserSite, slurm_site: SlurmSite) -> None:
    cluster, a, b = slurm_site["beta"], site.by(A), site.by(B)
    victim = b.submit("-t", "5", "-o", "/dev/null", "--comment", "b's", "--wrap", "sleep 600")
    b.until(lambda: b.row(victim)["state"] == "running")
    native = str(b.row(victim)["native_id"])
    before = shown(cluster, native)
    instance = site._client.health()["instance"]
    tag = f"ms-{instance}-{victim}-1"
    trap = site.folder / A / "trap"
    values = (
        f"{tag}",
        f"x --comment={tag}",
        f"x\n--uid={B}",
        f"b1 --uid={B}",
        f"$(touch {trap})",
        f"`touch {trap}`;touch {trap}|",
        f"../../{B}",
        "b[1-999999999]",
        "b[1-3",
        "%s%n\x1b[2J\u202e|^|",
        "--comment=" + tag,
        "é" * 5000,
        "\udcff",
    )
    accepted = []
    for option in ("--nodelist", "--exclude", "--wckey", "--comment"):
        for value in values:
            arguments = ("submit", "--parsable", "-H", f"{option}={value}", "-o", "/dev/null")
            done = subprocess.run(
                [COMMAND, *arguments, "-t", "5", "--wrap", "true"],
                env=a.environment,
                capture_output=True,
                check=False,
                **a.caller,
            )
            assert b"Traceback" not in done.stderr, (option, value, done)
            if done.returncode == 0:
                accepted.append(int(done.stdout))
            else:
                assert done.stderr.count(b"\n") == 1, (option, value, done)
    assert accepted
    a.run("release", *map(str, accepted))
    for account in (a, b):
        last = account.submit("-t", "5", "-o", "/dev/null", "--wrap", "true")
        assert account.until_ended(last)[0]["state"] == "completed"
    a.run("cancel", *map(str, accepted))
    assert [row["user"] for row in a.until_ended(*accepted)] == [A] * len(accepted)
    assert b.row(victim)["state"] == "running"
    assert b.row(victim)["native_id"] == native
    assert shown(cluster, native) == before
    assert {row["user"] for row in b.json("status", "--all")} == {B}
    assert not trap.exists()
    assert "up" in {row["state"] for row in site.json("clusters")}
    b.run("cancel", str(victim))
    assert b.until_ended(victim)[0]["state"] == "cancelled"
