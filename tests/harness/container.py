"""A Debian that boots its own systemd in a container, from a copy of a folder, without network."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.harness.daemons import wait_until
from tests.harness.reaper import dying_with

_BOOT_SECONDS = 180.0
_CALL_SECONDS = 300.0
_REBOOT = 133  # exit code of systemd-nspawn


def missing(root: str) -> str | None:
    """Return why no container can be booted from a folder, or None."""
    if not root:
        return "METASCHED_CONTAINER names no folder of a Debian; run tests/systemd"
    if not Path(root, "usr/lib/systemd/systemd").exists():
        return f"no systemd in {root}; run tests/systemd"
    if shutil.which("systemd-nspawn") is None:
        return "no systemd-nspawn; apt-get install systemd-container"
    return None


class Container:
    """A container whose commands run as root, or as another account of it."""

    def __init__(self, source: Path, folder: Path) -> None:
        """Copy the system in `source` to `folder`, which is removed by `remove`."""
        self.folder, self._log = folder, folder.with_name(f"{folder.name}.log")
        subprocess.run(["cp", "-a", "--reflink=auto", source, folder], check=True)
        (folder / "etc/machine-id").write_text("")
        (folder / "etc/hostname").write_text("site\n")
        self._nspawn: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Boot, and wait until systemd has started all units."""
        with self._log.open("ab") as log:
            self._nspawn = subprocess.Popen(
                [
                    *("systemd-nspawn", "--quiet", "--boot", "--directory", self.folder),
                    *("--register=no", "--keep-unit", "--private-network", "--console=pipe"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=dying_with(os.getpid()),
            )
        wait_until(self._has_booted, _BOOT_SECONDS, "the container", self._log_tail)

    def _has_booted(self) -> bool:
        state = self.run("systemctl", "is-system-running", code=None).strip()
        return state in ("running", "degraded")

    def reboot(self) -> None:
        """Reboot, from within."""
        assert self._nspawn is not None
        self.run("systemctl", "reboot", code=None)
        # with --keep-unit it leaves the second boot to whoever has started it
        assert self._nspawn.wait(_BOOT_SECONDS) == _REBOOT, self._log_tail()
        self.boot()

    def _log_tail(self) -> str:
        return self._log.read_text()[-3000:]

    def _leader(self) -> int | None:
        """Return the process id of the container's systemd, as this host sees it."""
        assert self._nspawn is not None
        try:
            children = psutil.Process(self._nspawn.pid).children()
            return next((c.pid for c in children if c.name() == "systemd"), None)
        except psutil.NoSuchProcess:
            return None

    def run(self, *command: str | Path, account: str = "", code: int | None = 0) -> str:
        """Run a command inside; return its output. `code` None: whatever it exits with."""
        leader = self._leader()
        if leader is None:
            assert code is None, f"the container is down: {self._log_tail()}"
            return ""
        enter: Sequence[str] = (
            "nsenter",
            "-t",
            str(leader),
            "-m",
            "-u",
            "-i",
            "-n",
            "-p",
            "-r",
            "-w",
        )
        if account:
            enter = (
                *enter,
                "runuser",
                "-u",
                account,
                "--",
                *("env", f"HOME=/home/{account}", "sh", "-c", 'cd && exec "$@"', "sh"),
            )
        completed = subprocess.run(
            [*enter, *command],
            env={
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "LANG": "C.UTF-8",
                "COLUMNS": "200",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CALL_SECONDS,
            check=False,
        )
        if code is not None:
            assert completed.returncode == code, (command, completed.stdout, completed.stderr)
        return completed.stdout

    def remove(self) -> None:
        """Power off, and remove the copy."""
        if self._nspawn is not None and self._nspawn.poll() is None:
            self._nspawn.send_signal(signal.SIGTERM)  # it asks its systemd to power off
            try:
                self._nspawn.wait(60)
            except subprocess.TimeoutExpired:
                self._nspawn.kill()
                self._nspawn.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
