"""The commands about licences: licence probe."""

import typer

from metasched.cli.probe import probe

licence = typer.Typer(
    help="""Look at the servers that count licences.

    \b
    Examples:
      metasched licence probe
      metasched licence probe main --json
    """,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@licence.callback()
def _licence() -> None:
    """One command is a group, too."""


licence.command()(probe)
