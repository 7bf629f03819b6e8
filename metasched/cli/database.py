"""The commands about the database: db upgrade, check, backup, prune."""

import json as json_format
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metasched.cli.connect import Json, Nearest
from metasched.cli.show import table
from metasched.errors import UserError
from metasched.units import Unreadable, parse_duration

if TYPE_CHECKING:
    from metasched.db.store import Database

db = typer.Typer(
    help="""Look after the database; all but `upgrade` may be done while the daemon runs.

    \b
    Examples:
      metasched db check
      metasched db backup /backup/metasched-monday.db
      metasched db prune --older-than 90d
    """,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@db.command()
def upgrade(json: Json = False, config: Nearest = None) -> None:
    """Bring the database to the schema of this version, as the daemon does when it starts.

    \b
    Examples:
      metasched db backup before.db && metasched db upgrade
    """
    from metasched.db.schema import REVISION

    database = _database(config)
    before = database.schema()
    with database.active():
        _tell({"database": str(database), "from": before, "to": REVISION}, json)


@db.command()
def check(json: Json = False, config: Nearest = None) -> int:
    """Check, as it is at one moment: pages, counters, and whether its events give its state.

    Exits with 1 if something is wrong.

    \b
    Examples:
      metasched db check
      metasched db check --json
    """
    from metasched.db.integrity import check as checked

    findings = checked(_database(config))
    if json:
        print(json_format.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        table(
            ("CHECK", "RESULT", "NOTE"),
            ((f.check, "ok" if f.ok else "wrong", f.text) for f in findings),
        )
    return 0 if all(finding.ok for finding in findings) else 1


@db.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    json: Json = False,
    config: Nearest = None,
) -> None:
    """Copy the database, as it is at one moment, to a new file.

    That is another database of SQLite, or a script for psql by which PostgreSQL fills an empty one.

    A daemon started on the copy calls itself by another name in its clusters: what was there
    when the copy was made is `unknown` until you say what became of it (`metasched resolve`).

    \b
    Examples:
      metasched db backup /backup/metasched-$(date +%F).db
      metasched db backup metasched.sql && psql -f metasched.sql EMPTY
    """
    size = _database(config).backup(file)
    _tell({"backup": str(file), "bytes": size}, json)


@db.command()
def prune(
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="DUR", help="Ended so long ago [`keep`]."),
    ] = None,
    json: Json = False,
    config: Nearest = None,
) -> None:
    """Forget jobs that ended long ago, with scripts, environments and stories; reservations, too.

    The daemon does so by itself with what is older than `keep`.

    \b
    Examples:
      metasched db prune
      metasched db prune --older-than 30d
    """
    from metasched.config.reading import find, load
    from metasched.db.pruning import prune as pruned

    settings = load(find(config))
    seconds = settings.keep
    if older_than is not None:
        try:
            seconds = parse_duration(older_than)
        except Unreadable as error:
            raise UserError(f"{error.what}, --older-than; {error.mend}") from None
    engine = settings.database.open_existing()
    try:
        gone = pruned(engine, time.time() - seconds)
    finally:
        engine.dispose()
    _tell({"database": str(settings.database), **gone}, json)


def _database(config: Path | None) -> "Database":
    from metasched.config.reading import find, load

    return load(find(config)).database


def _tell(what: dict[str, Any], json: bool) -> None:
    if json:
        print(json_format.dumps(what))
    else:
        print(", ".join(f"{key} {value}" for key, value in what.items()))
