"""A site that lists the jobs of all users: others see what Slurm shows everybody, and no secret."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import metasched
from tests.e2e.multi_user_site import MultiUserSite, slurm_tables
from tests.harness.accounts import OPERATOR, A, B, become
from tests.harness.slurm import SlurmSite

pytestmark = pytest.mark.root
COMMANDS = Path(metasched.__file__).parent / "drop_in/slurm"
SECRET = "hunter2"
# all rows of both listings, and of the page that `wait` answers with
READ_ALL = """
import json
from metasched.client.client import Client
from metasched.drop_in.command import connect, listed_tasks
connection = connect()
rows, _ = connection.request("GET", "/jobs", {"all": "true"})
first, _ = connection.request("GET", "/jobs", {"all": "true", "limit": 100})
ended, _ = connection.request("GET", "/jobs/wait", {"job": [str(rows[0]["job"])], "timeout": 0})
details = list(listed_tasks(connection, {"all": "true"}))
print(json.dumps({"rows": rows, "pages": first + ended, "details": details}))
"""
# the jobs with a reason, which a stranger may have guessed
READ_REASON = """
import json, sys
from metasched.drop_in.command import connect
rows, _ = connect().request("GET", "/jobs", {"all": "true", "reason": sys.argv[1]})
print(json.dumps([row["job"] for row in rows]))
"""


@pytest.fixture
def site(common_folder: Path, slurm_site: SlurmSite) -> Iterator[MultiUserSite]:
    alpha = slurm_site["alpha"]
    new_site = MultiUserSite(common_folder / "listed", alpha.inside)
    listed = 'others_jobs = "listed"\n'
    new_site.set_up(*slurm_tables(alpha), extra=listed, daemon="first_id = 100000001\n")
    new_site.start()
    yield new_site
    new_site.close()
    for user in (A, B):
        alpha.run("scancel", "--user", user)


def test_others_see_no_secret_of_a_job(site: MultiUserSite, slurm_site: SlurmSite) -> None:
    environment = site.environment | slurm_site["alpha"].environment

    def call(account: str, *command: str | Path) -> str:
        done = subprocess.run(
            [*become(account), *command],
            env=environment | {"PATH": site.environment["PATH"]},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    def secrets(texts: dict[str, str]) -> list[str]:
        return [name for name, text in texts.items() if SECRET in text]

    a = site.by(A)
    exported = ("--export", f"ALL,TOKEN={SECRET}", "-o", "/dev/null", "--wrap", f": {SECRET}")
    options = (
        f"--tmp=5G --mincpus=3 --mcs-label={SECRET} --tmp-{SECRET} --x='{SECRET} --contiguous'"
    )
    rejected = a.submit("-J", "one", "--native", f"alpha:--option-{SECRET}", *exported)
    a.until(lambda: a.row(rejected)["state"] == "rejected")
    held = a.submit("--hold", "-J", "two", "--native", f"alpha:{options}", *exported)
    shown = ("scontrol", "-o", "show", "job", str(held))
    listings = {
        "squeue": (COMMANDS / "squeue", "-t", "all", "-O", "jobid,admin_comment:200,reason:200"),
        "sacct": (COMMANDS / "sacct", "-a", "-P", "-o", "jobid,admincomment,comment,reason"),
        "scontrol": (COMMANDS / shown[0], *shown[1:]),
        "status": (Path(sys.executable).parent / "metasched", "status", "--all", "--json"),
        "api": (sys.executable, "-c", READ_ALL),
    }
    answers = {
        account: {name: call(account, *command) for name, command in listings.items()}
        for account in (A, B, OPERATOR)
    }
    assert secrets(answers[B]) == []
    asked = (sys.executable, "-c", READ_REASON, a.row(rejected)["reason"])
    found = [json.loads(call(account, *asked)) for account in (A, B, OPERATOR)]
    assert found == [[rejected], [], [rejected]]
    for account in (A, OPERATOR):  # the listings have something to hide
        assert {"status", "api"} <= {*secrets(answers[account])}, answers[account]
    assert answers[B]["scontrol"] == answers[A]["scontrol"]
    assert " MinCPUsNode=3 " in answers[B]["scontrol"]
    assert " MinTmpDiskNode=5G " in answers[B]["scontrol"]
    rows = json.loads(answers[B]["api"])["details"]
    natives = {row["job"]: row["native"] for row in rows}
    assert natives == {rejected: {}, held: {"alpha": "--tmp=5G --mincpus=3"}}
    for command in ("story", "explain", "output"):
        site.by(B).error(command, str(held), code=3)
