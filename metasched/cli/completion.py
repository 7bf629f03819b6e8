"""Names that a shell completes: ids of the caller's own jobs, clusters, licences, reservations.

A shell waits for them, and its line must stay as it is: the daemon has a second, and no failure
prints anything.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import typer

from metasched.cli.connect import daemon_address
from metasched.cli.job_ids import format_task_id
from metasched.client.client import Client
from metasched.client.connection import Connection

TIMEOUT = 1.0  # seconds for an answer
MAX_JOBS = 500  # that are listed
_UNSTARTED = "queued,held,dispatching,pending"
_OPEN = f"{_UNSTARTED},running,suspended,unknown"
# the states of jobs that a command can change; others take all jobs
_STATES = {
    "cancel": _OPEN,
    "hold": _UNSTARTED,
    "release": _UNSTARTED,
    "modify": _UNSTARTED,
    "resolve": "unknown",
    "wait": _OPEN,
}


def complete_jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Return ids of the caller's jobs, and of tasks after `17_`."""
    return _quietly(lambda address: _jobs(address, context.info_name or "", "_" in incomplete))


def _jobs(address: str, command: str, with_tasks: bool) -> Iterable[str]:
    user = pwd.getpwuid(os.geteuid()).pw_name
    query = {"user": user, "state": _STATES.get(command), "limit": MAX_JOBS}
    rows, _ = Connection(address, TIMEOUT).request("GET", "/jobs", query)
    return [format_task_id(row) if with_tasks else str(row["job"]) for row in rows]


def complete_clusters(incomplete: str) -> list[str]:
    """Return names of clusters after the names of a list."""
    return _after_list(incomplete, _quietly(lambda address: _names(address, "cluster")))


def complete_licences(incomplete: str) -> list[str]:
    """Return names of licences after the licences of a list."""
    return _after_list(incomplete, _quietly(lambda address: _names(address, "licence")))


def complete_reservations() -> list[str]:
    """Return ids of open reservations that the caller may see."""
    return _quietly(lambda address: _names(address, "reservation"))


def _names(address: str, key: str) -> Iterable[str]:
    client = Client(address, TIMEOUT)
    listings: dict[str, Callable[[], Sequence[Mapping[str, Any]]]] = {
        "cluster": client.clusters,
        "licence": client.licences,
        "reservation": client.reservations,
    }
    return [str(row[key]) for row in listings[key]()]


def _after_list(incomplete: str, names: Iterable[str]) -> list[str]:
    before, comma, _ = incomplete.rpartition(",")
    return [before + comma + name for name in names]


def _quietly(read: Callable[[str], Iterable[str]]) -> list[str]:
    """Return the distinct words that `read` gets from the daemon; none if that fails."""
    try:
        candidates = read(daemon_address())
        return [
            candidate
            for candidate in dict.fromkeys(candidates)
            if candidate.isprintable() and " " not in candidate
        ]
    except Exception:  # whatever it is: a message would garble the line of the shell
        return []
