"""`scancel`: cancels jobs."""

from __future__ import annotations

import os
import sys

from metasched.client.connection import (
    ClientError,
    DaemonUnreachable,
    NotFound,
    PermissionDenied,
)
from metasched.drop_in.command import (
    VERSION_LINE,
    CommandError,
    connect,
    fail,
    listed_tasks,
    parse_options,
    real_arguments,
)
from metasched.drop_in.job import (
    OPEN_STATES,
    UNSET,
    Job,
    own_states,
    slurm_state,
    user_id,
)
from metasched.drop_in.job_filters import is_job_id, named_nodes, user_name, words_of
from metasched.drop_in.native_clusters import read_clusters, run_native
from metasched.paths import FOLD

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from metasched.client.connection import Connection
    from metasched.drop_in.native_clusters import NativeCluster

OPTIONS = {
    "account=": "A",
    "batch": "b",
    "clusters=": "M",
    "cluster=": "M",
    "ctld": "",
    "full": "f",
    "help": "",
    "hurry": "H",
    "jobname=": "n",
    "me": "",
    "name=": "n",
    "nodelist=": "w",
    "partition=": "p",
    "qos=": "q",
    "quiet": "Q",
    "reservation=": "R",
    "signal=": "s",
    "state=": "t",
    "usage": "",
    "user=": "u",
    "verbose": "v",
    "version": "V",
    "wckey=": "",
}
_FILTERS = {"account", "jobname", "nodelist", "partition", "qos", "reservation"}
_FILTERS |= {"state", "user", "wckey"}
_OF_TASKS = {"nodelist", "state"}  # filters that tell tasks of a job from others
_WAITING = ",".join(own_states("PENDING"))
# input variables of the real command that select jobs; signals go by the real command itself
_VARIABLES = {
    "SCANCEL_ACCOUNT": "account",
    "SCANCEL_NAME": "jobname",
    "SCANCEL_PARTITION": "partition",
    "SCANCEL_QOS": "qos",
    "SCANCEL_STATE": "state",
    "SCANCEL_USER": "user",
    "SCANCEL_WCKEY": "wckey",
}
_OF_SIGNALS = ("signal", "batch", "full", "quiet", "verbose")  # options for the real command
# signals that end a job: it is cancelled, so that its manager ends all its processes
_ENDING_SIGNALS = ("KILL", "TERM", "INT", "HUP", "QUIT", "9", "15", "2", "1", "3")
MAX_NODE_FILE = 1 << 20  # characters of a file of nodes
MAX_CANCELLED = 20_000  # ids of a request: the daemon limits their number and its length
_INVALID_ID = "Invalid job id specified"
USAGE = "Usage: scancel [-A account] [-n job_name] [-p partition] [-q qos] [-Q] [-s signal]\n"
USAGE += (
    "               [-t PENDING | RUNNING | SUSPENDED] [-u user] [--me] [-v] [job_id[_task]]..."
)


def main(arguments: Sequence[str]) -> int:
    """Cancel the jobs that ids and filters select. Return the exit code."""
    parsed, ids = parse_options("scancel", OPTIONS, arguments)
    options = {name: os.environ[key] for key, name in _VARIABLES.items() if key in os.environ}
    for name, value in parsed:
        if name == "me":  # the last of it and --user counts
            name, value = "user", str(os.getuid())
        options[name] = value
    if "help" in options or "usage" in options:
        print(USAGE)
        return 0
    if "version" in options:
        print(VERSION_LINE)
        return 0
    if os.environ.get("SCANCEL_INTERACTIVE", "").lower() in ("t", "true"):
        raise CommandError("scancel: error: metasched asks nothing; unset SCANCEL_INTERACTIVE")
    if "[" not in "".join(ids):  # an empty word, as of a script's unset variable, is no id
        ids = [word for text in ids for word in words_of(text) or [text]]
    for word in ids:
        if not is_job_id(_job_of(word).partition(".")[0]):
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
    names = options.get("clusters", os.environ.get("SLURM_CLUSTERS") or None)
    chosen = clusters.choose("scancel", names)
    own_ids = [_job_of(word) for word in ids if not clusters.is_native(word)]
    native_ids = [word for word in ids if clusters.is_native(word)]
    code = 0
    if own_ids or not native_ids:
        try:
            code = _cancel_own(connection, options, own_ids, chosen)
        except CommandError as error:
            if not native_ids:
                raise
            code = fail(str(error))
        except ClientError as error:
            if not native_ids or isinstance(error, DaemonUnreachable):
                raise
            code = fail(f"scancel: error: {error}")
    if native_ids:
        rest = [(name, value) for name, value in parsed if name != "clusters"]
        arguments = real_arguments(OPTIONS, rest, native_ids)
        code = max(code, run_native("scancel", arguments, chosen, is_last=code == 0))
    return code


