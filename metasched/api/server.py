"""`metasched serve`: the process that holds the database, listens, and runs the daemon.

Under systemd it reports readiness, reloads, its stop, and that the scheduler gets on.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import socket
import ssl
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from metasched.api.app import AddPages, create_app
from metasched.api.connections import Connection, OpenConnections, Refusal
from metasched.api.http_protocol import DeadlineProtocol
from metasched.config.settings import ConfigError, Settings
from metasched.config.tables import TcpTable
from metasched.daemon.audit_log import FORMATTERS
from metasched.daemon.descriptors import connection_limit
from metasched.daemon.doctor.folder_checks import socket_folder_remedy
from metasched.daemon.late_settings import check_reservation_units
from metasched.daemon.policy_activation import activate_scheduled
from metasched.daemon.reload import reload
from metasched.daemon.repeated_lines import RepeatHandler
from metasched.daemon.service import Daemon
from metasched.db.backends import database_at
from metasched.db.ledger import Ledger
from metasched.errors import UserError
from metasched.launcher import ServiceManager

log = logging.getLogger("metasched")

ACCEPT_PAUSE = 0.1  # seconds after there was no descriptor for a connection
# Python looks for cycles after 700 new objects, which are two dozen results of the core.
NEW_OBJECTS_PER_COLLECTION = 10_000
READY_POLL = 0.05  # seconds between looks whether the daemon is ready
STATUS_INTERVAL = 10.0  # seconds between status lines for the service manager, at most
BACKLOG = 2048  # connections that wait to be accepted
# connections accepted before requests are read: far fewer than the limit of a peer, so that a new
# connection is not closed for newer connections before its request is read
ACCEPTED_AT_ONCE = 8
TOO_MANY = b'{"error":"too many connections; nothing changed, try again soon"}'
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 2\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(TOO_MANY), TOO_MANY)
)


@contextlib.contextmanager
def _unix_listener(path: Path, world_accessible: bool) -> Iterator[socket.socket]:
    """Listen on a unix socket, for its owner or for all accounts; replace a stale socket."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755 if world_accessible else 0o700)
    except PermissionError:
        fix = socket_folder_remedy(path.parent)
        problem = f"no folder {path.parent}, and this account cannot create it"
        raise ConfigError(f"{problem}; {fix}") from None
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise ConfigError(f"{path} is no socket; name another in [daemon] socket, or remove it")
    with contextlib.suppress(FileNotFoundError):
        with socket.socket(socket.AF_UNIX) as test_socket:
            test_socket.settimeout(1)
            try:
                test_socket.connect(str(path))
            except (ConnectionRefusedError, FileNotFoundError):
                pass
            else:
                raise ConfigError(f"another daemon answers at {path}; stop it, or name another")
        path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        previous_umask = os.umask(0o111 if world_accessible else 0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(previous_umask)
        inode = path.stat().st_ino
        listener.listen(BACKLOG)
        try:
            yield listener
        finally:
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == inode:
                    path.unlink()


@dataclass(frozen=True)
class _Listener:
    """A socket that accepts connections, and the application behind it."""

    listening_socket: socket.socket
    address: str  # for reports
    tcp: TcpTable | None = None  # None: a unix socket
    is_proxy: bool = False  # for the reverse proxy alone


def serve(settings: Settings, *, standby: bool = False, add_pages: AddPages | None = None) -> int:
    """Run the daemon until SIGTERM or SIGINT. `add_pages` adds pages for browsers.

    ConfigError or StoreError if it cannot start.
    """
    if settings.site is not None and os.geteuid() == 0:
        raise ConfigError("[site] and root: the daemon is not root; start it by its own account")
    manager = ServiceManager.from_environment(os.environ)
    manager.notify(STATUS="waits for the database" if not standby else "on standby")
    if manager.watchdog is not None:
        faulthandler.enable()  # the watchdog's signal writes to the log where each thread hangs
    # until the daemon listens: it must not end by a request to read its configuration again
    signal.signal(signal.SIGHUP, lambda *_: None)
    handler = RepeatHandler()
    handler.setFormatter(FORMATTERS[settings.log_format]())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("alembic").setLevel(logging.WARNING)
    gc.set_threshold(NEW_OBJECTS_PER_COLLECTION)
    try:
        with contextlib.ExitStack() as lock_stack, contextlib.ExitStack() as stack:
            open_ledger = partial(_open_ledger, settings, standby, lock_stack)
            daemon = Daemon(settings, open_ledger, activate_scheduled)
            daemon.try_open(waits=standby)  # before it listens: another daemon may be active
            listeners = _open_listeners(settings, stack)
            asyncio.run(_serve_until_stopped(daemon, listeners, manager, add_pages))
    except OSError as error:
        raise ConfigError(
            f"{error.filename or settings.socket}: {error.strerror}; name another path in [daemon]"
        ) from None
    return 0


def _open_listeners(settings: Settings, stack: contextlib.ExitStack) -> list[_Listener]:
    """Open all listeners, that for all accounts first; `stack` will close them."""
    in_site = settings.site is not None
    unix = stack.enter_context(_unix_listener(settings.socket, in_site))
    listeners = [_Listener(unix, str(settings.socket))]
    if settings.tcp is not None:
        tcp = stack.enter_context(_tcp_listener(settings.tcp))
        listeners.append(_Listener(tcp, settings.tcp.listen, tcp=settings.tcp))
    if settings.web is not None and (path := settings.web.proxy_socket) is not None:
        # each connection shows whose it is
        proxy = stack.enter_context(_unix_listener(path, world_accessible=True))
        listeners.append(_Listener(proxy, str(path), is_proxy=True))
    return listeners


def _open_ledger(settings: Settings, standby: bool, lock_stack: contextlib.ExitStack) -> Ledger:
    """Open the ledger as the only active daemon; `lock_stack` will release its lock.

    DatabaseUnreachable if the database server does not answer. StoreError or ConfigError if the
    database cannot be used.
    """
    database = database_at(settings.database_url)
    writer_lock = lock_stack.enter_context(database.acquire_writer(standby))
    mark_path = partial(database.mark_path, settings.state_folder)
    ledger = Ledger(writer_lock.engine, writer_lock, settings.first_id, mark_path)
    lock_stack.callback(ledger.write_mark)
    check_reservation_units(settings, ledger)
    return ledger


class _Server(uvicorn.Server):
    """Uvicorn with limited connections, and signal handlers that let the daemon clean up."""

    def __init__(
        self,
        config: uvicorn.Config,
        daemon: Daemon,
        connections: OpenConnections,
        listeners: Sequence[OpenConnections],
        manager: ServiceManager,
    ) -> None:
        """`connections` are those of this server, `listeners` those of all."""
        super().__init__(config)
        self._manager = manager
        self._daemon, self._connections, self._listeners = daemon, connections, listeners
        # each sets up a connection, which may take a TLS handshake
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections of these listeners."""
        await super().startup(sockets=[])
        for listener in sockets or []:
            listener.setblocking(False)
            self._watch(listener)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or []:
            asyncio.get_running_loop().remove_reader(listener)
        for task in self._tasks:
            task.cancel()
        await super().shutdown(sockets)

    def _watch(self, listener: socket.socket) -> None:
        if listener.fileno() != -1:  # not closed in a pause
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept some of the connections that wait; refuse those for which there is no room."""
        # a connection that makes room keeps its descriptor until the loop comes round
        for _ in range(min(ACCEPTED_AT_ONCE, max(self._connections.peer_limit // 2, 1))):
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._give_back_descriptors(error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                loop.call_later(ACCEPT_PAUSE, self._watch, listener)
                return
            accepted.setblocking(False)
            connection = Connection(accepted)
            if self._connections.admit(connection):
                task = asyncio.create_task(self._serve_connection(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                with accepted, contextlib.suppress(OSError):
                    if self.config.ssl is None:
                        accepted.send(REFUSAL)

    def _give_back_descriptors(self, error: OSError) -> None:
        """Close connections of all listeners, so that workers and programs can be started."""
        self._connections.refusals[Refusal.NO_DESCRIPTOR] += 1
        for connections in self._listeners:
            connections.shrink()
        limits = ", ".join(f"{c.address} has {c.limit}" for c in self._listeners)
        log.error("no connection can be accepted: %s; from now on %s", error.strerror, limits)

    async def _serve_connection(self, connection: Connection) -> None:
        """Shake hands by TLS, if configured, and hand the connection to its protocol."""
        tls, limits = self.config.ssl, self._daemon.settings.requests
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: DeadlineProtocol(
                    connection,
                    self._connections,
                    limits,
                    *(self.config, self.server_state, self.lifespan.state),
                ),
                connection.socket,
                ssl=tls,
                ssl_handshake_timeout=limits.head_timeout if tls else None,
            )
        except OSError:  # the handshake failed, or took too long
            self._connections.refusals[Refusal.HANDSHAKE] += 1
            self._connections.remove(connection)

    def _stop(self, stop_signal: signal.Signals) -> None:
        self._daemon.stop()
        self.handle_exit(stop_signal, None)

    def _reload(self) -> None:
        task = asyncio.create_task(_reload_at_signal(self._daemon, self._manager))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop the daemon at SIGINT and SIGTERM; read the configuration again at SIGHUP."""
        loop = asyncio.get_running_loop()
        stop_signals = (signal.SIGINT, signal.SIGTERM)
        for stop_signal in stop_signals:
            loop.add_signal_handler(stop_signal, self._stop, stop_signal)
        # a daemon started with & keeps running when its terminal closes
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        try:
            yield
        finally:
            for stop_signal in stop_signals:
                loop.remove_signal_handler(stop_signal)


async def _reload_at_signal(daemon: Daemon, manager: ServiceManager) -> None:
    """Read the configuration again; the log has the result, and problems outside of the files."""
    # systemd compares this time with that of its signal
    manager.notify(RELOADING="1", MONOTONIC_USEC=str(time.monotonic_ns() // 1000))
    status = "reloaded"
    try:
        result = await reload(daemon, "SIGHUP")
        for finding in result.findings:
            log.warning("%s: %s; %s", finding.check, finding.text, finding.fix)
    except UserError as error:  # it is in the log
        status = f"reload refused: {error}"
    finally:
        manager.notify(READY="1", STATUS=status)


async def _report_to_manager(
    daemon: Daemon, servers: Sequence[uvicorn.Server], manager: ServiceManager
) -> None:
    """Report readiness once requests are answered, then progress and a status, until cancelled."""
    while not (
        all(server.started for server in servers)
        and (daemon.service_runs.is_set() or daemon.database_unavailable)
    ):
        await asyncio.sleep(READY_POLL)
    manager.notify(READY="1", STATUS=daemon.status_line)
    watchdog = manager.watchdog
    interval = STATUS_INTERVAL if watchdog is None else min(watchdog / 4, STATUS_INTERVAL)
    while True:
        await asyncio.sleep(interval)
        manager.notify(STATUS=daemon.status_line)
        if daemon.progress.take():
            manager.notify(WATCHDOG="1")


@contextlib.contextmanager
def _tcp_listener(tcp: TcpTable) -> Iterator[socket.socket]:
    """Listen for other hosts. ConfigError if that fails."""
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
            backlog=BACKLOG,
        )
    except OSError as error:
        raise ConfigError(f"{error.strerror}, listen {tcp.listen}, [tcp]; name another") from None
    with listener:
        yield listener


def _uvicorn_config(app: FastAPI, tcp: TcpTable | None = None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
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


async def _serve_until_stopped(
    daemon: Daemon,
    listeners: Sequence[_Listener],
    manager: ServiceManager,
    add_pages: AddPages | None,
) -> None:
    app, settings = create_app(daemon, add_pages), daemon.settings
    limit = connection_limit(
        settings.requests.connections,
        listeners=len(listeners),
        workers=len(settings.clusters) + len(settings.licence_servers),
    )
    app.state.listeners = all_connections = [
        OpenConnections(listener.address, limit, is_proxy=listener.is_proxy)
        for listener in listeners
    ]
    servers = []
    for listener, connections in zip(listeners, all_connections, strict=True):
        config = _uvicorn_config(app, listener.tcp)
        server = _Server(config, daemon, connections, all_connections, manager)
        servers.append((server, listener.listening_socket))
    report = _report_to_manager(daemon, [server for server, _ in servers], manager)
    daemon_task, report_task = map(asyncio.create_task, (daemon.run(), report))
    server_tasks = [
        asyncio.create_task(server.serve(sockets=[listening_socket]))
        for server, listening_socket in servers
    ]
    log.info("metasched serves at %s", daemon.settings.socket)
    await asyncio.wait({daemon_task, *server_tasks}, return_when=asyncio.FIRST_COMPLETED)
    manager.notify(STOPPING="1")
    for server, _ in servers:
        server.should_exit = True
    await asyncio.gather(*server_tasks)
    daemon.close()
    for task in (report_task, daemon_task):
        task.cancel()
    await asyncio.wait({report_task})
    with contextlib.suppress(asyncio.CancelledError):
        await daemon_task
    log.info("metasched stopped")
