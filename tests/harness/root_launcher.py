"""The launcher of site mode as a process of root that tests kill, stop and start again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from metasched import launcher
from tests.harness.daemons import wait_until
from tests.harness.reaper import dying_with

PYTHON = "/usr/bin/python3"  # the launcher needs only the standard library
_START_SECONDS = 60.0


def launcher_of(protocol: int, folder: Path) -> Path:
    """Write the launcher of another release, which has this protocol, into a folder."""
    program = folder / f"launcher-{protocol}.py"
    text, line = Path(launcher.__file__).read_text(), f"\nPROTOCOL = {launcher.PROTOCOL}"
    assert text.count(line) == 1
    program.write_text(text.replace(line, f"\nPROTOCOL = {protocol}"))
    return program


class RootLauncher:
    """A launcher with its configuration, socket and log in a folder; it dies with this process."""

    program = launcher.__file__

    def __init__(self, folder: Path, account: str, inside: Sequence[str] = ()) -> None:
        """`account` is the daemon's; `inside` prefixes the command, e.g. to enter a namespace."""
        self.socket = folder / "launcher" / "launcher.sock"
        self.log = folder / "launcher.log"
        self._config, self._account, self._inside = folder / "launcher.toml", account, inside
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, tables: str) -> None:
        """Write the configuration: top-level keys, then the tables of the clusters."""
        self._config.write_text(f'socket = "{self.socket}"\naccount = "{self._account}"\n{tables}')

    def start(self) -> None:
        """Start the launcher; wait until it listens."""
        self.socket.unlink(missing_ok=True)
        command = [PYTHON, "-I", "-S", self.program, "--config", str(self._config)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._inside, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=dying_with(os.getpid()),
            )
        wait_until(self.socket.exists, _START_SECONDS, "the launcher", self.log.read_text)

    @property
    def process(self) -> psutil.Process:
        """The running launcher."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def kill(self) -> None:
        """Kill the launcher by SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
