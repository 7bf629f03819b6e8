"""What a submit command asks for: options, scripts and directives, turned into a `Request`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from metasched.client.directives import (
    _GPUS,
    Given,
    _is_utf8,
    _utf8,
    _words,
    _wrapped,
    directives,
    over,
    read_script,
)
from metasched.client.options import COMMAND_LINE, BadInput
from metasched.client.schemas import Request, Submission
from metasched.model.arrays import parse_array
from metasched.model.dependencies import parse_dependency
from metasched.model.output_paths import check
from metasched.units import (
    MOST,
    Unreadable,
    parse_count,
    parse_gres,
    parse_licences,
    parse_memory,
    parse_moment,
    parse_names,
    shown,
)
from metasched.units import parse_duration as parse_duration

T = TypeVar("T")


_STRIPPED = ("SLURM_", "SBATCH_", "SGE_", "PBS_", "METASCHED_")
LONGEST_NAME = 255  # characters


def prepare(
    options: Mapping[str, object],
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    now: float,
) -> tuple[Submission, list[str]]:
    """The submission of one job that a command line asks for, and the warnings it deserves.

    `command` is the script and its arguments; relative paths are taken from the present
    directory; `now` is in epoch seconds. BadInput for what makes no sense or is not built yet.
    """
    given: Given = {dest: (value, COMMAND_LINE) for dest, value in options.items()}
    warnings: list[str] = []
    if "wrap" in given:
        if command:
            raise BadInput(
                f"both --wrap and the script {shown(command[0])}, {COMMAND_LINE}; give one of them"
            )
        script, name = _wrapped(str(options["wrap"])), "wrap"
    elif command:
        script, name = read_script(command[0]), os.path.basename(command[0])
        given = over(directives(script, command[0], warnings), given)
    else:
        raise BadInput(f"no script, {COMMAND_LINE}; name one, or write --wrap 'COMMAND'")
    environment = _environment(given, environ, warnings)
    request = Request(
        script=_digest(script),
        environment=_digest("\0".join(f"{k}={v}" for k, v in sorted(environment.items()))),
        directory=_directory(given),
        umask=_umask(),
        arguments=tuple(_utf8(word, "an argument of the script") for word in command[1:]),
        output=_pattern(given, "output"),
        error=_pattern(given, "error"),
        name=_name(given, name),
        **_sizes(given, warnings),
        exclusive="exclusive" in given,
        time_limit=_read(given, "time", lambda text: parse_duration(text, bare=60)),
        begin=_read(given, "begin", lambda text: parse_moment(text, now)),
        deadline=_read(given, "deadline", lambda text: parse_moment(text, now)),
        urgency=_read(given, "urgency", _urgency) or 0,
        held="hold" in given,
        requeue="requeue" in given,
        account=_text(given, "account"),
        partition=_text(given, "partition"),
        qos=_text(given, "qos"),
        constraint=_text(given, "constraint"),
        clusters=_read(given, "cluster", lambda text: parse_names(_plain(text))) or (),
        native=_native(given),
        licences=_read(given, "licence", lambda text: parse_licences(_plain(text))) or {},
        array=_array(given),
        dependency=_read(given, "dependency", _dependency),
        kill_on_invalid_dep=_read(given, "kill_on_invalid_dep", _yes) or False,
        reservation=_read(given, "reservation", parse_count),
    )
    return Submission(
        jobs=(request,),
        scripts={request.script: script},
        environments={request.environment: environment},
        strict="strict" in given,
        dry_run="dry_run" in given,
    ), warnings


# Scripts and their directives


# Environment


def _environment(given: Given, environ: Mapping[str, str], warnings: list[str]) -> dict[str, str]:
    """What the job sees of the present environment: all but other managers' own variables."""
    wanted = (_text(given, "export") or "ALL").split(",")
    if wanted == ["NONE"]:
        return {}
    kept = {k: v for k, v in environ.items() if "ALL" in wanted and not k.startswith(_STRIPPED)}
    for word in wanted:
        name, is_set, value = word.partition("=")
        if word in ("ALL", ""):
            continue
        if not name or word == "NONE":
            where = given["export"][1]
            raise BadInput(
                f"--export {shown(word)}, {where}; write ALL, NONE, or NAME,NAME=value,..."
            )
        if is_set:
            kept[name] = value
        elif name in environ:
            kept[name] = environ[name]
        else:
            warnings.append(f"--export: {name} is not set here, the job will not have it")
    dropped = [k for k, v in kept.items() if not (_is_utf8(k) and _is_utf8(v))]
    if dropped:
        names = ", ".join(shown(k) for k in dropped)
        warnings.append(f"variables that are not UTF-8 text were left out: {names}")
    return {k: v for k, v in kept.items() if k not in dropped}


