"""The commands about jobs that are there: status, cancel, hold, release, wait, output."""

import json as json_format
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, BinaryIO

import typer

from metasched.cli.connect import Config, Json, connect, filled, folded_rows, ids
from metasched.cli.messages import fail
from metasched.cli.show import moment, table
from metasched.client.client import Broken, Client, NotFound, Unreachable
from metasched.errors import UserError
from metasched.units import Unreadable, parse_moment, shown

LOOK = 0.2  # seconds between looks at a growing file
GONE = 300.0  # seconds without an answer after which a wait gives up
ASK = 1.0  # seconds between questions whether its job goes on

_COLUMNS = ("name", "user", "state", "reason", "priority", "cluster", "native_id")
_MOMENTS = ("submitted", "expected_start", "started", "ended")

Jobs = Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", show_default=False)]
Named = Annotated[list[str], typer.Argument(metavar="JOB...", show_default=False)]
User = Annotated[
    str | None,
    typer.Option("--user", metavar="U", callback=filled, help="Jobs of this user."),
]
InState = Annotated[
    str | None,
    typer.Option("--state", metavar="S,...", callback=filled, help="Jobs in these states."),
]


def status(
    jobs: Jobs = None,
    user: User = None,
    state: InState = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="T", help="Submitted since: 2h (ago), 17:30, ISO 8601."),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Also those that ended long ago.")] = False,
    json: Json = False,
    config: Config = None,
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
        ids(jobs or ()),
        user=user,
        state=state,
        since=None if since is None else _since(since),
        all="true" if all else None,
    )
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    table(
        ("JOB", *(name.upper() for name in (*_COLUMNS, *_MOMENTS)), "EXIT"),
        (_line(id, group) for id, group in folded_rows(rows, _looks)),
    )


def _looks(row: dict[str, Any]) -> object:
    """What tasks must share to stand on one line; one that runs has a line of its own."""
    runs = row["task"] if row["state"] in ("running", "suspended") else None
    return runs, *(row[key] for key in ("state", "reason", "cluster", "exit_code"))


def _line(id: str, group: Sequence[dict[str, Any]]) -> tuple[object, ...]:
    """A line for tasks that look alike: from the first begin to the last end."""
    first = group[0] if len(group) == 1 else {**group[0], "native_id": None}
    first_of = {
        name: min((r[name] for r in group if r.get(name)), default=None)
        for name in ("submitted", "expected_start", "started")
    }
    ended = max((r["ended"] for r in group if r["ended"]), default=None)
    moments = (*first_of.values(), ended)
    return (id, *(first[c] for c in _COLUMNS), *map(moment, moments), first["exit_code"])


def _since(text: str) -> float:
    try:
        return parse_moment(text, time.time(), past=True)
    except Unreadable as error:
        raise UserError(f"{error.what}, --since; {error.mend}") from None


