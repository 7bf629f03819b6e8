"""Every key of the configuration, wrong in every way: one line that says what to write.

The keys are those of the models, so that none is forgotten.
"""

from __future__ import annotations

import copy
import importlib.metadata
import json
import os
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from metasched.adapters import registry
from metasched.adapters.registry import adapter_class
from metasched.config.reading import load_settings
from metasched.config.settings import ConfigError
from metasched.config.tables import ConfigFile, PolicyFile
from metasched.config.toml_files import parse_toml
from metasched.licence_servers import base
from metasched.licence_servers.base import licence_server_class

# a valid file with every table
FILE: dict[str, Any] = {
    "daemon": {"database": "sqlite:///ms.db", "socket": "ms.sock"},
    "site": {"launcher": "launcher.sock"},
    "tcp": {"listen": "127.0.0.1:7000"},
    "doctor": {"account": "ada"},
    "policy": {"file": "policy.toml"},
    "mail": {"program": "sendmail", "domains": ["example.org"]},
    "webhook": [{"name": "ops", "url": "https://ops.example.org/", "secret_file": "secret"}],
    "cluster": [
        {
            "name": "left",
            "adapter": "local",
            "cpus": 4,
            "gres": {"gpu": 1},
            "map": {"partition": {"a": "b"}},
            "environment": {"A": "b"},
            "job": {"environment": "submit"},
        },
        {"name": "alpha", "adapter": "slurm", "config": "/etc/slurm.conf"},
        {"name": "grid", "adapter": "drmaa", "library": "/lib/libdrmaa.so"},
    ],
    "licence": [{"name": "matlab", "total": 4, "machines": {"left": "big"}}],
    "user_class": [{"name": "gold", "users": ["ada"]}],
    "licence_server": [
        {"name": "main", "kind": "flexlm", "servers": "27000@lic1", "features": {"a": "b"}},
        {"name": "own", "kind": "command", "command": ["/bin/count"]},
    ],
    "calendar": [
        {"name": "night", "at": "daily 20:00", "do": "drain", "cluster": "left"},
        {"name": "copy", "at": "0 2 * * *", "do": "backup", "folder": "/b", "zone": "UTC"},
    ],
    "reservations": {"most": 3, "classes": {"gold": {"most": 4}}},
    "limits": {
        "queued": 10,
        "licences": {"matlab": 2},
        "each_user": {"queued": 5},
        "users": {"ada": {"queued": 5}},
        "groups": {"aero": {"queued": 5}},
        "accounts": {"physics": {"queued": 5}},
        "classes": {"gold": {"queued": 5}},
    },
    "fair_share": {
        "users": {"ada": 1.0},
        "shares": {"physics": {"weight": 2.0, "users": {"ada": 1.0}}},
    },
}
POLICY: dict[str, Any] = {
    "weights": {"user": 2.0},
    "classes": {"gold": 7, "regular": 1},
    "self_optimising": {"base": {"history": 50}},
    "heuristics": {"small_first": {"weight": 2.0, "parameters": {"full": 8.0}}},
    "placement": {"long_to_fast": {"weight": 3.0}},
    "run_times": {"as_before": {"weight": 1.0}},
}
# negative values of these are of no consequence
UNUSED = {("grid", "cpus")}
# keys that take any text: their mistakes are of other kinds
PYDANTIC = re.compile(
    r"[Ii]nput should|pydantic|validation error|type=|_type\b|forbidden|unable to parse|"
    r"<class|Traceback|[Ee]rror:|\bNone\b|\bTrue\b|\bFalse\b|ctx"
)
REMEDY = re.compile(
    r"; (write |known are |add it: |remove one|put |name |give |it must be |it has |leave )"
)


@dataclass(frozen=True)
class Key:
    """A key of a table: where the table is, and what the key may be."""

    file: Literal["metasched.toml", "policy.toml"]
    path: tuple[str | int, ...]
    name: str
    type: Any  # without Optional and Annotated
    bounds: tuple[Any, ...]
    required: bool
    of_plugin: bool = False

    def __str__(self) -> str:
        return ".".join(map(str, (self.file, *self.path, self.name)))


