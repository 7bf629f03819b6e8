"""`scancel`: cancels jobs."""

from __future__ import annotations

import os
import sys

from metasched.client.connection import NotFound
from metasched.drop_in.command import CommandError, connect, fail, listed_tasks, parse_options
from metasched.drop_in.job import OPEN_STATES, Job
from metasched.drop_in.job_filters import is_job_id, parse_codes, user_name, words_of

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from metasched.client.connection import Connection

_OPTIONS = {
    "account=": "A",
    "batch": "b",
    "ctld": "",
    "full": "f",
    "help": "",
    "hurry": "H",
    "jobname=": "n",
    "me": "",
    "name=": "",
    "partition=": "p",
    "qos=": "q",
    "quiet": "Q",
    "signal=": "s",
    "state=": "t",
    "usage": "",
    "user=": "u",
    "verbose": "v",
    "version": "V",
}
# signals that end a job: it is cancelled, so that its manager ends all its processes
_ENDING_SIGNALS = ("KILL", "TERM", "INT", "HUP", "QUIT", "9", "15", "2", "1", "3")
USAGE = "Usage: scancel [-A account] [-n job_name] [-p partition] [-q qos] [-Q] [-s signal]\n"
USAGE += (
    "               [-t PENDING | RUNNING | SUSPENDED] [-u user] [--me] [-v] [job_id[_task]]..."
)


def main(arguments: Sequence[str]) -> int:
    """Cancel the jobs that ids and filters select. Return the exit code."""
    parsed, ids = parse_options("scancel", _OPTIONS, arguments)
    options = dict(parsed)
    if "help" in options or "usage" in options:
        print(USAGE)
        return 0
    if "version" in options:
        print("slurm-metasched")
        return 0
    signal = options.get("signal", "KILL").upper()
    if (signal[3:] if signal.startswith("SIG") else signal) not in _ENDING_SIGNALS:
        raise CommandError(f"scancel: error: signal {signal} cannot be sent; KILL and TERM cancel")
    ids = [word for text in ids for word in words_of(text)] if "[" not in "".join(ids) else ids
    for word in ids:
        if not is_job_id(word):
            raise CommandError(f"scancel: error: Invalid job id {word}")
    filters = {"account", "jobname", "name", "partition", "qos", "state", "user", "me"} & {*options}
    if not ids and not filters:
        raise CommandError("scancel: error: No job identification provided")
    connection = connect()
    verbose = "verbose" in options
    if filters:
        ids = _selected(connection, options, ids)
        if not ids:
            if verbose:
                print("scancel: error: No active jobs match ALL job filters", file=sys.stderr)
            return 0
    for word in ids if verbose else ():
        print(f"scancel: Terminating job {word}", file=sys.stderr)
    missing = _cancel(connection, ids)
    if verbose:
        for word in missing:
            fail(f"scancel: error: Kill job error on job id {word}: Invalid job id specified")
    return 0


def _cancel(connection: Connection, ids: Sequence[str]) -> list[str]:
    """Cancel jobs; return the ids of which there is no job. As the real command, it is no error."""
    try:
        connection.request("POST", "/jobs/cancel", body={"jobs": list(ids)})
        return []
    except NotFound:
        if len(ids) == 1:
            return list(ids)
    half = len(ids) // 2
    return _cancel(connection, ids[:half]) + _cancel(connection, ids[half:])


def _selected(connection: Connection, options: Mapping[str, str], ids: Sequence[str]) -> list[str]:
    """Return the ids of the open tasks that pass all filters."""
    query: dict[str, object] = {"state": OPEN_STATES}
    if ids:
        query.update(job=list(ids), skip_missing="true")
    user = str(os.getuid()) if "me" in options else options.get("user")
    if user:
        query["user"] = user_name(user)
    codes = parse_codes("scancel", options.get("state", "all"))
    wanted = {
        "name": options.get("jobname") or options.get("name"),
        "partition": options.get("partition"),
        "account": options.get("account"),
        "qos": options.get("qos"),
    }
    return [
        job.array_id
        for job in map(Job, listed_tasks(connection, query))
        if (not codes or job.code in codes)
        and all(value is None or job.row[key] in words_of(value) for key, value in wanted.items())
    ]
