"""Child processes that are killed when their parent ends, however it ends.

The kernel kills a child with its parent if the child requests it, as metasched's own programs do.
A command would have to request it between fork and exec. That takes a fork of the interpreter,
3.5 ms of CPU in a worker; spawning takes 0.6 ms. So commands are spawned into the process group
of a shell. The shell waits for the end of its input, which only the parent can write to, and then
kills the group.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1
_KILL_GROUP_SCRIPT = "read -r _; kill -KILL 0"


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends.

    Raises SystemExit if the parent ends during the call.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def describe_exit(code: int) -> str:
    """Return how a process ended, as the end of a sentence."""
    return f" of signal {-code}" if code < 0 else f" with exit code {code}"


class ChildProcessGroup:
    """A process group that is killed when this process has ended."""

    def __init__(self) -> None:
        self._leader: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # a second leader would be lost, and kill its group

    def group_id(self) -> int:
        """Return the id of the group, starting its leader if none is alive. Raises OSError."""
        with self._lock:
            if self._leader is None or self._leader.poll() is not None:
                self._leader = subprocess.Popen(
                    ["/bin/sh", "-c", _KILL_GROUP_SCRIPT],
                    env={},
                    cwd="/",
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    process_group=0,
                )
            return self._leader.pid