# Values


def _read(given: Given, dest: str, parse: Callable[[str], T]) -> T | None:
    """What `parse` makes of an option, None if it was not given. BadInput if it cannot."""
    if dest not in given:
        return None
    value, _ = given[dest]
    try:
        return parse(str(value))
    except Unreadable as error:
        raise BadInput(f"{error.what}, {_place(given, dest)}; {error.mend}") from None


def _place(given: Given, dest: str) -> str:
    """The option and, if it stands in a script, its line."""
    option, where = f"--{dest.replace('_', '-')}", given[dest][1]
    return option if where == COMMAND_LINE else f"{option}, {where}"


def _text(given: Given, dest: str) -> str | None:
    return _read(given, dest, _plain)


def _plain(text: str) -> str:
    if not text.strip():
        raise Unreadable("an empty word", "leave the option out, or give it a value")
    if not _is_utf8(text):
        raise Unreadable(f"{shown(text)} is not UTF-8 text", "write it as UTF-8")
    if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text):
        raise Unreadable(f"control characters in {shown(text)}", "leave them out")
    return text


def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()


def _name(given: Given, otherwise: str) -> str:
    given = {"name": (otherwise, f"the script's own name, {COMMAND_LINE}"), **given}
    name = _text(given, "name") or otherwise
    if len(name) > LONGEST_NAME:
        raise BadInput(
            f"a name of {len(name)} characters, {_place(given, 'name')}; "
            f"write at most {LONGEST_NAME}"
        )
    return name


def _directory(given: Given) -> str:
    try:
        here = os.getcwd()
    except OSError as error:
        raise BadInput(f"{error.strerror}, the present directory; cd to another") from None
    wanted = _text(given, "chdir") or ""
    directory = os.path.normpath(os.path.join(here, wanted))
    if wanted and not os.path.isdir(directory):
        raise BadInput(f"no directory {shown(wanted)}, {_place(given, 'chdir')}; make it first")
    return _utf8(directory, "the present directory")


