"""What another account learns of events, and can write into them; two real accounts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import COMMAND
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite, running_site
from tests.harness.accounts import OPERATOR, A, B

pytestmark = pytest.mark.root

LOCAL = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\npoll_interval = 0.2\n'
LICENCE = '[[licence]]\nname = "matlab"\ntotal = 4\n'
CALL_AS = """
import os, socket
os.setuid({uid})
client = socket.socket(socket.AF_UNIX)
client.connect("{socket}")
client.sendall(b"GET /health HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
assert b"403" in client.recv(100)
"""
SECRET = "bob ruined the disk"


@pytest.fixture(scope="module")
def site(common_folder: Path) -> Iterator[MultiUserSite]:
    folder = common_folder / "events"
    with running_site(folder, LICENCE + LOCAL, f"[cluster.left]\n{SUPERVISE}") as site:
        yield site


def events(site: MultiUserSite, *options: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = site.json("events", *options)
    return rows


def call(site: MultiUserSite, *command: str | Path) -> str:
    """Run a program as the caller, whatever its exit code."""
    arguments: dict[str, Any] = {"env": site.environment, "capture_output": True, "text": True}
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, **arguments, **site.caller
    )
    return done.stdout


@pytest.mark.slow("boots a site, and runs 20 commands of three accounts")
def test_users_see_their_own_and_public_events_without_names_and_causes(
    site: MultiUserSite,
) -> None:
    a, b, operator = site.by(A), site.by(B), site.by(OPERATOR)
    job = a.submit("--hold", "-o", "/dev/null", "--wrap", "true")
    own = b.submit("--hold", "-o", "/dev/null", "--wrap", "true")
    operator.run("release", str(job))
    operator.run("cancel", str(job))
    operator.run("cluster", "drain", "left", "--reason", SECRET)
    operator.run("cluster", "resume", "left")
    operator.run("licence", "set", "matlab", "3")
    seen = {account: events(site.by(account)) for account in (A, B, OPERATOR)}

    acts = [row for row in seen[OPERATOR] if row["job"] == job]
    assert {(row["actor"], row["owner"]) for row in acts} == {(OPERATOR, A)}
    assert {row["kind"] for row in acts} >= {"job_cancelled", "job_released"}
    assert [row for row in seen[A] if row["job"] == job] == acts  # with the operator's name

    public = [row for row in seen[B] if row["kind"] in ("cluster_drained", "licence_set")]
    assert len(public) == 2
    for row in seen[B]:
        if row["owner"] != B:
            hidden = ("actor", "owner", "cause", "job", "task", "reservation")
            assert all(row[name] is None for name in hidden), row
            assert row["details"] == {}
    text = json.dumps(seen[B])
    assert SECRET not in text
    assert A not in text
    assert OPERATOR not in text
    # not even by filters: none tells whether a job, a user or a kind has hidden events
    assert events(b, "--job", str(job)) == []
    assert events(b, "--job", "999999") == []
    assert events(b, "--kind", "policy_changed") == []
    assert "only operators" in b.error("events", "--user", A, code=3)
    assert "only operators" in b.error("events", "--user", "nobody-at-all", code=3)
    assert events(b, "--user", B) == [row for row in seen[B] if row["owner"] == B]
    b.run("cancel", str(own))  # his own request is no event
    assert events(b, "--job", str(own)) == []


def test_an_account_that_does_not_exist_is_refused_and_recorded(site: MultiUserSite) -> None:
    unknown_uid = 54_321
    command = [sys.executable, "-c", CALL_AS.format(uid=unknown_uid, socket=site.state / "ms.sock")]
    subprocess.run(command, check=True)
    operator = site.by(OPERATOR)
    refused = operator.until(lambda: events(operator, "--kind", "credential_refused"))[-1]
    assert f"no account with user id {unknown_uid}" in refused["cause"]
    assert refused["details"] == {"peer": f"uid {unknown_uid}"}
    assert events(site.by(A), "--kind", "credential_refused") == []


def test_a_cursor_tells_nothing_of_hidden_events(site: MultiUserSite) -> None:
    a, b, operator = site.by(A), site.by(B), site.by(OPERATOR)

    script = (
        "from metasched.client.client import Client\n"
        "from metasched.client.address import find_daemon\n"
        "print(Client(find_daemon(None)).events(newest=True, limit=1)[1])"
    )

    def position(user: MultiUserSite) -> str:
        """Return the cursor after all events that a user sees."""
        return call(user, sys.executable, "-c", script).strip()

    before = position(b)
    job = a.submit("--hold", "-o", "/dev/null", "--wrap", "true")
    operator.run("cancel", str(job))
    assert position(b) == before
    assert int(position(operator)) > int(before)
    assert int(position(a)) > int(before)


HOSTILE_NAME = "x\n2026-01-01 00:00:00,000 INFO cluster_drained actor=root cluster=left\x1b[2J"


def test_a_hostile_name_forges_no_line(site: MultiUserSite) -> None:
    """The operator changes a job whose owner chose the name; both names are in the event."""
    a, operator = site.by(A), site.by(OPERATOR)
    job = a.submit("--hold", "-o", "/dev/null", "--wrap", "true")
    for name in (HOSTILE_NAME, "\u202eevil \u2028 name"):
        call(operator, COMMAND, "modify", str(job), "--name", name)
        call(a, COMMAND, "submit", "--hold", "-o", "/dev/null", "--name", name, "--wrap", "true")
    operator.run("cancel", "--user", A)
    table = operator.run("events").stdout
    assert all(line.isprintable() for line in table.splitlines())
    log = site.log.read_text()
    assert all(line.isprintable() for line in log.splitlines())
    forged = [line for line in log.splitlines() if line.startswith("2026-01-01 00:00:00,000")]
    assert forged == []


def test_users_get_reports_and_holders_of_their_own_jobs(site: MultiUserSite) -> None:
    a, b, operator = site.by(A), site.by(B), site.by(OPERATOR)
    job = b.submit("-L", "matlab:2", "-t", "5", "-o", "/dev/null", "--wrap", "sleep 100")
    b.until(lambda: b.row(job)["state"] == "running")
    [of_a], [of_b] = (user.json("licences")[0]["holders"] for user in (a, b))
    assert (of_b["job"], of_b["user"], of_b["count"]) == (job, B, 2)
    assert (of_a["job"], of_a["user"], of_a["count"]) == (None, None, 2)
    assert operator.json("licences")[0]["holders"] == [of_b]
    b.run("cancel", str(job))
    b.until_ended(job)
    own = a.submit("-t", "5", "-o", "/dev/null", "--wrap", "true")
    a.until_ended(own)
    days = ("--since", "2d", "--by", "user")

    def users(caller: MultiUserSite, kind: str, *options: str) -> set[str]:
        return {row["user"] for row in caller.json("report", kind, *days, *options)["rows"]}

    for kind in ("use", "waits"):
        assert users(a, kind) == {A}
        assert users(b, kind) == users(b, kind, "--user", B) == {B}
        assert users(operator, kind) >= {A, B}
        assert users(operator, kind, "--user", A) == {A}
    assert users(a, "licences") == set()
    assert users(operator, "licences") == {B}
    # not even sums of others, by whatever key
    [row] = a.json("report", "use", "--since", "2d", "--by", "cluster")["rows"]
    [all_users] = operator.json("report", "use", "--since", "2d", "--by", "cluster")["rows"]
    assert row["jobs"] < all_users["jobs"]
    assert "only operators see the use of" in a.error("report", "use", "--user", B, code=3)
