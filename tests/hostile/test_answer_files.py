"""Answers that are not read fill neither the disk nor the room of another account."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite
from tests.harness.accounts import A, B
from tests.hostile.test_reading import start_python

pytestmark = pytest.mark.root

MAX_ANSWERS = 48 << 20  # bytes
TASKS = 66_000  # of an array; its rows have 22 MB, nearly half of the room
FEW = 5_000  # of another account: a file of more than a mebibyte
# A requests whole listings and stories, and reads nothing of the answers but the status.
HOARD = """
import socket, sys, time
peers = []
for path in sys.argv[2:]:
    peer = socket.socket(socket.AF_UNIX)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(sys.argv[1])
    peer.sendall(b"GET " + path.encode() + b" HTTP/1.0\\r\\n\\r\\n")
    peers.append(peer)
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        head += peer.recv(1)
    body = peer.recv(300) if b" 503 " in head else b""
    print(head.decode().replace("\\r\\n", "|"), body.decode(), flush=True)
time.sleep(600)
"""

WHOLE = """
import json, socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
peer.sendall(b"GET /jobs HTTP/1.0\\r\\n\\r\\n")
head, _, body = peer.makefile("rb").read().partition(b"\\r\\n\\r\\n")
print(int(head[9:12]), len(json.loads(body)))
"""


@pytest.fixture
def site(common_folder: Path) -> Iterator[MultiUserSite]:
    """A site over a local cluster whose temporary files are in a folder of its own."""
    site = MultiUserSite(common_folder / "answers")
    temporary = site.folder / "tmp"
    temporary.mkdir(mode=0o777)
    temporary.chmod(0o777)
    site.before = (*site.before, "env", f"TMPDIR={temporary}")
    site.set_up(
        '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\n',
        f"[cluster.left]\n{SUPERVISE}",
    )
    text = site.config.read_text()
    site.config.write_text(text.replace("[daemon]\n", f"[daemon]\nmax_answers = {MAX_ANSWERS}\n"))
    try:
        site.start()
        yield site
    finally:
        site.close()


def stored_bytes(daemon: psutil.Process, folder: Path) -> int:
    """Return the bytes of the daemon's open files in a folder."""
    total = 0
    for descriptor in Path(f"/proc/{daemon.pid}/fd").iterdir():
        try:
            if os.readlink(descriptor).startswith(str(folder)):
                total += os.stat(descriptor).st_size
        except FileNotFoundError:
            continue
    return total


def test_answers_that_are_not_read_leave_room_for_another_account(site: MultiUserSite) -> None:
    temporary = site.folder / "tmp"
    hold = ("--hold", "-o", "/dev/null", "--wrap", "true")
    site.by(A).submit("--array", f"1-{TASKS}", *hold)
    site.by(B).submit("--array", f"1-{FEW}", *hold)
    daemon = psutil.Process(site.pid)
    paths = ("/jobs?state=held", "/jobs?job=1")  # each kind has a turn of its own
    with start_python(site, A, HOARD, *paths) as hoarder:
        try:
            assert hoarder.stdout is not None
            heads = [hoarder.stdout.readline() for _ in range(2)]
            [refused] = [head for head in heads if " 503 " in head]
            assert "retry-after" in refused.lower()
            assert "no room for the answer" in refused
            assert sum(" 200 " in head for head in heads) == 1
            held = stored_bytes(daemon, temporary)
            assert 16 << 20 < held <= MAX_ANSWERS // 2
            assert os.listdir(temporary) == []
            rows = json.loads(site.by(B).run("status", "--json").stdout)
            assert len(rows) == FEW
            with start_python(site, B, WHOLE) as other:
                answer, _ = other.communicate(timeout=120)
            assert answer == f"200 {FEW}\n"
            daemon.send_signal(signal.SIGKILL)
            daemon.wait(30)
            assert os.listdir(temporary) == []
        finally:
            hoarder.kill()
