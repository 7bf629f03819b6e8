"""`squeue`: lists jobs."""

from __future__ import annotations

import os

from metasched.client.connection import PermissionDenied
from metasched.drop_in.command import CommandError, connect, listed_tasks, parse_options
from metasched.drop_in.job import OPEN_STATES, STATES, Job
from metasched.drop_in.job_fields import (
    DEFAULT_FORMAT,
    JOB_FORMATS,
    LONG_FORMAT,
    START_FORMAT,
)
from metasched.drop_in.job_filters import OPEN_CODES, fold_waiting, parse_codes, user_name, words_of

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OPTIONS = {
    "array": "r",
    "all": "a",
    "account=": "A",
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
_STATE_ORDER = [*dict.fromkeys(state for state, _ in STATES.values())]
USAGE = "Usage: squeue [-A account] [-h] [-j jobid] [-l] [-n name] [-o format] [-O fields]\n"
USAGE += "              [-p partition] [-q qos] [-r] [-t states] [-u user] [--me] [--start]"


def main(arguments: Sequence[str]) -> int:
    """List the jobs that the options select. Return the exit code."""
    parsed, words = parse_options("squeue", _OPTIONS, arguments)
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
    if "users" in options:
        options["user"] = options.pop("users")
    names = dict(parsed)
    if "Format" in options and "format" not in names:
        format = JOB_FORMATS.parse_long(options["Format"])
    else:
        default = START_FORMAT if "start" in options else DEFAULT_FORMAT
        default = LONG_FORMAT if "long" in options else default
        format = JOB_FORMATS.parse(options.get("format") or default)
    jobs = _selected(options)
    jobs = sorted(jobs if "array" in options else fold_waiting(jobs), key=_order)
    lines = [format.line(job) for job in jobs]
    if "long" in options and "noheader" not in options:
        import time

        print(time.strftime("%a %b %d %H:%M:%S %Y"))
    if "noheader" not in options:
        print(format.heading)
    for line in lines:
        print(line)
    return 0


def _selected(options: Mapping[str, str]) -> list[Job]:
    """Return the tasks that pass the filters of the options."""
    codes = OPEN_CODES
    if options.get("states"):
        codes = parse_codes("squeue", options["states"])
    users = words_of(options.get("user", ""))
    if "me" in options:
        users = [str(os.getuid())]
    users = [user_name(word) for word in users]
    ids = words_of(options.get("jobs", ""))
    query: dict[str, object] = {"user": users[0]} if len(users) == 1 else {}
    if ids:
        query.update(job=ids, skip_missing="true")
    elif codes == OPEN_CODES:
        query["state"] = OPEN_STATES
    try:
        jobs = [Job(row) for row in listed_tasks(connect(), query)]
    except PermissionDenied:  # jobs of others, which the site hides: none are shown
        jobs = []
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