def split_type(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without Optional and Annotated, and what they say of its values."""
    bounds: list[Any] = []
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *extras = get_args(annotation)
            for extra in extras:
                bounds += extra.metadata if isinstance(extra, FieldInfo) else [extra]
        elif get_origin(annotation) in (Union, types.UnionType):
            annotation = next(a for a in get_args(annotation) if a is not type(None))
        else:
            return annotation, tuple(bounds)


def keys_of_model(
    file: Literal["metasched.toml", "policy.toml"],
    model: type[BaseModel],
    path: tuple[str | int, ...],
) -> Iterator[Key]:
    tables = at(FILE if file == "metasched.toml" else POLICY, path)
    for name, info in model.model_fields.items():
        type_, bounds = split_type(info.annotation)
        yield Key(file, path, name, type_, (*bounds, *info.metadata), info.is_required())
        inner = get_args(type_)[-2 if get_origin(type_) is tuple else -1 :]
        inner_type = type_ if not inner else inner[0]
        if not (isinstance(inner_type, type) and issubclass(inner_type, BaseModel)):
            continue
        if get_origin(type_) is tuple:
            for index, table in enumerate(tables[name]):
                location = (*path, name, index)
                yield from keys_of_model(file, inner_type, location)
                yield from keys_of_plugin(file, name, table, location)
        elif get_origin(type_) is dict:
            for entry in tables[name]:
                yield from keys_of_model(file, inner_type, (*path, name, entry))
        elif name in tables:
            yield from keys_of_model(file, inner_type, (*path, name))


def keys_of_plugin(
    file: Literal["metasched.toml", "policy.toml"],
    kind: str,
    table: Mapping[str, Any],
    path: tuple[str | int, ...],
) -> Iterator[Key]:
    if kind == "cluster":
        options = adapter_class(table["adapter"]).Options
    elif kind == "licence_server":
        options = licence_server_class(table["kind"]).Options
    else:
        return
    assert is_dataclass(options)
    hints = typing.get_type_hints(options, include_extras=True)
    for field in fields(options):
        type_, bounds = split_type(hints[field.name])
        required = field.default is field.default_factory
        yield Key(file, path, field.name, type_, bounds, required, of_plugin=True)


def at(tables: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        tables = tables[step]
    return tables


KEYS = [
    *keys_of_model("metasched.toml", ConfigFile, ()),
    *keys_of_model("policy.toml", PolicyFile, ()),
]


def toml(tables: Mapping[str, Any], path: str = "", brackets: str = "[]") -> str:
    """Write tables as TOML."""
    plain = {k: v for k, v in tables.items() if not is_table(v)}
    lines = [f"{brackets[: len(brackets) // 2]}{path}{brackets[len(brackets) // 2 :]}"]
    lines = lines if path else []
    lines += [f"{name} = {value(plain[name])}" for name in plain]
    for name, table in tables.items():
        if is_table(table):
            inner = f"{path}.{name}" if path else name
            for each in table if isinstance(table, list) else [table]:
                lines.append(toml(each, inner, "[[]]" if isinstance(table, list) else "[]"))
    return "\n".join(lines)


def is_table(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    )


def value(value: Any) -> str:
    if isinstance(value, Raw):
        return value
    if isinstance(value, list):
        return f"[{', '.join(map(value_of, value))}]"
    return json.dumps(value)


value_of = value


class Raw(str):
    """TOML as it is."""


class Files:
    """The two files in a folder, of which one is made wrong at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("metasched.toml", toml(FILE))
        self.write("policy.toml", toml(POLICY))

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text + "\n")

    def error(self) -> str:
        """Return the message of the mistake."""
        with pytest.raises(ConfigError) as error:
            load_settings(self.folder / "metasched.toml")
        return str(error.value)


