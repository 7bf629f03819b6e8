"""The commands that list, change, wait for and print jobs: `status` to `output`."""

import json as json_format
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, BinaryIO

import typer

from metasched.cli.connect import (
    ConfigOption,
    JsonOption,
    check_job_ids,
    connect,
    fold_array_rows,
    require_value,
)
from metasched.cli.messages import fail
from metasched.cli.show import format_time, print_table
from metasched.client.client import Client
from metasched.client.connection import DaemonUnreachable, NotFound, ResponseLost
from metasched.errors import UserError
from metasched.units import ParseError, parse_moment, quote_for_error

FOLLOW_INTERVAL = 0.2  # seconds between reads of a growing file
MAX_OUTAGE = 300.0  # seconds without a response after which `wait` fails
POLL_INTERVAL = 1.0  # seconds between queries of the state of a job

_COLUMNS = ("name", "user", "state", "reason", "priority", "cluster", "native_id")
_TIME_COLUMNS = ("submitted", "expected_start", "started", "ended")

JobsArgument = Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", show_default=False)]
RequiredJobs = Annotated[list[str], typer.Argument(metavar="JOB...", show_default=False)]
UserOption = Annotated[
    str | None,
    typer.Option("--user", metavar="U", callback=require_value, help="Jobs of this user."),
]
StateOption = Annotated[
    str | None,
    typer.Option("--state", metavar="S,...", callback=require_value, help="Jobs in these states."),
]
ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="C", callback=require_value, help="Jobs on this cluster."),
]


def status(
    jobs: JobsArgument = None,
    user: UserOption = None,
    state: StateOption = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="T", help="Submitted since: 2h (ago), 17:30, ISO 8601."),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also list jobs that ended earlier.")
    ] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """List the jobs that are open or ended in the last hour.

    Equal tasks of an array share a line; --json lists every task.

    \b
    Examples:
      metasched status
      metasched status 17 18_3 '19_[4-9]'
      metasched status --state running,pending --user ada
      metasched status --all --since 2h --json
    """
    rows = connect(config).jobs(
        check_job_ids(jobs or ()),
        user=user,
        state=state,
        since=None if since is None else _parse_since(since),
        all="true" if show_all else None,
    )
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    print_table(
        ("JOB", *(name.upper() for name in (*_COLUMNS, *_TIME_COLUMNS)), "EXIT"),
        (_status_line(label, group) for label, group in fold_array_rows(rows, _display_key)),
    )


def _display_key(row: dict[str, Any]) -> object:
    """Return the values that tasks on a line share; a running task has its own line."""
    running_task = row["task"] if row["state"] in ("running", "suspended") else None
    return running_task, *(row[key] for key in ("state", "reason", "cluster", "exit_code"))


def _status_line(label: str, group: Sequence[dict[str, Any]]) -> tuple[object, ...]:
    """Return the line of equal tasks, with their earliest start and latest end."""
    first = group[0] if len(group) == 1 else {**group[0], "native_id": None}
    earliest = {
        name: min((row[name] for row in group if row.get(name)), default=None)
        for name in ("submitted", "expected_start", "started")
    }
    latest_end = max((row["ended"] for row in group if row["ended"]), default=None)
    times = (*earliest.values(), latest_end)
    return (
        label,
        *(first[column] for column in _COLUMNS),
        *map(format_time, times),
        first["exit_code"],
    )


def _parse_since(text: str) -> float:
    try:
        return parse_moment(text, time.time(), past=True)
    except ParseError as error:
        raise UserError(f"{error.problem}, --since; {error.fix}") from None


def _action_command(action: str, help: str) -> Callable[..., None]:
    """Build the command that applies `action` to jobs."""

    def command(
        jobs: JobsArgument = None,
        user: UserOption = None,
        state: StateOption = None,
        cluster: ClusterOption = None,
        json: JsonOption = False,
        config: ConfigOption = None,
    ) -> None:
        _change_jobs(action, jobs, user, state, cluster, json, config)

    command.__doc__ = help
    return command


