"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from metasched.errors import UserError

ConfigOption = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Configuration that names the daemon."),
]
NearestConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="Configuration [the nearest one]."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def require_value(parameter: typer.CallbackParam, text: str | None) -> str | None:
    """Refuse an empty value (of an unset shell variable, say); a callback of Typer options."""
    if text == "":
        name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
        raise UserError(f"an empty word, {name}; leave it out, or give it a value")
    return text
