"""Reads TOML files and checks their tables. Every error names file, key and remedy."""

from __future__ import annotations

import getpass
import hashlib
import json
import re
import sys
import tomllib
from datetime import date
from datetime import time as datetime_time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from metasched.config.mistakes import describe_all, describe_toml_error
from metasched.config.settings import ConfigError
from metasched.config.tables import TableT

MAX_DOTS = 20  # between names of a key, in a line
# each matches in linear time: a closing quote may be missing
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*+"?|\'[^\']*\'?|#.*')
_AROUND_DOT = re.compile(r"(?<!\s)\s*\.\s*")
_BETWEEN_KEYS = re.compile(r"\.\.+|[\s,=\[{\]}]")


def read_toml(path: Path, files: dict[Path, str] | None = None) -> dict[str, Any]:
    """Return the tables of a file; `files` receives its digest by its absolute path."""
    return parse_toml(read_text(path, files), path)


def read_text(path: Path, files: dict[Path, str] | None = None, most: int = -1) -> str:
    """Return the text of a file, at most `most` + 1 bytes; -1: all of it.

    `files` receives the digest of the file by its absolute path.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most + 1 if most >= 0 else -1)
        if files is not None:
            files[path.absolute()] = hashlib.sha256(content).hexdigest()
        return content.decode()
    except FileNotFoundError:
        raise ConfigError(f"no file {path}; create it, or name another") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; name the file in it") from None
    except OSError as error:
        account = getpass.getuser()
        raise ConfigError(f"{path}: {error.strerror}; make it readable for {account}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; write it again as TOML") from None


def parse_toml(text: str, source: object) -> dict[str, Any]:
    """Return the tables of a text, which was read at `source`."""
    deep = f"lists or tables are nested too deeply, {source}; flatten them"
    # tomllib takes time by the square of the depth
    if any(_dots_in_key(line) > MAX_DOTS for line in text.splitlines()):
        raise ConfigError(deep)
    try:
        tables = tomllib.loads(text)
        _refuse_dates(tables, source)
        json.dumps(tables)  # as `examined` does
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(describe_toml_error(text, error, source)) from None
    except ValueError:  # of int(): Python converts no more digits
        digits = sys.get_int_max_str_digits()
        raise ConfigError(f"a number has more than {digits} digits, {source}; shorten it") from None
    except RecursionError:
        raise ConfigError(deep) from None
    return tables


def _dots_in_key(line: str) -> int:
    """Return the most dots of a key. Texts of several lines are read as if they were keys."""
    keys = _BETWEEN_KEYS.split(_AROUND_DOT.sub(".", _QUOTED.sub("q", line)))
    return max(key.count(".") for key in keys)


def _refuse_dates(value: object, source: object, key: str = "") -> None:
    """Raise ConfigError for a date or time of TOML: no key takes it, and JSON has none."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _refuse_dates(inner, source, name)
    elif isinstance(value, list):
        for inner in value:
            _refuse_dates(inner, source, key)
    elif isinstance(value, date | datetime_time):
        raise ConfigError(f"{key} = {value} is a date or time, {source}; write text in quotes")


def validated(table_class: type[TableT], tables: dict[str, Any], source: object) -> TableT:
    """Return tables as their class. ConfigError for the first mistake."""
    checked, mistakes = examined(table_class, tables, source)
    if checked is None:
        raise ConfigError(mistakes[0])
    return checked


def examined(
    table_class: type[TableT], tables: dict[str, Any], source: object
) -> tuple[TableT | None, list[str]]:
    """Return tables as their class, or None and a line for each mistake."""
    try:
        # as JSON, since Pydantic then takes neither "64" nor true for a number
        return table_class.model_validate_json(json.dumps(tables), strict=True), []
    except ValidationError as error:
        return None, describe_all(error, tables, table_class, str(source))
