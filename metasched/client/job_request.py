"""The request that a `submit` command makes from its options, script and environment."""

from __future__ import annotations

import os

from metasched.client.directives import (
    OptionValues,
    merge_options,
    read_directives,
    read_script,
    require_utf8,
    split_arguments,
    wrap_command,
)
from metasched.client.environment import current_umask, exported_environment, is_utf8
from metasched.client.manager_options import (
    parse_nice,
    parse_nodes_by_name,
    parse_open_mode,
    parse_signal,
)
from metasched.client.options import COMMAND_LINE, MAX_NAME_LENGTH, InvalidSubmission
from metasched.client.output_folder import output_problem
from metasched.client.resource_counts import (
    GPU_OPTIONS,
    ResourceConflict,
    complete_counts,
    gres_alternatives,
    with_alternatives,
    with_licence_choices,
)
from metasched.model.mail_types import parse_mail_types, unsent_warning
from metasched.model.output_paths import check_pattern
from metasched.model.units import (
    ParseError,
    parse_count,
    parse_duration,
    parse_gres,
    parse_licence_choices,
    parse_memory,
    parse_moment,
    parse_names,
    quote_for_error,
)

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TypeVar

    T = TypeVar("T")

# keys of the texts of a submission with a single job
_SCRIPT, _ENVIRONMENT = "script", "environment"


def prepare_submission(
    options: Mapping[str, object],
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    now: float,
) -> tuple[dict[str, Any], list[str]]:
    """Build the fields of the `SubmitRequest` for a command line. Return them with warnings.

    `command` is the script and its arguments. Relative paths refer to the current directory.
    `now` is in epoch seconds. Raise InvalidSubmission for invalid or unsupported input.
    """
    values: OptionValues = {dest: (value, COMMAND_LINE) for dest, value in options.items()}
    warnings: list[str] = []
    if "wrap" in values:
        if command:
            raise InvalidSubmission(
                f"both --wrap and the script {quote_for_error(command[0])}, {COMMAND_LINE}; "
                "give one of them"
            )
        script, name = wrap_command(str(options["wrap"])), "wrap"
    elif command:
        script, name = read_script(command[0]), os.path.basename(command[0])
        values = merge_options(read_directives(script, command[0], warnings), values)
    else:
        raise InvalidSubmission(f"no script, {COMMAND_LINE}; name one, or write --wrap 'COMMAND'")
    environment = _exported_environment(values, environ, warnings)
    request = {
        "script": _SCRIPT,
        "environment": _ENVIRONMENT,
        "directory": _working_directory(values),
        "umask": current_umask(),
        "arguments": tuple(
            require_utf8(argument, "an argument of the script") for argument in command[1:]
        ),
        "output": _output_pattern(values, "output"),
        "error": _output_pattern(values, "error"),
        "name": _job_name(values, name),
        **_resource_counts(values, warnings),
        "exclusive": "exclusive" in values,
        "time_limit": _parse_option(values, "time", _parse_time_limit) or None,
        "begin": _parse_option(values, "begin", lambda text: parse_moment(text, now)),
        "deadline": _parse_option(values, "deadline", lambda text: parse_moment(text, now)),
        "urgency": _parse_option(values, "urgency", _parse_urgency) or 0,
        "held": "hold" in values,
        "requeue": "requeue" in values,
        "account": _text_option(values, "account"),
        "partition": _text_option(values, "partition"),
        "qos": _text_option(values, "qos"),
        "constraint": _text_option(values, "constraint"),
        "clusters": _parse_option(values, "cluster", lambda text: parse_names(_check_text(text)))
        or (),
        "native": _native_options(values),
        **with_licence_choices(
            _parse_option(values, "licence", lambda text: parse_licence_choices(_check_text(text)))
            or [{}]
        ),
        "array": _parse_option(values, "array", _check_range),
        "dependency": _parse_option(values, "dependency", _check_dependency),
        "kill_on_invalid_dep": _parse_option(values, "kill_on_invalid_dep", _parse_yes_no) or False,
        "reservation": _parse_option(values, "reservation", parse_count),
        **_manager_options(values),
        **_mail(values, warnings),
    }
    if comment := _text_option(values, "comment"):
        request["comment"] = comment
    return {
        "jobs": [request],
        "scripts": {_SCRIPT: script},
        "environments": {_ENVIRONMENT: environment},
        "strict": "strict" in values,
        "dry_run": "dry_run" in values,
    }, warnings


