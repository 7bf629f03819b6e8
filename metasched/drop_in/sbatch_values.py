"""The values of sbatch's options as fields of a request to the daemon, with Slurm's sentences."""

from __future__ import annotations

import os
import re

from metasched.client.environment import is_utf8
from metasched.client.manager_options import (
    DEFAULT_NICE,
    parse_nice,
    parse_nodes_by_name,
    parse_open_mode,
    parse_signal,
)
from metasched.client.resource_counts import (
    GPU_OPTIONS,
    ResourceConflict,
    complete_counts,
    gres_alternatives,
    with_alternatives,
    with_licence_choices,
)
from metasched.drop_in.command import CommandError
from metasched.drop_in.sbatch_options import (
    IGNORED,
    OPTIONS,
    REFUSED,
    SLURM,
    SLURM_ONLY,
    SYNONYMS,
    UsageError,
)
from metasched.drop_in.slurm_time import parse_time, parse_time_limit
from metasched.errors import quote_for_error
from metasched.model.mail_types import parse_mail_types, unsent_warning
from metasched.model.units import (
    MAX_NUMBER,
    ParseError,
    parse_gres,
    parse_licence_choices,
    parse_memory,
)

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_MEMORY = {"mem", "mem-per-cpu", "mem-per-gpu"}
_GPUS = {"gpus", "gpus-per-node", "gpus-per-task"}
# Options that replace each other: those of the strongest source count.
_ALTERNATIVES = (_MEMORY, _GPUS, {"requeue", "no-requeue"})

# Patterns are compiled as an option needs them: a call has few options.
_COUNT = r"\s*\+?([0-9]{1,10})"
_NODES = r"([0-9]{1,9})([kKmM]?)(?:-([0-9]{1,9})([kKmM]?))?"
_RANGE = r"[0-9]+(?:-[0-9]+(?::[1-9][0-9]*)?)?"
_ARRAY = rf"\[?({_RANGE}(?:,{_RANGE})*)\]?(?:%([0-9]+))?\]?"
_TARGETS = r"(?::[0-9]+(?:_[0-9]+)?(?:\+[0-9]+)?)+"
_DEPENDENCY = rf"(?:after(?:any|ok|notok|corr)?{_TARGETS}|singleton)"
_PATTERN = r"%([0-9]*)(.?)"
# Values of options that are passed on; the real command refuses others at once.
_FORMS = {"wait-all-nodes": "[01]"}
_COUNTS = {"core-spec", "cores-per-socket", "cpus-per-gpu", "mincpus", "ntasks-per-core"}
_COUNTS |= {"ntasks-per-gpu", "ntasks-per-socket", "sockets-per-node", "thread-spec"}
_COUNTS |= {"threads-per-core"}
_NO_INPUT = ("/dev/null", "none")  # in any case
_NODE_UNITS = {"": 1, "k": 1024, "m": 1024**2}


def merge(sources: Sequence[Sequence[tuple[str, str | None]]]) -> dict[str, str | None]:
    """Return the options that count of script, environment and command line, in this order."""
    script, environment, command_line = (_by_name(source) for source in sources)
    memory = _MEMORY & (script.keys() | command_line.keys())
    if len(memory) > 1:
        raise CommandError(
            "sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive."
        )
    if memory:
        environment = {name: environment[name] for name in environment if name not in _MEMORY}
    merged: dict[str, str | None] = {}
    for source in (script, environment, command_line):
        for alternatives in _ALTERNATIVES:
            if alternatives & source.keys():
                merged = {name: merged[name] for name in merged if name not in alternatives}
        merged.update(source)
    return merged


def _by_name(source: Sequence[tuple[str, str | None]]) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for name, value in source:
        name = SYNONYMS.get(name, name)
        if name in ("requeue", "no-requeue"):
            values = {other: values[other] for other in values if other not in _ALTERNATIVES[2]}
        values[name] = value
    return values