def _job_of(word: str) -> str:
    """Return `17` for all tasks of a job, `17_*`; any other id as it is."""
    return word[:-2] if word.endswith("_*") and "_" not in word[:-2] else word


def _cancel_own(
    connection: Connection,
    options: Mapping[str, str],
    ids: Sequence[str],
    chosen: Sequence[NativeCluster] | None,
) -> int:
    """Cancel the jobs of metasched with these ids, or those that the filters select.

    Signals that end no job, and steps, are for the real commands. Return the exit code.
    """
    signal = options.get("signal", "KILL").upper()
    ends = (signal[3:] if signal.startswith("SIG") else signal) in _ENDING_SIGNALS
    verbose = "verbose" in options
    steps = [word for word in ids if "." in word]
    waiting: list[str] = []
    if chosen is not None or options.keys() & _FILTERS:
        if steps:
            raise CommandError(f"scancel: error: Invalid job id {steps[0]}")
        ids, waiting = _selected(connection, options, ids, chosen, ends)
        if not (ids or waiting):
            if verbose:
                print("scancel: error: No active jobs match ALL job filters", file=sys.stderr)
            return 0
    if not ends:
        return _signal(connection, options, ids)
    ids = [word for word in ids if "." not in word]
    for word in [*ids, *waiting] if verbose else ():
        print(f"scancel: Terminating job {word}", file=sys.stderr)
    code = 0
    try:
        missing = _cancel(connection, ids) + _cancel(connection, waiting, _WAITING)
    except PermissionDenied:  # as in the real command the jobs of others keep none from its end
        of_others = _of_others(connection, [*ids, *waiting])
        ids, waiting = ([id for id in part if id not in of_others] for part in (ids, waiting))
        if not (ids or waiting) or not of_others:
            raise
        missing = _cancel(connection, ids) + _cancel(connection, waiting, _WAITING)
        for word in of_others:
            problem = f"Kill job error on job id {word}: Access/permission denied"
            code = fail(f"scancel: error: {problem}")
    if verbose:
        for word in missing:
            fail(f"scancel: error: Kill job error on job id {word}: {_INVALID_ID}")
    return max(code, _signal(connection, options, steps)) if steps else code


def _signal(connection: Connection, options: Mapping[str, str], ids: Sequence[str]) -> int:
    """Send a signal to jobs, or end steps, by the real commands. Return the exit code."""
    from metasched.drop_in.job_tools import (  # few need them
        ENDED,
        WAITING,
        native_places,
        run_for_jobs,
    )

    clusters = {cluster.name: cluster for cluster in read_clusters(connection).clusters}
    parsed = [(name, options[name]) for name in _OF_SIGNALS if name in options]
    places, missing = native_places("scancel", connection, ids, changes=True)
    code = 0
    for word, problem in missing.items():
        id, step, _ = word.partition(".")
        what = _INVALID_ID
        if problem == WAITING and not step and "batch" not in options:
            what = "Job can not be altered now, try again later"
        elif problem == ENDED and not step:
            what = ENDED
        code = fail(f"scancel: error: Kill job error on job{' step' * bool(step)} id {id}: {what}")
    for name, own_ids in places.items():
        if name not in clusters or not clusters[name].config:
            code = fail(f"scancel: error: cluster {name} takes no signals; KILL and TERM cancel")
            continue
        arguments = real_arguments(OPTIONS, parsed, list(own_ids))
        code = max(code, run_for_jobs("scancel", clusters[name], arguments, own_ids))
    return code


