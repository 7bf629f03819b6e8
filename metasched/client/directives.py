"""Directives in a job script: #SBATCH, #$, #PBS and #MS lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metasched.client.options import MS, SBATCH, BadInput, read_line, unknown_option
from metasched.units import (
    shown,
)

# What the user gave, by option, each with the place where it stands.
Given = dict[str, tuple[object, str]]


_GPUS = ("gpus", "gpus_per_node", "gpus_per_task")


# Of each of these the last one given counts, whichever it is.
_RIVALS = (
    set(_GPUS),
    {"mem", "mem_per_cpu"},
    {"requeue", "no_requeue"},
)


# Of the lines for other managers, those that make an array; under which name their value goes.
_OTHERS = {"#$": {"-t": "array", "-tc": "task_limit"}, "#PBS": {"-J": "array", "-t": "array"}}


_BIGGEST_SCRIPT = 4 * 1024 * 1024  # bytes


def read_script(path: str) -> str:
    """The text of a script. BadInput if it is none that a cluster could run."""
    at = shown(path)
    try:
        with open(path, "rb") as file:
            content = file.read(_BIGGEST_SCRIPT + 1)
    except IsADirectoryError:
        raise BadInput(f"a directory, {at}; name a script") from None
    except OSError as error:
        raise BadInput(f"{error.strerror}, script {at}; name one that you can read") from None
    if not content.strip():
        raise BadInput(f"an empty script, {at}; write commands into it")
    if b"\0" in content:
        raise BadInput(f"a binary file, {at}; name a script, or run it by --wrap")
    if len(content) > _BIGGEST_SCRIPT:
        raise BadInput(f"a script of more than 4 MiB, {at}; keep data in files of their own")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise BadInput(f"not UTF-8 text, {at}; name a script, or write it again as UTF-8") from None
    first = text.partition("\n")[0]
    if not (first.startswith("#!") and first[2:].strip()):
        raise BadInput(f"no #! in line 1, {at}; name the interpreter there, as #!/bin/sh")
    if first.endswith("\r"):
        raise BadInput(f"lines that end as in DOS, {at}; convert it with dos2unix")
    return text


def _wrapped(command: str) -> str:
    if not command.strip():
        raise BadInput("an empty command, --wrap; write --wrap 'COMMAND'")
    return f"#!/bin/sh\n{_utf8(command, '--wrap')}\n"


def directives(script: str, path: str, warnings: list[str]) -> Given:
    """The options of a script's `#MS`, `#SBATCH`, `#$` and `#PBS` lines, up to its first command.

    Later lines win over earlier ones, `#MS` over the others; of `#$` and `#PBS` lines only what
    makes an array counts. What is not understood goes into
    one line of `warnings`. BadInput for an unknown `#MS` option, and for what a job cannot do
    without and we cannot do yet.
    """
    ours: Given = {}
    theirs: Given = {}
    unknown: list[str] = []
    for number, line in enumerate(script.split("\n"), 1):
        if line.strip() and not line.startswith("#"):
            break
        mark, _, rest = line.replace("\t", " ").partition(" ")
        where = f"{path} line {number}"
        if mark == "#MS":
            found, others = read_line(MS, _words(rest, where), where)
            if others:
                raise unknown_option(others[0], where)
            ours = over(ours, {dest: (value, where) for dest, value in found.items()})
        elif mark == "#SBATCH":
            words = _words(rest, where)
            if words[:1] in (["hetjob"], ["packjob"]):
                raise BadInput(f"{words[0]} is not built yet, {where}; submit its parts one by one")
            # --exclusive=user is the one flag that may carry a value.
            unknown += [w for w in words if w.startswith("--exclusive=")]
            words = ["--exclusive" if w.startswith("--exclusive=") else w for w in words]
            found, others = read_line(SBATCH, words, where)
            options = [w.partition("=")[0] for w in others if w.startswith("-")]
            unknown += options or others
            theirs = over(theirs, {dest: (value, where) for dest, value in found.items()})
        elif mark in _OTHERS and rest.strip():
            found, others = _of_array(_words(rest, where), _OTHERS[mark], where)
            unknown += [f"{mark} (line {number})"] if others else []
            theirs = over(theirs, {dest: (value, where) for dest, value in found.items()})
    if unknown:
        names = ", ".join(dict.fromkeys(unknown))
        warnings.append(f"not understood and without effect, {path}: {names}")
    return over(theirs, ours)


def _of_array(
    words: Sequence[str], known: Mapping[str, str], where: str
) -> tuple[dict[str, object], list[str]]:
    """What a line of another manager says of an array, by `dest`, and its other words."""
    found: dict[str, object] = {}
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word not in known:
            others.append(word)
        elif not rest:
            raise BadInput(f"{word}: expected one argument, {where}; write it")
        else:
            found[known[word]] = rest.pop(0)
    return found, others


def over(lower: Given, higher: Given) -> Given:
    """Both, where an option of `higher` takes the place of its like in `lower`."""
    replaced = {d for rivals in _RIVALS if rivals & higher.keys() for d in rivals}
    return {**{d: value for d, value in lower.items() if d not in replaced}, **higher}


def _words(text: str, where: str) -> list[str]:
    import shlex

    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise BadInput(f"{str(error).lower()}, {where}; close it") from None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _utf8(text: str, where: str) -> str:
    if not _is_utf8(text):
        raise BadInput(f"{shown(text)} is not UTF-8 text, {where}; write it as UTF-8")
    return text
