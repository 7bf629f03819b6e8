"""The command `events`."""

import json as json_format
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import typer

from metasched.cli.common_options import ConfigOption, JsonOption
from metasched.cli.completion import complete_clusters, complete_jobs
from metasched.cli.connect import connect
from metasched.cli.messages import warn
from metasched.cli.past_moments import parse_past_moment
from metasched.cli.show import format_time, print_table, printable
from metasched.client.client import Client
from metasched.client.connection import DaemonUnreachable, ResponseLost
from metasched.client.site_answers import EventRow
from metasched.errors import UserError
from metasched.model.audit import AuditKind
from metasched.model.units import quote_for_error

Rows = list[EventRow]
NEWEST = 1000  # events that are listed without --since
PAGE = 5000  # events that are requested at once
FOLLOW_WAIT = 30.0  # seconds for which the daemon waits for an event
RECONNECT_INTERVAL = 1.0  # seconds between two tries to reach the daemon
COLUMNS = ("TIME", "KIND", "ACTOR", "OWNER", "CLUSTER", "OBJECT", "CAUSE")


def _complete_kinds() -> list[str]:
    return [kind.value for kind in AuditKind]


def events(
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="T", help="Events from then on [the newest 1,000]."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="T", help="Events before then.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="U", help="Who acted, or whom it concerns.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="C", autocompletion=complete_clusters),
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", autocompletion=complete_jobs)
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="K", autocompletion=_complete_kinds, help="See the manual."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events, until ^C.")
    ] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """List what operators did, and what happened to clusters, licences, reservations and jobs.

    Operators see everything. Others see events of their own jobs, reservations and tokens; of
    clusters and licences they do not see who acted, nor why. Times are as of `status --since`: a
    clock time of today, a date, or a duration that has passed.

    With --follow and --json each event is a line. A restart of the daemon loses and repeats none.

    \b
    Examples:
      metasched events --since 24h
      metasched events --kind cluster_drained --cluster alpha
      metasched events --job 17
      metasched events --follow --json
    """
    client, now = connect(config), time.time()
    filters: dict[str, Any] = {
        "since": parse_past_moment(since, now, "--since"),
        "until": parse_past_moment(until, now, "--until"),
        "user": user,
        "cluster": cluster,
        "job": None if job is None else _job_id(job),
        "kind": None if kind is None else _known_kind(kind),
    }
    pages = _stored(client, filters)
    if not follow:
        _print(pages, json)
        return
    cursor = "0"
    for rows, position in pages:
        _print_lines(rows, json)
        cursor = position
    for new_rows in _following(client, cursor, filters):
        _print_lines(new_rows, json)


def _stored(client: Client, filters: Mapping[str, Any]) -> Iterator[tuple[Rows, str]]:
    """Yield pages of stored events, each with the cursor after it."""
    if filters["since"] is None:
        yield client.events(limit=NEWEST, newest=True, **filters)
        return
    cursor = "0"
    while True:
        rows, cursor = client.events(cursor, PAGE, **filters)
        yield rows, cursor
        if len(rows) < PAGE:
            return


def _following(client: Client, cursor: str, filters: Mapping[str, Any]) -> Iterator[Rows]:
    """Yield new events until ^C; while no daemon answers, try again at the same place."""
    is_away = False
    while True:
        try:
            rows, cursor = client.events(cursor, PAGE, wait=FOLLOW_WAIT, **filters)
        except (DaemonUnreachable, ResponseLost) as error:
            if not is_away:
                warn(f"{error}; trying again")
            is_away = True
            time.sleep(RECONNECT_INTERVAL)
            continue
        is_away = False
        yield rows


def _job_id(text: str) -> int:
    number, _, _ = text.partition("_")
    if not (number.isascii() and number.isdecimal() and int(number) > 0):
        raise UserError(f"{quote_for_error(text)} is no job, --job; give a number such as 17")
    return int(number)


def _known_kind(text: str) -> str:
    from difflib import get_close_matches

    if text in _complete_kinds():
        return text
    close = get_close_matches(text, _complete_kinds(), n=1)
    remedy = f"did you mean {close[0]}?" if close else "see `metasched events --help`"
    raise UserError(f"no kind {quote_for_error(text)}, --kind; {remedy}")


def _print(pages: Iterable[tuple[Rows, str]], json: bool) -> None:
    """Print events page by page: there may be a million."""
    if not json:
        for number, (rows, _) in enumerate(pages):
            if rows or not number:
                print_table(COLUMNS, [[format_time(row["time"]), *_cells(row)] for row in rows])
        return
    separator = "[\n"
    for row in (row for rows, _ in pages for row in rows):
        print(separator, json_format.dumps(row), sep="", end="")
        separator = ",\n"
    print("[]" if separator == "[\n" else "\n]")


def _print_lines(rows: Rows, json: bool) -> None:
    """Print events as they come: a table would wait for its last row."""
    for row in rows:
        if json:
            print(json_format.dumps(row))
        else:
            cells = [format_time(row["time"]), *map(printable, _cells(row))]
            print("  ".join(cell for cell in cells if cell))
    sys.stdout.flush()


def _cells(row: Mapping[str, Any]) -> list[str]:
    task = "" if row["task"] is None else f"_{row['task']}"
    object_name = ""
    if row["job"] is not None:
        object_name = f"job {row['job']}{task}"
    elif row["reservation"] is not None:
        object_name = f"reservation {row['reservation']}"
    elif row["licence"]:
        object_name = f"licence {row['licence']}"
    elif server := row["details"].get("server") or row["details"].get("peer"):
        object_name = str(server)
    if row["count"] > 1:
        object_name = f"{object_name} ({row['count']})".strip()
    texts = (row["kind"], row["actor"], row["owner"], row["cluster"], object_name, row["cause"])
    return [text or "" for text in texts]
