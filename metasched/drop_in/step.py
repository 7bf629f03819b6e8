"""A step of a job on a cluster without Slurm: its tasks run on the node of the job."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import ExitStack

from metasched.drop_in.command import CommandError

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
MAX_TASKS = 10_000


def run_step(
    program: Sequence[str], tasks: int, directory: str = "", output: str = "", error: str = ""
) -> int:
    """Run a program as tasks 0 to `tasks` - 1. Return their largest exit code, as srun does.

    `output`, `error`: paths, with `%t` for the task; "": those of this process. Signals are passed
    on to the tasks. CommandError if the program cannot be started.
    """
    if not program:
        raise CommandError("srun: fatal: No command given to execute.")
    if not 0 < tasks <= MAX_TASKS:
        raise CommandError(f"srun: error: Invalid number of tasks: {tasks}")
    processes: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    try:
        for task in range(tasks):
            processes.append(_start(program, task, tasks, directory, output, error))
    except OSError as problem:
        forward(signal.SIGTERM, None)
        raise CommandError(
            f"srun: error: execve(): {problem.filename or program[0]}: {problem.strerror}"
        ) from None
    codes = [process.wait() for process in processes]
    return max(128 - code if code < 0 else code for code in codes)


def _start(
    program: Sequence[str], task: int, tasks: int, directory: str, output: str, error: str
) -> subprocess.Popen[bytes]:
    variables = {
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(task),
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_STEP_NUM_TASKS": str(tasks),
    }
    with ExitStack() as files:

        def opened(path: str) -> int | None:
            if not path:
                return None
            name = path.replace("%t", str(task))
            descriptor = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            files.callback(os.close, descriptor)
            return descriptor

        stdout = opened(output)
        return subprocess.Popen(
            program,
            env={**os.environ, **variables},
            cwd=directory or None,
            stdin=None if task == 0 else subprocess.DEVNULL,
            stdout=stdout,
            stderr=opened(error) or (subprocess.STDOUT if stdout else None),
        )
