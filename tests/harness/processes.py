"""Which processes a local cluster has: its fork server, its supervisors and what they run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from metasched.adapters import supervisor


def of_cluster(folder: Path) -> list[int]:
    """The fork server and supervisors log to the cluster's folder; the rest descends from them."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                log = os.readlink(path / "fd" / "2")
            except OSError:
                continue  # ended, or somebody else's
            if log == os.fspath(folder / "supervisor.log"):
                found += [int(path.name), *supervisor.descendants(int(path.name))]
    return found


def kill(pids: list[int]) -> None:
    """For a test that failed: supervisors first, so that none reports what follows."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
