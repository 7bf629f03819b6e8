"""PostgreSQL: a server that the site runs; the active daemon's session holds an advisory lock.

The session that holds the lock is the one that writes: when it is cut, the server ends lock and
transaction together. What still reaches the server by another session of a daemon that has lost
the lock is refused by its epoch (`ledger`).
"""

from __future__ import annotations

import logging
import os
import re
import secrets
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
from sqlalchemy.exc import DBAPIError

from metasched.core.transitions import LIVE
from metasched.db.schema import metadata
from metasched.db.store import Busy, Database, Seat, StoreError, new_file, shown, words
from metasched.paths import personal_data

log = logging.getLogger("metasched")

OLDEST = 130000  # the oldest server, as PostgreSQL writes it: 13.0
LOCK = 0x6D736368  # "msch": one active daemon for each database of a server
NOTICE = 30.0  # seconds in which a server notices that a process on our host has died
STANDBY = 1.0  # seconds between a standby's looks
CONNECT = 5  # seconds for a connection
SILENCE = 10.0  # seconds that the active daemon waits for a word: longer than for a lock
# Of our sessions: waits as short as SQLite's, no ends of the server's own, and a client whose host
# is gone is noticed within a minute, so that a standby on another host can take over.
SETTINGS = {
    "lock_timeout": "5s",
    "statement_timeout": "0",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "6",
    # what a session that is gone has begun is ended, and its locks with it (from 14 on)
    "client_connection_check_interval": "5s",
}
_SET = (
    "SELECT set_config(name, wanted.value, false) FROM pg_settings JOIN (VALUES "
    + ", ".join(f"('{name}', '{value}')" for name, value in SETTINGS.items())
    + ") AS wanted(name, value) USING (name) UNION ALL "
    # what is acknowledged must be on disk; what a site wants beyond that is left as it is
    "SELECT set_config(name, 'on', false) FROM pg_settings "
    "WHERE name = 'synchronous_commit' AND setting IN ('off', 'local')"
)
_HOLDER = text(
    "SELECT activity.pid, activity.backend_start, activity.application_name FROM pg_locks AS held "
    "LEFT JOIN pg_stat_activity AS activity USING (pid) "
    "WHERE held.locktype = 'advisory' AND held.granted AND held.classid = 0 "
    f"AND held.objid = {LOCK} AND held.objsubid = 1 AND held.database = "
    "(SELECT oid FROM pg_database WHERE datname = current_database())"
)
_SEATED = "metasched active"
_NAME = re.compile(
    r"metasched (?P<who>process (?P<pid>\d+) on (?P<host>.+))"
)  # of our sessions, for other daemons to read


class _Ending(StoreError):
    """The daemon with the lock has died on this host, and the server is about to notice."""


class Session(Seat):
    """The session of the active daemon."""

    def __init__(self, engine: Engine, place: Postgresql) -> None:
        self._place = place
        self._last: tuple[int, Any] | None = None  # the session that held the lock last
        try:
            super().__init__(engine)
        except DBAPIError as error:
            raise place.unusable(error) from None

    @property
    def held(self) -> bool:
        return not self.connection.invalidated and _SEATED in self.connection.info

    def renew(self) -> None:
        try:
            with self.connection.begin():
                self._renew(self.connection)
        except DBAPIError as error:
            raise self._place.unusable(error) from None

    def _renew(self, connection: Connection) -> None:
        run = connection.execute
        if not self.held:
            if not run(text(f"SELECT pg_try_advisory_lock({LOCK})")).scalar():
                self._refuse(connection)
            connection.info[_SEATED] = True
        mine = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        found = run(text(mine)).one()
        self._last = (found.pid, found.backend_start)

    def _refuse(self, connection: Connection) -> None:
        """Busy if another daemon has the lock, StoreError if it is an earlier session of ours."""
        holder = connection.execute(_HOLDER).first()
        if holder is None:
            raise StoreError(f"{self._place}: its lock was let go at this moment; try again")
        if self._last == (holder.pid, holder.backend_start):
            # a cut that the server has not noticed: without this it would keep us out for long
            connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": holder.pid})
            raise StoreError(f"{self._place}: our cut session is being ended there; try again")
        found = _NAME.fullmatch(holder.application_name or "")
        if found and found["host"] == _host() and not psutil.pid_exists(int(found["pid"])):
            raise _Ending(f"{self._place}: a daemon that died has the lock still; try again")
        raise Busy(
            f"another daemon ({found['who'] if found else '?'}) is active on {self._place}; "
            "stop it, or start this one with --standby"
        )

    def leave(self) -> None:
        """Let the lock go at once: the end of a session the server notices a little later."""
        with suppress(DBAPIError):
            self.connection.rollback()
            if self.held:
                self.connection.execute(text(f"SELECT pg_advisory_unlock({LOCK})"))
                self.connection.commit()
        self.connection.close()


