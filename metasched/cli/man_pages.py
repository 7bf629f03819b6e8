"""Manual pages of all commands, made from their help: `python -m metasched.cli.man_pages man`.

No library is used: click-man reads click's commands, and Typer brings a click of its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from metasched.cli.app import build_app
from metasched.drop_in.command import COMMANDS as DROP_IN_COMMANDS
from metasched.drop_in.sbatch_options import (
    ACCEPTED,
    IGNORED,
    MAPPED,
    REFUSED,
    SLURM,
    SLURM_ONLY,
)
from metasched.drop_in.sbatch_options import OPTIONS as SBATCH_OPTIONS
from metasched.drop_in.sinfo import NODE_OPTIONS

_ENVIRONMENT = {
    "METASCHED_CONFIG": "Configuration that names the daemon, unless --config is given.",
    "METASCHED_SOCKET": "Socket or URL of the daemon, if no configuration is named.",
}
_BYPASS = {"METASCHED_BYPASS": "If it is 1, the real command runs instead."}
_EFFECTS = {
    MAPPED: "As in Slurm, on all clusters",
    SLURM: "Passed to Slurm clusters; others run the job without it",
    SLURM_ONLY: "Passed on; the job runs on Slurm clusters alone",
    ACCEPTED: "Accepted, without effect",
    IGNORED: "Ignored with a warning",
    REFUSED: "Refused",
}
_PREFORMATTED = "\b\n"  # begins such a paragraph of a help text


def man_pages() -> dict[str, str]:
    """Return the pages by their file names, `metasched.1` first."""
    group: Any = typer.main.get_command(build_app())
    names = [f"metasched-{name}" for name in (*group.commands, *DROP_IN_COMMANDS)]
    pages = {"metasched": _main_page(group, names)}
    for name, command in group.commands.items():
        pages[f"metasched-{name}"] = _command_page(name, command)
    for name in DROP_IN_COMMANDS:
        pages[f"metasched-{name}"] = _drop_in_page(name)
    return {f"{name}.1": "\n".join(lines) + "\n" for name, lines in pages.items()}


def _main_page(group: Any, names: Sequence[str]) -> list[str]:
    return [
        *_head("metasched", group.help),
        ".SH SYNOPSIS",
        r"\fBmetasched\fR \fICOMMAND\fR [\fIOPTIONS\fR] ...",
        ".SH COMMANDS",
        *_entries(
            {
                rf"\fBmetasched {_escape(name)}\fR": _summary(command.help)
                for name, command in group.commands.items()
            }
        ),
        ".SH OPTIONS",
        *_options(group),
        ".SH ENVIRONMENT",
        *_variables(_ENVIRONMENT),
        *_see_also(names),
    ]


def _command_page(name: str, command: Any) -> list[str]:
    lines = [*_head(f"metasched-{name}", command.help), ".SH SYNOPSIS"]
    subcommands: dict[str, Any] = getattr(command, "commands", {})
    if not subcommands:
        lines.append(_synopsis(name, command))
    for subcommand_name, subcommand in subcommands.items():
        lines += [_synopsis(f"{name} {subcommand_name}", subcommand), ".br"]
    lines += [".SH DESCRIPTION", *_paragraphs(command.help)]
    if not subcommands:
        lines += [".SH OPTIONS", *_options(command)]
    for subcommand_name, subcommand in subcommands.items():
        lines.append(f".SH {_escape(f'{name} {subcommand_name}').upper()}")
        lines += [*_paragraphs(subcommand.help), *_options(subcommand)]
    return [*lines, *_see_also(["metasched"])]


def _drop_in_page(name: str) -> list[str]:
    module = import_module(f"metasched.drop_in.{name}")
    summary = str(module.__doc__).partition("\n")[0].partition(": ")[2]
    summary = summary[:1].upper() + summary[1:]
    lines = [*_head(f"metasched-{name}", summary), ".SH SYNOPSIS"]
    usage: str = getattr(module, "USAGE", f"{name} [OPTIONS...] [ARGUMENTS...]")
    lines.append(_escape(" ".join(usage.removeprefix("Usage: ").split())))
    lines += [
        ".SH DESCRIPTION",
        rf"{_escape(summary)} It takes the place of Slurm's \fB{name}\fR(1) in the folder that",
        r"\fBmetasched drop\-in slurm\fR prints.",
    ]
    if name == "sbatch":
        entries = {
            _option_names([f"--{option.name}", *([f"-{option.short}"] if option.short else [])])
            + (r" \fIVALUE\fR" if option.value else ""): _sbatch_effect(option)
            for option in SBATCH_OPTIONS.values()
        }
        lines += [".SH OPTIONS", *_entries(entries)]
    elif options := dict(getattr(module, "OPTIONS", {})):
        options |= NODE_OPTIONS if name == "sinfo" else {}
        lines += [".SH OPTIONS", "Each as in the command of Slurm."]
        for long, short in options.items():
            names = _option_names([f"--{long.rstrip('=')}", *([f"-{short}"] if short else [])])
            lines += [".br", names + (r" \fIVALUE\fR" if long.endswith("=") else "")]
    lines += [".SH ENVIRONMENT", *_variables({**_ENVIRONMENT, **_BYPASS})]
    return [*lines, *_see_also(["metasched-drop-in"])]


def _sbatch_effect(option: Any) -> str:
    remark = f": {option.remark}" if option.remark else ""
    text = f"{_EFFECTS[option.treatment]}{remark}."
    variables = f" Variables: {', '.join(option.variables)}." if option.variables else ""
    return text + variables


def _head(name: str, help: str) -> list[str]:
    title = _escape(name).upper()
    summary = _summary(help).rstrip(".")
    return [
        r".\" made by metasched.cli.man_pages from the help of the command",
        f'.TH "{title}" 1 "" "metasched" "metasched"',
        ".SH NAME",
        rf"{_escape(name)} \- {_escape(summary[:1].lower() + summary[1:])}",
    ]


def _summary(help: str) -> str:
    """Return the first sentence of a help text."""
    return " ".join(help.partition("\n\n")[0].split())


def _synopsis(name: str, command: Any) -> str:
    terms = [
        rf"\fI{_escape(parameter.metavar or parameter.name.upper())}\fR"
        for parameter in command.params
        if parameter.param_type_name == "argument"
    ]
    return " ".join([rf"\fBmetasched {_escape(name)}\fR", r"[\fIOPTIONS\fR]", *terms])


def _paragraphs(help: str) -> Iterator[str]:
    for paragraph in help.split("\n\n"):
        yield ".PP"
        if not paragraph.startswith(_PREFORMATTED):
            yield _inline(" ".join(paragraph.split()))
            continue
        yield from (".nf", *(_escape(line) for line in paragraph[2:].splitlines()), ".fi")


def _options(command: Any) -> list[str]:
    entries = {
        _option_names(parameter.opts)
        + ("" if parameter.is_flag else rf" \fI{_escape(_metavar(parameter))}\fR"): parameter.help
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.hidden
    }
    return _entries({**entries, _option_names(["--help", "-h"]): "Print the help."})


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _option_names(names: Sequence[str]) -> str:
    return ", ".join(rf"\fB{_escape(name)}\fR" for name in names)


def _entries(texts: Mapping[str, str]) -> list[str]:
    lines: list[str] = []
    for heading, text in texts.items():
        lines += [".TP", heading, _inline(text or "")]
    return lines


def _variables(texts: Mapping[str, str]) -> list[str]:
    return _entries({rf"\fB{name}\fR": text for name, text in texts.items()})


def _see_also(names: Sequence[str]) -> list[str]:
    return [".SH SEE ALSO", ", ".join(rf"\fB{_escape(name)}\fR(1)" for name in sorted(names))]


def _inline(text: str) -> str:
    """Return a text with the words in backticks in bold."""
    return re.sub("`([^`]+)`", r"\\fB\1\\fR", _escape(text))


def _escape(text: str) -> str:
    """Return a line of text for roff: nothing in it is a request or an escape sequence."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq")
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


def main(folder: Path) -> None:
    """Write the pages into a folder, and remove pages of former commands."""
    folder.mkdir(exist_ok=True)
    pages = man_pages()
    for path in folder.glob("*.1"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
