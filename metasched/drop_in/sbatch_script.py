"""The script of sbatch: from a file, standard input or `--wrap`, and its `#SBATCH` lines."""

from __future__ import annotations

import os
import sys

from metasched.client.dialects import read_dialects
from metasched.drop_in.command import CommandError, fail
from metasched.drop_in.sbatch_options import UsageError, parse_arguments
from metasched.errors import ParseError

MAX_SCRIPT_BYTES = 4 * 1024 * 1024  # as Slurm's default
_WHITESPACE = " \t\n\v\f\r"  # of isspace(3)
_HETEROGENEOUS = ("hetjob", "packjob")


def wrap(command: str) -> str:
    """Return the script of `--wrap`, as the real command writes it."""
    return f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{command}\n"


def find_script(name: str) -> str:
    """Return the path of a script: in the current directory, else on PATH, else as written."""
    if "/" not in name and not os.access(name, os.R_OK):
        for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
            path = os.path.join(folder, name)
            if os.path.isfile(path) and os.access(path, os.R_OK):
                return path
    return name


def read_script(path: str | None) -> str:
    """Return the text of a script; None: from standard input. CommandError in Slurm's sentences."""
    content = b""
    try:
        if path is None:
            content = sys.stdin.buffer.read(MAX_SCRIPT_BYTES + 1)
        else:
            with open(path, "rb") as file:
                content = file.read(MAX_SCRIPT_BYTES + 1)
    except IsADirectoryError:
        raise _no_batch_script() from None
    except OSError:
        raise _error(f"Unable to open file {path}") from None
    if not content:
        raise _error("Batch script is empty!")
    if not content.strip():
        raise _error("Batch script contains only whitespace!")
    if content[:2] != b"#!":
        raise _no_batch_script()
    if b"\0" in content:
        raise _error(
            "The Slurm controller does not allow scripts that", "contain a NULL character '\\0'."
        )
    if b"\r\n" in content:
        raise _error(
            "Batch script contains DOS line breaks (\\r\\n)",
            "instead of expected UNIX line breaks (\\n).",
        )
    if len(content) > MAX_SCRIPT_BYTES:
        raise _error("Batch script of more than 4 MiB; keep data in files of their own")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _error("Batch script is not UTF-8 text; write it again as UTF-8") from None


def script_options(script: str, file: str) -> list[tuple[str, str | None]]:
    """Return the options of the `#SBATCH` lines.

    As in the real command, the first line that is neither blank nor a comment ends them; `file`
    names the script in messages. CommandError for lines that the real command refuses.
    """
    arguments: list[str] = []
    has_warned = False
    for number, line in enumerate(script.split("\n"), 1):
        if line.startswith(("#SBATCH", "#SLURM")):
            is_sbatch = line.startswith("#SBATCH")
            if not (is_sbatch or has_warned):
                has_warned = True
                fail(
                    "sbatch: error: Change from #SLURM to #SBATCH in your script and verify the "
                    "options are valid in sbatch"
                )
            text = line[len("#SBATCH" if is_sbatch else "#SLURM") :]
            if text.lower().split()[:1] in ([word] for word in _HETEROGENEOUS):
                raise _error(
                    f"{file}: line {number}: heterogeneous jobs are not supported; "
                    "submit the parts one by one"
                )
            arguments += _split(text, file, number)
        elif line.startswith("#MS "):
            fail(f"sbatch: Warning: only metasched submit reads #MS lines, {file} line {number}")
        elif line.strip(_WHITESPACE)[:1] not in ("", "#"):
            break
    options, words = parse_arguments(arguments)
    if words:
        raise UsageError(f"sbatch: error: Invalid directive found in batch script: {words[0]}")
    return options


def options_of_dialects(script: str, file: str) -> list[tuple[str, str | None]]:
    """Return the options of the `#$` and `#PBS` lines, if no line is for Slurm.

    CommandError for a line that cannot be mapped.
    """
    try:
        options = read_dialects(script, file)
    except ParseError as error:
        raise _error(f"{error.problem}; {error.fix}") from None
    for warning in options.warnings:
        fail(f"sbatch: Warning: {warning}")
    return [(name, value) for name, (value, _) in options.values.items()]


def _split(line: str, file: str, number: int) -> list[str]:
    """Return the words of a directive: quotes and backslashes protect, `#` begins a comment."""
    words: list[str] = []
    word: str | None = None
    quote = ""
    is_escaped = False
    line = line.lstrip(_WHITESPACE)
    end = 0  # of the last word
    for position, character in enumerate(line):
        if is_escaped:
            word, is_escaped = (word or "") + character, False
        elif character == "\\":
            is_escaped = True
        elif quote:
            if character == quote:
                quote = ""
            else:
                word = (word or "") + character
        elif character in "\"'":
            quote = character
        elif character == "#":
            break
        elif character in _WHITESPACE:
            if word is not None:
                words.append(word)
                word, end = None, position
        else:
            word = (word or "") + character
    if quote:
        raise CommandError(
            f"sbatch: fatal: {file}: line {number}: Unmatched `{quote}` in [{line[end:]}]"
        )
    return words if word is None else [*words, word]


def _no_batch_script() -> CommandError:
    return _error(
        "This does not look like a batch script.  The first",
        "line must start with #! followed by the path to an interpreter.",
        "For instance: #!/bin/sh",
    )


def _error(*lines: str) -> CommandError:
    return CommandError("\n".join(f"sbatch: error: {line}" for line in lines))
