"""A real PostgreSQL for the tests: a temporary cluster in a folder, on a unix socket.

The server refuses to run as root. Tests that run as root start it as Debian's account `postgres`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import psutil

from tests.harness.daemons import DaemonGroup, wait_until

PACKAGES = ("postgresql",)
ACCOUNT = "postgres"
LOCKED, PASSWORD = "locked", "open sesame"  # a user with a password; others need none
_BOOT_SECONDS = 60.0
_PROGRAMS = ("initdb", "postgres", "psql", "pg_dump")


def _bin() -> Path | None:
    """Return the folder of the newest server's programs: Debian keeps them out of the PATH."""
    programs = list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if programs:
        return max(programs, key=lambda path: float(path.parts[-3])).parent
    program = shutil.which("initdb")
    return Path(program).resolve().parent if program else None


def missing() -> str | None:
    """Return why no server is available on this host, or None."""
    folder = _bin()
    lacking = [n for n in _PROGRAMS if folder is None or not (folder / n).exists()]
    if lacking:
        return f"{', '.join(lacking)} not found; apt-get install {' '.join(PACKAGES)}"
    if find_spec("psycopg") is None:
        return "no psycopg in this environment; tests/venv"
    return None


class Server(DaemonGroup):
    """A server that lives as long as the `with` block."""

    def __init__(
        self,
        folder: Path,
        settings: Sequence[str] = ("fsync=off",),
        prefix: Sequence[str] = (),
    ) -> None:
        """`settings`: arguments of `postgres -c`. `folder` must be short: it holds the socket.

        `prefix`: see `DaemonGroup`. Of the settings, listen_addresses lets hosts of a test in.
        """
        bin = _bin()
        assert bin is not None
        super().__init__(folder, prefix)
        self._bin, self._settings = bin, settings
        self._data = folder / "data"
        self._log = folder / "log"
        self._pid: int | None = None
        self._database_count = 0

    def _boot(self) -> None:
        self._make()
        self.start()

    @property
    def _account(self) -> tuple[str, ...]:
        if os.geteuid() != 0:
            return ()
        return ("setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--clear-groups", "--")

    @property
    def _environment(self) -> dict[str, str]:
        return {"PATH": f"{self._bin}:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"}

    def _make(self) -> None:
        self.folder.chmod(0o755)
        self._log.touch()
        if os.geteuid() == 0:
            for path in (self.folder, self._log):
                shutil.chown(path, ACCOUNT, ACCOUNT)
        completed = subprocess.run(
            [
                *self._account,
                *(self._bin / "initdb", "--pgdata", self._data, "--username", "admin"),
                *("--auth", "trust", "--encoding", "UTF8", "--no-sync", "--data-checksums"),
            ],
            env=self._environment,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert completed.returncode == 0, completed.stderr
        access = self._data / "pg_hba.conf"
        access.write_text(
            f"local all {LOCKED} scram-sha-256\nlocal all all trust\nhost all all samenet trust\n"
        )

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self.launch()
        wait_until(self.answers, _BOOT_SECONDS, "an answer", lambda: self._log.read_text()[-2000:])

    def launch(self) -> None:
        """Start the server without waiting for it."""
        settings = [
            *("listen_addresses=", f"unix_socket_directories={self.folder}"),
            *("max_connections=60", "shared_buffers=32MB", *self._settings),
        ]
        options = [argument for setting in settings for argument in ("-c", setting)]
        command = [*self._account, str(self._bin / "postgres"), "-D", str(self._data), *options]
        self._pid = self._reaper.start(command, self._environment, self._log)

    def answers(self) -> bool:
        return self._psql("-c", "SELECT 1").returncode == 0

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT (fast), SIGQUIT (at once, as after a loss of power), SIGKILL."""
        assert self._pid is not None
        self._reaper.end(self._pid, number)
        self._pid = None

    def hang(self) -> None:
        """Stop every process by SIGSTOP: connections stay open, but get no answers."""
        postmaster = psutil.Process(self._pid)
        postmaster.suspend()
        for process in postmaster.children(recursive=True):
            process.suspend()

    def wake(self) -> None:
        """Resume every process by SIGCONT."""
        postmaster = psutil.Process(self._pid)
        for process in (*postmaster.children(recursive=True), postmaster):
            process.resume()

    def restart(self, number: signal.Signals = signal.SIGINT) -> None:
        self.stop(number)
        self.start()

    def _psql(
        self, *arguments: str | Path, database: str = "postgres", user: str = "admin"
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(self._bin / "psql", "-h", self.folder, "-U", user, "-d", database),
                *("-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", *arguments),
            ],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def sql(self, command: str, database: str = "postgres") -> str:
        """Run a command as the superuser; return the output of psql."""
        done = self._psql("-c", command, database=database)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def restore(self, script: Path) -> str:
        """Create a database, fill it by a script of pg_dump, and return its URL."""
        url = self.create()
        done = self._psql("-f", script, database=f"ms{self._database_count}", user="metasched")
        assert done.returncode == 0, done.stderr
        return url

    def create(self) -> str:
        """Create an empty database that an ordinary user of the server owns; return its URL."""
        self._database_count += 1
        name = f"ms{self._database_count}"
        if self._database_count == 1:
            self.sql("CREATE ROLE metasched LOGIN")
            self.sql(f"CREATE ROLE {LOCKED} LOGIN PASSWORD '{PASSWORD}'")
        self.sql(f"CREATE DATABASE {name} OWNER metasched")
        return self.url(name)

    def url(self, database: str, user: str = "metasched") -> str:
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def close(self) -> None:
        if self._pid is not None:
            self.stop()
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)
