"""The commands `policy show`, `policy check` and `policy diff`."""

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from metasched.cli.common_options import JsonOption
from metasched.cli.messages import fail
from metasched.cli.show import print_table, printable
from metasched.config.policy_file import PolicyReading, examine_policy, parse_policy
from metasched.config.policy_file import read_policy_text as read_text
from metasched.config.policy_words import (
    describe_policy,
    differences,
    key_reference,
    values_of,
    written,
)
from metasched.policies.policy import Policy

EXIT_INVALID = 2

policy = typer.Typer(
    help="""Show, check and compare policies.

    \b
    Examples:
      metasched policy show --explain
      metasched policy check candidate.toml
      metasched policy diff policy.toml candidate.toml
    """,
    context_settings={"help_option_names": ["-h", "--help"]},
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]


@policy.command()
def show(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", show_default=False, help="A policy file [the defaults]."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain each key: unit, range, source, effect.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Show the values of a policy.

    \b
    Examples:
      metasched policy show candidate.toml
      metasched policy show --explain
      metasched policy show candidate.toml --json
    """
    shown_policy = Policy() if file is None else parse_policy(read_text(file), str(file))
    values = values_of(shown_policy)
    if json:
        answer: dict[str, object] = {"values": values}
        if explain:
            answer["keys"] = [row._asdict() for row in key_reference()]
        print(json_format.dumps(answer, indent=2))
        return 0
    print_table(("KEY", "VALUE"), ((name, written(name, value)) for name, value in values.items()))
    if explain:
        for row in key_reference():
            print(f"\n{row.name}")
            print(f"  {row.effect}")
            print(f"  unit: {row.unit}; range: {row.range}; default: {row.default}")
            print(f"  source: {row.source}")
    return 0


@policy.command()
def check(file: FileArgument, json: JsonOption = False) -> int:
    """Say what a policy file does, or what is wrong in it, a line for each mistake.

    No daemon is needed. A file that passes is accepted by the daemon, unless its user classes or
    clusters need something else: `policy activate` and `serve --check` compare them.
    Exit codes: 0 valid, also with notes on settings without effect; 2 mistakes.

    \b
    Examples:
      metasched policy check candidate.toml
      metasched policy check candidate.toml --json
    """
    reading = examine_policy(read_text(file), str(file))
    if json:
        print(json_format.dumps(_as_json(reading), indent=2))
        return EXIT_INVALID if reading.policy is None else 0
    for mistake in reading.mistakes:
        fail(mistake, EXIT_INVALID)
    if reading.policy is None:
        return EXIT_INVALID
    for sentence in describe_policy(reading.policy):
        print(printable(sentence))
    for note in reading.notes:
        print(f"note: {printable(note)}")
    return 0


def _as_json(reading: PolicyReading) -> dict[str, object]:
    described = reading.policy
    return {
        "valid": described is not None,
        "mistakes": list(reading.mistakes),
        "notes": list(reading.notes),
        "description": [] if described is None else list(describe_policy(described)),
    }


@policy.command()
def diff(
    before: Annotated[Path, typer.Argument(metavar="A", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="B", show_default=False)],
    json: JsonOption = False,
) -> int:
    """Print the keys in which two policy files differ, with their effect.

    Exit codes as those of diff: 0 equal, 1 different, 2 a file cannot be read.

    \b
    Examples:
      metasched policy diff policy.toml candidate.toml
      metasched policy diff policy.toml candidate.toml --json
    """
    old, new = (parse_policy(read_text(path), str(path)) for path in (before, after))
    rows = differences(old, new)
    if json:
        print(json_format.dumps([row._asdict() for row in rows], indent=2))
    elif rows:
        print_table(
            ("KEY", "BEFORE", "AFTER", "EFFECT"),
            (
                (row.name, written(row.name, row.before), written(row.name, row.after), row.effect)
                for row in rows
            ),
        )
    return 1 if rows else 0