def _umask() -> int:
    """This process's; the kernel tells it only to who sets it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _pattern(given: Given, dest: str) -> str | None:
    """An output path whose patterns the daemon can fill in."""

    def checked(text: str) -> str:
        check(_plain(text))
        return text

    return _read(given, dest, checked)


def _array(given: Given) -> str | None:
    """The range of an array, with the limit that a line of its own may give it."""
    text = _read(given, "array", _range)
    limit = _read(given, "task_limit", parse_count)
    if text is None or limit is None or "%" in text:
        return text
    return f"{text}%{limit}"


def _range(text: str) -> str:
    parse_array(text)
    return text.strip()


def _dependency(text: str) -> str:
    parse_dependency(text)
    return text.strip()


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise Unreadable(f"{shown(text)} is neither", "write yes or no")
    return text == "yes"


def _urgency(text: str) -> int:
    if text not in ("0", "1", "2", "3"):
        raise Unreadable(f"{shown(text)} is no urgency", "write 0, 1, 2 or 3")
    return int(text)


def _native(given: Given) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    value, _ = given.get("native", ((), ""))
    assert isinstance(value, Sequence)
    for text in value:
        cluster, colon, options = _plain(text).partition(":")
        if not (cluster and colon and options.strip()):
            place = _place(given, "native")
            raise BadInput(f"{shown(text)} is not for one cluster, {place}; write CLUSTER:'ARGS'")
        _words(options, _place(given, "native"))
        found.setdefault(cluster, []).append(options)
    return {cluster: " ".join(options) for cluster, options in found.items()}


def _sizes(given: Given, warnings: list[str]) -> dict[str, Any]:
    """Tasks, processors, nodes, memory and generic resources, as sbatch completes them.

    `--nodes` alone is a task per node; `--ntasks-per-node` gives the tasks of given nodes, or
    the nodes of given tasks. What counts per job or per task is turned into a count per node.
    """
    tasks = _read(given, "ntasks", parse_count)
    nodes = _read(given, "nodes", lambda text: _nodes(text, _place(given, "nodes"), warnings))
    each = _read(given, "ntasks_per_node", parse_count)
    if nodes is None and each is not None:
        tasks = tasks or each
        nodes = -(-tasks // each)
    elif nodes is not None:
        tasks = tasks or nodes * (each or 1)
        if tasks < nodes:
            raise BadInput(
                f"{tasks} tasks cannot fill {nodes} nodes, {_place(given, 'nodes')}; "
                "ask for more tasks or fewer nodes"
            )
        if each is not None and nodes * each < tasks:
            raise BadInput(
                f"{tasks} tasks do not fit on {nodes} nodes with {each} each, "
                f"{_place(given, 'ntasks_per_node')}; ask for more nodes"
            )
    tasks = tasks or 1
    cpus = _read(given, "cpus_per_task", parse_count) or 1
    if tasks * cpus > MOST:
        raise BadInput(f"{tasks} tasks of {cpus} processors, --ntasks; ask for fewer than {MOST}")
    if "mem" in given and "mem_per_cpu" in given:
        raise BadInput(f"both --mem and --mem-per-cpu, {COMMAND_LINE}; give one of them")
    gres = _read(given, "gres", parse_gres) or {}
    gpus = {d: given[d] for d in _GPUS if d in given}
    if len(gpus) > 1 or (gpus and any(name.partition(":")[0] == "gpu" for name in gres)):
        raise BadInput(
            f"GPUs asked for twice, {_place(given, next(iter(gpus)))}; "
            "give one of --gpus, --gpus-per-node, --gpus-per-task and --gres"
        )
    for dest in gpus:
        wanted = _read(given, dest, lambda text: parse_gres(f"gpu:{text}")) or {}
        if dest != "gpus_per_node":
            # Counts are per node, so the nodes must be known for the job's sum to be right.
            nodes = nodes or 1
        for name, count in wanted.items():
            total = count * {"gpus": 1, "gpus_per_task": tasks}.get(dest, nodes or 1)
            if total % (nodes or 1):
                raise BadInput(
                    f"{total} GPUs cannot be shared equally by {nodes} nodes, "
                    f"{_place(given, dest)}; ask for a multiple of {nodes}"
                )
            gres[name] = total // (nodes or 1)
    return {
        "tasks": tasks,
        "cpus_per_task": cpus,
        "nodes": nodes,
        "memory": _read(given, "mem", parse_memory),
        "memory_per_cpu": _read(given, "mem_per_cpu", parse_memory),
        "gres": gres,
    }


def _nodes(text: str, place: str, warnings: list[str]) -> int:
    least, dash, most = text.partition("-")
    count = parse_count(least)
    if dash:
        if parse_count(most) < count:
            raise Unreadable(f"{shown(text)} ends before it begins", "write N, or MIN-MAX")
        if most != least:
            warnings.append(f"a range of nodes is not built yet, {place}: taken as {count}")
    return count
