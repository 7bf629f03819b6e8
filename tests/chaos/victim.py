"""The processes that are killed: the real daemon and its workers, with crash points.

`python -m tests.chaos.victim serve` is `metasched serve`, `... -m metasched.adapters.worker`
a worker. `daemon` makes a daemon of a process that was forked after all modules had been loaded.
This saves most of the second that a daemon takes to start.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import sys
from collections.abc import Mapping, Sequence

import metasched.adapters.local.adapter
import metasched.adapters.worker
import metasched.daemon.service
from metasched.cli import main as command
from tests.chaos import points

# modules that a daemon loads before it serves
MODULES = ("metasched.cli.app", "metasched.api.server", "alembic.command", "alembic.script")
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4


def daemon(
    environment: Mapping[str, str], log: str, account: str | None, options: Sequence[str] = ()
) -> None:
    """Become a daemon with that environment, of another account unless `account` is None.

    Standard error goes to `log`. `options` are those of `serve`.
    """
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    log_descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for descriptor, source in ((0, nothing), (1, log_descriptor), (2, log_descriptor)):
        os.dup2(source, descriptor)
    prctl = ctypes.CDLL(None).prctl
    if account is not None:
        owner = pwd.getpwnam(account)
        os.initgroups(account, owner.pw_gid)
        os.setgid(owner.pw_gid)
        os.setuid(owner.pw_uid)
        prctl(_PR_SET_DUMPABLE, 1)  # else the files of the process in /proc belong to root
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of account resets it
    # an inherited pipe would keep the fork server alive, and so this process
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if "LD_PRELOAD" in environment:  # it takes effect only in a new program
        program = [sys.executable, "-m", __name__, "serve", *options]
        os.execve(sys.executable, program, dict(environment))
    os.environ.clear()
    os.environ.update(environment)
    metasched.daemon.service.DATABASE_CHECK_INTERVAL = 1.0  # the daemon may be killed soon
    sys.argv = ["metasched", "serve", *options]
    points.install("daemon")
    sys.exit(command())


if __name__ == "__main__":
    if "metasched.adapters.worker" in sys.argv:
        metasched.adapters.local.adapter.ENDS_AT_ONCE = 3  # else listings are seldom partial
        points.install("worker")
        sys.exit(metasched.adapters.worker.main())
    points.install("daemon")
    sys.exit(command())
