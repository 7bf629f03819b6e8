"""The processes of a local cluster: its fork server, its supervisors and their descendants."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from metasched.adapters import supervisor


def of_cluster(folder: Path) -> list[int]:
    """Return the processes that log to the cluster's `supervisor.log`, and their descendants."""
    processes = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                log = os.readlink(path / "fd" / "2")
            except OSError:
                continue  # ended, or of another account
            if log == os.fspath(folder / "supervisor.log"):
                processes += [int(path.name), *supervisor.descendants(int(path.name))]
    return processes


def kill(pids: list[int]) -> None:
    """Kill processes after a failed test: supervisors first, so that none reports an end."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
