"""A step of a job on a cluster without Slurm: its tasks run on the node of the job."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import ExitStack

from metasched.drop_in.command import CommandError

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
MAX_TASKS = 10_000


class Step:
    """A program that runs as tasks 0 to `tasks` - 1, with the variables `environment`.

    `paths` are those of input, output and error, with srun's patterns; "": that of this process.
    """

    def __init__(
        self,
        program: Sequence[str],
        tasks: int,
        environment: Mapping[str, str],
        directory: str,
        paths: Sequence[str],
    ) -> None:
        if not program:
            raise CommandError("srun: fatal: No command given to execute.")
        if not 0 < tasks <= MAX_TASKS:
            raise CommandError(f"srun: error: Invalid number of tasks: {tasks}")
        self.program, self.tasks, self.environment = program, tasks, environment
        self.directory, self.paths = directory, paths

    def path_of(self, stream: int, task: int) -> str:
        """Return the path of a stream (0, 1, 2) of a task."""
        values = {
            "t": str(task),
            "s": "0",
            "n": "0",
            "N": os.uname().nodename.partition(".")[0],
            "u": self.environment.get("USER", ""),
            "x": self.environment.get("SLURM_JOB_NAME", "").replace("/", "_"),
            "%": "%",
        }
        path = self.paths[stream]
        if path == "none":
            return os.devnull
        return re.sub("%[0-9]*([tsnNux%])", lambda match: values[match[1]], path)


def exported_variables(text: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `--export` lets pass: ALL, NONE, or NAME and NAME=value."""
    entries = [entry for entry in text.split(",") if entry]
    if "ALL" in entries:
        exported = dict(environ)
    else:
        prefixes = ("SLURM_", "METASCHED_")
        exported = {name: value for name, value in environ.items() if name.startswith(prefixes)}
    for entry in entries:
        name, is_set, value = entry.partition("=")
        if is_set:
            exported[name] = value
        elif name in environ and name not in ("ALL", "NONE", "NIL"):
            exported[name] = environ[name]
    return exported


def run_step(step: Step) -> int:
    """Run a step. Return the largest exit code of its tasks, as srun does.

    Signals are passed on to the tasks. CommandError if the program cannot be started.
    """
    processes: list[subprocess.Popen[bytes]] = []
    received: list[int] = []  # signals, until each task that has started is in `processes`

    def forward(number: int, _: FrameType | None = None) -> None:
        for process in processes:
            process.send_signal(number)

    for number in _FORWARDED:
        signal.signal(number, lambda number, _: received.append(number))
    opened: set[str] = set()  # paths of output, which begin empty
    try:
        for task in range(step.tasks):
            processes.append(_start(step, task, opened))
    except OSError as problem:
        forward(signal.SIGTERM)
        raise CommandError(
            f"srun: error: {problem.filename or step.program[0]}: {problem.strerror}"
        ) from None
    for number in _FORWARDED:
        signal.signal(number, forward)
    for missed in received:
        forward(missed)
    codes = [process.wait() for process in processes]
    return max(128 - code if code < 0 else code for code in codes)


def _start(step: Step, task: int, opened: set[str]) -> subprocess.Popen[bytes]:
    variables = {
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(task),
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_NTASKS": str(step.tasks),
        "SLURM_NPROCS": str(step.tasks),
        "SLURM_STEP_NUM_TASKS": str(step.tasks),
    }
    with ExitStack() as files:

        def open_stream(stream: int) -> int | None:
            path = step.path_of(stream, task)
            if not path:
                return None
            flags = os.O_RDONLY
            if stream:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                flags |= 0 if path in opened else os.O_TRUNC
                opened.add(path)
            descriptor = os.open(path, flags, 0o666)
            files.callback(os.close, descriptor)
            return descriptor

        stdin, stdout, stderr = (open_stream(stream) for stream in range(3))
        if stdin is None and task:
            stdin = subprocess.DEVNULL  # the first task reads that of srun
        if stderr is None and stdout is not None:
            stderr = subprocess.STDOUT
        return subprocess.Popen(
            step.program,
            env={**step.environment, **variables},
            cwd=step.directory or None,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
