"""The commands about licences: licences, licence set, licence probe, licence release."""

import json as json_format
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from metasched.cli.connect import Config, Json, connect, id_of, ids
from metasched.cli.explain import number
from metasched.cli.licence_probe import probe
from metasched.cli.show import moment, table
from metasched.errors import UserError
from metasched.units import Unreadable, parse_count

AGAIN = 2.0  # seconds between two looks of --watch

licence = typer.Typer(
    help="""Set how many of a licence there are, ask its server, take it back from lost jobs.

    \b
    Examples:
      metasched licence set matlab 8
      metasched licence probe main
      metasched licence release 17
    """,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def licences(
    json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show every change, until ^C.")] = False,
    config: Config = None,
) -> None:
    """List the licences: how many there are, who has them, how many are wanted.

    OURS are leased to jobs of ours, OUTSIDE in use by others, RESERVED are kept for reservations
    that have begun (below are all that have some); WAITING are wanted by jobs that wait for them;
    RHO is that demand for each copy: above 1 the licence is critical.

    \b
    Examples:
      metasched licences
      metasched licences --watch
      metasched licences --json
    """
    client = connect(config)
    shown: list[dict[str, Any]] | None = None
    while True:
        rows = client.licences()
        if rows != shown:
            if watch and sys.stdout.isatty():
                print("\033[H\033[J", end="")
            _show(rows, json)
            sys.stdout.flush()
        if not watch:
            return
        shown = rows
        time.sleep(AGAIN)


@licence.command("set")
def set_total(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    total: Annotated[str, typer.Argument(metavar="TOTAL", show_default=False)],
    json: Json = False,
    config: Config = None,
) -> None:
    """Say how many of a licence there are, from now on and over restarts.

    The word `configured` as TOTAL returns to what the configuration says. If more are leased than
    there are now nothing is killed, and nothing new is leased until it fits again.

    \b
    Examples:
      metasched licence set matlab 8
      metasched licence set matlab configured
    """
    try:
        wanted = None if total == "configured" else parse_count(total, least=0)
    except Unreadable as error:
        raise UserError(f"{error.what}, TOTAL; {error.mend}, or `configured`") from None
    _show([connect(config).set_licence(name, wanted)], json)


licence.command()(probe)


@licence.command()
def release(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", show_default=False)],
    json: Json = False,
    config: Config = None,
) -> None:
    """Take back the licences of jobs of which nobody knows whether they run.

    If such a job is seen running after all its licences are counted again.

    \b
    Examples:
      metasched licence release 17
      metasched licence release 17_3
    """
    rows = connect(config).release_licences(ids(jobs))
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    table(
        ("JOB", "LICENCES", "NOTE"),
        (
            (id_of(r), ",".join(f"{n}:{many}" for n, many in r["released"].items()), r["note"])
            for r in rows
        ),
    )


def _show(rows: Sequence[Mapping[str, Any]], json: bool) -> None:
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    columns = ("licence", "total", "ours", "outside", "reserved", "free", "waiting", "rho", "state")
    table([c.upper() for c in columns], ([number(r.get(c)) for c in columns] for r in rows))
    windows = [(row["licence"], window) for row in rows for window in row.get("windows", ())]
    if windows:
        print()
        table(
            ("RESERVATION", "LICENCE", "COUNT", "START", "END"),
            (
                (w["reservation"], name, w["count"], moment(w["start"]), moment(w["end"]))
                for name, w in windows
            ),
        )
