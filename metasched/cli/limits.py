"""The command `limits`."""

import json as json_format
from typing import Annotated

import typer

from metasched.cli.common_options import ConfigOption, JsonOption
from metasched.cli.connect import connect
from metasched.cli.show import print_table


def limits(
    user: Annotated[
        str | None, typer.Option("--user", metavar="U", help="Limits of this user's jobs.")
    ] = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """List the limits of the site that count your jobs, with their use.

    Operators see all limits. `dispatched` counts tasks sent to clusters, `running` and `processors`
    those that may run: a task sent to a cluster may start at any moment.

    \b
    Examples:
      metasched limits
      metasched limits --user ada
      metasched limits --json
    """
    rows = connect(config).limits(user)
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    print_table(
        ("SCOPE", "NAME", "LIMIT", "USED", "MAXIMUM"),
        [(row["scope"], row["name"], row["limit"], row["used"], row["maximum"]) for row in rows],
    )
