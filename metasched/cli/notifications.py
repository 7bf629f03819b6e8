"""The command `notifications`."""

import json as json_format
from typing import Annotated

import typer

from metasched.cli.common_options import ConfigOption, JsonOption
from metasched.cli.connect import connect
from metasched.cli.show import format_time, print_table


def notifications(
    all: Annotated[bool, typer.Option("--all", help="Also those that were delivered.")] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """List mails, and events of webhooks, that wait or were not delivered.

    You see your own mails. Operators see those of all users, and events, of which a row holds up to
    100. Delivered ones are listed for a day, others for a week.

    \b
    Examples:
      metasched notifications
      metasched notifications --all --json
    """
    rows = connect(config).notifications(delivered=all)
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    print_table(
        ("CREATED", "RECEIVER", "KIND", "USER", "JOB", "STATE", "TRIES", "NEXT TRY", "ERROR"),
        [
            (
                format_time(row["created"]),
                row["address"] or row["receiver"],
                row["kind"],
                row["user"] or "",
                row["job"] or "",
                row["state"],
                row["tries"],
                format_time(row["due"]) if row["ended"] is None else "",
                row["error"] or "",
            )
            for row in rows
        ],
    )
