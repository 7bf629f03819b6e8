"""The command `calendar`."""

import json as json_format
from typing import Annotated

import typer

from metasched.cli.common_options import ConfigOption, JsonOption
from metasched.cli.connect import connect
from metasched.cli.show import print_table
from metasched.client.site_answers import CalendarRow

MAX_RUNS = 50  # of an entry


def calendar(
    runs: Annotated[
        int,
        typer.Option("--runs", "-n", min=1, max=MAX_RUNS, metavar="N", help="Next runs of each."),
    ] = 1,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """List the next runs of the calendar: drains, backups, and series of reservations.

    Times are in the time zone of the reader, rules in that of the entry. Entries of the site stand
    in its file, [[calendar]]; a series is made by `metasched reserve --every`.

    \b
    Examples:
      metasched calendar
      metasched calendar --runs 5
      metasched calendar --json
    """
    rows = connect(config).calendar(runs)
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    lines = [(moment, row) for row in rows for moment in row["next"] or (None,)]
    lines.sort(key=lambda line: (line[0] is None, line[0] or "", line[1]["entry"]))
    print_table(
        ("NEXT", "ENTRY", "DOES", "RULE", "ZONE", "LAST", "BY"),
        [
            (
                "never" if moment is None else local_time(moment),
                row["name"] or row["entry"],
                row["does"],
                row["rule"],
                row["zone"],
                local_time(row["last"]) if row["last"] else "",
                _maker(row),
            )
            for moment, row in lines
        ],
    )


def local_time(timestamp: str) -> str:
    """Format a time of the API with its day of the week, in the time zone of the reader."""
    from datetime import datetime

    return datetime.fromisoformat(timestamp).astimezone().strftime("%a %Y-%m-%d %H:%M %Z")


def _maker(row: CalendarRow) -> str:
    """Return who made an entry, and for whom."""
    if row["owner"] is None:
        return "site"
    if row["made_by"] in (None, row["owner"]):
        return str(row["owner"])
    return f"{row['made_by']} for {row['owner']}"
