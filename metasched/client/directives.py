"""Directives in a job script: #SBATCH, #$, #PBS and #MS lines."""

from __future__ import annotations

from metasched.client.dialects import read_dialects
from metasched.client.environment import is_utf8
from metasched.client.options import (
    MS_OPTIONS,
    SBATCH_OPTIONS,
    InvalidSubmission,
    parse_directive,
    unknown_option,
)
from metasched.client.resource_counts import GPU_OPTIONS
from metasched.errors import ParseError, quote_for_error

# dest of an option -> (its value, where it was given: COMMAND_LINE, or file and line)
OptionValues = dict[str, tuple[object, str]]

# Options that replace each other: the last option given of a set counts.
_EXCLUSIVE_OPTIONS = (
    set(GPU_OPTIONS),
    {"mem", "mem_per_cpu"},
    {"requeue", "no_requeue"},
)

_MAX_SCRIPT_BYTES = 4 * 1024 * 1024


def read_script(path: str) -> str:
    """Return the text of a script. Raise InvalidSubmission if no cluster could run it."""
    location = quote_for_error(path)
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_SCRIPT_BYTES + 1)
    except IsADirectoryError:
        raise InvalidSubmission(f"a directory, {location}; name a script") from None
    except OSError as error:
        raise InvalidSubmission(
            f"{error.strerror}, script {location}; name one that you can read"
        ) from None
    if not content.strip():
        raise InvalidSubmission(f"an empty script, {location}; write commands into it")
    if b"\0" in content:
        raise InvalidSubmission(f"a binary file, {location}; name a script, or run it by --wrap")
    if len(content) > _MAX_SCRIPT_BYTES:
        raise InvalidSubmission(
            f"a script of more than 4 MiB, {location}; keep data in files of their own"
        )
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise InvalidSubmission(
            f"not UTF-8 text, {location}; name a script, or write it again as UTF-8"
        ) from None
    first_line = text.partition("\n")[0]
    if not (first_line.startswith("#!") and first_line[2:].strip()):
        raise InvalidSubmission(
            f"no #! in line 1, {location}; name the interpreter there, as #!/bin/sh"
        )
    if first_line.endswith("\r"):
        raise InvalidSubmission(f"lines that end as in DOS, {location}; convert it with dos2unix")
    return text


def wrap_command(command: str) -> str:
    if not command.strip():
        raise InvalidSubmission("an empty command, --wrap; write --wrap 'COMMAND'")
    return f"#!/bin/sh\n{require_utf8(command, '--wrap')}\n"


def read_directives(script: str, path: str, warnings: list[str]) -> OptionValues:
    """Return the options of the `#MS`, `#SBATCH`, `#$` and `#PBS` lines before the first command.

    Later lines override earlier lines, and `#MS` overrides the others. Unknown `#SBATCH` options
    are listed in an entry of `warnings`. Raise InvalidSubmission for an unknown `#MS` option, an
    essential `#SBATCH` option that is not supported, and a line of another manager that cannot be
    mapped.
    """
    ms_values: OptionValues = {}
    try:
        foreign_values = _other_dialects(script, path, warnings)
    except ParseError as error:
        raise InvalidSubmission(f"{error.problem}; {error.fix}") from None
    unknown: list[str] = []
    for line_number, line in enumerate(script.split("\n"), 1):
        if line.strip() and not line.startswith("#"):
            break
        prefix, _, remainder = line.replace("\t", " ").partition(" ")
        location = f"{path} line {line_number}"
        if prefix == "#MS":
            parsed, unparsed = parse_directive(
                MS_OPTIONS, split_arguments(remainder, location), location
            )
            if unparsed:
                raise unknown_option(unparsed[0], location)
            ms_values = merge_options(
                ms_values, {dest: (value, location) for dest, value in parsed.items()}
            )
        elif prefix == "#SBATCH":
            arguments = split_arguments(remainder, location)
            if arguments[:1] in (["hetjob"], ["packjob"]):
                raise InvalidSubmission(
                    f"{arguments[0]} is not supported, {location}; submit its parts one by one"
                )
            # --exclusive=user is the only flag that may have a value
            unknown += [argument for argument in arguments if argument.startswith("--exclusive=")]
            arguments = [
                "--exclusive" if argument.startswith("--exclusive=") else argument
                for argument in arguments
            ]
            parsed, unparsed = parse_directive(SBATCH_OPTIONS, arguments, location)
            options = [
                argument.partition("=")[0] for argument in unparsed if argument.startswith("-")
            ]
            unknown += options or unparsed
            foreign_values = merge_options(
                foreign_values, {dest: (value, location) for dest, value in parsed.items()}
            )
    if unknown:
        names = ", ".join(dict.fromkeys(unknown))
        warnings.append(f"unknown options ignored, {path}: {names}")
    return merge_options(foreign_values, ms_values)


def _other_dialects(script: str, path: str, warnings: list[str]) -> OptionValues:
    """Return the options of the `#$` and `#PBS` lines."""
    options = read_dialects(script, path)
    warnings += options.warnings
    return {
        SBATCH_OPTIONS[f"--{name}"].dest: (True if value is None else value, location)
        for name, (value, location) in options.values.items()
    }


def merge_options(lower: OptionValues, higher: OptionValues) -> OptionValues:
    """Merge options; `higher` overrides equal and mutually exclusive options of `lower`."""
    replaced = {
        dest for exclusive in _EXCLUSIVE_OPTIONS if exclusive & higher.keys() for dest in exclusive
    }
    return {**{dest: value for dest, value in lower.items() if dest not in replaced}, **higher}


def split_arguments(text: str, location: str) -> list[str]:
    """Split a text into words; quotes and backslashes protect, `#` begins a comment."""
    if not any(character in text for character in "'\"\\#"):
        return text.split()
    import shlex

    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise InvalidSubmission(f"{str(error).lower()}, {location}; close it") from None


def require_utf8(text: str, location: str) -> str:
    if not is_utf8(text):
        raise InvalidSubmission(
            f"{quote_for_error(text)} is not UTF-8 text, {location}; write it as UTF-8"
        )
    return text
