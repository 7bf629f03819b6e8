"""`scancel`: cancels jobs."""

from __future__ import annotations

import os
import sys

from metasched.client.connection import ClientError, DaemonUnreachable, NotFound
from metasched.drop_in.command import (
    CommandError,
    connect,
    fail,
    listed_tasks,
    parse_options,
    real_arguments,
)
from metasched.drop_in.job import OPEN_STATES, Job, slurm_state
from metasched.drop_in.job_filters import is_job_id, user_name, words_of
from metasched.drop_in.native_clusters import read_clusters, run_native

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from metasched.client.connection import Connection
    from metasched.drop_in.native_clusters import NativeCluster

OPTIONS = {
    "account=": "A",
    "batch": "b",
    "cluster=": "",
    "clusters=": "M",
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
_FILTERS = {"account", "jobname", "name", "partition", "qos", "state", "user", "me"}
# signals that end a job: it is cancelled, so that its manager ends all its processes
_ENDING_SIGNALS = ("KILL", "TERM", "INT", "HUP", "QUIT", "9", "15", "2", "1", "3")
USAGE = "Usage: scancel [-A account] [-n job_name] [-p partition] [-q qos] [-Q] [-s signal]\n"
USAGE += (
    "               [-t PENDING | RUNNING | SUSPENDED] [-u user] [--me] [-v] [job_id[_task]]..."
)


def main(arguments: Sequence[str]) -> int:
    """Cancel the jobs that ids and filters select. Return the exit code."""
    parsed, ids = parse_options("scancel", OPTIONS, arguments)
    options = dict(parsed)
    if "help" in options or "usage" in options:
        print(USAGE)
        return 0
    if "version" in options:
        print("slurm-metasched")
        return 0
    ids = [word for text in ids for word in words_of(text)] if "[" not in "".join(ids) else ids
    for word in ids:
        if not is_job_id(word.partition(".")[0]):
            raise CommandError(f"scancel: error: Invalid job id {word}")
    if "state" in options and slurm_state(options["state"]) is None:
        raise CommandError(
            f"Invalid job state specified: {options['state']}\n"
            "Valid job states are PENDING, RUNNING, and SUSPENDED"
        )
    if not ids and not options.keys() & _FILTERS:
        raise CommandError("scancel: error: No job identification provided")
    connection = connect()
    clusters = read_clusters(connection)
    names = options.get("clusters") or options.get("cluster") or os.environ.get("SLURM_CLUSTERS")
    chosen = clusters.choose("scancel", names)
    own_ids = [word for word in ids if not clusters.is_native(word)]
    native_ids = [word for word in ids if clusters.is_native(word)]
    code = 0
    if own_ids or not native_ids:
        try:
            _cancel_own(connection, options, own_ids, chosen)
        except CommandError as error:
            if not native_ids:
                raise
            code = fail(str(error))
        except ClientError as error:
            if not native_ids or isinstance(error, DaemonUnreachable):
                raise
            code = fail(f"scancel: error: {error}")
    if native_ids:
        rest = [(name, value) for name, value in parsed if name not in ("clusters", "cluster")]
        arguments = real_arguments(OPTIONS, rest, native_ids)
        code = max(code, run_native("scancel", arguments, chosen, is_last=code == 0))
    return code


def _cancel_own(
    connection: Connection,
    options: Mapping[str, str],
    ids: Sequence[str],
    chosen: Sequence[NativeCluster] | None,
) -> None:
    """Cancel the jobs of metasched with these ids, or those that the filters select."""
    signal = options.get("signal", "KILL").upper()
    if (signal[3:] if signal.startswith("SIG") else signal) not in _ENDING_SIGNALS:
        raise CommandError(f"scancel: error: signal {signal} cannot be sent; KILL and TERM cancel")
    for word in ids:
        if not is_job_id(word):
            raise CommandError(f"scancel: error: Invalid job id {word}")
    verbose = "verbose" in options
    if chosen is not None or options.keys() & _FILTERS:
        ids = _selected(connection, options, ids, chosen)
        if not ids:
            if verbose:
                print("scancel: error: No active jobs match ALL job filters", file=sys.stderr)
            return
    for word in ids if verbose else ():
        print(f"scancel: Terminating job {word}", file=sys.stderr)
    missing = _cancel(connection, ids)
    if verbose:
        for word in missing:
            fail(f"scancel: error: Kill job error on job id {word}: Invalid job id specified")


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


def _selected(
    connection: Connection,
    options: Mapping[str, str],
    ids: Sequence[str],
    chosen: Sequence[NativeCluster] | None,
) -> list[str]:
    """Return the ids of the open tasks that pass all filters, on the chosen clusters."""
    query: dict[str, object] = {"state": OPEN_STATES}
    if ids:
        query.update(job=list(ids), skip_missing="true")
    user = str(os.getuid()) if "me" in options else options.get("user")
    if user:
        query["user"] = user_name(user)
    state = slurm_state(options.get("state", ""))
    wanted = {
        "name": options.get("jobname") or options.get("name"),
        "partition": options.get("partition"),
        "account": options.get("account"),
        "qos": options.get("qos"),
    }
    names = None if chosen is None else [cluster.name for cluster in chosen]

    def is_there(job: Job) -> bool:
        if names is None:
            return True
        # a filter selects no waiting job that may run elsewhere, too
        elsewhere = set(job.row.get("clusters") or ()) - set(names)
        is_sure = bool(ids or job.row["cluster"] or (job.row.get("clusters") and not elsewhere))
        return is_sure and job.cluster_among(names) is not None

    return [
        job.array_id
        for job in map(Job, listed_tasks(connection, query))
        if state in (None, job.state)
        and all(value is None or job.row[key] in words_of(value) for key, value in wanted.items())
        and is_there(job)
    ]
