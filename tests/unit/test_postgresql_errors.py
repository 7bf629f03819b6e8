"""Which errors of a PostgreSQL connection a daemon waits out, whatever the server's language."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from metasched.db.postgresql import Postgresql
from metasched.db.store import DatabaseUnreachable

STARTING = 'connection to server at "db", port 5432 failed: FATAL:  '


@pytest.mark.parametrize(
    ("message", "passes"),
    [
        (f"{STARTING}the database system is starting up", True),
        (f"{STARTING}das Datenbanksystem startet", True),
        ("\u0412\u0410\u0416\u041d\u041e:  \u0431\u0430\u0437\u0430", True),
        ("failed to resolve host 'dbb': [Errno -2] Name or service not known", True),
        ("connection refused", True),
        (f'{STARTING}password authentication failed for user "m"', False),
        (f'{STARTING}database "absent" does not exist', False),
        (f"{STARTING}no pg_hba.conf entry for host", False),
        ("server does not support SSL, but SSL was required", False),
    ],
)
def test_a_failed_connection_is_tried_again_unless_the_refusal_lasts(
    message: str, passes: bool
) -> None:
    error = OperationalError(None, None, psycopg.OperationalError(message))
    assert unreachable(error) is passes


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (psycopg.errors.AdminShutdown("beendet"), True),
        (psycopg.errors.TooManyConnections("trop"), True),
        (psycopg.errors.InvalidPassword("falsch"), False),
    ],
)
def test_the_code_of_an_error_counts_more_than_its_text(error: psycopg.Error, passes: bool) -> None:
    assert unreachable(OperationalError(None, None, error)) is passes


def test_an_error_of_a_statement_does_not_pass() -> None:
    error = ProgrammingError("SELECT", None, psycopg.errors.UndefinedTable("no table"))
    assert not unreachable(error)


def unreachable(error: DBAPIError) -> bool:
    database = Postgresql(make_url("postgresql://db/x"))
    return isinstance(database.store_error(error), DatabaseUnreachable)
