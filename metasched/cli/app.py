"""The commands as a Typer application: help, completion, and usage errors in a single line.

Only the module of the requested command is imported; help and completion import all modules.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer

from metasched.cli.messages import fail
from metasched.model.units import quote_for_error

EXIT_USAGE = 2

COMMANDS = {  # name -> module
    "submit": "submit_help",
    "status": "jobs",
    "cancel": "jobs",
    "hold": "jobs",
    "release": "jobs",
    "requeue": "jobs",
    "modify": "modify",
    "resolve": "jobs",
    "wait": "jobs",
    "output": "jobs",
    "story": "explain",
    "explain": "explain",
    "licences": "licences",
    "licence": "licences",
    "limits": "limits",
    "shares": "shares",
    "clusters": "clusters",
    "cluster": "clusters",
    "events": "events",
    "policy": "policy",
    "report": "report",
    "notifications": "notifications",
    "reserve": "reservations",
    "reservations": "reservations",
    "reservation": "reservations",
    "calendar": "calendar",
    "db": "database",
    "token": "tokens",
    "web": "web",
    "drop-in": "drop_in",
    "doctor": "doctor",
    "init": "init",
    "serve": "services",
    "reload": "reload",
    "demo": "services",
    "simulate": "simulate",
    "experiment": "experiment",
    "tune": "tune",
}


def build_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Build the application with these commands."""
    app = typer.Typer(
        name="metasched",
        help="One queue for several batch clusters.",
        # plain help: the same on a terminal and in a pipe, with brackets as written
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_root)
    for name in names:
        module = import_module(f"metasched.cli.{COMMANDS[name]}")
        command = getattr(module, name.replace("-", "_"))
        if isinstance(command, typer.Typer):  # a group of commands
            app.add_typer(command, name=name)
            continue
        # arguments after the script belong to the script
        settings = {"allow_interspersed_args": name != "submit"}
        app.command(name, context_settings=settings)(command)
    return app


def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.util import find_spec

        from metasched.version import RELEASE

        core_spec = find_spec("metasched.core.scheduler")
        is_pure = core_spec is None or str(core_spec.origin).endswith(".py")
        print(f"metasched {RELEASE}{'' if is_pure else ' (compiled)'}")


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code."""
    command_name = arguments[0]
    if command_name not in COMMANDS and not command_name.startswith("-"):
        suggestions = get_close_matches(command_name, COMMANDS, n=1)
        remedy = f"did you mean {suggestions[0]}?" if suggestions else "see `metasched --help`"
        return fail(
            f"unknown command {quote_for_error(command_name)}, metasched; {remedy}", EXIT_USAGE
        )
    if "_METASCHED_COMPLETE" in os.environ:
        command_name = _completed_command()
    app = build_app([command_name] if command_name in COMMANDS else COMMANDS)
    try:
        code = app(list(arguments), prog_name="metasched", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        # Typer does not export its class of usage errors; this method marks them
        if not hasattr(error, "format_message"):
            raise
        return fail(_usage_message(error, command_name), EXIT_USAGE)
    return code if isinstance(code, int) else 0


def _completed_command() -> str:
    """Return the command whose words a shell completes; "" if it completes the command itself."""
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    arguments = line.split()
    return (
        arguments[1] if len(arguments) > 2 or (len(arguments) > 1 and line[-1:].isspace()) else ""
    )


def _usage_message(error: Any, command_name: str) -> str:
    """Convert a usage error of Typer to "problem, place; remedy"."""
    location = f"metasched {command_name}" if command_name in COMMANDS else "metasched"
    remedy = f"see `{location} --help`"
    if hasattr(error, "option_name") and hasattr(error, "possibilities"):
        suggestions = list(error.possibilities or ())
        remedy = f"did you mean {' or '.join(suggestions)}?" if suggestions else remedy
        return f"unknown option {quote_for_error(error.option_name)}, {location}; {remedy}"
    message = error.format_message().rstrip(".")
    return f"{message[:1].lower()}{message[1:]}, {location}; {remedy}"