class Conversion:
    """Fields of a request for the merged options, with what else they mean.

    CommandError in the words of the real command for an invalid value.
    """

    def __init__(self, values: dict[str, str | None], now: float) -> None:
        """`now` is in epoch seconds."""
        self._values, self._now = values, now
        self.warnings: list[str] = []
        self.slurm_options: list[str] = []  # for each Slurm cluster, a word each
        self.slurm_only = False  # whether other clusters cannot run the job
        self._check()
        self.fields: dict[str, Any] = {
            **self._counts(),
            **self._limits(),
            **self._times(),
            **self._paths(),
            **self._names(),
            **self._manager_options(),
            **self._mail(),
            "held": "hold" in values,
            "requeue": True if "requeue" in values else False if "no-requeue" in values else None,
        }
        if self.slurm_options:
            self.fields["slurm_options"] = self.slurm_options
            self.fields["slurm_only"] = self.slurm_only

    def _text(self, name: str) -> str:
        """Return the value of an option; "" without it, or if it is empty."""
        return self._values.get(name) or ""

    def _check(self) -> None:
        """Refuse options and values; collect those that are passed on to Slurm."""
        for name, value in self._values.items():
            text = value or ""
            if name != "wrap":
                _check_text(name, text)
            option = OPTIONS[name]
            if option.treatment == REFUSED and not (name == "input" and text.lower() in _NO_INPUT):
                raise _failed(f"--{name} is not supported; {option.remark.partition(';')[0]}")
            if option.treatment == IGNORED:
                self.warnings.append(f"--{name} is ignored, {option.remark}")
            if option.treatment in (SLURM, SLURM_ONLY):
                form = _FORMS.get(name)
                if form is not None and re.fullmatch(form, text, re.I) is None:
                    raise _invalid(name)
                if name in _COUNTS:
                    _count(name, text)
                self._pass_on(name, value, option.treatment == SLURM_ONLY)

    def _pass_on(self, name: str, value: str | None, slurm_only: bool) -> None:
        self.slurm_options.append(f"--{name}" if value is None else f"--{name}={value}")
        self.slurm_only = self.slurm_only or slurm_only

    def _counts(self) -> dict[str, Any]:
        tasks, tasks_per_node, cpus = (
            _count(name, self._text(name)) if self._values.get(name) is not None else None
            for name in ("ntasks", "ntasks-per-node", "cpus-per-task")
        )
        nodes = self._nodes()
        if tasks is not None and nodes is not None and tasks < nodes:
            self.warnings.append(
                f"can't run {tasks} processes on {nodes} nodes, setting nnodes to {tasks}"
            )
            nodes = tasks
        texts = {
            option: text
            for option in ("gres", *GPU_OPTIONS)
            if (text := self._text(option.replace("_", "-")))
        }
        choices = []
        try:
            for choice in gres_alternatives(texts):
                gres = parse_gres(choice["gres"]) if "gres" in choice else {}
                gpus = {
                    option: parse_gres(",".join(f"gpu:{part}" for part in text.split(",")))
                    for option, text in choice.items()
                    if option in GPU_OPTIONS
                }
                choices.append(complete_counts(tasks, nodes, tasks_per_node, cpus, gres, gpus))
        except ResourceConflict as conflict:
            option = conflict.option.replace("_", "-")
            raise _failed(f"{conflict.problem}, --{option}; {conflict.fix}") from None
        except ParseError:
            raise _error("Invalid generic resource (gres) specification") from None
        counts = with_alternatives(choices)
        for field, name in (("memory", "mem"), ("memory_per_cpu", "mem-per-cpu")):
            size = self._values.get(name)
            if size is not None and size.rstrip("kKmMgGtTbB") == "0":
                self._pass_on(name, size, slurm_only=True)  # the whole node
            elif size is not None:
                try:
                    counts[field] = parse_memory(size)
                except ParseError:
                    raise _invalid(name) from None
        if "exclusive" in self._values:
            value = self._text("exclusive")
            if value not in ("", "user", "mcs", "topo"):
                raise _invalid("exclusive")
            if value:
                self._pass_on("exclusive", value, slurm_only=True)
            counts["exclusive"] = True
        if self._text("licenses"):
            try:
                choices = parse_licence_choices(self._text("licenses"))
            except ParseError:
                raise _failed("Invalid license specification") from None
            counts.update(with_licence_choices(choices))
        return counts

    def _nodes(self) -> int | None:
        text = self._values.get("nodes")
        if text is None:
            return None
        match = re.fullmatch(_NODES, text)
        if match is None:
            raise UsageError(f'sbatch: error: "{text}" is not a valid node count')
        least = int(match[1]) * _NODE_UNITS[match[2].lower()]
        if match[3] is not None:
            most = int(match[3]) * _NODE_UNITS[match[4].lower()]
            if most < least:
                raise UsageError(
                    f"sbatch: error: Maximum node count {most} is less than minimum node count "
                    f"{least}"
                )
            if most > least:
                self.warnings.append(f"a range of nodes is not supported, using {least}")
        return least or None

    def _limits(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if (text := self._values.get("time")) is not None:
            seconds = parse_time_limit(text)
            if seconds is None or seconds > MAX_NUMBER:
                raise _invalid("time")
            if seconds:
                fields["time_limit"] = seconds
        if text := self._text("array"):
            match = re.fullmatch(_ARRAY, text)
            if match is None or any(
                int(last or first) < int(first)
                for first, last in re.findall(r"([0-9]+)(?:-([0-9]+))?(?::[0-9]+)?", match[1])
            ):
                raise _failed("Invalid job array specification")
            limit = int(match[2] or 0)  # 0: none
            fields["array"] = f"{match[1]}%{limit}" if limit else match[1]
        if text := self._text("dependency"):
            for term in re.split("[,?]", text):
                if re.fullmatch(_DEPENDENCY, term.strip(), re.I) is None:
                    raise CommandError(
                        f"sbatch: error: {quote_for_error(term)} is no dependency; write "
                        "afterok:12:13,afterany:14_3 or singleton\n"
                        "sbatch: error: Batch job submission failed: Job dependency problem"
                    )
            fields["dependency"] = text
        if (text := self._values.get("kill-on-invalid-dep")) is not None:
            if text.lower() not in ("yes", "no"):
                raise _invalid("kill-on-invalid-dep")
            fields["kill_on_invalid_dep"] = text.lower() == "yes"
        return fields

    def _times(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name in ("begin", "deadline"):
            text = self._values.get(name)
            if text is None:
                continue
            moment = parse_time(text, self._now)
            if moment is None:
                raise UsageError(
                    f"Invalid time specification (pos=0): {text}\n"
                    f"sbatch: error: Invalid --{name} specification"
                )
            fields[name] = moment
        if fields.get("deadline", self._now) < self._now:
            raise _failed("Requested time limit is invalid (missing or exceeds some limit)")
        if fields.get("begin", 0.0) > fields.get("deadline", float("inf")):
            raise _error("Incompatible begin and deadline time specification")
        return fields

    def _paths(self) -> dict[str, Any]:
        try:
            current = os.getcwd()
        except OSError as error:
            raise _error(f"{error.strerror}, the current directory; cd to another") from None
        directory = os.path.normpath(os.path.join(current, self._text("chdir")))
        if not is_utf8(directory):
            raise _error("the current directory is not UTF-8 text; cd to another")
        default = "slurm-%A_%a.out" if self._text("array") else "slurm-%j.out"
        fields = {
            "directory": directory,
            "output": output_pattern(self._text("output") or default),
        }
        if self._text("error"):
            fields["error"] = output_pattern(self._text("error"))
        return fields

    def _manager_options(self) -> dict[str, Any]:
        """Return the field with options that managers honour, if there are any."""
        options: dict[str, Any] = {}
        for name, field, parse in (
            ("signal", "signal", parse_signal),
            ("open-mode", "append_output", parse_open_mode),
            ("nice", "nice", parse_nice),
            ("nodelist", "nodelist", parse_nodes_by_name),
            ("exclude", "exclude", parse_nodes_by_name),
        ):
            if name in self._values:
                text = self._values[name]
                try:
                    options[field] = parse(DEFAULT_NICE if text is None else text)
                except ParseError:
                    raise _invalid(name) from None
        if self._text("wckey"):
            options["wckey"] = self._text("wckey")
        if parse_time_limit(self._text("time")) == 0:
            options["unlimited"] = True
        return {"manager_options": options} if options else {}

    def _mail(self) -> dict[str, Any]:
        """Return the field with the mails that are wanted, if there are any."""
        text = self._values.get("mail-type")
        if text is None:
            return {}
        try:
            types, unsent = parse_mail_types(text)
        except ParseError:
            raise _invalid("mail-type") from None
        if unsent:
            self.warnings.append(unsent_warning(unsent))
        return {"mail": {"types": types, "user": self._text("mail-user")}} if types else {}

    def _names(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name in ("account", "partition", "qos", "constraint", "comment"):
            if text := self._text(name):
                fields[name] = text
        if text := self._text("job-name"):
            fields["name"] = text
        clusters = [name for name in self._text("clusters").split(",") if name]
        if clusters and "all" not in clusters:
            fields["clusters"] = clusters
        if text := self._text("reservation"):
            if text.isascii() and text.isdecimal() and len(text) < 10:
                fields["reservation"] = int(text)
            else:
                self._pass_on("reservation", text, slurm_only=True)
        return fields


def output_pattern(text: str) -> str:
    """Return the path of Slurm's as a pattern of metasched. CommandError for `%b`."""
    if text.lower() == "none":
        return "/dev/null"
    if "\\" in text:  # nothing is replaced
        return text.replace("\\", "").replace("%", "%%")

    def translate(match: re.Match[str]) -> str:
        width, letter = match[1], match[2]
        if letter in "AajJnst" and letter:
            return f"%{width[-2:]}{letter}"
        if letter in ("x", "u", "N", "%") and letter:
            return f"%{letter}"
        if letter == "b":
            raise _error("%b is not supported; write %a for the index of the task")
        return f"%{match[0]}"  # as it stands

    return re.sub(_PATTERN, translate, text, flags=re.S)


def export_entries(text: str | None) -> list[str]:
    """Return the entries of `--export`; quotes protect a comma."""
    if text is None or text.upper() == "ALL":
        return ["ALL"]
    if text.upper() in ("", "NONE", "NIL"):
        return ["NONE"]
    entries, quote = [""], ""
    for character in text:
        if character in ("'", '"') and quote in ("", character):
            quote = "" if quote else character
        elif character == "," and not quote:
            entries.append("")
        else:
            entries[-1] += character
    return ["ALL" if entry.upper() == "ALL" else entry for entry in entries if entry]


def _check_text(name: str, text: str) -> None:
    if not is_utf8(text):
        raise _failed(f"{quote_for_error(text)} is not UTF-8 text, --{name}; write it as UTF-8")
    if name not in ("export", "comment") and not text.isprintable():
        raise _failed(f"control characters in {quote_for_error(text)}, --{name}; leave them out")


def _count(name: str, text: str) -> int:
    match = re.fullmatch(_COUNT, text)
    if match is None or not 0 < int(match[1]) <= MAX_NUMBER:
        raise _error(f'Invalid numeric value "{text}" for --{name}.')
    return int(match[1])


def _invalid(name: str) -> UsageError:
    return UsageError(f"sbatch: error: Invalid --{name} specification")


def _error(message: str) -> CommandError:
    return CommandError(f"sbatch: error: {message}")


def _failed(message: str) -> CommandError:
    return _error(f"Batch job submission failed: {message}")
