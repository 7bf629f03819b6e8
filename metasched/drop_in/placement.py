"""`srun` and `salloc` outside of a job: a cluster is chosen as for a batch job."""

from __future__ import annotations

import os
import time

from metasched.client.client import Client
from metasched.client.connection import ClientError, DaemonUnreachable, ResponseLost
from metasched.drop_in.command import CommandError, connect
from metasched.drop_in.native_clusters import read_clusters
from metasched.drop_in.sbatch_options import OPTIONS
from metasched.drop_in.sbatch_values import Conversion
from metasched.model.units import ParseError, parse_licence_choices

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from metasched.client.connection import Connection
    from metasched.drop_in.native_clusters import NativeCluster
    from metasched.drop_in.srun_options import Option

# options on which the choice of a cluster depends, as those of sbatch
REQUIREMENTS = {
    *("account", "clusters", "constraint", "cpus-per-task", "exclusive", "gpus", "gpus-per-node"),
    *("gpus-per-task", "gres", "licenses", "mem", "mem-per-cpu", "nodes", "ntasks"),
    *("ntasks-per-node", "partition", "qos", "reservation", "time"),
}
_PREFIXES = {"srun": "SLURM_", "salloc": "SALLOC_"}  # of input variables, for sbatch's SBATCH_


def exec_on_cluster(command: str, options: Sequence[Option], program: Sequence[str]) -> None:
    """Replace this process by the real command of the cluster that the daemon chooses now.

    Nothing is stored in metasched. So CommandError if site licences or a reservation of metasched
    are requested, and if no cluster of this host can run the request.
    """
    values = _values(command, options)
    connection = connect()
    clusters = read_clusters(connection)
    chosen = clusters.choose(command, values.pop("clusters", None))
    candidates = {
        cluster.name: cluster
        for cluster in (clusters.clusters if chosen is None else chosen)
        if cluster.program(command)
    }
    if not candidates:
        names = ", ".join(c.name for c in chosen or ()) or "any cluster"
        raise CommandError(f"{command}: error: this host has no {command} for {names}")
    _check_unreserved(command, connection, values)
    cluster = _choose(command, connection, values, candidates)
    words = [word for name, _, words in options if name != "clusters" for word in words]
    cluster.exec(command, [*words, *program])


def _values(command: str, options: Sequence[Option]) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for name in REQUIREMENTS:
        for variable in OPTIONS[name].variables:
            variable = variable.replace("SBATCH_", _PREFIXES[command])
            if os.environ.get(variable):
                values[name] = os.environ[variable]
    values.update({name: value for name, value, _ in options if name in REQUIREMENTS})
    return {name: value or None for name, value in values.items()}


def _check_unreserved(
    command: str, connection: Connection, values: Mapping[str, str | None]
) -> None:
    """Raise CommandError for what metasched grants to its own jobs alone."""
    remedy = "submit a batch job by sbatch"
    reservation = values.get("reservation") or ""
    if reservation.isascii() and reservation.isdecimal():
        raise CommandError(f"{command}: error: reservation {reservation} is of metasched; {remedy}")
    if not values.get("licenses"):
        return
    try:
        choices = parse_licence_choices(values["licenses"] or "")
    except ParseError:
        raise CommandError(f"{command}: error: Invalid license specification") from None
    rows, _ = connection.request("GET", "/licences")
    for row in rows:
        if any(row["licence"] in requested for requested in choices):
            raise CommandError(
                f"{command}: error: licence {row['licence']} is of the whole site; {remedy}"
            )


def _choose(
    command: str,
    connection: Connection,
    values: dict[str, str | None],
    candidates: Mapping[str, NativeCluster],
) -> NativeCluster:
    """Return the cluster to which a batch job would go now."""
    try:
        fields = Conversion(values, time.time()).fields
    except CommandError as error:
        raise CommandError(str(error).replace("sbatch:", f"{command}:")) from None
    job: dict[str, Any] = {
        **fields,
        "script": "script",
        "environment": "environment",
        "umask": 0o077,
        "arguments": [],
        "name": command,
        "clusters": list(candidates),
    }
    submission = {
        "jobs": [job],
        "scripts": {"script": "#!/bin/sh\n"},
        "environments": {"environment": {}},
        "dry_run": True,
    }
    failed = f"{command}: error: Unable to allocate resources"
    try:
        [answer] = Client(connection.path).submit(submission)
    except (DaemonUnreachable, ResponseLost):
        raise
    except ClientError as error:
        raise CommandError(f"{failed}: {error}") from None
    if answer["cluster"] is None:
        reasons = [
            f"{verdict['cluster']}: {verdict['text'] or verdict['reason']}"
            for verdict in answer["why"]["clusters"]
            if verdict["cluster"] in candidates
        ]
        raise CommandError(f"{failed}: {'; '.join(reasons)}")
    return candidates[answer["cluster"]]
