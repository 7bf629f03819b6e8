"""The commands about the database: db upgrade, downgrade, check, backup, move, adopt, prune."""

import json as json_format
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metasched.cli.common_options import JsonOption, NearestConfigOption
from metasched.cli.show import print_table
from metasched.errors import UserError
from metasched.model.units import ParseError, parse_duration
from metasched.paths import personal_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metasched.db.downgrade import Drop
    from metasched.db.store import Database

db = typer.Typer(
    help="""Maintain the database; `check`, `backup` and `prune` can run beside the daemon.

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
    """Upgrade the database to the schema of this version, as the daemon does at its start.

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
def downgrade(
    to: Annotated[
        str,
        typer.Option("--to", metavar="REVISION", show_default=False, help="Schema to go back to."),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
    config: NearestConfigOption = None,
) -> int:
    """Take the database back to an earlier schema, to start the release that has it.

    Stop the daemon before. Prints the tables and columns that the earlier schema lacks, with the
    number of rows that have a value there, and asks before it drops them. Refused if dispatched
    jobs need any of these. The earlier release names its schema when it refuses the database.

    \b
    Examples:
      metasched db backup before.db && metasched db downgrade --to s0001
      metasched db downgrade --to s0001 --yes --json
    """
    from metasched.db.downgrade import downgrade as downgraded
    from metasched.db.schema import REVISION

    def confirm(drops: "Sequence[Drop]") -> bool:
        if not json:
            rows = [(drop.table, drop.column or "(whole table)", drop.rows) for drop in drops]
            print_table(("TABLE", "DROPPED", "ROWS"), rows)
        if not yes and (json or not (sys.stdin.isatty() and sys.stdout.isatty())):
            raise UserError("db downgrade asks before it drops data: nobody can answer; add --yes")
        return yes or typer.confirm(f"Go back to schema {to}?")

    database = _load_database(config)
    drops = downgraded(database, to, confirm)
    if drops is None:
        print("nothing was changed")
        return 1
    answer: dict[str, Any] = {"database": str(database), "from": REVISION, "to": to}
    _print_result(answer | ({"dropped": [asdict(drop) for drop in drops]} if json else {}), json)
    return 0


@db.command()
def check(json: JsonOption = False, config: NearestConfigOption = None) -> int:
    """Check a snapshot of the database: pages, counters, and a replay of its events.

    Exits with 1 if a check fails.

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
    """Copy a snapshot of the database to a new file.

    The copy is an SQLite database, or a psql script that restores a PostgreSQL database.

    A daemon started on the copy uses another instance name in its clusters. It follows the jobs
    that were there, and holds the jobs that had not started.

    \b
    Examples:
      metasched db backup /backup/metasched-$(date +%F).db
      metasched db backup metasched.sql && psql -f metasched.sql EMPTY
    """
    size = _load_database(config).backup(file)
    _print_result({"backup": str(file), "bytes": size}, json)


@db.command()
def move(
    url: Annotated[str, typer.Argument(metavar="URL", show_default=False)],
    json: JsonOption = False,
    config: NearestConfigOption = None,
) -> None:
    """Move the ledger to an empty database, such as from SQLite to PostgreSQL.

    Stop the daemon before. All ids stay, and jobs run on. No daemon starts on the old database
    any more: name the new one in the configuration.

    \b
    Examples:
      metasched db move 'postgresql:///metasched?host=/var/run/postgresql'
      metasched db move sqlite:////var/lib/metasched/metasched.db
    """
    from metasched.cli.progress import progress_bar
    from metasched.config.database_url import parse_database_url
    from metasched.config.reading import find_config, load_settings
    from metasched.db.adoption import write_mark
    from metasched.db.backends import database_at
    from metasched.db.moving import move as moved

    settings = load_settings(find_config(config))
    # the configuration would resolve a relative path in its own folder
    source = database_at(settings.database_url)
    target = database_at(parse_database_url(url, base=None))
    rows = moved(source, target, lambda total: progress_bar("rows", total))
    engine = target.open_existing()
    with engine.begin() as connection:
        write_mark(connection, target, settings.state_folder)
    engine.dispose()
    _print_result({"from": str(source), "to": str(target), "rows": rows}, json)
    if not json:
        config_path = settings.config_path or personal_config()
        print(f'Now write into [daemon] of {config_path}: database = "{url}"')
        print(f'and folder = "{settings.state_folder}", then start the daemon.')


@db.command()
def adopt(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
    config: NearestConfigOption = None,
) -> int:
    """Declare the database to be right: its mark is made anew, and doctor's finding ends.

    Stop the daemon before. The mark beside the database holds what was stored last. A database
    behind its mark went back: the next start takes a new name and holds the tasks in doubt. Adopt
    it if these are settled, or to begin a new database in the place of one that is lost.

    \b
    Examples:
      metasched db adopt
      metasched db adopt --yes --json
    """
    from metasched.config.reading import find_config, load_settings
    from metasched.db.adoption import adopt as adopted
    from metasched.db.backends import database_at

    def confirm(question: str) -> bool:
        if not yes and (json or not (sys.stdin.isatty() and sys.stdout.isatty())):
            raise UserError("db adopt asks whether it is right: nobody can answer; add --yes")
        return yes or typer.confirm(question)

    settings = load_settings(find_config(config))
    database = database_at(settings.database_url)
    mark = adopted(database, settings.state_folder, confirm)
    if mark is None:
        print("nothing was changed")
        return 1
    _print_result({"database": str(database), "events": mark.event}, json)
    return 0


@db.command()
def prune(
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="DUR", help="Minimum time since the end [`keep`]."),
    ] = None,
    json: JsonOption = False,
    config: NearestConfigOption = None,
) -> None:
    """Delete old jobs with their scripts, environments and stories, and old reservations.

    The daemon deletes jobs that are older than `keep` automatically.

    \b
    Examples:
      metasched db prune
      metasched db prune --older-than 30d
    """
    from metasched.config.reading import find_config, load_settings
    from metasched.db.backends import database_at
    from metasched.db.pruning import prune as pruned

    settings = load_settings(find_config(config))
    age = settings.retention
    if older_than is not None:
        try:
            age = parse_duration(older_than)
        except ParseError as error:
            raise UserError(f"{error.problem}, --older-than; {error.fix}") from None
    database = database_at(settings.database_url)
    engine = database.open_existing()
    try:
        deleted = pruned(engine, time.time() - age)
    finally:
        engine.dispose()
    _print_result({"database": str(database), **deleted}, json)


def _load_database(config: Path | None) -> "Database":
    """Return the database that the configuration names."""
    from metasched.config.reading import find_config, load_settings
    from metasched.db.backends import database_at

    return database_at(load_settings(find_config(config)).database_url)


def _print_result(result: dict[str, Any], json: bool) -> None:
    if json:
        print(json_format.dumps(result))
    else:
        print(", ".join(f"{key} {value}" for key, value in result.items()))
