"""The commands that list, change, wait for and print jobs, for Typer: `status` to `output`."""

from collections.abc import Callable
from typing import Annotated

import typer

from metasched.cli.common_options import ConfigOption, JsonOption, require_value
from metasched.cli.completion import complete_clusters, complete_jobs
from metasched.cli.job_commands import change_jobs, list_jobs, print_output, wait_for_jobs
from metasched.errors import UserError
from metasched.model.units import quote_for_error

JobsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB]...", show_default=False, autocompletion=complete_jobs),
]
RequiredJobs = Annotated[
    list[str], typer.Argument(metavar="JOB...", show_default=False, autocompletion=complete_jobs)
]
UserOption = Annotated[
    str | None,
    typer.Option("--user", metavar="U", callback=require_value, help="Jobs of this user."),
]
StateOption = Annotated[
    str | None,
    typer.Option("--state", metavar="S,...", callback=require_value, help="Jobs in these states."),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="C",
        callback=require_value,
        help="Jobs on this cluster.",
        autocompletion=complete_clusters,
    ),
]


def status(
    jobs: JobsArgument = None,
    user: UserOption = None,
    state: StateOption = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="T", help="Submitted since: 2h (ago), 17:30, ISO 8601."),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also list jobs that ended earlier.")
    ] = False,
    me: Annotated[bool, typer.Option("--me", help="Jobs of your own.")] = False,
    long: Annotated[
        bool,
        typer.Option("--long", help="List exit code, processor time, memory and nodes used."),
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="COLUMN,...",
            callback=require_value,
            help="Columns, such as job,name,code,started; all: every column.",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="[-]COLUMN,...",
            callback=require_value,
            help="Order of the lines; - for a falling order.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Print again every 5 s, until all have ended.")
    ] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """List the jobs that are open or ended in the last hour.

    Equal tasks of an array share a line; --json lists every task. TIME is the time used, LEFT that
    to the time limit. --state takes Slurm's words, too: R, PENDING.

    \b
    Examples:
      metasched status
      metasched status 17 18_3 '19_[4-9]'
      metasched status --state running,pending --user ada
      metasched status --me --state R --sort -time --watch
      metasched status --all --since 2h --json
      metasched status 17 --long
    """
    return list_jobs(
        jobs or (),
        as_json=json,
        config=config,
        watch=watch,
        format=format,
        long=long,
        sort=sort,
        user=user,
        me=me,
        state=state,
        since=since,
        show_all=show_all,
    )


def _action_command(action: str, help: str) -> Callable[..., None]:
    """Build the command that applies `action` to jobs."""

    def command(
        jobs: JobsArgument = None,
        user: UserOption = None,
        state: StateOption = None,
        cluster: ClusterOption = None,
        json: JsonOption = False,
        config: ConfigOption = None,
    ) -> None:
        change_jobs(action, jobs or (), user, state, cluster, json, config)

    command.__doc__ = help
    return command


cancel = _action_command(
    "cancel",
    """Cancel queued, pending or running jobs.

    \b
    Examples:
      metasched cancel 17 18_3 '19_[4-9]'
      metasched cancel --user ada --state pending
    """,
)
hold = _action_command(
    "hold",
    """Hold jobs that have not started.

    \b
    Examples:
      metasched hold 17
      metasched hold --user ada
    """,
)
release = _action_command(
    "release",
    """Release held jobs.

    \b
    Examples:
      metasched release 17
      metasched release --state held
    """,
)
requeue = _action_command(
    "requeue",
    """Requeue jobs: run them again from the start.

    A running job is ended first. --state also selects jobs that ended in the last hour. The job
    keeps its id and gets a new attempt; its output files are overwritten.

    \b
    Examples:
      metasched requeue 17
      metasched requeue --state failed,timeout
    """,
)


def resolve(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[JOB]... lost|ran", show_default=False, autocompletion=complete_jobs
        ),
    ],
    user: UserOption = None,
    state: StateOption = None,
    cluster: ClusterOption = None,
    exit_code: Annotated[
        int | None,
        typer.Option("--exit-code", metavar="N", help="Exit code of the jobs that ran."),
    ] = None,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Resolve unknown jobs: `lost` if they never started, `ran` if they did.

    A lost job is dispatched again. Search the records of its cluster for its tag first: a job that
    does run there would run twice. A job that ran counts as completed, or as failed if its exit
    code is not 0.

    \b
    Examples:
      metasched resolve 17 lost
      metasched resolve 18_3 ran --exit-code 1
      metasched resolve ran --cluster alpha --user ada
    """
    *jobs, resolution = words
    if resolution not in ("lost", "ran"):
        raise UserError(f"{quote_for_error(resolution)}, metasched resolve; write lost or ran")
    change_jobs(resolution, jobs, user, state, cluster, json, config, exit_code)


def wait(jobs: RequiredJobs, json: JsonOption = False, config: ConfigOption = None) -> int:
    """Wait until jobs end; exit with their highest exit code.

    The code is 124 for a job that reached its time limit, 130 for a cancelled job, 3 for a job that
    every cluster rejected, and 1 if the exit code is unknown.

    \b
    Examples:
      metasched wait 17
      metasched wait 17 18 19 && metasched submit evaluate.sh
    """
    return wait_for_jobs(jobs, json, config)


def output(
    job: Annotated[
        str, typer.Argument(metavar="JOB", show_default=False, autocompletion=complete_jobs)
    ],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the output until the job ends.")
    ] = False,
    error: Annotated[
        bool, typer.Option("--error", "-e", help="Print the error stream instead.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the paths as JSON.")] = False,
    config: ConfigOption = None,
) -> int:
    """Print the output of a job.

    \b
    Examples:
      metasched output 17
      metasched output 17 --follow
      metasched output 17 --error | tail
    """
    return print_output(job, follow, error, json, config)
