"""The command `init site`."""

from pathlib import Path
from typing import Annotated

import typer

init = typer.Typer(
    help="""Set up metasched on this host.

    \b
    Examples:
      metasched init site --dry-run
      metasched init site
    """,
    no_args_is_help=True,
)


@init.command("site")
def site(
    slurm: Annotated[
        list[str] | None,
        typer.Option("--slurm", metavar="[NAME=]FILE", help="A Slurm cluster by its slurm.conf."),
    ] = None,
    gridengine: Annotated[
        list[str] | None,
        typer.Option(
            "--gridengine",
            metavar="[NAME=]ROOT[:CELL]",
            help="A Grid Engine cell, by SGE_ROOT and SGE_CELL [default].",
        ),
    ] = None,
    local: Annotated[
        list[str] | None,
        typer.Option("--local", metavar="NAME=CPUS", help="Processors of this host, as a cluster."),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option("--account", metavar="NAME", help="Account of the daemon [metasched]."),
    ] = None,
    operators: Annotated[
        list[str] | None,
        typer.Option("--operators", metavar="GROUP", help="A group whose members are operators."),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option("--database", metavar="URL", help="Database [SQLite in /var/lib/metasched]."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would change, and change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace files that you have changed; they are kept as .old."),
    ] = False,
    root: Annotated[
        Path,
        typer.Option("--root", metavar="DIR", help="Write below this folder, for packages."),
    ] = Path("/"),
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix", metavar="DIR", help="Where metasched will be installed [where it is now]."
        ),
    ] = None,
) -> int:
    """Write what a site needs: accounts, configuration, systemd units, completion, manual pages.

    Finds the slurm.conf files and Grid Engine cells of this host, unless options name clusters. On
    a terminal it asks before it writes. A second run changes nothing; options that it lacks are
    those of the run before. A file that you have changed is kept, and a new text for it is written
    beside it once, as FILE.new. No service is started.

    \b
    Examples:
      metasched init site --dry-run
      metasched init site
      metasched init site --slurm /etc/slurm/alpha/slurm.conf --slurm west=/etc/west/slurm.conf
      metasched init site --yes --gridengine /opt/sge:default --operators hpc-operators
      metasched init site --yes --local here=8
    """
    from metasched.cli.site_setup import set_up_site

    options = {
        "slurm": slurm,
        "gridengine": gridengine,
        "local": local,
        "account": account,
        "operators": operators,
        "database": database,
    }
    return set_up_site(
        {name: value for name, value in options.items() if value},
        dry_run=dry_run,
        ask=not yes,
        force=force,
        root=root,
        prefix=prefix,
    )
