"""Describes a mistake in a configuration file on a single line: problem, file, table; remedy.

Pydantic finds mistakes. The remedy follows from the type of the key, not from
pydantic's own texts, which describe Python.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic.fields import FieldInfo

MAX_VALUE = 60  # characters of a wrong value that are repeated
# words of other programs for keys of ours
_SYNONYMS = {
    "cores": "cpus",
    "ncpus": "cpus",
    "processors": "cpus",
    "slots": "cpus",
    "mem": "memory",
    "ram": "memory",
    "slurm_conf": "config",
    "conf": "config",
    "type": "adapter",
    "manager": "adapter",
    "db": "database",
    "url": "database",
    "sock": "socket",
    "admins": "operators",
    "admin_groups": "operator_groups",
    "members": "users",
    "licenses": "licences",
    "license": "licence",
    "count": "total",
}
_LISTS = (tuple, frozenset, list)
_SIMILAR = 0.7  # ratio; a known name that is as similar is taken as meant
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
_MISSING_KEY = ("missing", "missing_argument", "missing_keyword_only_argument")
_NAME_FORM = "write at most 63 letters, digits, _ and ., the first a letter or a digit"


@dataclass
class _KeyType:
    """The type of a key: without Optional and Annotated, with their bounds of its values."""

    type: Any
    bounds: list[Any] = field(default_factory=list)  # Ge, Gt, Le, and others
    is_duration: bool = False


def describe_first(
    error: ValidationError, table: Mapping[str, Any], table_class: Any, source: str
) -> str:
    """Describe the first mistake. `table` was read from `source` as `table_class`."""
    return describe_all(error, table, table_class, source)[0]


def describe_all(
    error: ValidationError, table: Mapping[str, Any], table_class: Any, source: str
) -> list[str]:
    """Describe each mistake in a line, unknown keys first; they may be those that are missing."""
    mistakes = sorted(error.errors(), key=lambda each: each["type"] not in _UNKNOWN_KEY)
    lines = (_describe(mistake, table, table_class, source) for mistake in mistakes)
    return list(dict.fromkeys(lines))


def _describe(mistake: Any, table: Mapping[str, Any], table_class: Any, source: str) -> str:
    location = mistake["loc"]
    key, where = _locate(location, table)
    source = f"{source}, {where}" if where else source
    if mistake["type"] in _UNKNOWN_KEY:
        return _unknown_key(key, mistake["input"], source, location[:-1], table_class)
    key_type = _type_at(table_class, location)
    if mistake["type"] in _MISSING_KEY:
        if isinstance(table_input := mistake["input"], dict) and (
            meant := _misspelt(key, table_input)
        ):
            return f'unknown key "{meant}", {source}; write "{key}"'
        return f'no key "{key}", {source}; add it: {key} = {_example(key_type.type)}'
    problem, _, own_remedy = "", "", ""
    if mistake["type"] == "value_error":  # of our own checks: problem, or remedy, or both
        problem, separator, own_remedy = _own_words(mistake).rpartition("; ")
        if not separator and _is_remedy(own_remedy):
            problem = ""
        elif not separator:
            problem, own_remedy = own_remedy, ""
    if not key:  # the check of a dataclass names the key itself
        return f"{problem}, {source}; {own_remedy}" if problem else f"{own_remedy}, {source}"
    remedy = own_remedy or allowed_values(key_type, key)
    return f"{key} = {shown(mistake['input'])}, {source}; {remedy}"


def suggestion(name: str, known_names: Sequence[str]) -> str:
    """Return the remedy for an unknown name: the known name that is meant, or all."""
    if (synonym := _SYNONYMS.get(name.lower())) in known_names:
        return f'write "{synonym}"'
    matches = difflib.get_close_matches(name, known_names, n=1, cutoff=_SIMILAR)
    return f'write "{matches[0]}"' if matches else f"known are {', '.join(known_names)}"


def describe_toml_error(text: str, error: Exception, path: object) -> str:
    """Describe a syntax error, or a key or table that is there twice, with its line."""
    message = str(error)
    line = re.search(r"at line (\d+)", message)
    source = f"{path}, line {line[1]}" if line else str(path)
    content = text.splitlines()[int(line[1]) - 1].strip() if line else ""
    if message.startswith("Cannot overwrite a value") and content.startswith("["):
        return (
            f"{content} is a table and a list of tables, {source}; write [[ ]] in each, or once [ ]"
        )
    if message.startswith("Cannot overwrite a value"):
        return f'key "{content.partition("=")[0].strip()}" is there twice, {source}; remove one'
    if duplicate := re.match(r"Duplicate inline table key '(.*)'", message):
        return f'key "{duplicate[1]}" is there twice, {source}; remove one'
    if message.startswith("Cannot declare"):
        return f"table {content} is there twice, {source}; put its keys together"
    quoted = f" {shown(content)}" if content else ""
    return f"no TOML{quoted}, {source}; correct that line ({message.partition(' (at ')[0]})"


def shown(value: object) -> str:
    """Return a value as TOML has it, shortened, on a single line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, str):
        text = '"' + "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value) + '"'
    elif isinstance(value, list | tuple):
        text = f"[{', '.join(shown(element) for element in value[:5])}]"
    else:
        text = str(value)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 4]} ..."


