"""PostgreSQL: a server run by the site; the active daemon's session holds an advisory lock.

The session with the lock is the session that writes: if it is cut, the server ends lock and
transaction together. Writes of an older daemon over another session fail the epoch check of
`ledger`.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, OperationalError

from metasched.db.instances import MARK_BACKUP
from metasched.db.schema import metadata
from metasched.db.store import (
    Database,
    DatabaseInUse,
    DatabaseUnreachable,
    StorageFailed,
    StoreError,
    WriterLock,
    create_private_file,
    driver_message,
    hide_password,
)
from metasched.times.active_until import ACTIVE_SECONDS, ActiveUntil

log = logging.getLogger("metasched")

OLDEST_VERSION = 130000  # oldest supported server, in PostgreSQL's notation: 13.0
LOCK_KEY = 0x6D736368  # "msch": an active daemon per database of a server
HOLDER_EXIT_TIMEOUT = 30.0  # seconds; the server notices the death of a local client within
STANDBY_INTERVAL = 1.0  # seconds between a standby's attempts to get the lock
# Seconds without a statement after which a standby ends the session of the active daemon: its host
# is lost, or it hangs. A live daemon sends one every 2 s (`service.DATABASE_CHECK_INTERVAL`).
SILENT_HOLDER = 8.0
BUSY_HOLDER = 600.0  # the same while it holds `BUSY_KEY`: it restores its state
BUSY_KEY = LOCK_KEY + 1
# SQLSTATE classes of errors that pass: connection, resources, intervention of an operator
PASSING_CLASSES = ("08", "53", "57")
# Refusals of a connection that last until the site changes something. A refusal in another
# language counts as passing: a daemon that waits logs the cause every minute.
LASTING_REFUSAL = re.compile(
    "SSL|certificate|password|does not exist|pg_hba|permission|not permitted|unsupported"
    "|unrecognized|authentication"
)
CONNECT_TIMEOUT = 5  # seconds
SILENCE_TIMEOUT = 10.0  # seconds without an answer; longer than `lock_timeout`
# Settings of metasched's sessions: lock waits as short as SQLite's, no time limits by the server,
# and a client on a lost host is noticed within a minute, so that a standby elsewhere can take over.
SESSION_SETTINGS = {
    "lock_timeout": "5s",
    "statement_timeout": "0",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "6",
    # ends the statement and the locks of a lost client (since version 14)
    "client_connection_check_interval": "5s",
}
_APPLY_SETTINGS = (
    "SELECT set_config(name, wanted.value, false) FROM pg_settings JOIN (VALUES "
    + ", ".join(f"('{name}', '{value}')" for name, value in SESSION_SETTINGS.items())
    + ") AS wanted(name, value) USING (name) UNION ALL "
    # an acknowledged commit must be on disk; stricter settings of the site are kept
    "SELECT set_config(name, 'on', false) FROM pg_settings "
    "WHERE name = 'synchronous_commit' AND setting IN ('off', 'local')"
)
_LOCK_HOLDER = text(
    "SELECT activity.pid, activity.backend_start, activity.application_name, activity.state, "
    "activity.state_change, EXISTS (SELECT FROM pg_locks AS busy WHERE busy.pid = held.pid "
    f"AND busy.locktype = 'advisory' AND busy.granted AND busy.objid = {BUSY_KEY}) AS is_busy "
    "FROM pg_locks AS held "
    "LEFT JOIN pg_stat_activity AS activity USING (pid) "
    "WHERE held.locktype = 'advisory' AND held.granted AND held.classid = 0 "
    f"AND held.objid = {LOCK_KEY} AND held.objsubid = 1 AND held.database = "
    "(SELECT oid FROM pg_database WHERE datname = current_database())"
)
_MAY_READ_CONTROL = text("SELECT has_function_privilege('pg_control_system()', 'EXECUTE')")
_SERVER = text(
    "SELECT system_identifier || ' on timeline ' "
    "|| ltrim(substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), '0') FROM pg_control_system()"
)
_LOCK_HELD = "metasched active"
_PROCESS = re.compile(r"process (?P<pid>\d+) on (?P<host>.+)")
_SESSION = "metasched "  # application_name of metasched's sessions; the process follows


class _HolderExiting(StoreError):
    """The daemon with the lock died on this host; the server has not noticed yet."""


class LockSession(WriterLock):
    """The session of the active daemon; it holds the advisory lock."""

    def __init__(self, engine: Engine, database: Postgresql) -> None:
        self._database = database
        self._last: tuple[int, Any] | None = None  # pid and start of the last session
        # the last sign of another daemon's session, and its monotonic seconds
        self._heard: tuple[Any, float] = (None, 0.0)
        self.process = _process_name()
        self.active_until = ActiveUntil.create()
        try:
            super().__init__(engine)
        except DBAPIError as error:
            raise database.store_error(error) from None

    @property
    def held(self) -> bool:
        return not self.connection.invalidated and _LOCK_HELD in self.connection.info

    def acquire(self) -> None:
        try:
            with self.connection.begin():
                self._acquire(self.connection)
        except DBAPIError as error:
            raise self._database.store_error(error) from None

    def server(self) -> str:
        execute = self.connection.execute
        if not execute(_MAY_READ_CONTROL).scalar():
            return ""
        return str(execute(_SERVER).scalar())

    def confirm(self, asked: float) -> None:
        assert self.active_until is not None
        self.active_until.extend(asked + ACTIVE_SECONDS)

    def may_act(self, process: str) -> bool:
        return process not in ("", self.process) and not _is_dead(process)

    def _acquire(self, connection: Connection) -> None:
        execute = connection.execute
        if not self.held:
            if not execute(text(f"SELECT pg_try_advisory_lock({LOCK_KEY})")).scalar():
                self._raise_lock_held(connection)
            connection.info[_LOCK_HELD] = True
        own_session = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        session = execute(text(own_session)).one()
        self._last = (session.pid, session.backend_start)

    def _raise_lock_held(self, connection: Connection) -> None:
        """Raise DatabaseInUse if another daemon has the lock, StoreError if this daemon had it."""
        holder = connection.execute(_LOCK_HOLDER).first()
        if holder is None:
            raise StoreError(f"{self._database}: its lock was released just now; try again")
        if self._last == (holder.pid, holder.backend_start):
            # the server has not noticed the cut of this session and would keep its lock for long
            connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": holder.pid})
            raise StoreError(
                f"{self._database}: the cut session of this daemon is being ended; try again"
            )
        process = (holder.application_name or "").removeprefix(_SESSION)
        if _is_dead(process):
            raise _HolderExiting(
                f"{self._database}: a daemon that died still has the lock; try again"
            )
        process = process if _PROCESS.fullmatch(process) else "?"
        raise DatabaseInUse(
            f"another daemon ({process}) is active on {self._database}; "
            "stop it, or start this one with --standby"
        )

    @contextmanager
    def long_silence(self) -> Iterator[None]:
        try:
            with self.connection.begin():
                self.connection.execute(text(f"SELECT pg_try_advisory_lock({BUSY_KEY})"))
        except DBAPIError as error:
            raise StorageFailed(driver_message(error)) from error
        try:
            yield
        finally:
            with suppress(DBAPIError):  # the lock ends with a session that is cut
                self.connection.rollback()
                self.connection.execute(text(f"SELECT pg_advisory_unlock({BUSY_KEY})"))
                self.connection.commit()

    def end_silent_holder(self) -> None:
        """End the session of the daemon with the lock if it has been silent for `SILENT_HOLDER`.

        What that daemon writes later fails, and it ends. Time is counted here, since clocks may be
        set. StoreError if the server does not answer.
        """
        try:
            with self.connection.begin():
                holder = self.connection.execute(_LOCK_HOLDER).first()
                now, (heard, since) = time.monotonic(), self._heard
                # a statement may take long; the sessions of another role cannot be seen
                if holder is None or holder.state in (None, "active"):
                    self._heard = (None, now)
                    return
                if heard != (holder.pid, holder.backend_start, holder.state_change):
                    self._heard = ((holder.pid, holder.backend_start, holder.state_change), now)
                    return
                if now - since < (BUSY_HOLDER if holder.is_busy else SILENT_HOLDER):
                    return
                terminate = text("SELECT pg_terminate_backend(:pid)")
                self.connection.execute(terminate, {"pid": holder.pid})
        except DBAPIError as error:
            raise self._database.store_error(error) from None
        log.warning(
            "standby: %s was silent for %.0f s; its session is ended",
            holder.application_name,
            now - since,
        )

    def release(self) -> None:
        """Release the lock at once; the server notices the end of the session later."""
        with suppress(DBAPIError):
            self.connection.rollback()
            if self.held:
                self.connection.execute(text(f"SELECT pg_advisory_unlock({LOCK_KEY})"))
                self.connection.commit()
        self.connection.close()


class Postgresql(Database):
    """A database of a PostgreSQL server, version 13 or newer."""

    backup_suffix = ".sql"

    def __init__(self, url: URL) -> None:
        self.url = url.set(drivername="postgresql+psycopg")

    def __str__(self) -> str:
        return hide_password(self.url.set(drivername="postgresql"))

    @contextmanager
    def acquire_writer(self, standby: bool = False) -> Iterator[WriterLock]:
        engine, writer_lock = self._create_engine(SILENCE_TIMEOUT), None
        try:
            writer_lock = self._connect_writer(engine, standby)
            self._wait_for_lock(writer_lock, standby)
            try:
                self.upgrade(writer_lock.connection)
            except DBAPIError as error:
                raise self.store_error(error) from None
            session: Any = writer_lock.connection.connection.driver_connection
            session.silence_timeout = SILENCE_TIMEOUT
            yield writer_lock
        finally:
            if writer_lock is not None:
                writer_lock.release()
            engine.dispose()

    def _connect_writer(self, engine: Engine, standby: bool) -> LockSession:
        """Connect the session that will hold the lock. A standby waits for the server."""
        logged = ""
        while True:
            try:
                return LockSession(engine, self)
            except DatabaseUnreachable as error:
                if not standby:
                    raise
                if str(error) != logged:
                    logged = str(error)
                    log.error("standby: %s; retrying every %g s", logged, STANDBY_INTERVAL)
            time.sleep(STANDBY_INTERVAL)

    def _wait_for_lock(self, writer_lock: LockSession, standby: bool) -> None:
        """Acquire the lock. A standby waits for the active daemon, also across server restarts."""
        logged, deadline = "", time.monotonic() + HOLDER_EXIT_TIMEOUT
        while True:
            try:
                if standby:
                    writer_lock.end_silent_holder()
                return writer_lock.acquire()
            except _HolderExiting:
                if time.monotonic() > deadline and not standby:
                    raise
                time.sleep(0.1)
                continue
            except DatabaseInUse as busy:
                if not standby:
                    raise
                cause = str(busy).partition(";")[0]
            except StoreError as error:
                if not standby or not (logged or isinstance(error, DatabaseUnreachable)):
                    raise
                cause = str(error)
            if cause != logged:
                log.info("standby: %s", cause)
                logged = cause
            time.sleep(STANDBY_INTERVAL)

    def new_engine(self) -> Engine:
        return self._create_engine(None)

    def _create_engine(self, silence_timeout: float | None) -> Engine:
        """Return an engine; its sessions end after `silence_timeout` seconds without an answer."""
        try:
            import psycopg

            from metasched.db.postgresql_connection import TimeoutConnection
        except ImportError as error:
            raise StoreError(
                f"{self}: no PostgreSQL driver ({error}); pip install 'metasched[postgres]'"
            ) from None
        defaults = {
            "connect_timeout": CONNECT_TIMEOUT,
            "application_name": _SESSION + _process_name(),
            "target_session_attrs": "read-write",
            "keepalives_idle": 30,
            "keepalives_interval": 5,
            "keepalives_count": 6,
            "tcp_user_timeout": 30_000,
        }
        # parameters of the URL take precedence
        arguments = {key: value for key, value in defaults.items() if key not in self.url.query}
        # pre-ping replaces a cut session before a user's query fails on it
        engine = create_engine(self.url, connect_args=arguments, pool_pre_ping=True)

        @event.listens_for(engine, "do_connect")
        def _connect(
            _dialect: object, _record: object, connect_arguments: list[str], options: dict[str, Any]
        ) -> TimeoutConnection:
            try:
                connection = TimeoutConnection.connect(*connect_arguments, **options)
            except UnicodeError as error:
                raise StoreError(
                    f"{self}: no host name ({error}); correct [daemon] database"
                ) from None
            connection.silence_timeout = silence_timeout
            return connection

        @event.listens_for(engine, "connect")
        def _set_up(connection: psycopg.Connection[Any], _record: object) -> None:
            if (version := connection.info.server_version) < OLDEST_VERSION:
                raise StoreError(
                    f"{self}: the server is PostgreSQL {version // 10000}.{version % 10000}; "
                    f"use {OLDEST_VERSION // 10000} or newer"
                )
            if (encoding := connection.info.parameter_status("server_encoding")) != "UTF8":
                raise StoreError(
                    f"{self}: its encoding is {encoding}; create it with ENCODING 'UTF8'"
                )
            connection.execute(_APPLY_SETTINGS)
            connection.commit()

        return engine

    def require_existing(self) -> None:
        """Do nothing: only a connection shows whether it exists."""

    def require_creatable(self) -> None:
        self._open_with(self._require_may_create).dispose()

    def _require_may_create(self, connection: Connection) -> None:
        # without a schema in which it may do anything there is no current schema
        may_create = text("SELECT has_schema_privilege(current_schema(), 'CREATE')")
        if not connection.execute(may_create).scalar():
            raise StoreError(
                f"{self}: its account may not create tables; GRANT CREATE ON SCHEMA public to it"
            )

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        engine = self.open_existing()
        try:
            with engine.connect() as connection:
                connection.execution_options(isolation_level="REPEATABLE READ")
                yield connection
        except DBAPIError as error:
            raise self.store_error(error) from None
        finally:
            engine.dispose()

    def mark_path(self, folder: Path, name: str) -> Path:
        # by its name the mark is found after a move to another server, too
        return folder / f"ledger-{name}.mark"

    def find_damage(self, connection: Connection) -> list[str]:
        """Read every row; with checksums (`initdb --data-checksums`) this checks every page too."""
        problems = []
        for table in metadata.sorted_tables:
            name = connection.dialect.identifier_preparer.format_table(table)
            try:
                with connection.begin_nested():
                    # the conversion to text reads the large (TOAST) values too
                    connection.execute(text(f"SELECT sum(length({name}::text)) FROM {name}"))
            except DBAPIError as error:
                problems.append(f"{table.name}: {driver_message(error)}")
        return problems

    def quick_check(self, connection: Connection) -> tuple[str, str] | None:
        """Check for server settings that lose acknowledged commits if the server's host crashes."""
        unsafe_settings = text(
            "SELECT name FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') "
            "AND setting = 'off' ORDER BY name"
        )
        if disabled := connection.execute(unsafe_settings).scalars().all():
            return f"{' and '.join(disabled)} off", "set it on: a crash of its host would lose jobs"
        return None

    def size(self, connection: Connection) -> int:
        return int(
            connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
        )

    def backup(self, target: Path) -> int:
        """Copy by pg_dump, to a script for psql."""
        if (program := shutil.which("pg_dump")) is None:
            raise StoreError(f"{self}: no pg_dump on this host; install postgresql-client")
        engine = self.open_upgradable()
        try:
            with engine.connect() as connection:
                schema = connection.execute(text("SELECT quote_ident(current_schema())")).scalar()
        except DBAPIError as error:
            raise self.store_error(error) from None
        finally:
            engine.dispose()
        from psycopg.conninfo import make_conninfo

        # without the password: every user can read a command line
        _, connect_arguments = engine.dialect.create_connect_args(self.url.set(password=None))
        connect_arguments.pop("context")
        password_variable = {"PGPASSWORD": str(self.url.password)} if self.url.password else {}
        command = [
            program,
            "--no-owner",
            "--no-privileges",
            "-d",
            make_conninfo("", **connect_arguments),
        ]
        statement = MARK_BACKUP.format(schema=f"{schema}.", time=time.time())
        create_private_file(target)
        try:
            with target.open("wb") as file:
                completed = subprocess.run(
                    command,
                    env=os.environ | password_variable,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.PIPE,
                    check=False,
                )
                if completed.returncode != 0:
                    errors = completed.stderr.decode(errors="replace").strip().splitlines()
                    raise OSError(
                        errors[0] if errors else f"pg_dump ended with {completed.returncode}"
                    )
                file.write(f"\n-- the copy gets a name of its own\n{statement};\n".encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            target.unlink()
            raise StoreError(f"{target}: not written ({error}); check the free space") from None
        return target.stat().st_size

    def begin_upgrade(self, connection: Connection) -> None:
        session: Any = connection.connection.driver_connection
        session.silence_timeout = None  # a migration may be silent for long
        connection.begin()

    def store_error(self, error: DBAPIError) -> StoreError:
        message = driver_message(error).removeprefix("connection failed: ")
        message = message.rpartition("FATAL:")[2].strip() if "FATAL:" in message else message
        kind: type[StoreError] = StoreError
        if "password authentication failed" in message or "no password supplied" in message:
            remedy = "put the right password into ~/.pgpass or into the URL"
        elif "does not exist" in message:
            remedy = "create it, or name another in [daemon] database"
        else:
            kind = DatabaseUnreachable if _may_pass(error) else StoreError
            remedy = "check that the server runs"
            if not (isinstance(error.orig, TimeoutError) or error.connection_invalidated):
                remedy += " and that [daemon] database is right"
        return kind(f"{self}: {message}; {remedy}")


def _may_pass(error: DBAPIError) -> bool:
    """Return whether a later connection may succeed though the site changes nothing.

    libpq gives no SQLSTATE for a failed connection, and the server chooses the language.
    """
    if not isinstance(error, OperationalError):
        return False
    if sqlstate := getattr(error.orig, "sqlstate", None):
        return sqlstate[:2] in PASSING_CLASSES
    return LASTING_REFUSAL.search(str(error.orig)) is None


def _process_name() -> str:
    return f"process {os.getpid()} on {_short_hostname()}"


def _is_dead(process: str) -> bool:
    """Return whether a process of this host, by its name, has ended. Its workers end with it."""
    match = _PROCESS.fullmatch(process)
    if match is None or match["host"] != _short_hostname():
        return False
    try:
        return psutil.Process(int(match["pid"])).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def _short_hostname() -> str:
    """Return this host's name, cut to fit into the name of a session (63 bytes)."""
    return socket.gethostname()[:40]
