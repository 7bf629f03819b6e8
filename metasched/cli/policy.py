"""The commands `policy`: show, check, diff, try, shadow, activate, undo, history."""

import json as json_format
import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from metasched.cli.common_options import ConfigOption, JsonOption
from metasched.cli.connect import connect
from metasched.cli.messages import fail
from metasched.cli.policy_shadow import print_shadow
from metasched.cli.policy_try import try_policy
from metasched.cli.show import format_time, print_table, printable
from metasched.config.policy_file import (
    PolicyReading,
    examine_policy,
    parse_policy,
    read_policy_text,
)
from metasched.config.policy_words import (
    describe_policy,
    differences,
    key_reference,
    values_of,
    written,
)
from metasched.config.tables import MAX_PARAMETER
from metasched.errors import UserError, quote_for_error
from metasched.policies.plug_in_ratings import PlugIn, PlugInError, PlugInKind, installed, load
from metasched.policies.policy import Policy

EXIT_MISTAKES = 2
LIVE, DEFAULT = "live", "default"

policy = typer.Typer(
    help="""Show, check and compare policies; put another one in force.

    \b
    Examples:
      metasched policy show --explain
      metasched policy check candidate.toml
      metasched policy diff live candidate.toml
      metasched policy try candidate.toml --since 30d
      metasched policy shadow candidate.toml
      metasched policy activate candidate.toml --reason "deadlines first"
      metasched policy undo
    """,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _complete_policy(incomplete: str) -> list[str]:
    """Return words and policy files that begin so."""
    names = [name for name in (LIVE, DEFAULT) if name.startswith(incomplete)]
    return names + _complete_file(incomplete)


def _complete_file(incomplete: str) -> list[str]:
    """Return folders and TOML files that begin so."""
    folder, slash, start = incomplete.rpartition("/")
    try:
        entries = sorted(Path(folder + slash or ".").iterdir())
        names = {e.name: e.is_dir() for e in entries if e.name.startswith(start)}
    except OSError:
        return []
    return [
        f"{folder}{slash}{name}{'/' if is_folder else ''}"
        for name, is_folder in names.items()
        if is_folder or name.endswith(".toml")
    ]


FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", show_default=False, autocompletion=_complete_file)
]
ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; it is stored and logged.")
]
ExpectOption = Annotated[
    int | None,
    typer.Option(
        "--expect", metavar="N", min=1, help="Refuse it unless version N is in force [any]."
    ),
]


def _policy_argument(metavar: str) -> Any:
    return typer.Argument(metavar=metavar, show_default=False, autocompletion=_complete_policy)


@policy.command()
def show(
    name: Annotated[str, _policy_argument("[POLICY]")] = LIVE,
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain each key: unit, range, source, effect.")
    ] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """Show a policy: a file, `live` (in force; the default), `default`, or a version by number.

    A file named as one of these words is written with its folder: ./live.

    \b
    Examples:
      metasched policy show
      metasched policy show candidate.toml
      metasched policy show default --explain
      metasched policy show 3 --json
    """
    values, header = _values_of(name, config)
    if json:
        answer: dict[str, Any] = {**header, "values": values}
        if explain:
            answer["keys"] = [row._asdict() for row in key_reference()]
        print(json_format.dumps(answer, indent=2))
        return 0
    if name == LIVE:
        _print_origin(header)
        for row in header.get("plug_ins") or ():
            if row["problem"] or row["excluded"]:
                print(printable(_describe_plug_in(row)), end="\n\n")
    print_table(("KEY", "VALUE"), ((key, written(key, value)) for key, value in values.items()))
    if explain:
        for row in key_reference():
            print(f"\n{row.name}")
            print(f"  {row.effect}")
            print(f"  unit: {row.unit}; range: {row.range}; default: {row.default}")
            print(f"  source: {row.source}")
    return 0