cancel = _action_command(
    "cancel",
    """Cancel queued, pending or running jobs.

    \b
    Examples:
      metasched cancel 17 18_3 '19_[4-9]'
      metasched cancel --user ada --state pending
    """,
)
hold = _action_command(
    "hold",
    """Hold jobs that have not started.

    \b
    Examples:
      metasched hold 17
      metasched hold --user ada
    """,
)
release = _action_command(
    "release",
    """Release held jobs.

    \b
    Examples:
      metasched release 17
      metasched release --state held
    """,
)
requeue = _action_command(
    "requeue",
    """Requeue jobs: run them again from the start.

    A running job is ended first. --state also selects jobs that ended in the last hour. The job
    keeps its id and gets a new attempt; its output files are overwritten.

    \b
    Examples:
      metasched requeue 17
      metasched requeue --state failed,timeout
    """,
)


def resolve(
    words: Annotated[list[str], typer.Argument(metavar="[JOB]... lost|ran", show_default=False)],
    user: UserOption = None,
    state: StateOption = None,
    cluster: ClusterOption = None,
    exit_code: Annotated[
        int | None,
        typer.Option("--exit-code", metavar="N", help="Exit code of the jobs that ran."),
    ] = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Resolve unknown jobs: `lost` if they never started, `ran` if they did.

    A lost job is dispatched again. Search the records of its cluster for its tag first: a job that
    does run there would run twice. A job that ran counts as completed, or as failed if its exit
    code is not 0.

    \b
    Examples:
      metasched resolve 17 lost
      metasched resolve 18_3 ran --exit-code 1
      metasched resolve ran --cluster alpha --user ada
    """
    *jobs, resolution = words
    if resolution not in ("lost", "ran"):
        raise UserError(f"{quote_for_error(resolution)}, metasched resolve; write lost or ran")
    _change_jobs(resolution, jobs, user, state, cluster, json, config, exit_code)


def _change_jobs(
    action: str,
    jobs: Sequence[str] | None,
    user: str | None,
    state: str | None,
    cluster: str | None,
    json: bool,
    config: str | None,
    exit_code: int | None = None,
) -> None:
    if not (jobs or user or state or cluster):
        command = "resolve" if action in ("lost", "ran") else action
        fix = "name jobs, --user, --state or --cluster"
        raise UserError(f"nothing to {command}, metasched {command}; {fix}")
    checked_ids = check_job_ids(jobs or ())
    rows = connect(config).change(action, checked_ids, user, state, cluster, exit_code)
    print_changes(rows, json)


def print_changes(rows: Sequence[dict[str, Any]], json: bool) -> None:
    """Print the state before and after a change for each task."""
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    print_table(
        ("JOB", "WAS", "STATE", "NOTE"),
        (
            (label, group[0]["was"], group[0]["state"], group[0].get("note"))
            for label, group in fold_array_rows(
                rows, lambda row: (row["was"], row["state"], row.get("note"))
            )
        ),
    )


def wait(jobs: RequiredJobs, json: JsonOption = False, config: ConfigOption = None) -> int:
    """Wait until jobs end; exit with their highest exit code.

    The code is 124 for a job that reached its time limit, 130 for a cancelled job, 3 for a job that
    every cluster rejected, and 1 if the exit code is unknown.

    \b
    Examples:
      metasched wait 17
      metasched wait 17 18 19 && metasched submit evaluate.sh
    """
    rows = wait_until_ended(connect(config), check_job_ids(jobs))
    if json:
        print(json_format.dumps(rows, indent=2))
    else:
        groups = fold_array_rows(rows, lambda row: (row["state"], row["exit_code"]))
        print_table(
            ("JOB", "STATE", "EXIT"),
            ((label, group[0]["state"], group[0]["exit_code"]) for label, group in groups),
        )
    return exit_code(rows)


def wait_until_ended(client: Client, jobs: Sequence[str]) -> list[dict[str, Any]]:
    """Wait until all jobs have ended, also across restarts of the daemon. Return their rows."""
    from metasched.core.transitions import FINAL

    last_answer: float | None = None
    while True:
        try:
            rows = client.wait(jobs)
            last_answer = time.monotonic()
            if all(row["state"] in FINAL for row in rows):
                return rows
        except ResponseLost:  # the daemon was up a moment ago
            last_answer = last_answer or time.monotonic()
            time.sleep(POLL_INTERVAL)
        except DaemonUnreachable:
            if last_answer is None or time.monotonic() - last_answer > MAX_OUTAGE:
                raise
            time.sleep(POLL_INTERVAL)


def exit_code(rows: Sequence[dict[str, Any]]) -> int:
    """Return the highest exit code of jobs that have ended."""
    return max((_exit_code_for(row["state"], row["exit_code"]) for row in rows), default=0)


def _exit_code_for(state: str, code: int | None) -> int:
    """Return the code of a job; as timeout(1) and shells do if it was ended from outside."""
    from metasched.model.job import State

    match state:
        case State.COMPLETED:
            return code or 0
        case State.TIMEOUT:
            return 124
        case State.CANCELLED:
            return 130
        case State.REJECTED:
            return 3
        case _:
            return code or 1


def output(
    job: Annotated[str, typer.Argument(metavar="JOB", show_default=False)],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the output until the job ends.")
    ] = False,
    error: Annotated[
        bool, typer.Option("--error", "-e", help="Print the error stream instead.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the paths as JSON.")] = False,
    config: ConfigOption = None,
) -> int:
    """Print the output of a job.

    \b
    Examples:
      metasched output 17
      metasched output 17 --follow
      metasched output 17 --error | tail
    """
    client = connect(config)
    [job] = check_job_ids([job])
    paths = client.output(job)
    if json:
        print(json_format.dumps(paths))
        return 0
    path = (error and paths["error"]) or paths["output"]
    is_open = _open_job_check(client, job) if follow else lambda: False
    try:
        _copy_output(path, is_open)
    except FileNotFoundError:
        states = ", ".join(sorted({row["state"] for row in client.jobs([job])}))
        hint = "wait for it with --follow" if not follow else f"see `metasched story {job}`"
        raise NotFound(f"no output yet, job {job} ({states}), {path}; {hint}") from None
    except OSError as os_error:
        if isinstance(os_error, BrokenPipeError) or os_error.filename is None:
            raise
        return fail(f"{os_error.strerror}, {path}; read it on the host of the job", 1)
    return 0


def _open_job_check(client: Client, job: str) -> Callable[[], bool]:
    """Return a function that tells whether the job is open, querying at most once a second."""
    from metasched.core.transitions import FINAL

    still_open, last_query = True, 0.0

    def is_open() -> bool:
        nonlocal still_open, last_query
        if still_open and time.monotonic() - last_query >= POLL_INTERVAL:
            still_open = any(row["state"] not in FINAL for row in client.jobs([job]))
            last_query = time.monotonic()
        return still_open

    return is_open


def _copy_output(path: str, is_open: Callable[[], bool]) -> None:
    """Write a file to stdout; follow its growth while the job is open."""
    job_open = is_open()
    while job_open and not os.path.exists(path):
        time.sleep(FOLLOW_INTERVAL)
        job_open = is_open()
    with open(path, "rb") as file:
        while True:
            # queried before reading: the last round then includes the job's last output
            job_open = is_open()
            if os.fstat(file.fileno()).st_size < file.tell():
                file.seek(0)  # the job was restarted and truncated the file
            _copy_available(file)
            if not job_open:
                return
            time.sleep(FOLLOW_INTERVAL)


def _copy_available(file: BinaryIO) -> None:
    while block := file.read(1 << 16):
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