def cancel(
    jobs: Jobs = None,
    user: User = None,
    state: InState = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """End jobs, wherever they are.

    \b
    Examples:
      metasched cancel 17 18_3 '19_[4-9]'
      metasched cancel --user ada --state pending
    """
    _change("cancel", jobs, user, state, json, config)


def hold(
    jobs: Jobs = None,
    user: User = None,
    state: InState = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Keep jobs that have not started from starting.

    \b
    Examples:
      metasched hold 17
      metasched hold --user ada
    """
    _change("hold", jobs, user, state, json, config)


def release(
    jobs: Jobs = None,
    user: User = None,
    state: InState = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Let held jobs go.

    \b
    Examples:
      metasched release 17
      metasched release --state held
    """
    _change("release", jobs, user, state, json, config)


def requeue(
    jobs: Jobs = None,
    user: User = None,
    state: InState = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Run jobs again, from their beginning.

    One that runs is ended first. With --state, of those that have ended the ones of the last
    hour. It is the same job with one more attempt, and its output files are written anew.

    \b
    Examples:
      metasched requeue 17
      metasched requeue --state failed,timeout
    """
    _change("requeue", jobs, user, state, json, config)


def resolve(
    job: Annotated[str, typer.Argument(metavar="JOB", show_default=False)],
    word: Annotated[str, typer.Argument(metavar="lost|ran", show_default=False)],
    json: Json = False,
    config: Config = None,
) -> None:
    """Say what became of a job that is unknown: it was lost and never began, or it ran.

    A lost job is sent again, so look first in the records of its cluster for its tag: if it
    does run there after all, it runs twice. One that ran counts as completed.

    \b
    Examples:
      metasched resolve 17 lost
      metasched resolve 18_3 ran
    """
    if word not in ("lost", "ran"):
        raise UserError(f"{shown(word)}, metasched resolve; write lost or ran")
    _change(word, [job], None, None, json, config)


def _change(
    wish: str,
    jobs: Sequence[str] | None,
    user: str | None,
    state: str | None,
    json: bool,
    config: str | None,
) -> None:
    if not (jobs or user or state):
        raise UserError(f"nothing to {wish}, metasched {wish}; name jobs, --user or --state")
    show_changed(connect(config).change(wish, ids(jobs or ()), user, state), json)


def show_changed(rows: Sequence[dict[str, Any]], json: bool) -> None:
    """Print what a change made of each task."""
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    table(
        ("JOB", "WAS", "STATE", "NOTE"),
        (
            (id, group[0]["was"], group[0]["state"], group[0].get("note"))
            for id, group in folded_rows(rows, lambda r: (r["was"], r["state"], r.get("note")))
        ),
    )


def wait(jobs: Named, json: Json = False, config: Config = None) -> int:
    """Wait for the end of jobs; exit with their code.

    It is the job's own, of several jobs the highest: 124 if the time limit ended it, 130 if it
    was cancelled, 3 if every cluster rejected it, 1 if nobody knows.

    \b
    Examples:
      metasched wait 17
      metasched wait 17 18 19 && metasched submit evaluate.sh
    """
    rows = until_ended(connect(config), ids(jobs))
    if json:
        print(json_format.dumps(rows, indent=2))
    else:
        ends = folded_rows(rows, lambda r: (r["state"], r["exit_code"]))
        table(
            ("JOB", "STATE", "EXIT"),
            ((id, group[0]["state"], group[0]["exit_code"]) for id, group in ends),
        )
    return exit_code(rows)


def until_ended(client: Client, jobs: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of jobs, once every one has ended; a daemon that restarts meanwhile is awaited."""
    from metasched.core.transitions import FINAL

    answered: float | None = None
    while True:
        try:
            rows = client.wait(jobs)
            answered = time.monotonic()
            if all(row["state"] in FINAL for row in rows):
                return rows
        except Broken:  # it was there a moment ago
            answered = answered or time.monotonic()
            time.sleep(ASK)
        except Unreachable:
            if answered is None or time.monotonic() - answered > GONE:
                raise
            time.sleep(ASK)


def exit_code(rows: Sequence[dict[str, Any]]) -> int:
    """The highest exit code of jobs that have ended."""
    return max((_code(row["state"], row["exit_code"]) for row in rows), default=0)


def _code(state: str, code: int | None) -> int:
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
    config: Config = None,
) -> int:
    """Print what a job has written.

    \b
    Examples:
      metasched output 17
      metasched output 17 --follow
      metasched output 17 --error | tail
    """
    client = connect(config)
    [job] = ids([job])
    paths = client.output(job)
    if json:
        print(json_format.dumps(paths))
        return 0
    path = (error and paths["error"]) or paths["output"]
    goes_on = _asking(client, job) if follow else lambda: False
    try:
        _copy(path, goes_on)
    except FileNotFoundError:
        states = ", ".join(sorted({row["state"] for row in client.jobs([job])}))
        wait = "wait for it with --follow" if not follow else f"see `metasched story {job}`"
        raise NotFound(f"nothing written yet, job {job} ({states}), {path}; {wait}") from None
    except OSError as problem:
        if isinstance(problem, BrokenPipeError) or problem.filename is None:
            raise
        return fail(f"{problem.strerror}, {path}; read it where the job ran", 1)
    return 0


def _asking(client: Client, job: str) -> Callable[[], bool]:
    """Whether the job goes on, asked at most once a second; False from its end on."""
    from metasched.core.transitions import FINAL

    answer, asked = True, 0.0

    def goes_on() -> bool:
        nonlocal answer, asked
        if answer and time.monotonic() - asked >= ASK:
            answer = any(row["state"] not in FINAL for row in client.jobs([job]))
            asked = time.monotonic()
        return answer

    return goes_on


def _copy(path: str, goes_on: Callable[[], bool]) -> None:
    """Write a file to stdout, and what is added to it for as long as the job goes on."""
    more = goes_on()
    while more and not os.path.exists(path):
        time.sleep(LOOK)
        more = goes_on()
    with open(path, "rb") as file:
        while True:
            # Asked before reading: what the job wrote last is then in the last round.
            more = goes_on()
            if os.fstat(file.fileno()).st_size < file.tell():
                file.seek(0)  # the job was started again and began a new file
            _pour(file)
            if not more:
                return
            time.sleep(LOOK)


def _pour(file: BinaryIO) -> None:
    while block := file.read(1 << 16):
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