def _values_of(name: str, config: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of a named policy, and the daemon's facts about the policy in force."""
    if name == LIVE:
        answer = connect(config).policy()
        return answer["values"], {key: value for key, value in answer.items() if key != "values"}
    if name == DEFAULT:
        return values_of(parse_policy("", DEFAULT)), {}
    if name.isascii() and name.isdecimal():
        row = connect(config).policy_version(int(name))
        policy = parse_policy(row["text"] or "", f"version {name}")
        return values_of(policy), {"version": row["version"]}
    return values_of(parse_policy(_text_of(name), name)), {}


def _text_of(file: str) -> str:
    return read_policy_text(Path(file))


def _describe_plug_in(row: Mapping[str, Any]) -> str:
    name = f"Heuristic {row['heuristic']}"
    jobs = f"{row['excluded']} jobs since the start"
    if row["problem"]:
        return f"{name} is excluded: {row['problem']} ({jobs})."
    return f"{name} was excluded for {jobs}; `metasched explain` has the reason for each."


def _print_origin(header: Mapping[str, Any]) -> None:
    by = f" by {header['by']}" if header["by"] else ""
    reason = f" ({header['reason']})" if header["reason"] else ""
    file = f", {header['file']}" if header["file"] else ""
    how = "read" if header["change"] == "file" else header["change"]
    text = (
        f"Version {header['version']}, {how} at {format_time(header['since'])}{by}{reason}{file}."
    )
    if header["differs_from_site_file"] and header["change"] != "file":
        text += f" It is in force in place of {header['site_file'] or 'the defaults'}."
    print(printable(text), end="\n\n")


@policy.command()
def check(file: FileArgument, json: JsonOption = False) -> int:
    """Say what a policy file does, or what is wrong in it, a line for each mistake.

    No daemon is needed. The daemon accepts such a file, unless its configuration names user classes
    or a binding that the file lacks: `policy activate` and `serve --check` compare them.
    Exit codes: 0 valid, also with notes on settings without effect; 2 mistakes.

    \b
    Examples:
      metasched policy check candidate.toml
      metasched policy check candidate.toml --json
    """
    reading = examine_policy(_text_of(file), file)
    if json:
        print(json_format.dumps(_as_json(reading), indent=2))
        return EXIT_MISTAKES if reading.policy is None else 0
    for mistake in reading.mistakes:
        fail(mistake, EXIT_MISTAKES)
    if reading.policy is None:
        return EXIT_MISTAKES
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


@policy.command("check-plugin")
def check_plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter, as in the policy file."),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Check a heuristic of the site: range, determinism, no clock, no I/O, speed.

    It is asked about sample jobs, in this process. NAME is that of its entry point.
    Exit codes: 0 it keeps the rules, 1 it breaks some, 2 it cannot be loaded.

    \b
    Examples:
      metasched policy check-plugin small_first
      metasched policy check-plugin small_first --set full=64 --json
    """
    from metasched.plug_ins.testing import SAMPLE_JOBS, problems_of

    kinds = [kind for kind in PlugInKind if name in installed(kind)]
    if not kinds:
        installed_names = ", ".join(
            sorted({each for kind in PlugInKind for each in installed(kind)})
        )
        raise UserError(
            f"no heuristic {quote_for_error(name)} is installed here, NAME; "
            + (f"there are {installed_names}" if installed_names else "install its package")
        )
    parameters = tuple(map(_parameter, settings or ()))
    problems = []
    for kind in kinds:
        plug_in = PlugIn(kind, name, Policy().max_priority, parameters)
        try:
            load(plug_in)
        except PlugInError as error:
            raise UserError(f"{error}, {plug_in}") from None
        problems += [
            f"{plug_in} {problem}" for problem in problems_of(plug_in, partial(load, plug_in))
        ]
    if json:
        print(json_format.dumps({"heuristic": name, "problems": problems}, indent=2))
    else:
        for problem in problems:
            print(printable(problem))
        if not problems:
            print(f"{name} keeps the rules, of {len(SAMPLE_JOBS)} jobs.")
    return 1 if problems else 0


def _parameter(assignment: str) -> tuple[str, float]:
    key, _, value = assignment.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if abs(number) <= MAX_PARAMETER:
        return key, number
    raise UserError(
        f"{quote_for_error(assignment)} sets no number up to {MAX_PARAMETER:g}, --set; "
        "write it as full=64"
    )


@policy.command()
def diff(
    before: Annotated[str, _policy_argument("A")],
    after: Annotated[str, _policy_argument("B")],
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """Print the keys in which two policies differ, with their effect.

    A and B are files, `live`, `default` or versions, as of `policy show`.
    Exit codes as those of diff: 0 equal, 1 different, 2 and more: a policy cannot be read.

    \b
    Examples:
      metasched policy diff live candidate.toml
      metasched policy diff 3 live
      metasched policy diff default policy.toml --json
    """
    rows = differences(*(_values_of(name, config)[0] for name in (before, after)))
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


policy.command("try")(try_policy)


@policy.command()
def shadow(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", show_default=False, autocompletion=_complete_file),
    ] = None,
    reason: ReasonOption = "",
    stop: Annotated[bool, typer.Option("--stop", help="End the candidate.")] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Run a candidate beside the policy in force, on live jobs; compare, never execute. Operators.

    Without FILE it shows how the candidate's decisions differ from those in force: on priorities,
    and on clusters where a task had several. It decides on the loads of the policy in force, so it
    does not show what these would become. The comparison stays after --stop, until another starts.

    \b
    Examples:
      metasched policy shadow candidate.toml --reason "deadlines first"
      metasched policy shadow
      metasched policy shadow --stop
    """
    client = connect(config)
    if stop:
        if file is not None:
            raise UserError("FILE and --stop are given; write one of them")
        row = client.stop_shadow()
    elif file is None:
        row = client.shadow()
    else:
        text, notes = _checked_text(file)
        row = client.start_shadow(text, str(Path(file).absolute()), reason)
        _print_notes(notes)
    if json:
        print(json_format.dumps(row, indent=2))
    else:
        print_shadow(row)


def _checked_text(file: str) -> tuple[str, Sequence[str]]:
    """Return the text of a policy file and notes on it. UserError for a mistake."""
    text = _text_of(file)
    reading = examine_policy(text, file)
    if reading.policy is None:  # the daemon would name the first mistake only
        for mistake in reading.mistakes[:-1]:
            fail(mistake, EXIT_MISTAKES)
        raise UserError(reading.mistakes[-1])
    return text, reading.notes


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"note: {printable(note)}", file=sys.stderr)


