"""`metasched serve`: one process that holds the database, listens, and runs the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from metasched.api.app import make_app
from metasched.api.identity import PeerProtocol, bounded
from metasched.config.settings import ConfigError, Settings
from metasched.config.tables import TcpTable
from metasched.daemon.service import Daemon
from metasched.db.ledger import Ledger
from metasched.model.reservation import OPEN, Stage

log = logging.getLogger("metasched")


@contextlib.contextmanager
def _listening(path: Path, everybody: bool) -> Iterator[socket.socket]:
    """The unix socket, for its owner only or for `everybody`; a dead one is removed."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755 if everybody else 0o700)
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
        before = os.umask(0o111 if everybody else 0o177)
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


def serve(settings: Settings, *, standby: bool = False) -> int:
    """Run the daemon until SIGTERM or SIGINT.

    ConfigError and StoreError, in one line, for what an admin must mend.
    """
    if settings.site is not None and os.geteuid() == 0:
        raise ConfigError("[site] and root: the daemon is not root; start it by its own account")
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        with (
            settings.database.active(standby) as seat,
            _listening(settings.socket, settings.site is not None) as listener,
            _listening_far(settings.tcp) as far,
        ):
            ledger = Ledger(seat.engine, seat)
            _same_units(settings, ledger)
            daemon = Daemon(settings, ledger)
            asyncio.run(_serve(daemon, listener, far))
    except OSError as error:
        raise ConfigError(
            f"{error.filename or settings.socket}: {error.strerror}; name another place in [daemon]"
        ) from None
    return 0


def _same_units(settings: Settings, ledger: Ledger) -> None:
    """ConfigError if a reservation is open that was promised in another unit than its cluster's.

    Its size would be read as so many of the new unit.
    """
    described = {c.cluster.name: c for c in settings.clusters}
    for one in ledger.reservations(time.time()):
        cluster = described.get(one.cluster)
        if cluster is None or one.state not in OPEN:
            continue
        unchosen = cluster.cluster.binds_late and one.state is Stage.CONFIRMED
        if cluster.names_nodes != bool(one.nodes or unchosen):
            was = "nodes" if one.nodes else "processors, or of nodes to be chosen late"
            raise ConfigError(
                f'reservation {one.id} is of {was}, {settings.origin}, cluster "{one.cluster}"; '
                "put its reservation_unit and binding back until it is over"
            )


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


@contextlib.contextmanager
def _listening_far(tcp: TcpTable | None) -> Iterator[socket.socket | None]:
    """The socket for other hosts, if there is to be one. ConfigError if it cannot be had."""
    if tcp is None:
        yield None
        return
    host, _, port = tcp.listen.rpartition(":")
    if tcp.certificate is not None:
        try:
            ssl.create_default_context().load_cert_chain(tcp.certificate, tcp.key)
        except OSError as error:
            raise ConfigError(
                f"{error.strerror}, certificate {tcp.certificate}, [tcp]; name readable PEM files"
            ) from None
    try:
        listener = socket.create_server(
            (host.strip("[]"), int(port)),
            family=socket.AF_INET6 if host.startswith("[") else socket.AF_INET,
        )
    except OSError as error:
        raise ConfigError(f"{error.strerror}, listen {tcp.listen}, [tcp]; name another") from None
    with listener:
        yield listener


def _served(app: ASGIApp, tcp: TcpTable | None = None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
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
        ssl_certfile=tcp.certificate if tcp else None,
        ssl_keyfile=tcp.key if tcp else None,
    )


async def _serve(daemon: Daemon, listener: socket.socket, far: socket.socket | None) -> None:
    app = bounded(make_app(daemon))
    servers = [(_Server(_served(app), daemon), listener)]
    if far is not None:
        servers.append((_Server(_served(app, daemon.settings.tcp), daemon), far))
    engine = asyncio.create_task(daemon.run())
    serving = [asyncio.create_task(server.serve(sockets=[at])) for server, at in servers]
    log.info("metasched serves at %s", daemon.settings.socket)
    await asyncio.wait({engine, *serving}, return_when=asyncio.FIRST_COMPLETED)
    for server, _ in servers:
        server.should_exit = True
    await asyncio.gather(*serving)
    engine.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await engine
    log.info("metasched stopped")
