"""The processes that are killed: the real daemon and its workers, with crash points.

`python -m tests.chaos.victim serve` is `metasched serve`, `... -m metasched.adapters.worker`
a worker.
`daemon` is the first for a process that was forked after all modules had been loaded, which
saves most of the second that a daemon takes to start.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping

import metasched.adapters.worker
import metasched.daemon.service
from metasched.cli import main as command
from tests.chaos import points

# what a daemon loads before it serves
MODULES = ("metasched.cli.app", "metasched.api.server", "alembic.command", "alembic.script")
_PR_SET_PDEATHSIG = 1


def daemon(environment: Mapping[str, str], log: str) -> None:
    """Become the daemon of that environment; standard error goes to `log`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for descriptor, source in ((0, nothing), (1, said), (2, said)):
        os.dup2(source, descriptor)
    # one of them is the pipe whose end tells the fork server to end, and us with it
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if "LD_PRELOAD" in environment:  # too late for this process
        program = [sys.executable, "-m", __name__, "serve"]
        os.execve(sys.executable, program, dict(environment))
    os.environ.clear()
    os.environ.update(environment)
    metasched.daemon.service.DATABASE_CHECK_INTERVAL = 1.0  # its life may be a short one
    sys.argv = ["metasched", "serve"]
    points.install("daemon")
    sys.exit(command())


if __name__ == "__main__":
    if "metasched.adapters.worker" in sys.argv:
        points.install("worker")
        sys.exit(metasched.adapters.worker.main())
    points.install("daemon")
    sys.exit(command())
