"""`squeue`: lists jobs."""

from __future__ import annotations

import os

from metasched.client.connection import PermissionDenied
from metasched.drop_in.command import (
    CommandError,
    connect,
    exec_real,
    listed_tasks,
    parse_options,
    real_arguments,
)
from metasched.drop_in.job import OPEN_STATES, SLURM_STATES, STATES, Job
from metasched.drop_in.job_fields import (
    DEFAULT_FORMAT,
    JOB_FORMATS,
    LONG_FORMAT,
    START_FORMAT,
)
from metasched.drop_in.job_filters import OPEN_CODES, fold_waiting, parse_codes, user_name, words_of
from metasched.drop_in.native_clusters import read_clusters, slurm_clusters

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from metasched.client.connection import Connection
    from metasched.drop_in.format_language import Format
    from metasched.drop_in.native_clusters import NativeCluster

OPTIONS = {
    "array": "r",
    "all": "a",
    "account=": "A",
    "clusters=": "M",
    "cluster=": "",
    "format=": "o",
    "Format=": "O",
    "help": "",
    "hide": "",
    "jobs=": "j",
    "local": "",
    "long": "l",
    "me": "",
    "name=": "n",
    "noconvert": "",
    "noheader": "h",
    "only-job-state": "",
    "partition=": "p",
    "qos=": "q",
    "start": "",
    "states=": "t",
    "user=": "u",
    "users=": "",
    "usage": "",
    "verbose": "v",
    "version": "V",
}
# input variables of the real command
_VARIABLES = {
    "SLURM_CLUSTERS": "clusters",
    "SQUEUE_FORMAT": "format",
    "SQUEUE_FORMAT2": "Format",
    "SQUEUE_STATES": "states",
    "SQUEUE_USERS": "user",
    "SQUEUE_PARTITION": "partition",
    "SQUEUE_NAMES": "name",
    "SQUEUE_ACCOUNT": "account",
    "SQUEUE_QOS": "qos",
    "SQUEUE_ARRAY": "array",
}
SECONDS = 3.0  # for native jobs in a listing of all jobs: a dead controller delays each call
REQUIRED_SECONDS = 20.0  # for clusters and native jobs that are named
_STATE_ORDER = [*dict.fromkeys(STATES.values())]
_UNKNOWN_STATE = "squeue: error: Invalid job state specified: {}\n"
_UNKNOWN_STATE += f"squeue: error: Valid job states include: {','.join(SLURM_STATES)}\n"
USAGE = "Usage: squeue [-A account] [-h] [-j jobid] [-l] [-n name] [-o format] [-O fields]\n"
USAGE += "              [-p partition] [-q qos] [-r] [-t states] [-u user] [--me] [--start]"


def main(arguments: Sequence[str]) -> int:
    """List the jobs that the options select. Return the exit code."""
    parsed, words = parse_options("squeue", OPTIONS, arguments)
    options = {name: os.environ[key] for key, name in _VARIABLES.items() if os.environ.get(key)}
    options.update(parsed)
    if "help" in options or "usage" in options:
        print(USAGE)
        return 0
    if "version" in options:
        print("slurm-metasched")
        return 0
    if words:
        raise CommandError(f"squeue: error: Unrecognized option: {words[0]}")
    for name, synonym in (("user", "users"), ("clusters", "cluster")):
        if synonym in options:
            options[name] = options.pop(synonym)
    connection = connect()
    clusters = read_clusters(connection)
    chosen = clusters.choose("squeue", options.get("clusters"))
    ids = words_of(options.get("jobs", ""))
    native_ids = [word for word in ids if clusters.is_native(word)]
    if native_ids and len(native_ids) == len(ids) and chosen is None:
        exec_real("squeue", real_arguments(OPTIONS, parsed, []))
    own_ids = [word for word in ids if not clusters.is_native(word)]
    format = _parse_format(options, dict(parsed))
    codes = OPEN_CODES
    if options.get("states"):
        codes = parse_codes(options["states"], _UNKNOWN_STATE)
    asked: Sequence[NativeCluster | None] = ()
    if native_ids:
        asked = [None] if chosen is None else slurm_clusters("squeue", chosen)
    elif not ids:
        asked = clusters.listed("squeue", chosen)
    queue = None
    if asked:
        from metasched.drop_in.native_queue import NativeQueue  # the others start more quickly

        queue = NativeQueue(asked, format, options, native_ids, clusters.tag_prefixes)
    names = None if chosen is None else [cluster.name for cluster in chosen]
    jobs = [] if ids and not own_ids else _selected(connection, options, codes, own_ids, names)
    jobs = sorted(jobs if "array" in options else fold_waiting(jobs), key=_order)
    native: dict[str, list[str]] = {}
    code = 0
    if queue is not None:
        is_required = bool(native_ids) or chosen is not None
        native, code = queue.lines(REQUIRED_SECONDS if is_required else SECONDS, is_required)
        if code and ids and not own_ids:
            return code  # nothing is no listing
    is_single = bool(options.get("format") or options.get("Format") or native_ids)
    lines = [(job.cluster_among(names or ()), format.line(job)) for job in jobs]
    _print_tables(format, _tables(lines, native, chosen, is_single), options)
    return code