# Environment


def _exported_environment(
    values: OptionValues, environ: Mapping[str, str], warnings: list[str]
) -> dict[str, str]:
    """Return the environment of the job, after `--export`."""
    entries = (_text_option(values, "export") or "ALL").split(",")
    try:
        return exported_environment(entries, environ, warnings)
    except ParseError as error:
        location = values["export"][1]
        raise InvalidSubmission(f"--export {error.problem}, {location}; {error.fix}") from None


# Values


def _parse_option(values: OptionValues, dest: str, parse: Callable[[str], T]) -> T | None:
    """Parse an option; None if it was not given. Raise InvalidSubmission if `parse` fails."""
    if dest not in values:
        return None
    value, _ = values[dest]
    try:
        return parse(str(value))
    except ParseError as error:
        raise InvalidSubmission(f"{error.problem}, {_locate(values, dest)}; {error.fix}") from None


def _locate(values: OptionValues, dest: str) -> str:
    """Return the name of the option and, if it was read from a script, its line."""
    option = f"--{dest.replace('_', '-')}"
    location = values[dest][1] if dest in values else COMMAND_LINE
    return option if location == COMMAND_LINE else f"{option}, {location}"


def _text_option(values: OptionValues, dest: str) -> str | None:
    return _parse_option(values, dest, _check_text)


def _check_text(text: str) -> str:
    if not text.strip():
        raise ParseError("an empty word", "leave the option out, or give it a value")
    if not is_utf8(text):
        raise ParseError(f"{quote_for_error(text)} is not UTF-8 text", "write it as UTF-8")
    if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text):
        raise ParseError(f"control characters in {quote_for_error(text)}", "leave them out")
    return text


def _job_name(values: OptionValues, default: str) -> str:
    values = {"name": (default, f"the script's own name, {COMMAND_LINE}"), **values}
    name = _text_option(values, "name") or default
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidSubmission(
            f"a name of {len(name)} characters, {_locate(values, 'name')}; "
            f"write at most {MAX_NAME_LENGTH}"
        )
    return name


def _working_directory(values: OptionValues) -> str:
    try:
        current = os.getcwd()
    except OSError as error:
        raise InvalidSubmission(f"{error.strerror}, the current directory; cd to another") from None
    requested = _text_option(values, "chdir") or ""
    directory = os.path.normpath(os.path.join(current, requested))
    if requested and not os.path.isdir(directory):
        raise InvalidSubmission(
            f"no directory {quote_for_error(requested)}, {_locate(values, 'chdir')}; "
            "create it first"
        )
    return require_utf8(directory, "the current directory")


def _output_pattern(values: OptionValues, dest: str) -> str | None:
    """Return an output path; its patterns are checked, and expanded by the daemon."""

    def checked(text: str) -> str:
        check_pattern(_check_text(text))
        return text

    pattern = _parse_option(values, dest, checked)
    if pattern is not None:
        problem = output_problem(_working_directory(values), pattern)
        if problem:
            raise InvalidSubmission(
                f"{problem} {quote_for_error(pattern)}, {_locate(values, dest)}; "
                "create its directory, or name another"
            )
    return pattern


def _check_range(text: str) -> str:
    from metasched.model.arrays import parse_array  # slow to import

    parse_array(text)
    return text.strip()


def _check_dependency(text: str) -> str:
    from metasched.model.dependencies import parse_dependency  # slow to import

    parse_dependency(text)
    return text.strip()


def _parse_yes_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ParseError(f"{quote_for_error(text)} is neither yes nor no", "write yes or no")
    return text == "yes"


def _parse_time_limit(text: str) -> float:
    """Return seconds; 0: no limit."""
    if text.strip().lower() in ("0", "unlimited", "infinite", "-1"):
        return 0.0
    return parse_duration(text, bare_unit=60)


