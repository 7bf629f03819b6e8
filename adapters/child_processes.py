"""Processes that end with their parent, however it ends.

The kernel kills a child with its parent if the child asks for it, as our own programs do. For a
command it would have to be asked between fork and exec, which takes a fork of the interpreter:
3.5 ms of CPU from a worker, where spawning takes 0.6. So commands are spawned into the process
group of a shell that waits for the end of its input, which only their parent can write to, and
then kills the group.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
_KILL_GROUP_SCRIPT = "read -r _; kill -KILL 0"


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; SystemExit if it ends meanwhile."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


class ChildProcessGroup:
    """A process group that is killed when this process has ended."""

    def __init__(self) -> None:
        self._leader: subprocess.Popen[bytes] | None = None

    def group_id(self) -> int:
        """Its id, for a command to be started in; if its leader was killed a new one's. OSError."""
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
