"""Which way a Slurm cluster is spoken to: by the commands, or by a pyslurm that serves it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import time

from metasched.adapters.commands import begin, memory_file
from metasched.adapters.errors import Unreachable
from metasched.adapters.slurm.access import Access, SlurmOptions
from metasched.adapters.slurm.commands import Commands
from metasched.adapters.slurm.pyslurm_access import Pyslurm

_TRY = "import pyslurm; print(pyslurm.__version__)"
_PATIENCE = 5  # times the time limit of a command, after which an import is taken to hang


class Choice:
    """The access that `options.access` asks for, as far as this interpreter has it.

    pyslurm is first imported in a process of its own, since it ends the one that it cannot serve.
    A busy host may keep a good one waiting for longer than any command, so a trial that has not
    ended is no verdict: it goes on beside the calls, and one that hangs is begun anew.
    """

    def __init__(self, options: SlurmOptions, cluster: str) -> None:
        self._options, self._cluster = options, cluster
        self._commands = Commands(options, cluster)
        self._chosen: Access | None = None
        self._trial: _Trial | None = None
        self._wait = options.timeout  # seconds for a trial before a call goes on without it
        self.name = ""  # of the access that was given last

    def access(self) -> Access:
        """The way to the cluster for now.

        Unreachable: pyslurm is asked for, but there is none of the cluster's release, or none yet.
        """
        if self._chosen is None:
            self._chosen = self._choose()
        access = self._chosen or self._commands
        self.name = access.name
        return access

    def _choose(self) -> Access | None:
        """What is to be used from now on; None: the commands until more is known."""
        if self._options.access == "commands":
            return self._commands
        try:
            lacking = self._lacking()
        except _Undecided as error:
            if self._options.access == "pyslurm":
                raise Unreachable(f'access is "pyslurm", but {error}') from None
            self._wait = 0.0  # the commands serve meanwhile
            return None
        if lacking is None:
            return Pyslurm(self._options, self._cluster)
        if self._options.access == "pyslurm":
            raise Unreachable(f'access is "pyslurm", but {lacking}')
        return self._commands

    def _lacking(self) -> str | None:
        """Why pyslurm cannot be used here; None if it can. _Undecided while its import is tried."""
        if self._options.tag_field == "wckey":
            return "it is not used where the tag is in the wckey"
        if importlib.util.find_spec("pyslurm") is None:
            return f"{sys.executable} has no pyslurm"
        trial = self._trial
        if trial and trial.code is None and trial.seconds >= _PATIENCE * self._options.timeout:
            trial.kill()
            trial = None
        if trial is None:
            trial = self._trial = _Trial(self._options.config)
            trial.wait(self._wait)
        code = trial.code
        if code is None:
            raise _Undecided(f"{sys.executable} has not imported it in {trial.seconds:.0f} s")
        self._trial = None
        said = f"the process was ended by signal {-code}" if code < 0 else trial.said
        if code != 0:
            return f"it cannot be imported by {sys.executable}: {said[:300]}"
        wanted = self._commands.version()
        found = re.match(r"(\d+)\.(\d+)", said)
        if found is None or (int(found[1]), int(found[2])) != wanted:
            release = f"{wanted[0]}.{wanted[1]:02d}"
            return f"{sys.executable} has that of {said}, and the cluster is of {release}"
        return None


class _Undecided(Exception):
    """It is not known yet whether pyslurm can be used."""


class _Trial:
    """pyslurm being imported in a process, which does not outlive this one."""

    def __init__(self, config: str) -> None:
        """Unreachable: the interpreter cannot be started."""
        self._begun = time.monotonic()
        with memory_file(b"") as words:  # nobody need read what is said meanwhile
            self._words = os.fdopen(os.dup(words), "rb")
            self._process = begin(
                [sys.executable, "-c", _TRY], os.environ | {"SLURM_CONF": config}, said=words
            )

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._begun

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
    def said(self) -> str:
        """The last line of what it said."""
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no explanation"
