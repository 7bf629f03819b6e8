"""The choice between Slurm's commands and pyslurm for a cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import time

from metasched.adapters.slurm.access import SlurmAccess, SlurmOptions
from metasched.adapters.slurm.commands import SlurmCommands
from metasched.adapters.slurm.pyslurm_access import PyslurmAccess
from metasched.model.adapter_errors import Unreachable
from metasched.processes.commands import memory_file, start_command

_IMPORT_SCRIPT = "import pyslurm; print(pyslurm.__version__)"
_IMPORT_TIMEOUT_FACTOR = 5  # an import hangs after this many times the time limit of a command


class AccessChoice:
    """The access that `options.access` selects, as far as this interpreter offers it.

    pyslurm is first imported in a separate process, since it ends a process that it cannot serve.
    On a busy host that import may take longer than any command. So a trial that has not ended
    decides nothing: it continues during the calls, and a trial that hangs is restarted.
    """

    def __init__(self, options: SlurmOptions, cluster: str, user: int | None) -> None:
        """`user` owns all jobs of metasched; None in site mode."""
        self._options, self._cluster, self._user = options, cluster, user
        self._commands = SlurmCommands(options, cluster)
        self._chosen: SlurmAccess | None = None
        self._trial: _ImportTrial | None = None
        self._trial_wait = options.timeout  # seconds; longest wait of a call for a trial
        self.name = ""  # of the access that was returned last

    def access(self) -> SlurmAccess:
        """Return the access to use for now.

        Raises Unreachable if the options demand pyslurm and its release differs from the
        cluster's, or if it cannot be imported, or not yet.
        """
        if self._chosen is None:
            self._chosen = self._choose()
        access = self._chosen or self._commands
        self.name = access.name
        return access

    def _choose(self) -> SlurmAccess | None:
        """Return the access to use from now on; None while that is undecided."""
        if self._options.access == "commands":
            return self._commands
        try:
            problem = self._pyslurm_problem()
        except _ImportPending as error:
            if self._options.access == "pyslurm":
                raise Unreachable(f'access is "pyslurm", but {error}') from None
            self._trial_wait = 0.0  # use the commands meanwhile
            return None
        if problem is None:
            return PyslurmAccess(self._options, self._cluster, self._user)
        if self._options.access == "pyslurm":
            raise Unreachable(f'access is "pyslurm", but {problem}')
        return self._commands

    def _pyslurm_problem(self) -> str | None:
        """Return the reason why pyslurm cannot be used; None if it can.

        Raises _ImportPending while its import is tried.
        """
        if self._options.tag_field == "wckey":
            return 'it cannot be used with tag_field = "wckey"'
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
        message = f"the process was killed by signal {-code}" if code < 0 else trial.last_line
        if code != 0:
            return f"it cannot be imported by {sys.executable}: {message[:300]}"
        cluster_release = self._commands.release_version()
        match = re.match(r"(\d+)\.(\d+)", message)
        if match is None or (int(match[1]), int(match[2])) != cluster_release:
            release = f"{cluster_release[0]}.{cluster_release[1]:02d}"
            return f"{sys.executable} has pyslurm {message}, and the cluster runs Slurm {release}"
        return None


class _ImportPending(Exception):
    """The trial import of pyslurm has not ended yet."""


class _ImportTrial:
    """An import of pyslurm in a separate process, which ends with this process."""

    def __init__(self, config: str) -> None:
        """Start the process. Raises Unreachable if the interpreter cannot be started."""
        self._started = time.monotonic()
        with memory_file(b"") as output:  # a file takes output without a reader
            self._output = os.fdopen(os.dup(output), "rb")
            self._process = start_command(
                [sys.executable, "-P", "-c", _IMPORT_SCRIPT],
                os.environ | {"SLURM_CONF": config},
                output=output,
            )

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def wait(self, seconds: float) -> None:
        """Wait for the end, at most `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def code(self) -> int | None:
        """The exit code, or minus the number of the signal that ended it; None while it runs."""
        return self._process.poll()

    @property
    def last_line(self) -> str:
        """The last line of its output."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no explanation"
