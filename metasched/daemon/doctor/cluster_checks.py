"""Each cluster by calls of its own, in the environment of its worker; each licence server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from metasched.adapters.claims import FenceError, check_fence
from metasched.adapters.inspection import InspectionReport, InspectionRequest
from metasched.config.settings import ClusterSettings, LicenceServerSettings, Settings
from metasched.daemon.doctor.database_checks import MAX_CLOCK_SKEW
from metasched.daemon.doctor.findings import Finding, found, passed
from metasched.licence_servers.base import LicenceServerError
from metasched.licence_servers.process import ServerQuery, query_server
from metasched.version import RELEASE

MAX_REPORT_TIME = 0.3  # seconds of a check's time for the process to report and end


def check_manager(entry: ClusterSettings, settings: Settings, timeout: float) -> Iterator[Finding]:
    """Query the manager of a cluster; nothing is changed there."""
    name, cluster = entry.cluster.name, entry.cluster
    check = f"manager of {name}"
    if not cluster.local_policy:
        text = f"forecast by FCFS, since adapter {cluster.adapter} declares no local_policy"
        yield found("cluster-local-policy", f"expected starts on {name}", text)
    try:
        report = _inspect(entry, settings, timeout)
    except WorkerMissing as error:
        fix = f"install metasched {RELEASE} for {entry.python or sys.executable}"
        yield found("cluster-worker", check, str(error), fix)
        return
    for text, fix in report.warnings:
        yield found("cluster-manager", check, text, fix)
    if (state := report.state) is None:
        fix = "query its manager on this host by the manager's own commands"
        yield found("cluster-unreachable", check, report.error, fix)
        return
    if state.cpus < 1:
        yield found("cluster-no-node", check, "it answers, but no node of it can run a job")
    elif not report.warnings:
        release = f", release {state.release}" if state.release else ""
        yield passed(check, f"{state.cpus} usable processors{release}")
    mapped = {
        partition
        for names in cluster.maps.get("partition", {}).values()
        for partition in names.split(",")
    }
    for partition in sorted(mapped - {"*", "", *state.partitions}):
        choices = f"it has {', '.join(sorted(state.partitions)) or 'none'}"
        text = f"it has no partition {partition}, to which [cluster.map.partition] maps"
        yield found("cluster-partition", f"partitions of {name}", text, choices)
    yield from check_records(entry, state.records)
    if state.clock_lead is not None and abs(state.clock_lead) > MAX_CLOCK_SKEW:
        direction = "ahead of" if state.clock_lead > 0 else "behind"
        text = f"its controller is {abs(state.clock_lead):.0f} s {direction} this host"
        yield found("clock-differs", f"controller of {name}", text)
    if entry.capabilities.on_daemon_host and state.cpus > (host_cpus := os.cpu_count() or 1):
        text = f"cpus = {state.cpus}, this host has {host_cpus}"
        yield found("cluster-overcommitted", f"processors of {name}", text)


def check_records(entry: ClusterSettings, records: str) -> Iterator[Finding]:
    """Warn where nothing reliable remembers the end of a job that its manager has forgotten."""
    check = f"records of {entry.cluster.name}"
    if records.startswith("jobcomp/filetxt"):
        text = (
            "by a job name with line breaks any account can write lines of others into the file "
            "of jobcomp/filetxt"
        )
        yield found("cluster-forgeable", check, text)
    if entry.capabilities.needs_accounting and not records and not entry.cluster.fence_dir:
        text = "neither accounting nor claims, so that a job that its manager forgets is unknown"
        yield found("cluster-records", check, text)


class WorkerMissing(Exception):
    """The interpreter of a worker cannot run the inspection."""


def _report_time(timeout: float) -> float:
    """Return the seconds that remain of a check's time after its process; a tenth at most."""
    return min(MAX_REPORT_TIME, timeout / 10)


def _inspect(entry: ClusterSettings, settings: Settings, timeout: float) -> InspectionReport:
    """Run the inspection as the cluster's worker would run. Raises WorkerMissing."""
    report_time = _report_time(timeout)
    end = time.monotonic() + timeout - 2 * report_time  # the start of a process may take time
    request = InspectionRequest(
        adapter=entry.cluster.adapter,
        cluster=entry.cluster,
        options=entry.options,
        deadline=end - report_time,
        launcher=str(settings.launcher or ""),
    )
    python = entry.python or sys.executable
    try:
        process = subprocess.Popen(
            [python, "-P", "-m", "metasched.adapters.inspection"],
            env=os.environ | entry.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise WorkerMissing(f"{python}: {error.strerror}") from None
    try:
        output, errors = process.communicate(msgspec.json.encode(request), end - time.monotonic())
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return InspectionReport(error=f"no answer within {timeout:g} s")
    try:
        return msgspec.json.decode(output, type=InspectionReport)
    except msgspec.DecodeError:
        last_line = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise WorkerMissing(f"{python}: {last_line or f'exit code {process.returncode}'}") from None


def check_claims(entry: ClusterSettings) -> Iterator[Finding]:
    """Check the folder of claims: while it is unusable, the cluster gets no jobs."""
    name, fence_dir = f"claims of {entry.cluster.name}", entry.cluster.fence_dir
    if not fence_dir:
        return
    try:
        check_fence(fence_dir)
    except FenceError as error:
        yield found("claims-unusable", name, f"fence_dir: {error}", error.fix)
    else:
        yield passed(name, fence_dir)


def check_licence_server(
    server: LicenceServerSettings, settings: Settings, timeout: float
) -> Iterator[Finding]:
    """Query a licence server once, as the daemon does."""
    check = f"query of {server.name}"
    report_time = _report_time(timeout)
    limit = min(server.timeout, timeout - 3 * report_time)  # it is killed, and reported, by then
    query = ServerQuery(server.server_type, server.options, limit)
    try:
        report = asyncio.run(query_server(query, grace=report_time))
    except LicenceServerError as error:
        fix = f"try `metasched licence probe {server.name}`"
        yield found("licence-server-unreachable", check, str(error), fix)
        return
    pool_names = [pool.name for pool in settings.licences if pool.server == server.name]
    missing = [
        name for name in pool_names if report.feature(server.features.get(name, name)) is None
    ]
    for name in missing:
        feature = server.features.get(name, name)
        text = f"it reports no {feature}, the licence {name}"
        yield found("licence-missing", check, text, "see `features`, or the server's own log")
    if not missing:
        yield passed(check, f"it answers, {len(pool_names)} licences")
