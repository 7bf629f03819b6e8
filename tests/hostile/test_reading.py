"""An account floods the daemon with slow listings; requests of other accounts are answered."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite
from tests.harness.accounts import A, B, as_

pytestmark = pytest.mark.root

REQUESTS = 60  # at a time: more than the daemon has threads or connections to the database
# Listings of account a last until the file is removed, and hold a connection to the database.
SLOW_LISTINGS = """
import os, sys, time
from metasched.db.queries import Queries
original = Queries.status
def status(self, jobs=None, user=None, *more, **filters):
    with self._connect():
        while user == {account!r} and os.path.exists({hold!r}):
            time.sleep(0.05)
    return original(self, jobs, user, *more, **filters)
Queries.status = status
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


@pytest.fixture
def slow(common_folder: Path) -> Iterator[MultiUserSite]:
    site = MultiUserSite(common_folder / "reading")
    (hold := site.folder / "hold").touch()
    script = site.folder / "slow.py"
    script.write_text(SLOW_LISTINGS.format(account=A, hold=str(hold)))
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