@pytest.fixture(scope="module", autouse=True)
def plug_ins_listed_once() -> Iterator[None]:
    """Thousands of files are read here, and each reading would search all installed packages."""
    with pytest.MonkeyPatch.context() as patch:
        once = cache(entry_points)
        for module in (importlib.metadata, registry, base):
            patch.setattr(module, "entry_points", once)
        yield


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def changed(key: Key, change: Callable[[dict[str, Any]], object]) -> str:
    """Return the text of a file with a changed table."""
    tables = copy.deepcopy(FILE if key.file == "metasched.toml" else POLICY)
    change(at(tables, key.path))
    return toml(tables)


def wrong_values(key: Key) -> Iterator[Any]:
    """Yield values of a wrong type or unit, and values out of range."""
    type_, origin = key.type, get_origin(key.type)
    low = max((b.ge for b in key.bounds if hasattr(b, "ge")), default=None)
    high = min((b.le for b in key.bounds if hasattr(b, "le")), default=None)
    above = max((b.gt for b in key.bounds if hasattr(b, "gt")), default=None)
    yield Raw("2026-11-26")  # a date
    if type_ in (int, float):
        yield from ("many", ["a"], {"a": 1}, "4 parsecs", True)
        if not any(isinstance(bound, BeforeValidator) for bound in key.bounds):  # no duration
            yield "64"
        if type_ is int:
            yield from (1.5, "4G")
        else:
            yield from ("-5m", "3 kg")
        if low is not None:
            yield low - 1
        if high is not None:
            yield high * 2
            yield Raw("inf") if type_ is float else high + 1
            yield Raw("nan") if type_ is float else high + 1
        if above is not None:
            yield above
        if key.of_plugin and (at(FILE, key.path)["name"], key.name) not in UNUSED:
            yield -1
    elif type_ is str:
        yield from (5, True, ["a"], {"a": "b"})
    elif type_ is bool:
        yield from ("perhaps", "yes", "true", 7, 1, ["a"])
    elif origin is Literal:
        yield from ("neither", 5, ["a"])
    elif origin is tuple:
        yield from (5, "ada", {"a": "b"})
        yield [["a"]]
    elif origin is not None or isinstance(type_, type):  # tables
        yield from (5, "text", ["a"])
        if get_origin(type_) is not None:
            yield {"a": ["b"]}
    else:
        raise AssertionError(key)


def check(message: str, key: str, path: Path) -> None:
    assert "\n" not in message
    assert str(path) in message, message
    assert re.search(rf"\b{re.escape(key)}\b", message), message
    assert REMEDY.search(message), message
    assert not PYDANTIC.search(message), message
    assert len(message) < 1000, message


def test_the_files_are_valid_and_name_every_plugin(files: Files) -> None:
    load_settings(files.folder / "metasched.toml")
    assert len(KEYS) > 150
    own_plug_ins = {
        entry.name
        for group in ("metasched.adapters", "metasched.licence_servers")
        for entry in entry_points(group=group)
        if entry.value.startswith("metasched.")
    }
    used = {table["adapter"] for table in FILE["cluster"]}
    assert own_plug_ins == used | {table["kind"] for table in FILE["licence_server"]}


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_wrong_types_units_and_ranges(files: Files, key: Key) -> None:
    for wrong in wrong_values(key):
        files.write(key.file, changed(key, lambda t, wrong=wrong: t.update({key.name: wrong})))  # type: ignore[misc]
        check(files.error(), key.name, files.folder / key.file)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_misspelt_key(files: Files, key: Key) -> None:
    wrong = key.name[0] + key.name

    def misspell(table: dict[str, Any]) -> None:
        table[wrong] = table.pop(key.name, 1)

    files.write(key.file, changed(key, misspell))
    message = files.error()
    check(message, key.name, files.folder / key.file)
    assert re.search(rf'; write ("{key.name}"|\[+{key.name}\]+)', message), message
    assert wrong in message


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_key_that_is_there_twice(files: Files, key: Key) -> None:
    one_line = Raw("1")
    text = changed(key, lambda t: t.update({key.name: one_line}))
    line = f"{key.name} = 1"
    assert line in text
    text = text.replace(line, f"{line}\n{line}", 1)
    number = text.splitlines().index(line) + 2
    files.write(key.file, text)
    message = files.error()
    assert message == (
        f'key "{key.name}" is there twice, {files.folder / key.file}, line {number}; remove one'
    )


