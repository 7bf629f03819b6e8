"""`squeue`: lists jobs."""

from __future__ import annotations

import math
import os
import sys
import time

from metasched.client.connection import PermissionDenied
from metasched.drop_in.command import (
    VERSION_LINE,
    CommandError,
    connect,
    exec_real,
    listed_tasks,
    read_arguments,
    real_arguments,
)
from metasched.drop_in.job import OPEN_STATES, SLURM_STATES, Job, user_id
from metasched.drop_in.job_fields import (
    DEFAULT_FORMAT,
    JOB_FORMATS,
    LONG_FORMAT,
    START_FORMAT,
)
from metasched.drop_in.job_filters import (
    OPEN_CODES,
    fold_waiting,
    is_job_id,
    named_nodes,
    parse_codes,
    user_name,
    words_of,
)
from metasched.drop_in.native_clusters import read_clusters, slurm_clusters
from metasched.paths import FOLD

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from metasched.client.connection import Connection
    from metasched.drop_in.format_language import Format
    from metasched.drop_in.native_clusters import NativeCluster

OPTIONS = {
    "array": "r",
    "all": "a",
    "accounts=": "A",
    "clusters=": "M",
    "cluster=": "M",
    "format=": "o",
    "Format=": "O",
    "federation": "",
    "help": "",
    "hide": "",
    "iterate=": "i",
    "jobs[=]": "j",
    "licenses=": "L",
    "local": "",
    "long": "l",
    "me": "",
    "name=": "n",
    "noconvert": "",
    "nodelist=": "w",
    "noheader": "h",
    "only-job-state": "",
    "partitions=": "p",
    "priority": "P",
    "qos=": "q",
    "reservation=": "R",
    "sibling": "",
    "sort=": "S",
    "start": "",
    "states=": "t",
    "user=": "u",
    "users=": "u",
    "usage": "",
    "verbose": "v",
    "version": "V",
}
_FILTERS = {"accounts": "account", "partitions": "partition"}  # as rows of metasched name them
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
    "SQUEUE_LICENSES": "licenses",
    "SQUEUE_SORT": "sort",
}
# options of which a job must have a value
_LISTS = (
    *("account", "jobs", "licenses", "name", "nodelist", "partition", "qos", "reservation"),
    *("states", "user"),
)
SECONDS = 3.0  # for native jobs in a listing of all jobs: a dead controller delays each call
REQUIRED_SECONDS = 20.0  # for clusters and native jobs that are named
_UNKNOWN_STATE = "squeue: error: Invalid job state specified: {}\n"
_UNKNOWN_STATE += f"squeue: error: Valid job states include: {','.join(SLURM_STATES)}\n"
USAGE = "Usage: squeue [-A account] [-h] [-j jobid] [-l] [-n name] [-o format] [-O fields]\n"
USAGE += "              [-p partition] [-q qos] [-r] [-t states] [-u user] [--me] [--start]\n"
USAGE += "              [-w nodes] [-L licenses] [-R reservation] [-S letters] [-i seconds]"


def main(arguments: Sequence[str]) -> int:
    """List the jobs that the options select. Return the exit code."""
    parsed, words = _parse(arguments)
    options = {name: os.environ[key] for key, name in _VARIABLES.items() if os.environ.get(key)}
    options.update(parsed)
    if "help" in options or "usage" in options:
        print(USAGE)
        return 0
    if "version" in options:
        print(VERSION_LINE)
        return 0
    if words:
        raise CommandError(f"squeue: error: Unrecognized option: {words[0]}")
    for option, name in _FILTERS.items():
        if option in options:
            options[name] = options.pop(option)
    if "iterate" not in options:
        return _list(parsed, options)
    if not options["iterate"].isdecimal() or int(options["iterate"]) == 0:
        raise CommandError(f"squeue: error: --iterate={options['iterate']} is no number of seconds")
    while True:
        print(time.strftime("%a %b %d %H:%M:%S %Y"))
        _list(parsed, options)
        print(flush=True)
        time.sleep(int(options["iterate"]))


