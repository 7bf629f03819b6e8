"""Runs the commands that tools call in loops without Typer, whose import takes most of their time.

Only plain command lines are read here: options in full, each with a value that is not empty. All
others, such as `--help` and errors, are left to Typer, whose options these are: a test compares.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_SELECTION = {"--user": "user", "--state": "state"}
_COMMON = {"--config": "config"}
# command -> option -> parameter of its function in `job_commands`
VALUES = {
    "status": {
        **_SELECTION,
        "--since": "since",
        "--format": "format",
        "--sort": "sort",
        **_COMMON,
    },
    "cancel": {**_SELECTION, "--cluster": "cluster", **_COMMON},
    "hold": {**_SELECTION, "--cluster": "cluster", **_COMMON},
    "release": {**_SELECTION, "--cluster": "cluster", **_COMMON},
    "wait": _COMMON,
    "output": _COMMON,
}
FLAGS = {
    "status": {
        "--all": "show_all",
        "--me": "me",
        "--long": "long",
        "--watch": "watch",
        "--json": "as_json",
    },
    "cancel": {"--json": "as_json"},
    "hold": {"--json": "as_json"},
    "release": {"--json": "as_json"},
    "wait": {"--json": "as_json"},
    "output": {
        "--follow": "follow",
        "-f": "follow",
        "--error": "error",
        "-e": "error",
        "--json": "as_json",
    },
}
WORDS = {"wait": (1, 10_000), "output": (1, 1)}  # least and most of them, if bounded


def parse_plain(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]] | None:
    """Return the words and the options by parameter of a plain command line, else None."""
    command, *rest = arguments
    positional: list[str] = []
    options: dict[str, Any] = {}
    remaining = iter(rest)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if not argument.startswith("-"):
            positional.append(argument)
        elif argument in FLAGS[command]:
            options[FLAGS[command][argument]] = True
        elif name in VALUES[command]:
            value = value if equals else next(remaining, "")
            if not value or value.startswith("-"):
                return None
            options[VALUES[command][name]] = value
        else:
            return None
    few, most = WORDS.get(command, (0, len(positional)))
    if not all(positional) or not few <= len(positional) <= most:
        return None
    return positional, options


def run_plain(arguments: Sequence[str]) -> int | None:
    """Run a plain command line and return its exit code; None: it is left to Typer."""
    if not arguments or arguments[0] not in VALUES:
        return None
    parsed = parse_plain(arguments)
    if parsed is None:
        return None
    from metasched.cli import job_commands

    command, (positional, options) = arguments[0], parsed
    if command == "output":
        return job_commands.print_output(positional[0], **options)
    if command == "wait":
        return job_commands.wait_for_jobs(positional, **options)
    if command == "status":
        return job_commands.list_jobs(positional, **options)
    job_commands.change_jobs(command, positional, **options)
    return 0