class Postgresql(Database):
    """A database of a server, version 13 or newer."""

    def __init__(self, url: URL) -> None:
        self.url = url.set(drivername="postgresql+psycopg")
        self.folder = personal_data() / f"{url.database or 'metasched'}.clusters"

    def __str__(self) -> str:
        return shown(self.url.set(drivername="postgresql"))

    @contextmanager
    def active(self, standby: bool = False) -> Iterator[Seat]:
        engine, seat = self._engine(SILENCE), None
        try:
            seat = Session(engine, self)
            self._wait(seat, standby)
            session: Any = seat.connection.connection.driver_connection
            session.silence = None  # a large table is changed for long, without a word
            try:
                self.upgrade(seat.connection)
            except DBAPIError as error:
                raise self.unusable(error) from None
            session.silence = SILENCE
            yield seat
        finally:
            if seat is not None:
                seat.leave()
            engine.dispose()

    def _wait(self, seat: Session, standby: bool) -> None:
        """Wait for the lock as long as another daemon has it, over restarts of the server."""
        told, until = "", time.monotonic() + NOTICE
        while True:
            try:
                return seat.renew()
            except _Ending:
                if time.monotonic() > until and not standby:
                    raise
                time.sleep(0.1)
                continue
            except Busy as busy:
                if not standby:
                    raise
                why = str(busy).partition(";")[0]
            except StoreError as error:
                if not (standby and told):
                    raise
                why = str(error)
            if why != told:
                log.info("standby: %s", why)
                told = why
            time.sleep(STANDBY)

    def engine(self) -> Engine:
        return self._engine(None)

    def _engine(self, silence: float | None) -> Engine:
        """An engine whose sessions end when the server says nothing for so many seconds."""
        try:
            import psycopg

            from metasched.db.silence import Listening
        except ImportError as error:
            raise StoreError(
                f"{self}: no PostgreSQL driver ({error}); pip install 'metasched[postgres]'"
            ) from None
        given = {
            "connect_timeout": CONNECT,
            "application_name": f"metasched process {os.getpid()} on {_host()}",
            "target_session_attrs": "read-write",
            "keepalives_idle": 30,
            "keepalives_interval": 5,
            "keepalives_count": 6,
            "tcp_user_timeout": 30_000,
        }
        # what the URL says itself comes first
        own = {key: value for key, value in given.items() if key not in self.url.query}
        # a session that was cut is found out before it is used, not by the user whose turn it is
        made = create_engine(self.url, connect_args=own, pool_pre_ping=True)

        @event.listens_for(made, "do_connect")
        def _connect(
            _dialect: object, _record: object, words: list[str], options: dict[str, Any]
        ) -> Listening:
            connection = Listening.connect(*words, **options)
            connection.silence = silence
            return connection

        @event.listens_for(made, "connect")
        def _set_up(connection: psycopg.Connection[Any], _record: object) -> None:
            if (version := connection.info.server_version) < OLDEST:
                raise StoreError(
                    f"{self}: the server is PostgreSQL {version // 10000}.{version % 10000}; "
                    f"use {OLDEST // 10000} or newer"
                )
            if (encoding := connection.info.parameter_status("server_encoding")) != "UTF8":
                raise StoreError(
                    f"{self}: its encoding is {encoding}; make one with ENCODING 'UTF8'"
                )
            connection.execute(_SET)
            connection.commit()

        return made

    def must_exist(self) -> None:
        """Only the server knows."""

    @contextmanager
    def moment(self) -> Iterator[Connection]:
        engine = self.open_existing()
        try:
            with engine.connect() as connection:
                connection.execution_options(isolation_level="REPEATABLE READ")
                yield connection
        except DBAPIError as error:
            raise self.unusable(error) from None
        finally:
            engine.dispose()

    def damage(self, connection: Connection) -> list[str]:
        """Every row is read: with checksums (`initdb --data-checksums`) so is every page's."""
        wrong = []
        for table in metadata.sorted_tables:
            name = connection.dialect.identifier_preparer.format_table(table)
            try:
                with connection.begin_nested():
                    # a row as text is the only way to have its large values read, too
                    connection.execute(text(f"SELECT sum(length({name}::text)) FROM {name}"))
            except DBAPIError as error:
                wrong.append(f"{table.name}: {words(error)}")
        return wrong

    def weakness(self, connection: Connection) -> tuple[str, str] | None:
        """Settings of the server with which a crash of its host loses what was acknowledged."""
        off = text(
            "SELECT name FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') "
            "AND setting = 'off' ORDER BY name"
        )
        if wrong := connection.execute(off).scalars().all():
            return f"{' and '.join(wrong)} off", "set it on: a crash of its host would lose jobs"
        return None

    def size(self, connection: Connection) -> int:
        return int(
            connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
        )

    def backup(self, target: Path) -> int:
        """By pg_dump, as a script for psql."""
        if (program := shutil.which("pg_dump")) is None:
            raise StoreError(f"{self}: no pg_dump on this host; install postgresql-client")
        engine = self.open_existing()
        try:
            with engine.connect() as connection:
                schema = connection.execute(text("SELECT quote_ident(current_schema())")).scalar()
        except DBAPIError as error:
            raise self.unusable(error) from None
        finally:
            engine.dispose()
        from psycopg.conninfo import make_conninfo

        # what the URL says, but no password: everybody may read a command line
        _, given = engine.dialect.create_connect_args(self.url.set(password=None))
        given.pop("context")
        secret = {"PGPASSWORD": str(self.url.password)} if self.url.password else {}
        command = [program, "--no-owner", "--no-privileges", "-d", make_conninfo("", **given)]
        live = ", ".join(f"'{state}'" for state in sorted(LIVE))
        own = (
            "\n-- the copy has a name of its own, and proves nothing absent\n"
            f"INSERT INTO {schema}.instance (name, created) "
            f"VALUES ('{secrets.token_hex(4)}', {time.time()!r});\n"
            f"UPDATE {schema}.attempt SET sent = 0 WHERE state IN ({live});\n"
        )
        new_file(target)
        try:
            with target.open("wb") as file:
                done = subprocess.run(
                    command,
                    env=os.environ | secret,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.PIPE,
                    check=False,
                )
                if done.returncode != 0:
                    said = done.stderr.decode(errors="replace").strip().splitlines()
                    raise OSError(said[0] if said else f"pg_dump ended with {done.returncode}")
                file.write(own.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            target.unlink()
            raise StoreError(f"{target}: not written ({error}); see that there is room") from None
        return target.stat().st_size

    def begin_upgrade(self, connection: Connection) -> None:
        connection.begin()

    def unusable(self, error: DBAPIError) -> StoreError:
        said = words(error).removeprefix("connection failed: ")
        said = said.rpartition("FATAL:")[2].strip() if "FATAL:" in said else said
        if "password authentication failed" in said or "no password supplied" in said:
            mend = "put the right one into ~/.pgpass, or into the URL"
        elif "does not exist" in said:
            mend = "create it, or name another in [daemon] database"
        elif isinstance(error.orig, TimeoutError) or error.connection_invalidated:
            mend = "see that the server runs"
        else:
            mend = "see that the server runs and that [daemon] database is right"
        return StoreError(f"{self}: {said}; {mend}")


def _host() -> str:
    """This host, short enough to be told whole in the name of a session (63 bytes)."""
    return socket.gethostname()[:40]
