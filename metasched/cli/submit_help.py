"""`submit` for Typer's help and completion, built from its table of options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from metasched.cli.completion import (
    complete_clusters,
    complete_licences,
    complete_reservations,
)
from metasched.client.options import OPTIONS

_COMPLETIONS: dict[str, Callable[..., list[str]]] = {
    "cluster": complete_clusters,
    "licence": complete_licences,
    "reservation": complete_reservations,
}


def submit(**options: Any) -> int:
    """Submit a job and print its id.

    Options precede the script; arguments after it are passed to the script. The script itself may
    contain options, in lines as `#MS --time 10m`; common #SBATCH lines are read too. The command
    line overrides #MS, and #MS overrides #SBATCH.

    \b
    Examples:
      metasched submit -n 4 -t 1:30:00 run.sh input.dat
      metasched submit --wrap 'make -j4' -c 4 --deadline +2h --urgency 3
      metasched submit --parsable --gres gpu:2 --partition gpu train.sh
      metasched submit --array 1-1000%50 -o 'out/%a.txt' step.sh
      metasched submit --dependency afterok:17,afterany:18 collect.sh
      metasched submit --dry-run --json run.sh
    """
    from metasched.cli.submit import submit

    command = options.pop("command") or ()
    return submit({dest: value for dest, value in options.items() if value}, command)


def _build_signature() -> inspect.Signature:
    """Build the Typer signature of `submit` from `OPTIONS`."""
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(
            option.dest,
            keyword_only,
            default=None if option.metavar else False,
            annotation=Annotated[
                (list[str] | None if option.repeatable else str | None) if option.metavar else bool,
                typer.Option(
                    *option.names,
                    metavar=option.metavar or None,
                    help=option.help,
                    show_default=False,
                    autocompletion=_COMPLETIONS.get(option.dest),
                ),
            ],
        )
        for option in OPTIONS
        if option.dest != "help"
    ]
    script = typer.Argument(metavar="SCRIPT [ARGS]", show_default=False)
    parameters.append(
        inspect.Parameter(
            "command", keyword_only, default=None, annotation=Annotated[list[str] | None, script]
        )
    )
    return inspect.Signature(parameters)


submit.__signature__ = _build_signature()  # type: ignore[attr-defined]
