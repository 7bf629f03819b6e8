"""A process that inspects the manager of one cluster, as the cluster's worker would reach it.

It reads an `InspectionRequest` and writes an `InspectionReport`, a JSON object each. It has the
interpreter and the environment of the cluster's worker, so it also finds out whether these work.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from metasched.adapters.base import ManagerState
from metasched.adapters.launcher_client import LauncherClient, owner_deadline
from metasched.adapters.registry import adapter_class
from metasched.model.adapter_errors import Refused, SiteFault, Unreachable
from metasched.model.cluster import Cluster
from metasched.processes.frames import replies_to_parent

_INSTANCE = "doctor"  # of no task: the listing has no row of ours


class InspectionRequest(msgspec.Struct, frozen=True):
    """The cluster to inspect."""

    adapter: str  # name of an entry point
    cluster: Cluster
    options: dict[str, Any]  # of the adapter
    deadline: float  # monotonic seconds, of this host; the commands end by then
    launcher: str = ""  # socket of the launcher in site mode


class InspectionReport(msgspec.Struct, frozen=True):
    """The result of an inspection, or why it failed."""

    state: ManagerState | None = None
    error: str = ""  # why there is no `state`
    warnings: tuple[tuple[str, str], ...] = ()  # `Adapter.configuration_warnings`


def inspect(request: InspectionRequest) -> InspectionReport:
    """Query the manager of a cluster; return every failure as a report."""
    adapter_type = adapter_class(request.adapter)
    options = msgspec.convert(request.options, adapter_type.Options)
    folder = Path(tempfile.mkdtemp(prefix="metasched-doctor-"))
    arguments: dict[str, Any] = {}
    if request.launcher:
        arguments["launcher"] = LauncherClient(Path(request.launcher), request.cluster.name)
    warnings: list[tuple[str, str]] = []
    try:
        with owner_deadline(max(request.deadline - time.monotonic(), 0.0)):
            warnings = adapter_type.configuration_warnings(
                options, os.environ, site_mode=bool(request.launcher)
            )
            adapter = adapter_type(request.cluster, options, _INSTANCE, folder, **arguments)
            try:
                state = adapter.inspect()
            finally:
                adapter.close()
    except (Refused, SiteFault, Unreachable) as error:
        return InspectionReport(error=error.reason, warnings=tuple(warnings))
    except Exception as error:  # of a plug-in, or a library that cannot be loaded
        return InspectionReport(error=f"{type(error).__name__}: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return InspectionReport(state, warnings=tuple(warnings))


def main() -> int:
    """Inspect the cluster on standard input and print the report."""
    with replies_to_parent() as report_pipe:
        request = msgspec.json.decode(sys.stdin.buffer.read(), type=InspectionRequest)
        report_pipe.write(msgspec.json.encode(inspect(request)) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
