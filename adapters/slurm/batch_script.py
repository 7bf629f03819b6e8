"""The script that sbatch receives: the user's, or a script that sets variables and execs it.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from shlex import quote

from metasched.adapters.base import Submission
from metasched.adapters.interpreter import exec_lines
from metasched.paths import drop_in_folder

_JOB_ID_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOBID")
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_VALID_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def without_directives(source: str) -> bytes:
    """Return the script with its directives disabled, all other lines unchanged.

    metasched has read the directives already. sbatch reads `#SBATCH` (and fails on `#SLURM`) at
    the start of lines before the first command.
    """
    lines = source.split("\n")
    for number, line in enumerate(lines):
        if line.startswith(("#SBATCH", "#SLURM")):
            lines[number] = "# " + line[1:]
        elif line.strip(" \t\r\v\f") and not line.lstrip(" \t\r\v\f").startswith("#"):
            break
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def task_script(submission: Submission, index: int, cluster: str, bin_dir: str | None) -> bytes:
    """Return the script of a task that is submitted as a job of its own."""
    if not submission.exports_job_id:
        return without_directives(submission.payload.script)
    variables = submission.environment(index, cluster)
    lines = _export_lines(variables["METASCHED_TASK_NUMBER"], submission.job.name, bin_dir)
    return _wrapper(lines, submission.payload.script, _unexportable(variables))


def array_script(
    submission: Submission, indices: Sequence[int], cluster: str, bin_dir: str | None
) -> bytes:
    """Return the script of an array: it sets each task's own variables and execs the user's script.

    It also sets SLURM_ARRAY_*, which Slurm sets as if the array were the whole job.
    """
    first, last = (submission.environment(index, cluster) for index in (indices[0], indices[-1]))
    assignments = _unexportable(first)
    for variable, value in first.items():
        if variable in ("METASCHED_TASK_NUMBER", *_JOB_ID_VARIABLES):
            continue  # see `_export_lines`
        if value != last[variable]:
            assignments.append(f'{variable}="$SLURM_ARRAY_TASK_ID"')
        elif variable.startswith("SLURM_ARRAY_"):
            assignments.append(quote(f"{variable}={value}"))
    lines = []
    if submission.exports_job_id:
        number = submission.job.task_number
        lines = [
            "case $SLURM_ARRAY_TASK_ID in",
            *(f"{index}) METASCHED_TASK_NUMBER={number(index)};;" for index in indices),
            "esac",
            *_export_lines("$METASCHED_TASK_NUMBER", submission.job.name, bin_dir),
        ]
    return _wrapper(lines, submission.payload.script, assignments)


def _wrapper(lines: Sequence[str], script: str, assignments: Sequence[str]) -> bytes:
    """Return a script that runs `lines` and execs `script`; `assignments` are arguments of env."""
    directives = _burst_buffer_lines(script)
    text = "\n".join(["#!/bin/sh", *directives, *lines, *exec_lines(script, assignments), ""])
    return text.encode("utf-8", "surrogateescape")


def _burst_buffer_lines(script: str) -> list[str]:
    """Return the `#BB` and `#DW` lines, which Slurm reads up to the first line of commands."""
    comments = takewhile(lambda line: not line.strip() or line.startswith("#"), script.split("\n"))
    return [line for line in comments if line.startswith(("#BB", "#DW"))]


def _unexportable(variables: Mapping[str, str]) -> list[str]:
    """Return arguments of env for variables that a shell would drop: their names are invalid."""
    return [
        quote(f"{variable}={value}")
        for variable, value in variables.items()
        if not _VALID_NAME.fullmatch(variable)
    ]


def _export_lines(number: str, job_name: str, bin_dir: str | None) -> list[str]:
    """Return lines of sh that export metasched's id instead of Slurm's; `number` is a shell word.

    srun needs Slurm's id. So the drop-in srun must be on the PATH, and a node that does not see it
    keeps Slurm's ids. The drop-in reads METASCHED_*, since clients remove SLURM_*.
    """
    folder = drop_in_folder()
    exported = ("PATH", "METASCHED_DROP_IN", "METASCHED_TASK_NUMBER", "SLURM_JOB_NAME")
    return [
        "METASCHED_NATIVE_ID=$SLURM_JOB_ID METASCHED_SLURM_CONF=$SLURM_CONF",
        f"METASCHED_SLURM_BIN={quote(bin_dir or '')}",
        "export METASCHED_NATIVE_ID METASCHED_SLURM_CONF METASCHED_SLURM_BIN",
        f"METASCHED_DROP_IN={quote(folder)}",
        'if [ -x "$METASCHED_DROP_IN/srun" ]; then',
        f"  METASCHED_TASK_NUMBER={number} SLURM_JOB_NAME={quote(job_name)}",
        *(f"  {name}=$METASCHED_TASK_NUMBER" for name in _JOB_ID_VARIABLES),
        f"  PATH=$METASCHED_DROP_IN:${{PATH:-{_DEFAULT_PATH}}}",
        f"  export {' '.join((*exported, *_JOB_ID_VARIABLES))}",
        "else",
        "  unset METASCHED_DROP_IN METASCHED_TASK_NUMBER",
        "fi",
    ]
