"""What a database says of its tables, to compare two of the same kind."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, inspect


def schema_of(connection: Connection) -> dict[str, object]:
    """Return columns, keys, indexes and checks by table, in any order but that of the columns."""
    inspector = inspect(connection)
    return {
        table: (
            [_column(column) for column in inspector.get_columns(table)],
            inspector.get_pk_constraint(table),
            sorted(str(key) for key in inspector.get_foreign_keys(table)),
            sorted(str(key) for key in inspector.get_unique_constraints(table)),
            sorted(_index(index) for index in inspector.get_indexes(table)),
            sorted((c["name"] or "", c["sqltext"]) for c in inspector.get_check_constraints(table)),
            inspector.get_table_options(table),
        )
        for table in inspector.get_table_names()
    }


def _column(column: Any) -> tuple[object, ...]:
    return column["name"], str(column["type"]), column["nullable"], column["default"]


def _index(index: Any) -> tuple[str, ...]:
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return index["name"], str(index["column_names"]), str(index["unique"]), str(options)
