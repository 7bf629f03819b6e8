"""Commands of Slurm that metasched does not replace: the real ones, on the cluster of the job.

Ids of metasched are replaced by the managers' ids.
"""

from __future__ import annotations

import os
import sys

from metasched.drop_in.command import (
    CommandError,
    connect,
    exec_real,
    listed_tasks,
    parse_options,
    real_arguments,
    real_environment,
)
from metasched.drop_in.job import OPEN_STATES
from metasched.drop_in.job_filters import is_job_id, words_of
from metasched.drop_in.native_clusters import read_clusters, run_native, slurm_clusters

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from metasched.client.connection import Connection
    from metasched.drop_in.native_clusters import NativeCluster
    from metasched.drop_in.srun_options import Option

    RunForOwn = Callable[[NativeCluster, Sequence[tuple[str, str]], Mapping[str, str]], int]

_PLACE_OPTIONS = ("jobid", "clusters")  # of srun
WAITING = "Job is pending execution"
ENDED = "Job/step already completing or completed"
_AT_MANAGER = ("dispatching", "pending", "running", "suspended", "unknown")
CLUSTERS = {"clusters=": "M", "cluster=": "M"}  # options of metasched's: by either name


def run_tool(
    name: str,
    options: Mapping[str, str],
    arguments: Sequence[str],
    run_for_own: RunForOwn | None = None,
) -> int:
    """Run a real command where its jobs are. Return the largest exit code.

    `options` as in `parse_options`. Without `--jobs` the words are ids, if there are any.
    `run_for_own` runs it for the jobs of metasched on a cluster, by the managers' ids, with the
    options besides ids and clusters. Without it the command prints the managers' ids.
    """
    parsed, words = parse_options(name, options, arguments)
    rest = [(key, value) for key, value in parsed if key not in ("clusters", "jobs")]
    names = next((value for key, value in parsed if key == "clusters"), None)
    ids = [word for key, value in parsed if key == "jobs" for word in words_of(value)]
    by_option = "jobs=" in options
    if not by_option:
        ids, words = words, []
    if not ids and names is None:
        exec_real(name, arguments)
    connection = connect()
    clusters = read_clusters(connection)
    chosen = clusters.choose(name, names)

    def run(ids: Sequence[str], where: Sequence[NativeCluster] | None, is_last: bool) -> int:
        jobs = [("jobs", ",".join(ids))] if by_option and ids else []
        positional = words if by_option else [*ids, *words]
        return run_native(name, real_arguments(options, [*rest, *jobs], positional), where, is_last)

    own = [word for word in ids if not clusters.is_native(word)]
    native = [word for word in ids if clusters.is_native(word)]
    if not own:
        return run(native, chosen, True)
    places = _some_places(name, connection, own)
    by_name = {cluster.name: cluster for cluster in clusters.clusters}
    codes = [run(native, chosen, False)] if native else []
    for cluster, own_by_native in places.items():
        if cluster not in by_name:
            raise CommandError(f"{name}: error: cluster {cluster} is configured no more")
        if run_for_own is not None:
            codes.append(run_for_own(by_name[cluster], rest, own_by_native))
            continue
        is_last = not codes and len(places) == 1
        codes.append(run(list(own_by_native), [by_name[cluster]], is_last))
    return max(codes)


def exec_step(options: Sequence[Option], program: Sequence[str], job: str) -> None:
    """Replace this process by the real srun, for a step in a job of metasched or of a cluster.

    The daemon is asked first: it alone knows the lowest id of metasched, which may be any.
    """
    names = next((value for option, value, _ in options if option == "clusters"), None)
    names = names or os.environ.get("SLURM_CLUSTERS") or None
    connection = connect()
    clusters = read_clusters(connection)
    rest = [w for option, _, words in options if option not in _PLACE_OPTIONS for w in words]
    if clusters.is_native(job):
        chosen = clusters.choose("srun", names)
        if chosen is None:
            exec_real("srun", [f"--jobid={job}", *rest, *program])
        elif len(chosen) > 1:
            raise CommandError(f"srun: error: job {job} is on one cluster; name it with -M")
        else:
            slurm_clusters("srun", chosen)[0].exec("srun", [f"--jobid={job}", *rest, *program])
    places = _some_places("srun", connection, [job])
    by_name = {cluster.name: cluster for cluster in clusters.clusters}
    (name, ids), *others = places.items()
    if others or len(ids) > 1:
        raise CommandError(f"srun: error: job {job} is an array; name a task, {job}_INDEX")
    if name not in by_name:
        raise CommandError(f"srun: error: cluster {name} is configured no more")
    slurm = slurm_clusters("srun", [by_name[name]])
    slurm[0].exec("srun", [f"--jobid={next(iter(ids))}", *rest, *program])


