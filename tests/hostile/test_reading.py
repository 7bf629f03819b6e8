"""Slow listings, or a directory that hangs, occupy threads; other accounts are answered."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import COMMAND
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite
from tests.harness.accounts import A, B, as_

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
def status_page(self, wanted, *more):
    with self._connect():
        while wanted.user == {account!r} and os.path.exists({hold!r}):
            time.sleep(0.05)
    return original(self, wanted, *more)
Queries.status_page = status_page
sys.argv = sys.argv[1:]
from metasched.cli import main
sys.exit(main())
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


@pytest.fixture(scope="module")
def slow(common_folder: Path) -> Iterator[MultiUserSite]:
    site = MultiUserSite(common_folder / "reading")
    script = site.folder / "slow.py"
    script.write_text(
        SLOW_DAEMON.format(
            account=A,
            hold=str(site.folder / "hold"),
            hang=str(site.folder / "hang"),
            hanging=str(site.state / "hanging"),
        )
    )
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


def test_a_flood_of_listings_delays_its_account_alone(slow: MultiUserSite) -> None:
    (slow.folder / "hold").touch()
    flood = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", FLOOD, str(slow.state / "ms.sock"), str(REQUESTS)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        **as_(A),
    )
    with flood:
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
    with subprocess.Popen(
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
