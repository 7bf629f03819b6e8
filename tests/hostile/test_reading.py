"""Many or slow listings, or a directory that hangs, occupy the daemon; others are answered."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

from tests.e2e.conftest import COMMAND
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite
from tests.harness.accounts import OPERATOR, A, B, as_

pytestmark = pytest.mark.root

REQUESTS = 60  # at a time: more than the daemon has threads or connections to the database
# Listings of account a last until the file is removed, and hold a connection to the database. So do
# checks of its directories in a submission, if there is another file; the daemon has one thread
# for what has no threads of its own.
SLOW_DAEMON = """
import os, sys, time
os.cpu_count = lambda: -3  # asyncio takes four threads more than processors
from metasched.adapters.launcher_client import LauncherClient
from metasched.db.queries import Queries
check_access = LauncherClient.check_access
def hang(self, user, directory):
    while user == {account!r} and os.path.exists({hang!r}):
        open({hanging!r}, "w").close()
        time.sleep(0.05)
    return check_access(self, user, directory)
LauncherClient.check_access = hang
original = Queries.status_page
def status_page(self, wanted, *more, **named):
    with self._connect():
        while wanted.user == {account!r} and os.path.exists({hold!r}):
            time.sleep(0.05)
    return original(self, wanted, *more, **named)
Queries.status_page = status_page
sys.argv = sys.argv[1:]
from metasched.cli import main
sys.exit(main())
"""
# Any listing takes too much time of this daemon if another account called within a second.
THROTTLED_DAEMON = """
import sys
from metasched.api import throttle
throttle.SHARE, throttle.QUIET = 1e-6, 1.0
from metasched.cli import main
sys.argv = sys.argv[1:]
sys.exit(main())
"""
ASK = """
import os, socket, sys, time
while os.path.exists(sys.argv[2]):
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(sys.argv[1])
        peer.sendall(b"GET /health HTTP/1.0\\r\\n\\r\\n")
        assert b" 200 " in peer.makefile("rb").readline()
    time.sleep(0.05)
print("all answered", flush=True)
"""
FLOOD = """
import socket, sys
peers = [socket.socket(socket.AF_UNIX) for _ in range(int(sys.argv[2]))]
for peer in peers:
    peer.connect(sys.argv[1])
    peer.sendall(b"GET /jobs HTTP/1.0\\r\\n\\r\\n")
print("sent", flush=True)
print([peer.makefile("rb").readline()[9:12].decode() for peer in peers], flush=True)
"""


@contextmanager
def changed_site(folder: Path, program: str) -> Iterator[MultiUserSite]:
    """Run a site over a local cluster; `program` starts its daemon."""
    site = MultiUserSite(folder)
    script = site.folder / "daemon.py"
    script.write_text(program)
    site.before = (*site.before, sys.executable, str(script))
    site.set_up(
        '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\npoll_interval = 0.2\n',
        f"[cluster.left]\n{SUPERVISE}",
    )
    try:
        site.start()
        yield site
    finally:
        site.close()


@pytest.fixture(scope="module")
def slow(common_folder: Path) -> Iterator[MultiUserSite]:
    folder = common_folder / "reading"
    program = SLOW_DAEMON.format(
        account=A,
        hold=str(folder / "hold"),
        hang=str(folder / "hang"),
        hanging=str(folder / "state" / "hanging"),
    )
    with changed_site(folder, program) as site:
        yield site


def start_python(site: MultiUserSite, account: str, program: str, *arguments: str) -> Popen[str]:
    """Start a program of an account; its first argument is the daemon's socket."""
    return Popen(
        [sys.executable, "-I", "-S", "-c", program, str(site.state / "ms.sock"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        **as_(account),
    )


def test_listings_wait_while_another_account_calls(common_folder: Path) -> None:
    with changed_site(common_folder / "throttled", THROTTLED_DAEMON) as site:
        calling = site.folder / "calling"
        calling.touch()
        with (
            start_python(site, B, ASK, str(calling)) as other,
            start_python(site, A, FLOOD, "3") as flood,
        ):
            assert flood.stdout is not None
            assert other.stdout is not None
            try:
                assert flood.stdout.readline() == "sent\n"
                site.until(lambda: f"readings of {A} wait" in site.log_tail())
                # neither another account nor a request about named jobs waits
                job = site.by(B).submit("--hold", "-o", "/dev/null", "--wrap", "true")
                assert site.by(B).row(job)["state"] == "held"
                calling.unlink()
                assert flood.stdout.readline() == "['200', '200', '200']\n"
                assert other.stdout.readline() == "all answered\n"
            finally:
                flood.kill()
                other.kill()
        rows = json.loads(site.by(OPERATOR).run("doctor", "--json", code=1).stdout)
        [text] = [row["text"] for row in rows if row["check"] == "listings"]
        assert A in text
        assert B not in text


def test_a_flood_of_listings_delays_its_account_alone(slow: MultiUserSite) -> None:
    (slow.folder / "hold").touch()
    with start_python(slow, A, FLOOD, str(REQUESTS)) as flood:
        try:
            assert flood.stdout is not None
            assert flood.stdout.readline() == "sent\n"
            own = slow.by(A).submit("--hold", "-o", "/dev/null", "--wrap", "true")
            # a request for a named job does not wait for the listings of its own user
            assert "It is held" in slow.by(A).run("explain", str(own)).stdout
            slow.by(A).run("cancel", str(own))
            assert slow.by(A).row(own)["state"] == "cancelled"
            b = slow.by(B)
            job = b.submit("-t", "5", "-o", "/dev/null", "--wrap", "true")
            assert b.until_ended(job)[0]["state"] == "completed"
            (slow.folder / "hold").unlink()
            answers = flood.stdout.readline()
        finally:
            flood.kill()
    assert "200" in answers
    assert set(answers) <= set("[]', 0235\n"), answers


def test_a_directory_that_hangs_delays_submissions_of_its_user_alone(slow: MultiUserSite) -> None:
    a, b = slow.by(A), slow.by(B)
    (slow.folder / "hang").touch()
    arguments = ("submit", "--hold", "-o", "/dev/null", "--wrap", "true")
    with Popen(
        [COMMAND, *arguments], env=a.environment, stdin=subprocess.DEVNULL, **a.caller
    ) as submitter:
        try:
            slow.until((slow.state / "hanging").exists)
            job = b.submit("-t", "5", "-o", "/dev/null", "--wrap", "true")
            assert b.until_ended(job)[0]["state"] == "completed"
            assert submitter.poll() is None
        finally:
            (slow.folder / "hang").unlink()
        assert submitter.wait(120) == 0