def _cancel(connection: Connection, ids: Sequence[str], states: str = "") -> list[str]:
    """Cancel tasks in these states of metasched, "": all. Return the ids of which there is no job.

    As in the real command such an id is no error.
    """
    if not ids:
        return []
    if len(ids) <= MAX_CANCELLED:
        body: dict[str, object] = {"jobs": list(ids)}
        if states:
            body["state"] = states
        try:
            connection.request("POST", "/jobs/cancel", FOLD, body)
            return []
        except NotFound:
            if len(ids) == 1:
                return list(ids)
    half = len(ids) // 2
    return _cancel(connection, ids[:half], states) + _cancel(connection, ids[half:], states)


def _of_others(connection: Connection, ids: Sequence[str]) -> list[str]:
    """Return the ids of jobs of other users."""
    caller = user_name(str(os.getuid()))
    rows = listed_tasks(connection, {"job": list(ids), "skip_missing": "true"})
    jobs = {str(row[key]) for row in rows if row["user"] != caller for key in ("job", "number")}
    return [word for word in ids if word.partition("_")[0] in jobs]


def _selected(
    connection: Connection,
    options: Mapping[str, str],
    ids: Sequence[str],
    chosen: Sequence[NativeCluster] | None,
    ends: bool,
) -> tuple[list[str], list[str]]:
    """Return the ids of the open tasks that pass all filters, on the chosen clusters.

    If they are to end, these may be ids of whole jobs, and there are ids of jobs whose waiting
    tasks pass. As in the real command a value is one name, not a list, and an empty value selects
    nothing: a variable of a script may be unset.
    """
    query: dict[str, object] = {"state": OPEN_STATES, **(FOLD if ends and not ids else {})}
    if ids:
        query.update(job=list(ids), skip_missing="true")
    if (user := options.get("user")) is not None:
        query["user"] = user_name(user)
        if user_id(user_name(user)) == "nobody":
            raise CommandError(f"scancel: error: Invalid user name: {user}")
    state = slurm_state(options.get("state", ""))
    wanted = {
        "name": options.get("jobname"),
        "partition": options.get("partition"),
        "wckey": options.get("wckey"),
        "reservation": options.get("reservation"),
    }
    folded = {key: options[key].lower() for key in ("account", "qos") if key in options}
    nodes = None
    if "nodelist" in options:
        nodes = named_nodes("scancel", _node_list(options["nodelist"]))
    names = None if chosen is None else [cluster.name for cluster in chosen]

    def is_there(job: Job) -> bool:
        if names is None:
            return True
        # a filter selects no waiting job that may run elsewhere, too
        elsewhere = set(job.row.get("clusters") or ()) - set(names)
        is_sure = bool(ids or job.row["cluster"] or (job.row.get("clusters") and not elsewhere))
        return is_sure and job.cluster_among(names) is not None

    selected = [
        job
        for job in map(Job, listed_tasks(connection, query))
        if state in (None, job.state)
        and all(value is None or job.text_of(key) == value for key, value in wanted.items())
        and all((job.text_of(key) or UNSET).lower() == value for key, value in folded.items())
        and (nodes is None or nodes.intersection(job.nodes))
        and is_there(job)
    ]
    # an id may be the number of a task
    if ends and not ids and chosen is None and not options.keys() & _OF_TASKS:
        return list(dict.fromkeys(str(job.row["job"]) for job in selected)), []
    single = [job.array_id for job in selected if not job.row.get("folded")]
    waiting = dict.fromkeys(str(job.row["job"]) for job in selected if job.row.get("folded"))
    return single, list(waiting)


def _node_list(text: str) -> str:
    """Return the nodes that `--nodelist` names; as in Slurm, `./file` has lines of them."""
    if "/" not in text:
        return text
    try:
        with open(text, encoding="utf-8", errors="replace") as file:
            content = file.read(MAX_NODE_FILE + 1)
    except OSError as error:
        problem = f"error opening file {text}, {error.strerror}"
        raise CommandError(f"scancel: error: {problem}") from None
    if len(content) > MAX_NODE_FILE:  # its last name may be the beginning of another
        problem = f"file {text} has more than {MAX_NODE_FILE} characters; split it"
        raise CommandError(f"scancel: error: {problem}")
    return ",".join(line.partition("#")[0].strip() for line in content.splitlines())
