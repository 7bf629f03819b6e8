"""Output paths with patterns, as sbatch has them: `log-%A_%4a.out`. Pure.

A job's own words are filled in at its submission (`settled`), which leaves `%a`, `%N` and `%%`;
a task's when it is sent or read (`filled`).
"""

import re
from pathlib import PurePosixPath

from metasched.errors import Unreadable, shown

DEFAULT, DEFAULT_OF_ARRAY = "metasched-%j.out", "metasched-%A_%a.out"
KNOWN = "%A job, %a task, %j job and task, %x name, %u user, %N node, %t rank and %%"
_PATTERN = re.compile(r"%(\d{0,2})([AajxuNt%])?")


def check(pattern: str) -> None:
    """Unreadable if the pattern names no file, or a word that we cannot fill in."""
    for found in _PATTERN.finditer(pattern):
        if found[2] is None or (found[1] and found[2] not in "Aaj"):
            told = pattern[found.start() : found.end() + 1]
            raise Unreadable(f"unknown pattern {shown(told)} in {shown(pattern)}", f"use {KNOWN}")
    if pattern.endswith("/"):
        raise Unreadable(f"{shown(pattern)} is a directory", "name a file in it")


def settled(pattern: str, job: int, array: bool, name: str, user: str, directory: str) -> str:
    """The absolute path, in which only `%a`, `%N` and `%%` still mean something."""

    def word(found: re.Match[str]) -> str:
        width, letter = found[1], found[2]
        match letter:
            case "A":
                return str(job).zfill(int(width or 0))
            case "j":
                return str(job).zfill(int(width or 0)) + ("_%a" if array else "")
            case "x":
                return _literal(name.replace("/", "_"))
            case "u":
                return _literal(user)
            case "t":
                return "0"  # a batch script is its job's first rank
            case _:
                return found[0]

    return str(PurePosixPath(_literal(directory), _PATTERN.sub(word, pattern)))


def filled(path: str, index: int, node: str) -> str:
    """The path of one task, as `settled` left it; `node` is the name of its first node."""
    return node.join(pieces(path, index))


def pieces(path: str, index: int) -> list[str]:
    """The literal parts of a task's path; the name of its node belongs between them."""
    found, done = [""], 0
    for pattern in _PATTERN.finditer(path):
        found[-1] += path[done : pattern.start()]
        done = pattern.end()
        match pattern[2]:
            case "N":
                found.append("")
            case "a":
                found[-1] += str(index).zfill(int(pattern[1] or 0))
            case "%":
                found[-1] += "%"
            case _:
                found[-1] += pattern[0]
    found[-1] += path[done:]
    return found


def differs(path: str) -> bool:
    """Whether a settled path is another one for every task."""
    return any(found[2] == "a" for found in _PATTERN.finditer(path))


def first_node(nodes: str) -> str:
    """The short name of the first of a manager's nodes: `a3` of `a[3-5,7]` or `a3.site.org`."""
    found = re.match(r"([^\[,.]*)(?:\[(\d+))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else ""


def _literal(text: str) -> str:
    return text.replace("%", "%%")