def _parse(arguments: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the options and the other words of a command line.

    As in the real command the ids of --jobs may be the first other word, even after other options.
    Without ids the option selects all jobs.
    """
    parsed, words = read_arguments("squeue", OPTIONS, arguments)
    ids = [value for name, value in parsed if name == "jobs"]
    if ids and words:
        ids = [words.pop(0)]
    rest = [(name, value or "") for name, value in parsed if name != "jobs"]
    return [*rest, *(("jobs", value) for value in ids[-1:] if value is not None)], words


def _list(parsed: Sequence[tuple[str, str]], options: Mapping[str, str]) -> int:
    """List jobs once. Return the exit code.

    `options` are those that were `parsed`, and variables.
    """
    connection = connect()
    clusters = read_clusters(connection)
    chosen = clusters.choose("squeue", options.get("clusters"))
    ids = [word.partition(".")[0] for word in words_of(options.get("jobs", ""))]
    for word in ids:
        if not is_job_id(word):
            raise CommandError(f"squeue: error: Invalid job id: {word}")
    native_ids = [word for word in ids if clusters.is_native(word)]
    if native_ids and len(native_ids) == len(ids) and chosen is None:
        exec_real("squeue", real_arguments(OPTIONS, parsed, []))
    own_ids = [word for word in ids if not clusters.is_native(word)]
    format = _parse_format(options, dict(parsed))
    codes = OPEN_CODES
    if "states" in options:
        codes = parse_codes(options["states"], _UNKNOWN_STATE)
    # an empty list, as of a script's unset variable, selects nothing
    selects_nothing = any(not words_of(options.get(name, "-")) for name in _LISTS)
    asked: Sequence[NativeCluster | None] = ()
    if native_ids:
        asked = [None] if chosen is None else slurm_clusters("squeue", chosen)
    elif not ids and not selects_nothing:
        asked = clusters.listed("squeue", chosen)
    queue = None
    if asked:
        from metasched.drop_in.native_queue import NativeQueue  # the others start more quickly

        queue = NativeQueue(asked, format, options, native_ids, clusters.tag_prefixes)
    names = None if chosen is None else [cluster.name for cluster in chosen]
    jobs = []
    if not selects_nothing and (own_ids or not ids):
        jobs = _selected(connection, options, codes, own_ids, names)
    lines_of = jobs if "array" in options else fold_waiting(jobs, own_ids)
    jobs = _sorted(lines_of, options.get("sort"))
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
    """Return the format of the command line, of --long, of variables, or the default.

    CommandError for several of the command line, as in the real command.
    """
    if "format" in command_line and "Format" in command_line:
        both = ("-o (--format)", "-O (--Format)")
        first, second = both if list(command_line).index("format") else both[::-1]
        raise CommandError(f"squeue: error: {first} is incompatible with {second}")
    if "format" in command_line and "long" in command_line:
        raise CommandError(
            "squeue: fatal: Options -o(--format) and -l(--long) are mutually exclusive. "
            "Please remove one and retry."
        )
    for chosen in (command_line, {} if "long" in options else options):
        if "format" in chosen:
            return JOB_FORMATS.parse(chosen["format"])
        if "Format" in chosen:
            return JOB_FORMATS.parse_long(chosen["Format"])
    default = START_FORMAT if "start" in options else DEFAULT_FORMAT
    return JOB_FORMATS.parse(LONG_FORMAT if "long" in options else default)


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
        print(time.strftime("%a %b %d %H:%M:%S %Y"))
    for position, (cluster, lines) in enumerate(tables):
        if has_heading:
            if cluster:
                print(f"\nCLUSTER: {cluster}" if position else f"CLUSTER: {cluster}")
            print(format.heading)
        sys.stdout.writelines(f"{line}\n" for line in lines)


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
    for user in users:
        if user_id(user) == "nobody":
            print(f"squeue: error: Invalid user: {user}\n", file=sys.stderr)
    query: dict[str, object] = {"user": users[0]} if len(users) == 1 and not ids else {}
    if ids:
        query.update(job=ids, skip_missing="true")
    elif codes == OPEN_CODES:
        query["state"] = OPEN_STATES
    query.update({} if "array" in options else FOLD)
    try:
        unit = "M" if "noconvert" in options else ""
        jobs = [Job(row, unit) for row in listed_tasks(connection, query)]
    except PermissionDenied:  # jobs of others, which the site hides: none are shown
        jobs = []
    if clusters is not None:
        jobs = [job for job in jobs if job.cluster_among(clusters)]
    # as in the real command an id of several is no error, nor is a task that its job has not
    if len(ids) == 1 and not jobs and not _is_job_of_task(connection, ids[0]):
        raise CommandError("slurm_load_jobs error: Invalid job id specified")
    accepted = {"partition": words_of(options.get("partition", "")), "user": users}
    # as in Slurm, in any case of the letters
    folded = {key: words_of(options.get(key, "").lower()) for key in ("name", "account", "qos")}
    node_list = options.get("nodelist", "")
    nodes = named_nodes("squeue", node_list)
    licences = set(words_of(options.get("licenses", "")))
    reservations = words_of(options.get("reservation", ""))
    return [
        job
        for job in jobs
        if (not codes or job.code in codes)
        and all(not words or job.row[key] in words for key, words in accepted.items())
        and all(not words or (job.row[key] or "").lower() in words for key, words in folded.items())
        and (not node_list or nodes.intersection(job.nodes))
        and (not licences or licences.intersection(job.row["licences"]))
        and (not reservations or job.text_of("reservation") in reservations)
    ]


def _is_job_of_task(connection: Connection, word: str) -> bool:
    """Return whether there is the job of `17_3`."""
    job, separator, _ = word.partition("_")
    query = {"job": [job], "skip_missing": "true"}
    return bool(separator) and any(True for _ in listed_tasks(connection, query))


def _sorted(jobs: Sequence[Job], text: str | None) -> list[Job]:
    """Sort jobs by the letters of --sort, as in `-p,i`; None: in the real command's order."""
    ordered = sorted(jobs, key=_order)
    is_falling = False
    keys: list[tuple[Callable[[Job], Any], bool]] = []
    for letter in text or "":
        if letter in ",+-":
            is_falling = letter == "-"
            continue
        key = _SORT_KEYS.get(letter) or JOB_FORMATS.text_of(letter)
        if key is None:
            raise CommandError(f"squeue: error: Invalid sort specification: {letter}")
        keys.append((key, is_falling))
        is_falling = False
    for key, is_falling in reversed(keys):
        ordered.sort(key=key, reverse=is_falling)
    return ordered


def _order(job: Job) -> tuple[str, str, int, int, int]:
    """Return the key of the real command's order: partition, code of the state, priority."""
    row = job.row
    return row["partition"] or "", job.code, -(row["priority"] or 0), row["job"], row["task"] or 0


# letters of --sort whose texts have another order than their values
_SORT_KEYS: dict[str, Callable[[Job], Any]] = {
    "i": lambda job: (job.row["job"], job.row["task"] or 0),
    "A": lambda job: job.number,
    "F": lambda job: job.row["job"],
    "K": lambda job: job.row["task"] or 0,
    "p": lambda job: job.row["priority"] or 0,
    "Q": lambda job: job.row["priority"] or 0,
    "C": lambda job: job.row["cpus"],
    "D": lambda job: job.node_count,
    "M": lambda job: job.time_used,
    "l": lambda job: job.row["time_limit"] or math.inf,
    "L": lambda job: (job.row["time_limit"] or math.inf) - job.time_used,
    "S": lambda job: job.start or math.inf,
    "e": lambda job: job.end or math.inf,
    "V": lambda job: job.submitted or math.inf,
    "m": lambda job: job.row["memory"] or job.row["memory_per_cpu"] or 0,
}
