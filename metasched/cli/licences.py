"""The commands `licences`, `licence set`, `licence probe` and `licence release`."""

import json as json_format
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from metasched.cli.common_options import ConfigOption, JsonOption
from metasched.cli.completion import complete_jobs, complete_licences
from metasched.cli.connect import connect
from metasched.cli.explain import format_number
from metasched.cli.job_ids import check_job_ids, format_task_id
from metasched.cli.licence_probe import probe
from metasched.cli.show import format_time, print_table
from metasched.client.site_answers import LicenceRow
from metasched.errors import UserError
from metasched.model.units import ParseError, parse_count

WATCH_INTERVAL = 2.0  # seconds between queries of --watch

licence = typer.Typer(
    help="""Set the total of a licence, query its server, release leases of lost jobs.

    \b
    Examples:
      metasched licence set matlab 8
      metasched licence probe main
      metasched licence release 17
    """,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def licences(
    json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Print every change, until ^C.")] = False,
    config: ConfigOption = None,
) -> None:
    """List the licences with their totals, holders and demand.

    A second table names the jobs that hold tokens; the site may hide those of others. EXPECTED is
    their end by the time limit.

    OURS counts tokens leased to jobs of metasched, OUTSIDE tokens used by others. RESERVED counts
    tokens of active reservations, which a further table lists. WAITING counts tokens requested by
    queued jobs. RHO is the demand per token: above 1 the licence is critical.

    \b
    Examples:
      metasched licences
      metasched licences --watch
      metasched licences --json
    """
    client = connect(config)
    previous: list[LicenceRow] | None = None
    while True:
        rows = client.licences()
        if rows != previous:
            if watch and sys.stdout.isatty():
                print("\033[H\033[J", end="")
            _print_licences(rows, json)
            sys.stdout.flush()
        if not watch:
            return
        previous = rows
        time.sleep(WATCH_INTERVAL)


@licence.command("set")
def set_total(
    name: Annotated[
        str, typer.Argument(metavar="NAME", show_default=False, autocompletion=complete_licences)
    ],
    total: Annotated[str, typer.Argument(metavar="TOTAL", show_default=False)],
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Set the total of a licence; the total survives restarts.

    TOTAL `configured` restores the configured value. If more tokens are leased than the new total,
    no job is killed, and no token is leased until the leases fit again.

    \b
    Examples:
      metasched licence set matlab 8
      metasched licence set matlab configured
    """
    try:
        new_total = None if total == "configured" else parse_count(total, minimum=0)
    except ParseError as error:
        raise UserError(f"{error.problem}, TOTAL; {error.fix}, or `configured`") from None
    _print_licences([connect(config).set_licence(name, new_total)], json)


licence.command()(probe)


@licence.command()
def release(
    jobs: Annotated[
        list[str],
        typer.Argument(metavar="JOB...", show_default=False, autocompletion=complete_jobs),
    ],
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Release the licences of unknown jobs.

    If such a job turns out to be running, its licences are counted again.

    \b
    Examples:
      metasched licence release 17
      metasched licence release 17_3
    """
    rows = connect(config).release_licences(check_job_ids(jobs))
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    print_table(
        ("JOB", "LICENCES", "NOTE"),
        (
            (
                format_task_id(row),
                ",".join(f"{name}:{count}" for name, count in row["released"].items()),
                row["note"],
            )
            for row in rows
        ),
    )


def _print_licences(rows: Sequence[Mapping[str, Any]], json: bool) -> None:
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    columns = ("licence", "total", "ours", "outside", "reserved", "free", "waiting", "rho", "state")
    print_table(
        [column.upper() for column in columns],
        ([format_number(row.get(column)) for column in columns] for row in rows),
    )
    _print_holders(rows)
    windows = [(row["licence"], window) for row in rows for window in row["windows"]]
    if windows:
        print()
        print_table(
            ("RESERVATION", "LICENCE", "COUNT", "START", "END"),
            (
                (
                    window["reservation"] or window["entry"],
                    name,
                    window["count"],
                    format_time(window["start"]),
                    format_time(window["end"]),
                )
                for name, window in windows
            ),
        )


def _print_holders(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print who holds tokens."""
    lines: list[tuple[object, ...]] = []
    for row in rows:
        lines += [
            (
                row["licence"],
                holder["count"],
                format_task_id(holder) if holder["job"] is not None else "-",
                holder["user"] or "another user",
                format_time(holder["since"]),
                format_time(holder["expected"]),
            )
            for holder in row["holders"]
        ]
        if row["more_holders"]:
            lines.append((row["licence"], "", "", f"and {row['more_holders']} more jobs", "", ""))
    if lines:
        print()
        print_table(("LICENCE", "COUNT", "JOB", "USER", "SINCE", "EXPECTED"), lines)
