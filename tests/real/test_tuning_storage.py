"""Studies of `metasched tune` in PostgreSQL; a site's own database is left alone."""

from __future__ import annotations

import pytest
from sqlalchemy import inspect

from metasched.db.store import Database
from metasched.errors import UserError
from tests.harness.postgresql import Server
from tests.unit.test_tuning import run_study


def test_a_study_in_postgresql_is_continued(postgresql_server: Server) -> None:
    storage = postgresql_server.create()
    first = run_study(storage, 2)
    assert run_study(storage, 3)[:2] == first


def test_a_ledger_is_no_storage(database: Database) -> None:
    engine = database.open()
    tables = inspect(engine).get_table_names()
    with pytest.raises(UserError, match="a database of another program"):
        run_study(engine.url.render_as_string(hide_password=False), 1)
    assert inspect(engine).get_table_names() == tables
    engine.dispose()
