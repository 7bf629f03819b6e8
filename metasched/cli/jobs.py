"""The commands about jobs that are there: status, cancel, hold, release, wait, output."""

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
from metasched.client.client import Client, DaemonUnreachable, NotFound, ResponseLost
from metasched.errors import UserError
from metasched.units import ParseError, parse_moment, quote_for_error

FOLLOW_INTERVAL = 0.2  # seconds between looks at a growing file
MAX_OUTAGE = 300.0  # seconds without an answer after which a wait gives up
POLL_INTERVAL = 1.0  # seconds between questions whether its job goes on

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


def status(
    jobs: JobsArgument = None,
    user: UserOption = None,
    state: StateOption = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="T", help="Submitted since: 2h (ago), 17:30, ISO 8601."),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also those that ended long ago.")
    ] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """List jobs: open ones and those that ended in the last hour.

    Tasks of an array that look alike share a line; --json has a row for each.

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
    """What tasks must share to stand on one line; one that runs has a line of its own."""
    running_task = row["task"] if row["state"] in ("running", "suspended") else None
    return running_task, *(row[key] for key in ("state", "reason", "cluster", "exit_code"))


def _status_line(label: str, group: Sequence[dict[str, Any]]) -> tuple[object, ...]:
    """A line for tasks that look alike: from the first begin to the last end."""
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


def cancel(
    jobs: JobsArgument = None,
    user: UserOption = None,
    state: StateOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """End jobs, wherever they are.

    \b
    Examples:
      metasched cancel 17 18_3 '19_[4-9]'
      metasched cancel --user ada --state pending
    """
    _change_jobs("cancel", jobs, user, state, json, config)


def hold(
    jobs: JobsArgument = None,
    user: UserOption = None,
    state: StateOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Keep jobs that have not started from starting.

    \b
    Examples:
      metasched hold 17
      metasched hold --user ada
    """
    _change_jobs("hold", jobs, user, state, json, config)


def release(
    jobs: JobsArgument = None,
    user: UserOption = None,
    state: StateOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Let held jobs go.

    \b
    Examples:
      metasched release 17
      metasched release --state held
    """
    _change_jobs("release", jobs, user, state, json, config)


def requeue(
    jobs: JobsArgument = None,
    user: UserOption = None,
    state: StateOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Run jobs again, from their beginning.

    One that runs is ended first. With --state, of those that have ended the ones of the last
    hour. It is the same job with one more attempt, and its output files are written anew.

    \b
    Examples:
      metasched requeue 17
      metasched requeue --state failed,timeout
    """
    _change_jobs("requeue", jobs, user, state, json, config)


def resolve(
    job: Annotated[str, typer.Argument(metavar="JOB", show_default=False)],
    resolution: Annotated[str, typer.Argument(metavar="lost|ran", show_default=False)],
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Say what became of a job that is unknown: it was lost and never began, or it ran.

    A lost job is sent again, so look first in the records of its cluster for its tag: if it
    does run there after all, it runs twice. One that ran counts as completed.

    \b
    Examples:
      metasched resolve 17 lost
      metasched resolve 18_3 ran
    """
    if resolution not in ("lost", "ran"):
        raise UserError(f"{quote_for_error(resolution)}, metasched resolve; write lost or ran")
    _change_jobs(resolution, [job], None, None, json, config)


def _change_jobs(
    action: str,
    jobs: Sequence[str] | None,
    user: str | None,
    state: str | None,
    json: bool,
    config: str | None,
) -> None:
    if not (jobs or user or state):
        raise UserError(f"nothing to {action}, metasched {action}; name jobs, --user or --state")
    print_changes(connect(config).change(action, check_job_ids(jobs or ()), user, state), json)


def print_changes(rows: Sequence[dict[str, Any]], json: bool) -> None:
    """Print what a change made of each task."""
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
    """Wait for the end of jobs; exit with their code.

    It is the job's own, of several jobs the highest: 124 if the time limit ended it, 130 if it
    was cancelled, 3 if every cluster rejected it, 1 if nobody knows.

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
    """The rows of jobs, once every one has ended; a daemon that restarts meanwhile is awaited."""
    from metasched.core.transitions import FINAL

    last_answer: float | None = None
    while True:
        try:
            rows = client.wait(jobs)
            last_answer = time.monotonic()
            if all(row["state"] in FINAL for row in rows):
                return rows
        except ResponseLost:  # it was there a moment ago
            last_answer = last_answer or time.monotonic()
            time.sleep(POLL_INTERVAL)
        except DaemonUnreachable:
            if last_answer is None or time.monotonic() - last_answer > MAX_OUTAGE:
                raise
            time.sleep(POLL_INTERVAL)


def exit_code(rows: Sequence[dict[str, Any]]) -> int:
    """The highest exit code of jobs that have ended."""
    return max((_exit_code_for(row["state"], row["exit_code"]) for row in rows), default=0)


def _exit_code_for(state: str, code: int | None) -> int:
    """The job's own code; of one that was ended by others, what timeout(1) and shells say."""
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
        bool, typer.Option("--follow", "-f", help="Go on as it grows, until the job has ended.")
    ] = False,
    error: Annotated[bool, typer.Option("--error", "-e", help="The error stream instead.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the paths as JSON.")] = False,
    config: ConfigOption = None,
) -> int:
    """Print what a job has written.

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
        raise NotFound(f"nothing written yet, job {job} ({states}), {path}; {hint}") from None
    except OSError as os_error:
        if isinstance(os_error, BrokenPipeError) or os_error.filename is None:
            raise
        return fail(f"{os_error.strerror}, {path}; read it where the job ran", 1)
    return 0


def _open_job_check(client: Client, job: str) -> Callable[[], bool]:
    """Whether the job goes on, asked at most once a second; False from its end on."""
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
    """Write a file to stdout, and what is added to it for as long as the job goes on."""
    job_open = is_open()
    while job_open and not os.path.exists(path):
        time.sleep(FOLLOW_INTERVAL)
        job_open = is_open()
    with open(path, "rb") as file:
        while True:
            # Asked before reading: what the job wrote last is then in the last round.
            job_open = is_open()
            if os.fstat(file.fileno()).st_size < file.tell():
                file.seek(0)  # the job was started again and began a new file
            _copy_available(file)
            if not job_open:
                return
            time.sleep(FOLLOW_INTERVAL)


def _copy_available(file: BinaryIO) -> None:
    while block := file.read(1 << 16):
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