def _manager_options(values: OptionValues) -> dict[str, Any]:
    """Return the field with options that managers honour, if there are any."""
    options = {
        field: _parse_option(values, dest, parse)
        for dest, field, parse in (
            ("signal", "signal", parse_signal),
            ("open_mode", "append_output", parse_open_mode),
            ("nice", "nice", parse_nice),
            ("nodelist", "nodelist", parse_nodes_by_name),
            ("exclude", "exclude", parse_nodes_by_name),
            ("wckey", "wckey", _check_text),
        )
        if dest in values
    }
    if _parse_option(values, "time", _parse_time_limit) == 0:
        options["unlimited"] = True
    return {"manager_options": options} if options else {}


def _mail(values: OptionValues, warnings: list[str]) -> dict[str, Any]:
    """Return the field with the mails that are wanted, if there are any."""
    types, unsent = _parse_option(values, "mail_type", parse_mail_types) or ((), ())
    if unsent:
        warnings.append(unsent_warning(unsent))
    if not types:
        return {}
    return {"mail": {"types": types, "user": _text_option(values, "mail_user") or ""}}


def _parse_urgency(text: str) -> int:
    if text not in ("0", "1", "2", "3"):
        raise ParseError(f"{quote_for_error(text)} is not an urgency", "write 0, 1, 2 or 3")
    return int(text)


def _native_options(values: OptionValues) -> dict[str, str]:
    by_cluster: dict[str, list[str]] = {}
    value, _ = values.get("native", ((), ""))
    assert isinstance(value, (list, tuple))
    for text in value:
        cluster, colon, options = _check_text(text).partition(":")
        if not (cluster and colon and options.strip()):
            location = _locate(values, "native")
            raise InvalidSubmission(
                f"{quote_for_error(text)} names no cluster, {location}; write CLUSTER:'ARGS'"
            )
        split_arguments(options, _locate(values, "native"))
        by_cluster.setdefault(cluster, []).append(options)
    return {cluster: " ".join(options) for cluster, options in by_cluster.items()}


def _resource_counts(values: OptionValues, warnings: list[str]) -> dict[str, Any]:
    """Return tasks, processors, nodes, memory and generic resources, completed as by sbatch."""
    if "mem" in values and "mem_per_cpu" in values:
        raise InvalidSubmission(f"both --mem and --mem-per-cpu, {COMMAND_LINE}; give one of them")
    tasks, tasks_per_node, cpus_per_task = (
        _parse_option(values, dest, parse_count)
        for dest in ("ntasks", "ntasks_per_node", "cpus_per_task")
    )
    nodes = _parse_option(
        values, "nodes", lambda text: _parse_nodes(text, _locate(values, "nodes"), warnings)
    )
    texts = {dest: str(values[dest][0]) for dest in ("gres", *GPU_OPTIONS) if dest in values}
    choices = []
    try:
        for choice in gres_alternatives(texts):
            chosen = {**values, **{dest: (choice[dest], values[dest][1]) for dest in choice}}
            gpus = {
                dest: _parse_option(chosen, dest, lambda text: parse_gres(f"gpu:{text}")) or {}
                for dest in GPU_OPTIONS
                if dest in chosen
            }
            gres = _parse_option(chosen, "gres", parse_gres) or {}
            choices.append(complete_counts(tasks, nodes, tasks_per_node, cpus_per_task, gres, gpus))
    except ResourceConflict as error:
        location = _locate(values, error.option)
        raise InvalidSubmission(f"{error.problem}, {location}; {error.fix}") from None
    return {
        **with_alternatives(choices),
        "memory": _parse_option(values, "mem", parse_memory),
        "memory_per_cpu": _parse_option(values, "mem_per_cpu", parse_memory),
    }


def _parse_nodes(text: str, location: str, warnings: list[str]) -> int:
    minimum, dash, maximum = text.partition("-")
    count = parse_count(minimum)
    if dash:
        if parse_count(maximum) < count:
            raise ParseError(
                f"{quote_for_error(text)} ends before it begins", "write N, or MIN-MAX"
            )
        if maximum != minimum:
            warnings.append(f"a range of nodes is not supported, {location}: using {count}")
    return count
