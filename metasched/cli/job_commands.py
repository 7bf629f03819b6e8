"""The commands `status`, `cancel`, `hold`, `release`, `wait` and `output`, without their options.

Users' tools call them in loops, so this module loads nothing slow: see `quick_start`.
"""

from __future__ import annotations

import json
import os
import sys
import time

from metasched.cli.connect import connect
from metasched.cli.job_ids import check_job_ids, fold_array_rows, format_tasks, row_indices
from metasched.cli.messages import fail
from metasched.cli.regular_files import NotRegularError, open_regular
from metasched.cli.show import print_table
from metasched.client.changes import unfold
from metasched.client.connection import DaemonUnreachable, NotFound, ResponseLost
from metasched.errors import ParseError, UserError
from metasched.paths import FOLD

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, BinaryIO

    from metasched.client.client import Client
    from metasched.client.job_answers import FoldedChange, JobRow

FOLLOW_INTERVAL = 0.2  # seconds between reads of a growing file
MANY_ROWS = 1000  # of a listing in JSON
MAX_OUTAGE = 300.0  # seconds without a response after which `wait` fails
POLL_INTERVAL = 1.0  # seconds between queries of the state of a job
WATCH_INTERVAL = 5.0  # seconds between two listings
ENDED = frozenset({"completed", "failed", "timeout", "cancelled", "rejected"})  # final states


class NotRegularFile(UserError):
    """The output of a job is a FIFO, a device or a directory."""

    exit_code = 1


def list_jobs(
    jobs: Sequence[str] = (),
    as_json: bool = False,
    config: str | None = None,
    watch: bool = False,
    format: str | None = None,
    long: bool = False,
    sort: str | None = None,
    **filters: Any,
) -> int:
    """Print the jobs that are named, or that pass the filters. Return the exit code.

    Filters: `user`, `me`, `state`, `since`, `show_all`. `watch`: again until all have ended.
    `long`: with their use; JSON has all that is known of them.
    """
    client, ids = connect(config), check_job_ids(jobs)
    query = _query(client, ids, **filters)
    # a filter may leave out a job that exists
    checked = () if any(query[key] for key in ("user", "state", "since")) else ids
    if as_json:
        rows = client.job_details(ids, **query)
        print(_indented(rows))
        return _report_missing(checked, rows)
    from metasched.cli.job_table import LONG_COLUMNS, print_jobs

    if long and format is None:
        format = LONG_COLUMNS
    while True:
        rows = client.job_details(ids, **query, **FOLD)
        if watch and sys.stdout.isatty():
            print("\x1b[H\x1b[2J", end="")
        print_jobs(rows, format, sort)
        sys.stdout.flush()
        if not watch or all(row["state"] in ENDED for row in rows):
            return _report_missing(checked, rows)
        time.sleep(WATCH_INTERVAL)


def _indented(rows: Sequence[object]) -> str:
    """Return rows as `json.dumps` indents them: that takes seconds for a large array."""
    if len(rows) <= MANY_ROWS:
        return json.dumps(rows, indent=2)
    import msgspec  # its import takes longer than a few rows

    return msgspec.json.format(json.dumps(rows), indent=2)


def _query(
    client: Client,
    ids: Sequence[str],
    user: str | None = None,
    me: bool = False,
    state: str | None = None,
    since: str | None = None,
    show_all: bool = False,
) -> dict[str, Any]:
    """Return the filters of a listing for the daemon."""
    if me and user is not None:
        raise UserError("--me and --user, metasched status; give either")
    return {
        "user": client.health()["user"] if me else user,
        "state": own_states(state),
        "since": None if since is None else _parse_since(since),
        "all": "true" if show_all else None,
        "skip_missing": "true" if ids else None,
    }