@policy.command()
def activate(
    file: FileArgument,
    reason: ReasonOption = "",
    expect: ExpectOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Put a policy file in force, as the next version. For operators.

    It stays in force over restarts and reloads, until the contents of the site's own policy file
    change. Running jobs continue, and jobs keep their priorities. `policy undo` takes it back. With
    --expect an activation by somebody else meanwhile is not overwritten.

    \b
    Examples:
      metasched policy activate candidate.toml --reason "deadlines first"
      metasched policy activate candidate.toml --expect 3
    """
    text, notes = _checked_text(file)
    client = connect(config)
    # what another activates from now on is not overwritten
    expected = client.policy()["version"] if expect is None else expect
    row = client.activate_policy(text, str(Path(file).absolute()), reason, expected)
    _print_notes(notes)
    _print_act(row, json)


@policy.command()
def undo(
    reason: ReasonOption = "",
    expect: ExpectOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Put the policy before the present one in force again. For operators.

    It is a version of its own. Repeated, it goes back further.

    \b
    Examples:
      metasched policy undo --reason "too many late jobs"
      metasched policy undo --expect 4
    """
    client = connect(config)
    expected = client.policy()["version"] if expect is None else expect
    _print_act(client.undo_policy(reason, expected), json)


def _print_act(row: Mapping[str, Any], json: bool) -> None:
    if json:
        print(json_format.dumps(row, indent=2))
        return
    copy = f", as version {row['copy_of']}" if row["copy_of"] else ""
    print(printable(f"Policy version {row['version']} is in force{copy}: {_file_of(row)}."))


def _file_of(row: Mapping[str, Any]) -> str:
    return row["file"] or "the defaults"


@policy.command()
def history(json: JsonOption = False, config: ConfigOption = None) -> None:
    """List the versions of the policy, the newest first. For operators.

    \b
    Examples:
      metasched policy history
      metasched policy history --json
    """
    rows = connect(config).policy_versions()
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    print_table(
        ("VERSION", "TIME", "CHANGE", "BY", "FILE", "REASON"),
        (
            (
                row["version"],
                format_time(row["time"]),
                row["change"] + (f" (as {row['copy_of']})" if row["copy_of"] else ""),
                *(row["by"], _file_of(row), row["reason"]),
            )
            for row in rows
        ),
    )
