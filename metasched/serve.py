"""`metasched serve`: one process that holds the database, listens, and runs the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from metasched.api import PeerProtocol, make_app
from metasched.config import ConfigError, find, load
from metasched.daemon import Daemon
from metasched.db.ledger import Ledger
from metasched.db.store import active, open_sqlite

log = logging.getLogger("metasched")


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """The unix socket, for its owner only; a dead one in its place is removed."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise ConfigError(f"{path} is no socket; name another in [daemon] socket, or remove it")
    with contextlib.suppress(FileNotFoundError):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(path))
            except (ConnectionRefusedError, FileNotFoundError):
                pass
            else:
                raise ConfigError(f"another daemon answers at {path}; stop it, or name another")
        path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        made = path.stat().st_ino
        listener.listen(256)
        try:
            yield listener
        finally:
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == made:
                    path.unlink()


def serve(config: Path | None, *, standby: bool = False, check: bool = False) -> int:
    """Run the daemon until SIGTERM or SIGINT; `check` only reads the configuration.

    ConfigError and StoreError, in one line, for what an admin must mend.
    """
    settings = load(find(config))
    if check:
        return 0
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        with active(settings.database, standby):
            ledger = Ledger(open_sqlite(settings.database))
            try:
                with _listening(settings.socket) as listener:
                    asyncio.run(_serve(Daemon(settings, ledger), listener))
            finally:
                ledger.close()
    except OSError as error:
        raise ConfigError(
            f"{error.filename or settings.socket}: {error.strerror}; name another place in [daemon]"
        ) from None
    return 0


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handlers, which end the process before our clean-up."""

    def __init__(self, config: uvicorn.Config, daemon: Daemon) -> None:
        super().__init__(config)
        self._daemon = daemon

    def _stop(self, number: signal.Signals) -> None:
        self._daemon.stop()
        self.handle_exit(number, None)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        stops = (signal.SIGINT, signal.SIGTERM)
        for stop in stops:
            loop.add_signal_handler(stop, self._stop, stop)
        # a daemon started with & goes on when its terminal closes
        loop.add_signal_handler(signal.SIGHUP, log.info, "SIGHUP changes nothing")
        try:
            yield
        finally:
            for stop in stops:
                loop.remove_signal_handler(stop)


async def _serve(daemon: Daemon, listener: socket.socket) -> None:
    server = _Server(
        uvicorn.Config(
            make_app(daemon),
            http=PeerProtocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            proxy_headers=False,
            server_header=False,
            access_log=False,
            log_config=None,
            log_level="warning",
            timeout_graceful_shutdown=2,
        ),
        daemon,
    )
    engine = asyncio.create_task(daemon.run())
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    log.info("metasched serves at %s", daemon.settings.socket)
    await asyncio.wait({engine, serving}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    await serving
    engine.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await engine
    log.info("metasched stopped")
