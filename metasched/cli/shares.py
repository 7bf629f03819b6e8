"""The command `shares`."""

import json as json_format
from typing import Annotated

import typer

from metasched.cli.common_options import ConfigOption, JsonOption
from metasched.cli.connect import connect
from metasched.cli.show import print_table


def shares(
    user: Annotated[
        str | None, typer.Option("--user", metavar="U", help="Where this user stands.")
    ] = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """List shares and decayed use of the accounts and users of the site.

    Operators see the whole tree, others where they stand. USED is in processor-hours scaled by
    the speed of the clusters; dispatched tasks count with their time limits. At each level of the
    tree the account or user with the least use per weight goes first; PLACE 1 is the first user.

    \b
    Examples:
      metasched shares
      metasched shares --user ada
      metasched shares --json
    """
    rows = connect(config).shares(user)
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    if not rows:
        print("No fair share is configured, or nothing counts for that user.")
        return
    print_table(
        ("ACCOUNT", "USER", "PARENT", "WEIGHT", "SHARE", "USED", "OF ALL", "PLACE"),
        [
            (
                row["account"] or "",
                row["user"] or "",
                row["parent"] or "",
                f"{row['weight']:g}",
                f"{row['share']:.1%}",
                f"{row['used'] / 3600:.1f}",
                f"{row['used_share']:.1%}",
                row["place"] or "",
            )
            for row in rows
        ],
    )