def _report_missing(ids: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> int:
    """Report the jobs that are not among the rows. Return the exit code."""
    listed = {(row["job"], row["task"]) for row in rows}
    folded = [(row, row_indices(row)) for row in rows if row.get("folded")]
    jobs = {job for job, _ in listed}
    numbers = {row["number"] for row in rows if "number" in row}
    code = 0
    for id in ids:
        if id.isdecimal():
            # the number of a task of an array names that task; rows may have no numbers
            in_array = not numbers and any(j < int(id) for j, task in listed if task is not None)
            is_listed = int(id) in jobs or int(id) in numbers or in_array
            # the numbers of an array follow each other
            is_listed |= any(
                0 < int(id) - row["number"] <= tasks[-1] - tasks[0] for row, tasks in folded
            )
        else:
            from metasched.model.arrays import parse_task_selector

            job, indices = parse_task_selector(id)
            is_listed = any((job, index) in listed for index in indices or ()) or any(
                row["job"] == job and any(index in tasks for index in indices or ())
                for row, tasks in folded
            )
        if not is_listed:
            code = fail(f"no job {id}; see `metasched status --all`", NotFound.exit_code)
    return code


def own_states(text: str | None) -> str | None:
    """Return states in metasched's words; Slurm's are translated: PENDING, R, oom.

    A state in lower case is metasched's: its `pending` is only a part of Slurm's. A state that
    metasched has only as a part of others, as CG, selects these, too.
    """
    if text is None:
        return None
    from metasched.drop_in.job import own_states, wider_state

    states_by_name = [own_states(name) or [wider_state(name)] for name in text.split(",")]
    return ",".join(dict.fromkeys(state for states in states_by_name for state in states))


def _exact_states(text: str | None) -> str | None:
    """As `own_states`; UserError for a state that would select jobs in others, too."""
    from metasched.drop_in.job import own_states as exact_states
    from metasched.drop_in.job import wider_state

    for name in text.split(",") if text else ():
        if not exact_states(name):
            problem = f"{name} is not told from other states, --state"
            raise UserError(f"{problem}; name jobs, or use {wider_state(name)}")
    return own_states(text)


def _parse_since(text: str) -> float:
    from metasched.model.units import parse_moment

    try:
        return parse_moment(text, time.time(), past=True)
    except ParseError as error:
        raise UserError(f"{error.problem}, --since; {error.fix}") from None


def change_jobs(
    action: str,
    jobs: Sequence[str] = (),
    user: str | None = None,
    state: str | None = None,
    cluster: str | None = None,
    as_json: bool = False,
    config: str | None = None,
    exit_code: int | None = None,
) -> None:
    """Apply an action of `Client.change` to jobs; print their states before and after."""
    if not (jobs or user or state or cluster):
        command = "resolve" if action in ("lost", "ran") else action
        fix = "name jobs, --user, --state or --cluster"
        raise UserError(f"nothing to {command}, metasched {command}; {fix}")
    checked_ids = check_job_ids(jobs)
    states = _exact_states(state)
    client = connect(config)
    print_changes(
        client.change_folded(action, checked_ids, user, states, cluster, exit_code), as_json
    )


def print_changes(changes: Sequence[FoldedChange], as_json: bool) -> None:
    """Print the state before and after a change for each task; without JSON, fold equal tasks."""
    if as_json:
        print(json.dumps(unfold(changes), indent=2))
        return
    print_table(
        ("JOB", "WAS", "STATE", "NOTE"),
        (
            (
                format_tasks(change["job"], change["tasks"]),
                change["was"],
                change["state"],
                change["note"],
            )
            for change in changes
        ),
    )


def wait_for_jobs(jobs: Sequence[str], as_json: bool = False, config: str | None = None) -> int:
    """Wait until jobs end; print their ends and return their highest exit code."""
    rows = wait_until_ended(connect(config), check_job_ids(jobs))
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        groups = fold_array_rows(rows, lambda row: (row["state"], row["exit_code"]))
        print_table(
            ("JOB", "STATE", "EXIT"),
            ((label, group[0]["state"], group[0]["exit_code"]) for label, group in groups),
        )
    return exit_code(rows)


def wait_until_ended(client: Client, jobs: Sequence[str]) -> list[JobRow]:
    """Wait until all jobs have ended, also across restarts of the daemon. Return their rows."""
    last_answer: float | None = None
    while True:
        try:
            rows = client.wait(jobs)
            last_answer = time.monotonic()
            if all(row["state"] in ENDED for row in rows):
                return rows
        except ResponseLost:  # the daemon was up a moment ago
            last_answer = last_answer or time.monotonic()
            time.sleep(POLL_INTERVAL)
        except DaemonUnreachable:
            if last_answer is None or time.monotonic() - last_answer > MAX_OUTAGE:
                raise
            time.sleep(POLL_INTERVAL)


def exit_code(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the highest exit code of jobs that have ended."""
    return max((_exit_code_for(row["state"], row["exit_code"]) for row in rows), default=0)


def _exit_code_for(state: str, code: int | None) -> int:
    """Return the code of a job; as timeout(1) and shells do if it was ended from outside."""
    ended_outside = {"timeout": 124, "cancelled": 130, "rejected": 3}
    if state in ended_outside:
        return ended_outside[state]
    return code or (0 if state == "completed" else 1)


def print_output(
    job: str,
    follow: bool = False,
    error: bool = False,
    as_json: bool = False,
    config: str | None = None,
) -> int:
    """Print the output of a job, or its error stream."""
    client = connect(config)
    [job] = check_job_ids([job])
    paths = client.output(job)
    if as_json:
        print(json.dumps(paths))
        return 0
    path = (error and paths["error"]) or paths["output"]
    if path == os.devnull:
        return 0
    is_open = _open_job_check(client, job) if follow else lambda: False
    try:
        _copy_output(path, is_open)
    except FileNotFoundError:
        raise _no_output(client, job, path, follow) from None
    except OSError as os_error:
        if isinstance(os_error, BrokenPipeError) or os_error.filename is None:
            raise
        return fail(f"{os_error.strerror}, {path}; read it on the host of the job", 1)
    return 0


def _no_output(client: Client, job: str, path: str, follow: bool) -> NotFound:
    """Return the error for a job whose output file is missing."""
    distinct = sorted({row["state"] for row in client.jobs([job])})
    states = ", ".join(distinct)
    if ENDED.issuperset(distinct):
        return NotFound(
            f"no output, job {job} has ended ({states}), {path}; see `metasched explain {job}`"
        )
    hint = f"see `metasched story {job}`" if follow else "wait for it with --follow"
    return NotFound(f"no output yet, job {job} ({states}), {path}; {hint}")


def _open_job_check(client: Client, job: str) -> Callable[[], bool]:
    """Return a function that checks whether the job is open, by a query a second at most."""
    still_open, last_query = True, 0.0

    def is_open() -> bool:
        nonlocal still_open, last_query
        if still_open and time.monotonic() - last_query >= POLL_INTERVAL:
            still_open = any(row["state"] not in ENDED for row in client.jobs([job]))
            last_query = time.monotonic()
        return still_open

    return is_open


def _copy_output(path: str, is_open: Callable[[], bool]) -> None:
    """Write a file to stdout; follow its growth while the job is open."""
    job_open = is_open()
    while job_open and not os.path.exists(path):
        time.sleep(FOLLOW_INTERVAL)
        job_open = is_open()
    with _open_output(path) as file:
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


def _open_output(path: str) -> BinaryIO:
    """Open an output. NotRegularFile if it is another file."""
    try:
        return open_regular(path)
    except NotRegularError as error:
        raise NotRegularFile(f"{error.strerror}, {path}; give the job a file by --output") from None