def _parse_format(options: Mapping[str, str], command_line: Mapping[str, str]) -> Format:
    if "Format" in options and "format" not in command_line:
        return JOB_FORMATS.parse_long(options["Format"])
    default = START_FORMAT if "start" in options else DEFAULT_FORMAT
    default = LONG_FORMAT if "long" in options else default
    return JOB_FORMATS.parse(options.get("format") or default)


def _tables(
    lines: Sequence[tuple[str | None, str]],
    native: Mapping[str, list[str]],
    chosen: Sequence[NativeCluster] | None,
    is_single: bool,
) -> list[tuple[str, list[str]]]:
    """Return lines by cluster, "" for the first table; `lines` are those of metasched's jobs.

    Without chosen clusters the first table has all jobs of metasched, and if `is_single` the
    others, too: a program reads it.
    """
    if chosen is not None:
        return [
            (
                cluster.name,
                [line for name, line in lines if name == cluster.name]
                + native.get(cluster.name, []),
            )
            for cluster in chosen
        ]
    own = [line for _, line in lines]
    if is_single:
        return [("", own + [line for others in native.values() for line in others])]
    return [("", own), *((name, others) for name, others in native.items() if others)]


def _print_tables(
    format: Format, tables: Sequence[tuple[str, list[str]]], options: Mapping[str, str]
) -> None:
    """Print tables under the names of their clusters, as the real command does."""
    has_heading = "noheader" not in options
    if "long" in options and has_heading:
        import time

        print(time.strftime("%a %b %d %H:%M:%S %Y"))
    for position, (cluster, lines) in enumerate(tables):
        if has_heading:
            if cluster:
                print(f"\nCLUSTER: {cluster}" if position else f"CLUSTER: {cluster}")
            print(format.heading)
        for line in lines:
            print(line)


def _selected(
    connection: Connection,
    options: Mapping[str, str],
    codes: frozenset[str],
    ids: Sequence[str],
    clusters: Sequence[str] | None,
) -> list[Job]:
    """Return the tasks of metasched on these clusters that pass the filters of the options."""
    users = words_of(options.get("user", ""))
    if "me" in options:
        users = [str(os.getuid())]
    users = [user_name(word) for word in users]
    query: dict[str, object] = {"user": users[0]} if len(users) == 1 else {}
    if ids:
        query.update(job=ids, skip_missing="true")
    elif codes == OPEN_CODES:
        query["state"] = OPEN_STATES
    try:
        jobs = [Job(row) for row in listed_tasks(connection, query)]
    except PermissionDenied:  # jobs of others, which the site hides: none are shown
        jobs = []
    if clusters is not None:
        jobs = [job for job in jobs if job.cluster_among(clusters)]
    if len(set(ids)) == 1 and not jobs:
        raise CommandError("slurm_load_jobs error: Invalid job id specified")
    accepted = {
        key: words_of(options.get(key, "")) for key in ("name", "partition", "account", "qos")
    }
    accepted["user"] = users
    return [
        job
        for job in jobs
        if (not codes or job.code in codes)
        and all(not words or job.row[key] in words for key, words in accepted.items())
    ]


def _order(job: Job) -> tuple[str, int, int, int, int]:
    """Return the key of the real command's order: partition, state, falling priority."""
    row = job.row
    state = _STATE_ORDER.index(job.state) if job.state in _STATE_ORDER else len(_STATE_ORDER)
    return row["partition"] or "", state, -(row["priority"] or 0), row["job"], row["task"] or 0
