"""Directives in a job script: #SBATCH, #$, #PBS and #MS lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metasched.client.options import (
    MS_OPTIONS,
    SBATCH_OPTIONS,
    InvalidSubmission,
    parse_directive,
    unknown_option,
)
from metasched.units import (
    quote_for_error,
)

# What the user gave, by option, each with the place where it stands.
OptionValues = dict[str, tuple[object, str]]


_GPU_OPTIONS = ("gpus", "gpus_per_node", "gpus_per_task")


# Of each of these the last one given counts, whichever it is.
_EXCLUSIVE_OPTIONS = (
    set(_GPU_OPTIONS),
    {"mem", "mem_per_cpu"},
    {"requeue", "no_requeue"},
)


# Of the lines for other managers, those that make an array; under which name their value goes.
_ARRAY_OPTIONS = {
    "#$": {"-t": "array", "-tc": "task_limit"},
    "#PBS": {"-J": "array", "-t": "array"},
}


_MAX_SCRIPT_BYTES = 4 * 1024 * 1024  # bytes


def read_script(path: str) -> str:
    """The text of a script. BadInput if it is none that a cluster could run."""
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


def _wrap_command(command: str) -> str:
    if not command.strip():
        raise InvalidSubmission("an empty command, --wrap; write --wrap 'COMMAND'")
    return f"#!/bin/sh\n{_require_utf8(command, '--wrap')}\n"


def read_directives(script: str, path: str, warnings: list[str]) -> OptionValues:
    """The options of a script's `#MS`, `#SBATCH`, `#$` and `#PBS` lines, up to its first command.

    Later lines win over earlier ones, `#MS` over the others; of `#$` and `#PBS` lines only what
    makes an array counts. What is not understood goes into
    one line of `warnings`. BadInput for an unknown `#MS` option, and for what a job cannot do
    without and we cannot do yet.
    """
    ms_values: OptionValues = {}
    foreign_values: OptionValues = {}
    unknown: list[str] = []
    for line_number, line in enumerate(script.split("\n"), 1):
        if line.strip() and not line.startswith("#"):
            break
        prefix, _, remainder = line.replace("\t", " ").partition(" ")
        location = f"{path} line {line_number}"
        if prefix == "#MS":
            parsed, unparsed = parse_directive(
                MS_OPTIONS, _split_arguments(remainder, location), location
            )
            if unparsed:
                raise unknown_option(unparsed[0], location)
            ms_values = merge_options(
                ms_values, {dest: (value, location) for dest, value in parsed.items()}
            )
        elif prefix == "#SBATCH":
            arguments = _split_arguments(remainder, location)
            if arguments[:1] in (["hetjob"], ["packjob"]):
                raise InvalidSubmission(
                    f"{arguments[0]} is not built yet, {location}; submit its parts one by one"
                )
            # --exclusive=user is the one flag that may carry a value.
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
        elif prefix in _ARRAY_OPTIONS and remainder.strip():
            parsed, unparsed = _parse_array_options(
                _split_arguments(remainder, location), _ARRAY_OPTIONS[prefix], location
            )
            unknown += [f"{prefix} (line {line_number})"] if unparsed else []
            foreign_values = merge_options(
                foreign_values, {dest: (value, location) for dest, value in parsed.items()}
            )
    if unknown:
        names = ", ".join(dict.fromkeys(unknown))
        warnings.append(f"not understood and without effect, {path}: {names}")
    return merge_options(foreign_values, ms_values)


def _parse_array_options(
    arguments: Sequence[str], option_names: Mapping[str, str], location: str
) -> tuple[dict[str, object], list[str]]:
    """What a line of another manager says of an array, by `dest`, and its other words."""
    values: dict[str, object] = {}
    unparsed: list[str] = []
    remaining = list(arguments)
    while remaining:
        argument = remaining.pop(0)
        if argument not in option_names:
            unparsed.append(argument)
        elif not remaining:
            raise InvalidSubmission(f"{argument}: expected one argument, {location}; write it")
        else:
            values[option_names[argument]] = remaining.pop(0)
    return values, unparsed


def merge_options(lower: OptionValues, higher: OptionValues) -> OptionValues:
    """Both, where an option of `higher` takes the place of its like in `lower`."""
    replaced = {
        dest for exclusive in _EXCLUSIVE_OPTIONS if exclusive & higher.keys() for dest in exclusive
    }
    return {**{dest: value for dest, value in lower.items() if dest not in replaced}, **higher}


def _split_arguments(text: str, location: str) -> list[str]:
    import shlex

    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise InvalidSubmission(f"{str(error).lower()}, {location}; close it") from None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _require_utf8(text: str, location: str) -> str:
    if not _is_utf8(text):
        raise InvalidSubmission(
            f"{quote_for_error(text)} is not UTF-8 text, {location}; write it as UTF-8"
        )
    return text
