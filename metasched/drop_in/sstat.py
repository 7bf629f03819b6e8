"""`sstat`: use of resources by running jobs, by the real command on their clusters."""

from __future__ import annotations

import re

from metasched.drop_in.command import CommandError, real_arguments, real_environment
from metasched.drop_in.job_tools import CLUSTERS, run_for_jobs, run_tool

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from metasched.drop_in.native_clusters import NativeCluster

OPTIONS = {
    **CLUSTERS,
    "help": "h",
    "usage": "",
    "verbose": "v",
    "version": "V",
    "allsteps": "a",
    "format=": "o",
    "helpformat": "e",
    "jobs=": "j",
    "noconvert": "",
    "noheader": "n",
    "parsable": "p",
    "parsable2": "P",
    "pidformat": "i",
}


_WITHOUT_ROWS = {"help", "helpformat", "usage", "version"}
_STEP = re.compile(r" *([0-9]+)\.(\S+)")


def main(arguments: Sequence[str]) -> int:
    """Run the real sstat. Return its exit code."""
    return run_tool("sstat", OPTIONS, arguments, _run_for_own)


def _run_for_own(
    cluster: NativeCluster, parsed: Sequence[tuple[str, str]], own_ids: Mapping[str, str]
) -> int:
    """Print the use of jobs of metasched under their own ids, which are by the managers' ids."""
    numbers = _task_numbers(cluster, own_ids)
    by_number: dict[str, str] = {}
    steps = []
    for native_id, own_id in own_ids.items():
        job, separator, step = native_id.partition(".")
        if (number := numbers.get(job, job)).isdecimal():  # an ended task has none
            by_number[number] = own_id
            steps.append(f"{number}{separator}{step}")
    if not steps:
        raise CommandError("sstat: error: no task of this array is running")
    options = dict(parsed)

    def translate(output: str) -> str:
        if options.keys() & _WITHOUT_ROWS:
            return output
        lines = output.splitlines()
        is_parsable = bool(options.keys() & {"parsable", "parsable2"})
        rename = _own_cells if is_parsable else _own_columns
        heading = lines[: 1 if is_parsable else 2]
        rows = rename(heading, lines[len(heading) :], by_number) if heading else ()
        return "".join(f"{line}\n" for line in (*heading * ("noheader" not in options), *rows))

    # the heading shows which column has the ids
    shown = [(name, value) for name, value in parsed if name != "noheader"]
    arguments = real_arguments(OPTIONS, [*shown, ("jobs", ",".join(steps))], [])
    return run_for_jobs("sstat", cluster, arguments, by_number, translate)


def _task_numbers(cluster: NativeCluster, native_ids: Mapping[str, str]) -> dict[str, str]:
    """Return the numbers by which sstat names the running tasks of arrays, `13_1`."""
    tasks = {id.partition(".")[0] for id in native_ids if "_" in id}
    if not tasks:
        return {}
    import subprocess  # few calls need it

    path = cluster.required_program("squeue")
    command = [path, "--noheader", "--array", "--format=%i %A", f"--jobs={','.join(tasks)}"]
    environment = real_environment(path, cluster.environment())
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(f"sstat: error: cluster {cluster.name}: {done.stderr.strip()}")
    pairs = [line.split() for line in done.stdout.splitlines()]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0] in tasks}


def _own_cells(
    heading: Sequence[str], rows: Sequence[str], by_number: Mapping[str, str]
) -> Iterator[str]:
    """Yield rows whose cells are separated by bars, with ids of metasched."""
    columns = [place for place, name in enumerate(heading[0].split("|")) if _is_id(name)]
    listed: set[str] = set()
    for row in rows:
        cells = row.split("|")
        steps = [step for column in columns if (step := _STEP.fullmatch(cells[column]))]
        if steps and not _is_wanted(steps[0], by_number, listed):
            continue
        for column, step in zip(columns, steps):
            cells[column] = f"{by_number[step[1]]}.{step[2]}"
        yield "|".join(cells)


def _own_columns(
    heading: Sequence[str], rows: Sequence[str], by_number: Mapping[str, str]
) -> Iterator[str]:
    """Yield rows in columns of fixed widths, with ids of metasched; sstat cuts no id."""
    spans = [match.span() for match in re.finditer("-+", heading[-1])]
    spans = [(start, end) for start, end in spans if _is_id(heading[0][start:end].strip())]
    listed: set[str] = set()
    for row in rows:
        first = _STEP.match(row, spans[0][0]) if spans else None
        if first and not _is_wanted(first, by_number, listed):
            continue
        shift = 0  # characters by which longer ids have moved the columns to the right
        for start, end in spans:
            if step := _STEP.match(row, start + shift):
                cell = f"{by_number[step[1]]}.{step[2]}"
                is_left = row[start + shift] != " "
                cell = cell.ljust(end - start) if is_left else cell.rjust(end - start)
                row = row[: start + shift] + cell + row[max(step.end(), end + shift) :]
                shift += len(cell) - (end - start)
        yield row


def _is_wanted(step: re.Match[str], by_number: Mapping[str, str], listed: set[str]) -> bool:
    """Return whether a step is of a job that was named, and was not listed yet.

    sstat lists all tasks of an array, for each of its tasks.
    """
    if step[1] not in by_number or step[0].strip() in listed:
        return False
    listed.add(step[0].strip())
    return True


def _is_id(heading: str) -> bool:
    """Return whether a heading, which may be cut, is that of the column of ids."""
    return len(heading) > 2 and "JobID".startswith(heading)
