"""The commands about the database: db upgrade, check, backup, prune."""

import json as json_format
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metasched.cli.connect import JsonOption, NearestConfigOption
from metasched.cli.show import print_table
from metasched.errors import UserError
from metasched.units import ParseError, parse_duration

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
def upgrade(json: JsonOption = False, config: NearestConfigOption = None) -> None:
    """Bring the database to the schema of this version, as the daemon does when it starts.

    \b
    Examples:
      metasched db backup before.db && metasched db upgrade
    """
    from metasched.db.schema import REVISION

    database = _load_database(config)
    old_revision = database.schema_revision()
    with database.acquire_writer():
        _print_result({"database": str(database), "from": old_revision, "to": REVISION}, json)


@db.command()
def check(json: JsonOption = False, config: NearestConfigOption = None) -> int:
    """Check, as it is at one moment: pages, counters, and whether its events give its state.

    Exits with 1 if something is wrong.

    \b
    Examples:
      metasched db check
      metasched db check --json
    """
    from metasched.db.integrity import check_database as checked

    findings = checked(_load_database(config))
    if json:
        print(json_format.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        print_table(
            ("CHECK", "RESULT", "NOTE"),
            (
                (finding.check, "ok" if finding.ok else "wrong", finding.text)
                for finding in findings
            ),
        )
    return 0 if all(finding.ok for finding in findings) else 1


@db.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    json: JsonOption = False,
    config: NearestConfigOption = None,
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
    size = _load_database(config).backup(file)
    _print_result({"backup": str(file), "bytes": size}, json)


@db.command()
def prune(
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="DUR", help="Ended so long ago [`keep`]."),
    ] = None,
    json: JsonOption = False,
    config: NearestConfigOption = None,
) -> None:
    """Forget jobs that ended long ago, with scripts, environments and stories; reservations, too.

    The daemon does so by itself with what is older than `keep`.

    \b
    Examples:
      metasched db prune
      metasched db prune --older-than 30d
    """
    from metasched.config.reading import find_config, load_settings
    from metasched.db.pruning import prune as pruned

    settings = load_settings(find_config(config))
    age = settings.retention
    if older_than is not None:
        try:
            age = parse_duration(older_than)
        except ParseError as error:
            raise UserError(f"{error.problem}, --older-than; {error.fix}") from None
    engine = settings.database.open_existing()
    try:
        deleted = pruned(engine, time.time() - age)
    finally:
        engine.dispose()
    _print_result({"database": str(settings.database), **deleted}, json)


def _load_database(config: Path | None) -> "Database":
    from metasched.config.reading import find_config, load_settings

    return load_settings(find_config(config)).database


def _print_result(result: dict[str, Any], json: bool) -> None:
    if json:
        print(json_format.dumps(result))
    else:
        print(", ".join(f"{key} {value}" for key, value in result.items()))