def range_of(table_class: Any, path: Sequence[str]) -> str:
    """Return which values the key at a path below a table may have; "" without bounds."""
    key_type = _type_at(table_class, path)
    if get_origin(key_type.type) is Literal:
        return " or ".join(get_args(key_type.type))
    if key_type.type is bool:
        return "true or false"
    return _range(key_type).removeprefix(" from ").removeprefix(" ")


def allowed_values(key_type: _KeyType, key: str) -> str:
    """Return what to write for a key of this type."""
    type_, origin = key_type.type, get_origin(key_type.type)
    if origin is Literal:
        return f"write {' or '.join(shown(choice) for choice in get_args(type_))}"
    if origin in _LISTS:
        if _is_table(get_args(type_)[0]):
            return f"write [[{key}]]"
        return f"write a list, such as {_example(type_)}"
    if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
        return f"write a table, such as {_example(type_)}"
    if _is_table(type_):
        return f"write a table [{key}]"
    if type_ is bool:
        return "write true or false"
    if type_ is int:
        return f"write a whole number{_range(key_type)}"
    if type_ is float:
        kind = 'seconds, or a duration such as "10m"' if key_type.is_duration else "a number"
        return f"write {kind}{_range(key_type)}"
    if any(getattr(bound, "pattern", None) for bound in key_type.bounds):
        return _NAME_FORM
    return f"write text in quotes, such as {_example(str)}"


def _misspelt(key: str, present: Mapping[str, Any]) -> str | None:
    """Return the key of a table that is probably meant for a missing key."""
    matches = difflib.get_close_matches(key, list(present), n=1, cutoff=_SIMILAR)
    synonyms = (name for name in present if _SYNONYMS.get(name) == key)
    return matches[0] if matches else next(synonyms, None)


def _own_words(mistake: Any) -> str:
    message = " ".join(str(mistake["ctx"]["error"]).split())
    return f"{message[:1].lower()}{message[1:]}"


def _is_remedy(text: str) -> bool:
    return text.startswith(("write ", "name ", "leave ", "give "))


def _unknown_key(
    key: str, value: object, source: str, location: Sequence[int | str], table_class: Any
) -> str:
    """Describe a key that its table does not have; it may be a key of another table."""
    owner = _type_at(table_class, location).type
    keys = tuple(_keys(owner))
    is_table = isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    )
    remedy = suggestion(key, keys)
    if is_table and not location:
        brackets = ("[[", "]]") if isinstance(value, list) else ("[", "]")
        opening, right = brackets
        remedy = re.sub(r'"(\w+)"', rf"{opening}\1{right}", remedy)
        return f"unknown table {brackets[0]}{key}{brackets[1]}, {source}; {remedy}"
    if remedy.startswith("known are") and (tables := list(_tables_with(key, table_class))):
        remedy = f"it belongs into {' or '.join(tables)}"
    return f'unknown key "{key}", {source}; {remedy}'


def _tables_with(key: str, table_class: Any) -> Iterator[str]:
    """Yield the tables of a file that have a key, as they are written."""
    for name, key_type in _keys(table_class).items():
        inner = key_type.type
        if get_origin(inner) in _LISTS:
            inner, written = get_args(inner)[0], f"[[{name}]]"
        else:
            written = f"[{name}]"
        if _is_table(inner) and key in _keys(inner):
            yield written


