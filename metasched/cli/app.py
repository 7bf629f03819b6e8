"""All commands as one Typer application: help, completion, and errors of usage in one line."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from metasched.cli import jobs, services, why
from metasched.cli.messages import fail
from metasched.options import OPTIONS
from metasched.units import shown

WRONG_USAGE = 2

app = typer.Typer(
    name="metasched",
    help="One queue for several batch clusters.",
    # Plain help: alike on a terminal and in a pipe, and brackets stay as written.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _metasched(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        print(f"metasched {version_of('metasched')}")


def submit(**given: Any) -> int:
    """Submit a job; prints its id.

    The options stand before the script, what follows it is passed to it. They may also stand in
    the script, in lines as `#MS --time 10m`; common #SBATCH lines are read too. The command
    line wins over #MS, and #MS over #SBATCH.

    \b
    Examples:
      metasched submit -n 4 -t 1:30:00 run.sh input.dat
      metasched submit --wrap 'make -j4' -c 4 --deadline +2h --urgency 3
      metasched submit --parsable --gres gpu:2 --partition gpu train.sh
      metasched submit --dry-run --json run.sh
    """
    from metasched.cli.submit import submit

    command = given.pop("command") or ()
    return submit({dest: value for dest, value in given.items() if value}, command)


def _signature() -> inspect.Signature:
    """What Typer is to know of `submit`: the same table that argparse reads."""
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(
            option.dest,
            kind,
            default=None if option.metavar else False,
            annotation=Annotated[
                (list[str] | None if option.many else str | None) if option.metavar else bool,
                typer.Option(
                    *option.names,
                    metavar=option.metavar or None,
                    help=option.help,
                    show_default=False,
                ),
            ],
        )
        for option in OPTIONS
        if option.dest != "help"
    ]
    script = typer.Argument(metavar="SCRIPT [ARGS]", show_default=False)
    parameters.append(
        inspect.Parameter(
            "command", kind, default=None, annotation=Annotated[list[str] | None, script]
        )
    )
    return inspect.Signature(parameters)


submit.__signature__ = _signature()  # type: ignore[attr-defined]

app.command(context_settings={"allow_interspersed_args": False})(submit)
for _command in (
    jobs.status,
    jobs.cancel,
    jobs.hold,
    jobs.release,
    jobs.wait,
    jobs.output,
    why.story,
    why.explain,
    why.clusters,
    services.serve,
    services.demo,
):
    app.command()(_command)


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code."""
    names = [c.callback.__name__ for c in app.registered_commands if c.callback]
    first = arguments[0]
    if not first.startswith("-") and first not in names:
        close = get_close_matches(first, names, n=1)
        mend = f"did you mean {close[0]}?" if close else "see `metasched --help`"
        return fail(f"unknown command {shown(first)}, metasched; {mend}", WRONG_USAGE)
    try:
        code = app(list(arguments), prog_name="metasched", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        # The class of usage errors is no public name of Typer; this method marks them.
        if not hasattr(error, "format_message"):
            raise
        return fail(_usage(error), WRONG_USAGE)
    return code if isinstance(code, int) else 0


def _usage(error: Any) -> str:
    """What Typer has to say about wrong usage, in our words: what, where; what to do."""
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "metasched"
    mend = f"see `{where} --help`"
    if hasattr(error, "option_name") and hasattr(error, "possibilities"):
        close = list(error.possibilities or ())
        mend = f"did you mean {' or '.join(close)}?" if close else mend
        return f"unknown option {shown(error.option_name)}, {where}; {mend}"
    told = error.format_message().rstrip(".")
    return f"{told[:1].lower()}{told[1:]}, {where}; {mend}"
