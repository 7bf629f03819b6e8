"""The commands about clusters: clusters, cluster drain, cluster resume."""

import json as json_format
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from metasched.cli.common_options import ConfigOption, JsonOption, require_value
from metasched.cli.completion import complete_clusters
from metasched.cli.connect import connect
from metasched.cli.explain import format_number
from metasched.cli.show import format_time, print_table

ClusterArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", callback=require_value, show_default=False, autocompletion=complete_clusters
    ),
]

cluster = typer.Typer(
    help="""Drain and resume clusters.

    \b
    Examples:
      metasched cluster drain alpha --reason 'new kernel on Friday'
      metasched cluster resume alpha
    """,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def clusters(json: JsonOption = False, config: ConfigOption = None) -> None:
    """List the clusters with their state, size and queue.

    LOAD is the remaining processor time of their queue at the lowest priority. JOBS counts the jobs
    of metasched that are pending there. --json lists both for every priority. PULLS counts the jobs
    that were moved there to start at once, with the percentage that did. SINCE and NEXT TRY belong
    to a cluster that does not answer or whose worker died; polls are delayed.

    \b
    Examples:
      metasched clusters
      metasched clusters --json
    """
    _print_clusters(connect(config).clusters(), json)


@cluster.command()
def drain(
    name: ClusterArgument,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Reason, shown to users.")
    ] = "",
    keep_pending: Annotated[
        bool, typer.Option("--keep-pending", help="Leave pending jobs in its queue.")
    ] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Drain a cluster: dispatch nothing new to it; running jobs continue.

    Pending jobs are withdrawn once they have certainly not started. They are dispatched to another
    cluster, or are queued in metasched. The drain survives restarts, until `cluster resume`.

    \b
    Examples:
      metasched cluster drain alpha --reason 'new kernel on Friday'
      metasched cluster drain alpha --keep-pending
    """
    _print_cluster(connect(config).drain(name, reason, keep_pending), json)


@cluster.command()
def resume(name: ClusterArgument, json: JsonOption = False, config: ConfigOption = None) -> None:
    """Resume a drained cluster.

    \b
    Examples:
      metasched cluster resume alpha
    """
    _print_cluster(connect(config).resume(name), json)


def _print_cluster(row: Mapping[str, Any], json: bool) -> None:
    if json:
        print(json_format.dumps(row, indent=2))
    else:
        _print_clusters([row], json=False)


def _print_clusters(rows: Sequence[Mapping[str, Any]], json: bool) -> None:
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    print_table(
        (
            "CLUSTER",
            "ADAPTER",
            "STATE",
            "CPUS",
            "USED",
            "PENDING",
            "LOAD",
            "JOBS",
            "PULLS",
            "SINCE",
            "NEXT TRY",
        ),
        (
            (
                row["cluster"],
                " by ".join(filter(None, (row["adapter"], row["access"]))),
                *(row[key] for key in ("state", "cpus", "used", "pending")),
                *(format_number(row[key][0]) if row[key] else "" for key in ("load", "count")),
                _describe_pulls(row),
                *_trouble_times(row),
            )
            for row in rows
        ),
    )
    for row in rows:
        if (row.get("local_policy") or {}).get("excluded"):
            print(f"{row['cluster']}: FCFS decides in place of its policy, see `metasched doctor`")


def _describe_pulls(row: Mapping[str, Any]) -> str:
    """Return the number of pulls and the percentage that started at once."""
    pulls = row.get("pulls", 0)
    return f"{pulls} ({100 * row['pulls_started_at_once'] // pulls}%)" if pulls else ""


def _trouble_times(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the start of an outage, of worker failures or of a drain; and the next retry."""
    for trouble in (row.get("breaker"), row.get("worker")):
        if trouble and trouble["failures"]:
            return format_time(trouble["since"]), format_time(trouble["next_try"])
    return format_time((row.get("drained") or {}).get("since")), ""