def _some_places(
    command: str, connection: Connection, words: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return the places of jobs; print a line for each without. CommandError if none has one."""
    places, missing = native_places(command, connection, words)
    lines = [f"{command}: error: job {word.partition('.')[0]} is on no cluster" for word in missing]
    if not places:
        raise CommandError("\n".join(lines))
    for line in lines:
        print(line, file=sys.stderr)
    return places


def native_places(
    command: str, connection: Connection, words: Sequence[str], *, changes: bool = False
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the managers' ids of jobs of metasched, and why others have none.

    The former are by cluster, each with the id in metasched; of `17.0` the manager's has the step.
    The latter are by word, in words of Slurm. CommandError for a word that is no id. A command
    that `changes` jobs gets only those that managers have now: the id of an earlier one may be that
    of another job, after its controller has lost its state.
    """
    places: dict[str, dict[str, str]] = {}
    missing = {}
    ids = [word.partition(".")[0] for word in words]
    for word, id in zip(words, ids):
        step = word.partition(".")[2]
        if not is_job_id(id) or (not step.replace("+", "").isalnum() and step):
            raise CommandError(f"{command}: error: Invalid job id {word}")
    by_id = _rows_by_id(connection, [id for id in ids if "[" not in id])
    for word, id in zip(words, ids):
        missing[word] = "Invalid job id specified"
        rows = list(_rows(connection, [id])) if "[" in id else by_id.get(id, [])
        for row in rows:
            native_id = row["native_id"] or ""
            if is_job_id(native_id) and (not changes or row["state"] in _AT_MANAGER):
                own_id = id if len(rows) == 1 else f"{row['job']}_{row['task']}"
                places.setdefault(row["cluster"], {})[f"{native_id}{word[len(id) :]}"] = own_id
                missing.pop(word, None)
            elif word in missing:
                missing[word] = WAITING if row["state"] in OPEN_STATES.split(",") else ENDED
    return places, missing


def run_for_jobs(
    command: str,
    cluster: NativeCluster,
    arguments: Sequence[str],
    own_ids: Mapping[str, str],
    translate: Callable[[str], str] | None = None,
) -> int:
    """Run a real command about jobs of metasched; return its exit code.

    Its errors name the jobs by `own_ids`, which are by the managers' ids. `translate` returns its
    output as it is printed.
    """
    import re  # few calls need these
    import subprocess

    path = cluster.required_program(command)
    environment = real_environment(path, cluster.environment())
    sys.stdout.flush()
    output = subprocess.PIPE if translate else None
    done = subprocess.run(
        [path, *arguments], env=environment, stdout=output, stderr=subprocess.PIPE, check=False
    )
    if translate:
        sys.stdout.write(translate(done.stdout.decode(errors="backslashreplace")))
    by_id = {native.partition(".")[0]: own for native, own in own_ids.items()}
    translated = re.sub(
        r"(\b(?:job|id|step|[Ss]tep[Ii]d=|[Jj]ob[Ii]d=) ?)(\d+(?:_\d+)?)\b",
        lambda match: match[1] + by_id.get(match[2], match[2]),
        done.stderr.decode(errors="backslashreplace"),
    )
    sys.stderr.write(translated)
    return done.returncode if done.returncode >= 0 else 1


def _rows_by_id(connection: Connection, ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of tasks by each id that they have: `17`, `17_3`, and their own number."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(connection, ids) if ids else ():
        for id in {str(row["job"]), f"{row['job']}_{row['task']}", str(row["number"])}:
            rows.setdefault(id, []).append(row)
    return rows


def _rows(connection: Connection, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
    return listed_tasks(connection, {"job": list(ids), "skip_missing": "true"})