def _locate(location: Sequence[int | str], table: Mapping[str, Any]) -> tuple[str, str]:
    """Return the key of a mistake and its table, as they are written in the file."""
    steps = [step for step in location if step != "[key]"]
    while steps and isinstance(steps[-1], int):  # an item of a list
        steps.pop()
    if not steps:
        return "", ""
    *path, key = steps
    names = [str(step) for step in path if not isinstance(step, int)]
    value: Any = table
    title = ""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            break
        if isinstance(step, int):
            name = value.get("name") if isinstance(value, dict) else None
            title = f'{path[0]} "{name}"' if isinstance(name, str) else f"{path[0]} {step + 1}"
    if not title:
        return str(key), f"[{'.'.join(names)}]" if names else ""
    return str(key), f"{title}, [{'.'.join(names)}]" if len(names) > 1 else title


def _type_at(table_class: Any, location: Sequence[int | str]) -> _KeyType:
    """Return the type of the value at a location below a table."""
    current = _KeyType(table_class)
    for step in location:
        origin, arguments = get_origin(current.type), get_args(current.type)
        if step == "[key]":
            continue
        if _is_table(current.type):
            current = _keys(current.type).get(str(step), _KeyType(str))
        elif origin in _LISTS:
            # of a list of plain values, the list is what its key must have
            if not _is_table(arguments[0]):
                return current
            current = _unwrap(arguments[0])
        elif arguments:
            current = _unwrap(arguments[-1])
    return current


def _keys(table_class: Any) -> dict[str, _KeyType]:
    """Return the keys of a table and their types."""
    if isinstance(table_class, type) and issubclass(table_class, BaseModel):
        return {
            name: _unwrap(Annotated[info.annotation, info] if info.metadata else info.annotation)
            for name, info in table_class.model_fields.items()
        }
    if dataclasses.is_dataclass(table_class):
        hints = typing.get_type_hints(table_class, include_extras=True)
        return {key.name: _unwrap(hints[key.name]) for key in dataclasses.fields(table_class)}
    return {}


def _unwrap(annotation: Any) -> _KeyType:
    """Remove Optional and Annotated from a type, and keep their bounds."""
    key_type = _KeyType(annotation)
    while True:
        origin, arguments = get_origin(key_type.type), get_args(key_type.type)
        if origin is Annotated:
            key_type.type = arguments[0]
            for extra in arguments[1:]:
                for bound in extra.metadata if isinstance(extra, FieldInfo) else (extra,):
                    key_type.is_duration |= isinstance(bound, BeforeValidator)
                    key_type.bounds.append(bound)
        elif origin in (Union, types.UnionType):
            key_type.type = next(choice for choice in arguments if choice is not type(None))
        else:
            return key_type


def _is_table(type_: Any) -> bool:
    is_model = isinstance(type_, type) and issubclass(type_, BaseModel)
    return is_model or dataclasses.is_dataclass(type_)


def _range(key_type: _KeyType) -> str:
    """Return the range of a number's values; "" without bounds."""
    low = max(_limits(key_type, "ge"), default=None)
    high = min(_limits(key_type, "le"), default=None)
    above = max(_limits(key_type, "gt"), default=None)
    if low is None and above is not None:
        return f" above {_number(above)}" + (f", at most {_number(high)}" if high else "")
    if low is not None and high is not None:
        return f" from {_number(low)} to {_number(high)}"
    return f", at least {_number(low)}" if low is not None else ""


def _limits(key_type: _KeyType, side: str) -> list[float]:
    limits = (getattr(bound, side, None) for bound in key_type.bounds)
    return [limit for limit in limits if limit is not None]


def _number(value: Any) -> str:
    return str(int(value)) if value == int(value) and value < 1e16 else str(value)


def _example(type_: Any) -> str:
    """Return a value of a type as TOML has it."""
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is Literal:
        return shown(arguments[0])
    if origin in _LISTS:
        inner = _unwrap(arguments[0]).type
        return "[1, 2]" if inner in (int, float) else '["a", "b"]'
    if len(arguments) == 2:  # a mapping
        return f"{{ name = {_example(_unwrap(arguments[1]).type)} }}"
    if _is_table(type_):
        return "{ ... }"
    return {bool: "true", int: "1", float: "1"}.get(type_, '"text"')
