"""`srun`: the real command. Inside a job with Slurm's id, and metasched's for its tasks.

Outside of a job a cluster is chosen for it (`placement`).
"""

from __future__ import annotations

import os
import re

from metasched.drop_in.command import CommandError, exec_real
from metasched.drop_in.job_context import (
    current_job_id,
    job_number,
    on_other_manager,
    shows_own_id,
    use_manager_id,
)
from metasched.drop_in.srun_options import split_options

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metasched.drop_in.srun_options import Option

# input variables with a path that may hold patterns: of 22.05, and of 23.11
_PATH_VARIABLES = (
    *("SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_STDINMODE"),
    *("SRUN_OUTPUT", "SRUN_ERROR", "SRUN_INPUT"),
)
_EXPORT_VARIABLES = ("SRUN_EXPORT_ENV", "SLURM_EXPORT_ENV")
_PATTERN = re.compile(r"%(\d*)(.)", re.DOTALL)
_USER_PROLOG = "METASCHED_TASK_PROLOG"  # path of the program that the user's --task-prolog names


def main(arguments: Sequence[str]) -> int:
    """Run the real srun. Raises CommandError if there is none, or no cluster for it."""
    options, program = split_options(arguments)
    if on_other_manager():
        return _run_here(options, program)
    if current_job_id():
        if shows_own_id("srun"):
            arguments = [*own_options(options), *program]
            use_manager_id()
        exec_real("srun", arguments)
    values = {name: value for name, value, _ in options if name}
    if values.keys() & {"help", "usage", "version"}:
        exec_real("srun", arguments)
    if "jobid" in values:
        from metasched.drop_in.job_tools import exec_step  # few calls need it

        exec_step(options, program, values["jobid"])
    from metasched.drop_in.placement import exec_on_cluster

    exec_on_cluster("srun", options, program)
    return 0


def _run_here(options: Sequence[Option], program: Sequence[str]) -> int:
    """Run a step in a job on a cluster without Slurm. CommandError if the job has several hosts."""
    from metasched.drop_in.step import Step, exported_variables, run_step

    values = {name: value for name, value, _ in options if name}
    if values.keys() & {"help", "usage", "version"}:
        print("slurm-metasched: srun [-n tasks] [-D dir] [-i|-o|-e file] [--export list] program")
        return 0
    if os.environ.get("NHOSTS", "1") != "1":
        raise CommandError("srun: error: a job of several hosts, and no Slurm; use mpirun")
    tasks = values.get("ntasks") or os.environ.get("SLURM_NTASKS") or "1"
    if not (tasks.isascii() and tasks.isdecimal()):
        raise CommandError(f"srun: error: Invalid numeric value {tasks!r} for --ntasks.")
    export = next((os.environ[name] for name in _EXPORT_VARIABLES if os.environ.get(name)), "ALL")
    step = Step(
        program[1:] if program[:1] == ["--"] else program,
        int(tasks),
        exported_variables(values.get("export") or export, os.environ),
        values.get("chdir", ""),
        [own_pattern(values.get(name, "")) for name in ("input", "output", "error")],
    )
    return run_step(step)


def own_options(options: Sequence[Option]) -> list[str]:
    """Return the options of the real srun, and set its input variables.

    Patterns in paths get metasched's id. A prolog of tasks exports it to each task, for which
    slurmstepd has set Slurm's. `--export` lets the variables of that prolog pass.
    """
    words: list[str] = []
    prolog = os.environ.pop("SLURM_TASK_PROLOG", "")
    export = next((os.environ[name] for name in _EXPORT_VARIABLES if os.environ.get(name)), "")
    for name, value, option_words in options:
        if name == "task-prolog":
            prolog = value
        elif name == "export":
            export = value
        elif name == "jobid" and value == job_number():
            words.append(f"--jobid={os.environ['METASCHED_NATIVE_ID']}")
        elif name in ("output", "error", "input"):
            words.append(f"--{name}={own_pattern(value)}")
        else:
            words += option_words
    for variable in _PATH_VARIABLES:
        if variable in os.environ:
            os.environ[variable] = own_pattern(os.environ[variable])
    os.environ[_USER_PROLOG] = prolog
    words.append(f"--task-prolog={os.environ['METASCHED_DROP_IN']}/task_prolog")
    if export:
        if "ALL" not in export.split(","):
            listed = [] if export in ("NONE", "NIL") else [export]
            export = ",".join([*listed, "METASCHED_TASK_NUMBER", _USER_PROLOG])
        words.append(f"--export={export}")
    return words


def own_pattern(path: str) -> str:
    """Return a path with `%j`, `%J`, `%A` and `%a` replaced by metasched's ids.

    srun expands nothing in a path with a backslash.
    """
    if "\\" in path:
        return path
    number = job_number()
    array = os.environ.get("METASCHED_ARRAY_JOB_ID", number)
    # %s: the number of the step
    ids = {"j": (number, ""), "J": (number, ".%s"), "A": (array, "")}
    if "METASCHED_ARRAY_TASK_ID" in os.environ:
        ids["a"] = (os.environ["METASCHED_ARRAY_TASK_ID"], "")

    def replacement(match: re.Match[str]) -> str:
        if match[2] not in ids:
            return match[0]
        text, suffix = ids[match[2]]
        return text.zfill(min(int(match[1] or 0), 10)) + suffix

    return _PATTERN.sub(replacement, path)
