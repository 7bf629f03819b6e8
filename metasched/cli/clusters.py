"""The commands about clusters: clusters, cluster drain, cluster resume."""

import json as json_format
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from metasched.cli.connect import Config, Json, connect, filled
from metasched.cli.explain import number
from metasched.cli.show import moment, table

Name = Annotated[str, typer.Argument(metavar="NAME", callback=filled, show_default=False)]

cluster = typer.Typer(
    help="""Close a cluster to new work, and open it again.

    \b
    Examples:
      metasched cluster drain alpha --reason 'new kernel on Friday'
      metasched cluster resume alpha
    """,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def clusters(json: Json = False, config: Config = None) -> None:
    """List the clusters, what they have, and what is queued on them.

    LOAD is the processor time still owed there at the lowest priority, JOBS counts ours that
    are queued; --json has both for every priority. SINCE and NEXT TRY are of one that does not
    answer or whose worker died: it is asked less and less often.

    \b
    Examples:
      metasched clusters
      metasched clusters --json
    """
    _show(connect(config).clusters(), json)


@cluster.command()
def drain(
    name: Name,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")] = "",
    keep_pending: Annotated[
        bool, typer.Option("--keep-pending", help="What waits in its queue may stay there.")
    ] = False,
    json: Json = False,
    config: Config = None,
) -> None:
    """Send a cluster nothing new. What runs there goes on.

    What waits in its queue is taken back once it has certainly not begun, and goes to another
    cluster or waits. It stays drained over restarts, until resumed.

    \b
    Examples:
      metasched cluster drain alpha --reason 'new kernel on Friday'
      metasched cluster drain alpha --keep-pending
    """
    _show_one(connect(config).drain(name, reason, keep_pending), json)


@cluster.command()
def resume(name: Name, json: Json = False, config: Config = None) -> None:
    """Let a drained cluster have work again.

    \b
    Examples:
      metasched cluster resume alpha
    """
    _show_one(connect(config).resume(name), json)


def _show_one(row: Mapping[str, Any], json: bool) -> None:
    if json:
        print(json_format.dumps(row, indent=2))
    else:
        _show([row], json=False)


def _show(rows: Sequence[Mapping[str, Any]], json: bool) -> None:
    if json:
        print(json_format.dumps(rows, indent=2))
        return
    table(
        (
            *("CLUSTER", "ADAPTER", "STATE", "CPUS", "USED", "PENDING", "LOAD", "JOBS"),
            *("SINCE", "NEXT TRY"),
        ),
        (
            (
                r["cluster"],
                " by ".join(filter(None, (r["adapter"], r["access"]))),
                *(r[k] for k in ("state", "cpus", "used", "pending")),
                *(number(r[k][0]) if r[k] else "" for k in ("load", "count")),
                *_since(r),
            )
            for r in rows
        ),
    )


def _since(row: Mapping[str, Any]) -> tuple[str, str]:
    """Since when it does not answer, else its worker dies, else is drained; and the next try."""
    for trouble in (row.get("breaker"), row.get("worker")):
        if trouble and trouble["failures"]:
            return moment(trouble["since"]), moment(trouble["next_try"])
    return moment((row.get("drained") or {}).get("since")), ""
