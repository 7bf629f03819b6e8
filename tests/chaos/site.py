"""A site whose daemon is killed and restarted while jobs stream through it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from metasched.client.client import Client
from metasched.client.connection import ClientError
from metasched.db.store import Database
from tests.chaos import victim
from tests.chaos.points import FOLDER, ROOT, Orders, arm
from tests.chaos.stream import TOTALS, Stream
from tests.e2e.conftest import Site
from tests.harness.databases import database_from_url

_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload([*victim.MODULES, victim.__name__])
STOP = threading.Event()  # set when the run is to end: every wait then raises `Stopped`
CALL_TIMEOUT = 20.0  # seconds for an answer of the daemon
# seconds; long enough for a machine that is busy with other things
PATIENCE = float(os.environ.get("METASCHED_PATIENCE", "300"))

LOCAL = "".join(
    f'[[cluster]]\nname = "{name}"\nadapter = "local"\ncpus = {cpus}\nbenchmark = {speed}\n'
    'poll_interval = 0.2\ncall_timeout = 15\nkill_wait = 1\npython = "PYTHON"\n'
    f"{fence}\n"
    for name, cpus, speed, fence in (
        ("left", 8, 300, ""),
        ("right", 4, 100, 'fence_dir = "FENCE"\n'),
    )
)


LICENCES = "".join(
    f'[[licence]]\nname = "{name}"\ntotal = {total}\n' for name, total in TOTALS.items()
)


def keep_temporaries_in(folder: Path) -> None:
    """Keep the temporary files of multiprocessing in `folder`. Call it before the first site."""
    # multiprocessing has no setting for this, and would remove its own folder too late
    multiprocessing.current_process()._config["tempdir"] = str(folder)  # type: ignore[attr-defined]


class Stopped(Exception):
    """The run is to end."""


class ChaosSite(Site):
    """A site whose daemon and workers have crash points and obey `order`."""

    account: str | None = None  # of the daemon; None: of this process

    def __init__(
        self,
        folder: Path,
        clusters: str = LOCAL,
        inside: tuple[str, ...] = (),
        url: str | None = None,
    ) -> None:
        """`clusters` are tables of metasched.toml.

        In them PYTHON stands for an interpreter whose workers have crash points, run by the command
        `inside`, and FENCE for a folder of claims. `url` is that of a PostgreSQL database; None:
        SQLite.
        """
        super().__init__(folder)
        self.url = url or self.url
        self.run_log = folder / "ran"
        self.prepare()
        self.chaos = self.own_folder("chaos")
        fence = self.own_folder("claims")
        self.clusters = self.database.with_suffix(".clusters")
        self.log.touch()
        (folder / "policy.toml").write_text("pull_after = 0.5\npatience = 2\n")
        self.configure(
            clusters.replace("PYTHON", str(self._python(inside))).replace("FENCE", str(fence)),
            # API tokens exist only with [tcp]
            extra=f'[policy]\nfile = "policy.toml"\n[tcp]\nlisten = "127.0.0.1:0"\n{LICENCES}',
        )
        # no retries: the stream repeats some submissions, the others must stay uncertain
        self.client = Client(self.socket, timeout=CALL_TIMEOUT, retry_time=0)
        self.extra_environment: dict[str, str] = {}  # environment of daemons started later
        self.recoveries: list[float] = []  # seconds from a death to the first answer
        self._life: ForkServerProcess | None = None
        self._standby: ForkServerProcess | None = None
        self._hung: ForkServerProcess | None = None  # its standby has taken over
        self._died: float | None = None
        self.order(Orders())

    @property
    def socket(self) -> Path:
        """The daemon's socket."""
        return self.folder / "ms.sock"

    @property
    def submitters(self) -> Mapping[int, Client]:
        """The clients that submit jobs, by the uid of the jobs' owner."""
        return {os.geteuid(): self.client}

    def prepare(self) -> None:
        """Make the site's folder, and the files to which payloads append."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in Stream.files(self.run_log):
            path.touch()

    def own_folder(self, name: str) -> Path:
        """Make a folder of the daemon's account."""
        path = self.folder / name
        path.mkdir()
        return path

    def _python(self, inside: tuple[str, ...]) -> Path:
        path = self.folder / "python"
        command = " ".join(f"'{argument}'" for argument in (*inside, sys.executable))
        path.write_text(f'#!/bin/sh\nexec {command} -m {victim.__name__} "$@"\n')
        path.chmod(0o755)
        return path

    @property
    def environment(self) -> dict[str, str]:
        variables = {FOLDER: str(self.chaos), "PYTHONPATH": ROOT}
        return super().environment | variables | self.extra_environment

    def order(self, orders: Orders) -> None:
        """Give orders to the processes that start from now on."""
        orders.write(self.chaos)

    @property
    def store(self) -> Database:
        """The daemon's database."""
        return database_from_url(self.url, self.folder)

    def arm(self) -> None:
        """Let processes with `late` orders die from now on."""
        arm(self.chaos)

    def until(self, condition: Callable[[], Any], patience: float = 60.0) -> Any:
        """Poll as `Site.until` does. Raises Stopped when the run is to end."""

        def unless_stopped() -> Any:
            if STOP.is_set():
                raise Stopped
            return condition()

        return super().until(unless_stopped, patience)

    # Daemon processes

    def launch(self) -> None:
        """Start a daemon without waiting for it."""
        self._life = self._start()

    def _start(self, *options: str) -> ForkServerProcess:
        life = _FORKED.Process(
            target=victim.daemon,
            args=(self.environment, str(self.log), self.account, options),
            daemon=True,
        )
        life.start()
        return life

    def launch_standby(self) -> None:
        """Start a standby; return when it waits for the end of the present daemon."""
        logged = len(self.log.read_text())
        self._standby = self._start("--standby")
        self.until(lambda: "standby: another daemon" in self.log.read_text()[logged:], PATIENCE)

    def take_over(self) -> None:
        """Let the standby be the daemon, after the death of the present one; it has to serve."""
        assert not self.alive
        self._life, self._standby = self._standby, None
        assert self.serving(), self.log_tail()

    def replace_hung(self) -> None:
        """Let the standby be the daemon beside the present one, which has just been stopped.

        It listens on a socket of its own, as on another host: that of the stopped one is renamed.
        """
        self.socket.rename(self.socket.with_name("hung.sock"))
        self._died = time.monotonic()
        self._hung, self._life, self._standby = self._life, self._standby, None
        assert self.serving(), self.log_tail()

    def end_of_hung(self) -> None:
        """Wait for the end of the replaced daemon, which was resumed: it has to end by itself."""
        assert self._hung is not None
        self._hung.join(PATIENCE)
        assert self._hung.exitcode == 1, (self._hung.exitcode, self.log_tail())
        self._hung = None

    def begin(self) -> None:
        """Start a daemon and wait until no cluster is down."""
        self.launch()
        assert self.serving(), self.log_tail()
        self.until(self.heard, PATIENCE)

    def serving(self) -> bool:
        """Wait for the first answer of this daemon; return False if it dies before."""
        until = time.monotonic() + PATIENCE
        while self.alive:
            if STOP.is_set():
                raise Stopped
            with contextlib.suppress(ClientError):
                self.client.health()
                if self._died is not None:
                    self.recoveries.append(time.monotonic() - self._died)
                    self._died = None
                return True
            assert time.monotonic() < until, f"does not serve; {self.log_tail()}"
            time.sleep(0.01)
        return False

    def heard(self) -> bool:
        """Whether the daemon answers and reports no cluster as down."""
        with contextlib.suppress(ClientError):
            return all(not c["state"].startswith("down") for c in self.client.clusters())
        return False

    @property
    def alive(self) -> bool:
        return self._life is not None and self._life.is_alive()

    @property
    def pid(self) -> int:
        assert self._life is not None
        assert self._life.pid is not None
        return self._life.pid

    def kill(self) -> None:
        """Kill the daemon by SIGKILL."""
        assert self._life is not None
        self._life.kill()
        self.gone()

    def gone(self) -> None:
        """Wait for the death of this daemon, and store its time."""
        assert self._life is not None
        self._life.join(PATIENCE)
        assert not self._life.is_alive(), self.log_tail()
        assert self._life.exitcode == -9 or self._life.exitcode == -11, self.log_tail()
        self._died = time.monotonic()

    def end(self) -> None:
        """End the daemon by SIGTERM; afterwards the database does not change."""
        assert self._life is not None
        self._life.terminate()
        self._life.join(PATIENCE)
        assert self._life.exitcode == 0, self.log_tail()

    def close(self) -> None:
        for other in (self._standby, self._hung):
            if other is not None:
                other.kill()
                other.join()
        if self.alive:
            self.kill()
        super().close()
