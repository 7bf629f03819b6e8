"""Output paths with the patterns of sbatch: `log-%A_%4a.out`. Pure.

`expand_job_fields` expands patterns of the job at submission, and leaves `%a`, `%N`, `%%` and, for
an array, `%j`;
`expand_task_fields` expands these when the task is dispatched or its output is read.
"""

# `metasched submit` imports this module: Python 3.9, and no slow imports at the top.
from __future__ import annotations

import re

from metasched.errors import ParseError, quote_for_error

DEFAULT, DEFAULT_OF_ARRAY = "metasched-%j.out", "metasched-%A_%a.out"
PATTERN_HELP = "%A job, %a task, %j number of the task, %x name, %u user, %N node, %t rank and %%"
_PATTERN = r"%(\d{0,2})([AajJxuNnst%])?"  # compiled as a path needs it
_NUMBERS = "AajJnst"  # may be padded with zeros
# a batch script is the first rank of its job, on the first node, and no numbered step
_OF_BATCH_SCRIPT = {"n": "0", "t": "0", "s": "batch"}


def check_pattern(pattern: str) -> None:
    """Raise ParseError if the pattern names no file or contains an unknown field."""
    for match in re.finditer(_PATTERN, pattern) if "%" in pattern else ():
        if match[2] is None or (match[1] and match[2] not in _NUMBERS):
            unknown = pattern[match.start() : match.end() + 1]
            raise ParseError(
                f"unknown pattern {quote_for_error(unknown)} in {quote_for_error(pattern)}",
                f"use {PATTERN_HELP}",
            )
    if pattern.endswith("/"):
        raise ParseError(f"{quote_for_error(pattern)} is a directory", "name a file in it")


def expand_job_fields(
    pattern: str, job: int, array: bool, name: str, user: str, directory: str
) -> str:
    """Return the absolute path; only `%a`, `%N`, `%%` and `%j` of an array remain in it."""
    from pathlib import PurePosixPath

    def replacement(match: re.Match[str]) -> str:
        width, letter = match[1], match[2]
        if letter in ("j", "J") and array:
            return f"%{width}j"
        if letter in ("A", "j", "J"):
            return str(job).zfill(int(width or 0))
        if letter in _OF_BATCH_SCRIPT:
            return _OF_BATCH_SCRIPT[letter].zfill(int(width or 0) if letter != "s" else 0)
        texts = {"x": _escape(name.replace("/", "_")), "u": _escape(user)}
        return texts.get(letter, match[0])

    return str(PurePosixPath(_escape(directory), re.sub(_PATTERN, replacement, pattern)))


def expand_task_fields(path: str, index: int, number: int, node: str) -> str:
    """Return the path of a task from the result of `expand_job_fields`.

    `number`: see `Job.task_number`. `node`: its first node.
    """
    return node.join(split_at_node(path, index, number))


def split_at_node(path: str, index: int, number: int) -> list[str]:
    """Split a task's path at `%N`, with the other fields expanded."""
    parts, position = [""], 0
    for match in re.finditer(_PATTERN, path):
        parts[-1] += path[position : match.start()]
        position = match.end()
        if match[2] == "N":
            parts.append("")
        elif match[2] in ("a", "j"):
            value = index if match[2] == "a" else number
            parts[-1] += str(value).zfill(int(match[1] or 0))
        else:
            parts[-1] += "%" if match[2] == "%" else match[0]
    parts[-1] += path[position:]
    return parts


def varies_by_task(path: str) -> bool:
    """Return whether a path from `expand_job_fields` differs between tasks."""
    return any(match[2] in ("a", "j") for match in re.finditer(_PATTERN, path))


def has_task_number(path: str) -> bool:
    """Return whether a path from `expand_job_fields` has a task number, which managers ignore."""
    return any(match[2] == "j" for match in re.finditer(_PATTERN, path))


def first_node(nodes: str) -> str:
    """Return the short name of the first node in a list: `a3` for `a[3-5,7]` or `a3.site.org`."""
    from metasched.model.host_lists import first_host

    return first_host(nodes).partition(".")[0]


def _escape(text: str) -> str:
    return text.replace("%", "%%")
