"""The command `drop-in`: where the commands with the names of Slurm's are."""

from typing import Annotated

import typer

from metasched.cli.common_options import ConfigOption
from metasched.cli.connect import connect
from metasched.client.native_ids import first_id_problem
from metasched.errors import UserError
from metasched.paths import drop_in_folder

PROFILE = """\
# /etc/profile.d/metasched.sh: login shells of jobs keep metasched's commands first on the PATH
if [ -n "$METASCHED_DROP_IN" ] && [ -d "$METASCHED_DROP_IN" ]; then
  PATH=$METASCHED_DROP_IN:$PATH
fi"""
_OPEN_STATES = "queued,held,dispatching,pending,running,suspended,unknown"

drop_in = typer.Typer(
    help="""Use the commands of a manager over all clusters.

    \b
    Examples:
      metasched drop-in slurm
      folder=$(metasched drop-in slurm) && PATH=$folder:$PATH
    """,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class DropInError(UserError):
    """The drop-in commands could reach jobs of others than metasched."""

    exit_code = 3


@drop_in.callback()
def _group() -> None:
    """Keep `slurm` a subcommand."""


@drop_in.command()
def slurm(
    profile: Annotated[
        bool, typer.Option("--profile", help="Print the lines for /etc/profile.d instead.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Print the folder of sbatch, squeue, scancel and the other commands for your PATH.

    The ids of all jobs must differ from those of the clusters, so that a program that calls the
    real commands reaches no other job. So the command fails for a daemon without `first_id`, or if
    a cluster has such high ids, or while a job of yours with a lower id is open.

    \b
    Examples:
      metasched drop-in slurm
      folder=$(metasched drop-in slurm) && PATH=$folder:$PATH
      metasched drop-in slurm --profile > /etc/profile.d/metasched.sh
    """
    if profile:
        print(PROFILE)
        return
    client = connect(config)
    health = client.health()
    first_id = health["first_id"]
    problem, remedy = first_id_problem(first_id, client.clusters())
    if problem:
        raise DropInError(f"{problem}; {remedy}")
    job = client.lowest_job(health["user"], _OPEN_STATES)
    if job is not None and job < first_id:
        raise DropInError(
            f"your open job {job} is below first_id, {first_id}; wait for it, or cancel it"
        )
    print(drop_in_folder())