@pytest.mark.parametrize("key", [key for key in KEYS if key.required], ids=str)
def test_a_missing_key(files: Files, key: Key) -> None:
    files.write(key.file, changed(key, lambda t: t.pop(key.name)))
    message = files.error()
    check(message, key.name, files.folder / key.file)
    assert f"; add it: {key.name} = " in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[daemon]", "[deamon]"), "unknown table [deamon], {file}; write [daemon]"),
        (
            ("[[user_class]]", "[[user_clas]]"),
            "unknown table [[user_clas]], {file}; write [[user_cl",
        ),
        (
            ("[[cluster]]", "[[clusters]]"),
            "[[cluster]] is a table and a list of tables, {file}, li",
        ),
        (("[tcp]", "[[tcp]]"), "tcp = [a table], {file}; write a table [tcp]"),
        (("[tcp]", "[tcp]\n[tcp]"), "table [tcp] is there twice, {file}, line "),
        (("cpus = 4", "cores = 4"), 'unknown key "cores", {file}, cluster "left"; write "cpus"'),
        (('name = "left"', 'name = "a b"'), 'name = "a b", {file}, cluster "a b"; write at most'),
        (('adapter = "slurm"', 'adapter = "slrum"'), 'unknown adapter "slrum", {file}, cluster'),
        (("[limits]\n", "[limits]\noperators = 3\n"), "; it belongs into [site]"),
        (('name = "alpha"', 'name = "left"'), 'cluster "left" is there twice in {file}'),
        (("cpus = 4", "cpus = "), 'no TOML "cpus =", {file}, line '),
        (("cpus = 4", "cpus = \u20ac"), 'no TOML "cpus = \u20ac", {file}, line '),
        (('"policy.toml"', '"none.toml"'), "no file {folder}/none.toml; create it, or name"),
        (('"policy.toml"', '"."'), "{folder} is a folder; name the file in it"),
    ],
)
def test_tables_and_files(files: Files, change: tuple[str, str], message: str) -> None:
    text = toml(FILE)
    assert change[0] in text
    files.write("metasched.toml", text.replace(*change, 1))
    error = files.error()
    assert message.format(file=files.folder / "metasched.toml", folder=files.folder) in error
    assert "\n" not in error


def test_files_that_cannot_be_read(files: Files) -> None:
    path = files.folder / "metasched.toml"
    path.write_bytes(b"a = '\xff'")
    assert files.error() == f"{path} is not UTF-8 text; write it again as TOML"
    if os.geteuid():
        path.chmod(0)
        assert "make it readable for" in files.error()


def test_a_value_is_shown_as_in_the_file_and_in_one_line(files: Files) -> None:
    text = toml(FILE).replace('"submit"', f'"a\\u001b[1m{"b" * 500}\\nc"')
    files.write("metasched.toml", text)
    message = files.error()
    assert message.startswith('environment = "a\\x1b[1mbbb')
    assert len(message) < 400
    assert message.endswith('write "submit" or "login"')


@pytest.mark.parametrize(
    "text",
    [
        "a." * 900 + "b = 1\n",
        "[" + "a." * 900 + "b]\n",
        "[" + '"a".' * 900 + "b]\n",
        "x = {" + "a . " * 900 + "b = 1}\n",
        "x = " + "[" * 900 + "]" * 900,
    ],
)
def test_deep_keys_are_one_mistake(text: str) -> None:
    with pytest.raises(ConfigError, match=r"nested too deeply, x\.toml; flatten them"):
        parse_toml(text, "x.toml")


def test_a_number_of_too_many_digits_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"a number has more than 4300 digits, x\.toml"):
        parse_toml(f"a = {'9' * 5000}", "x.toml")


def test_dots_of_values_and_remarks_are_no_depth() -> None:
    dots = "." * 50
    numbers = ", ".join(["1.5"] * 50)
    text = f"a = \"{dots}\" # {dots}\nb = [{numbers}]\nc = '{dots}'\n"
    assert parse_toml(text, "x.toml")["b"] == [1.5] * 50
