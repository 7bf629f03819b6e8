"""Which way a Slurm cluster is spoken to: by the commands, or by a pyslurm that serves it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import time

from metasched.adapters.commands import memory_file, start_command
from metasched.adapters.errors import Unreachable
from metasched.adapters.slurm.access import SlurmAccess, SlurmOptions
from metasched.adapters.slurm.commands import SlurmCommands
from metasched.adapters.slurm.pyslurm_access import PyslurmAccess

_IMPORT_SCRIPT = "import pyslurm; print(pyslurm.__version__)"
_IMPORT_TIMEOUT_FACTOR = (
    5  # times the time limit of a command, after which an import is taken to hang
)


class AccessChoice:
    """The access that `options.access` asks for, as far as this interpreter has it.

    pyslurm is first imported in a process of its own, since it ends the one that it cannot serve.
    A busy host may keep a good one waiting for longer than any command, so a trial that has not
    ended is no verdict: it goes on beside the calls, and one that hangs is begun anew.
    """

    def __init__(self, options: SlurmOptions, cluster: str) -> None:
        self._options, self._cluster = options, cluster
        self._commands = SlurmCommands(options, cluster)
        self._chosen: SlurmAccess | None = None
        self._trial: _ImportTrial | None = None
        self._trial_wait = options.timeout  # seconds for a trial before a call goes on without it
        self.name = ""  # of the access that was given last

    def access(self) -> SlurmAccess:
        """The way to the cluster for now.

        Unreachable: pyslurm is asked for, but there is none of the cluster's release, or none yet.
        """
        if self._chosen is None:
            self._chosen = self._choose()
        access = self._chosen or self._commands
        self.name = access.name
        return access

    def _choose(self) -> SlurmAccess | None:
        """What is to be used from now on; None: the commands until more is known."""
        if self._options.access == "commands":
            return self._commands
        try:
            problem = self._pyslurm_problem()
        except _ImportPending as error:
            if self._options.access == "pyslurm":
                raise Unreachable(f'access is "pyslurm", but {error}') from None
            self._trial_wait = 0.0  # the commands serve meanwhile
            return None
        if problem is None:
            return PyslurmAccess(self._options, self._cluster)
        if self._options.access == "pyslurm":
            raise Unreachable(f'access is "pyslurm", but {problem}')
        return self._commands

    def _pyslurm_problem(self) -> str | None:
        """Why pyslurm cannot be used here; None if it can. _Undecided while its import is tried."""
        if self._options.tag_field == "wckey":
            return "it is not used where the tag is in the wckey"
        if importlib.util.find_spec("pyslurm") is None:
            return f"{sys.executable} has no pyslurm"
        trial = self._trial
        if (
            trial
            and trial.code is None
            and trial.seconds >= _IMPORT_TIMEOUT_FACTOR * self._options.timeout
        ):
            trial.kill()
            trial = None
        if trial is None:
            trial = self._trial = _ImportTrial(self._options.config)
            trial.wait(self._trial_wait)
        code = trial.code
        if code is None:
            raise _ImportPending(f"{sys.executable} has not imported it in {trial.seconds:.0f} s")
        self._trial = None
        message = f"the process was ended by signal {-code}" if code < 0 else trial.last_line
        if code != 0:
            return f"it cannot be imported by {sys.executable}: {message[:300]}"
        cluster_release = self._commands.release_version()
        match = re.match(r"(\d+)\.(\d+)", message)
        if match is None or (int(match[1]), int(match[2])) != cluster_release:
            release = f"{cluster_release[0]}.{cluster_release[1]:02d}"
            return f"{sys.executable} has that of {message}, and the cluster is of {release}"
        return None


class _ImportPending(Exception):
    """It is not known yet whether pyslurm can be used."""


class _ImportTrial:
    """pyslurm being imported in a process, which does not outlive this one."""

    def __init__(self, config: str) -> None:
        """Unreachable: the interpreter cannot be started."""
        self._started = time.monotonic()
        with memory_file(b"") as output:  # nobody need read what is said meanwhile
            self._output = os.fdopen(os.dup(output), "rb")
            self._process = start_command(
                [sys.executable, "-c", _IMPORT_SCRIPT],
                os.environ | {"SLURM_CONF": config},
                output=output,
            )

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._started

    def wait(self, seconds: float) -> None:
        """Until it has ended, for that long at the most."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def code(self) -> int | None:
        """Its exit code, or the signal that ended it, negative; None: it is under way."""
        return self._process.poll()

    @property
    def last_line(self) -> str:
        """The last line of what it said."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no explanation"
