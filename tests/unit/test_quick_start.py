"""Plain command lines run without Typer, with its options and nothing slow."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

import metasched
from metasched.cli import job_commands, quick_start
from metasched.cli.app import build_app
from metasched.core.transitions import FINAL

FUNCTIONS: dict[str, Callable[..., object]] = {
    "status": job_commands.list_jobs,
    "wait": job_commands.wait_for_jobs,
    "output": job_commands.print_output,
}


@pytest.mark.parametrize("command", quick_start.VALUES)
def test_the_options_are_those_of_typer(command: str) -> None:
    group: Any = typer.main.get_command(build_app([command]))
    parameters = [p for p in group.commands[command].params if p.param_type_name == "option"]
    flags = {name for p in parameters if p.is_flag for name in p.opts}
    values = {name for p in parameters if not p.is_flag for name in p.opts}
    assert quick_start.FLAGS[command].keys() == flags
    assert quick_start.VALUES[command].keys() == values
    function = FUNCTIONS.get(command, job_commands.change_jobs)
    used = {*quick_start.FLAGS[command].values(), *quick_start.VALUES[command].values()}
    accepted = {*inspect.signature(function).parameters}
    if command == "status":
        accepted |= {*inspect.signature(job_commands._query).parameters}
    assert used <= accepted


@pytest.mark.parametrize(
    ("line", "words", "options"),
    [
        ("status", [], {}),
        ("status 17 --all --user=ada 18_3", ["17", "18_3"], {"show_all": True, "user": "ada"}),
        ("cancel --state running,held", [], {"state": "running,held"}),
        ("wait 17 18 --json", ["17", "18"], {"as_json": True}),
        ("output -f 17", ["17"], {"follow": True}),
    ],
)
def test_plain_lines(line: str, words: list[str], options: dict[str, object]) -> None:
    assert quick_start.parse_plain(line.split(" ")) == (words, options)


@pytest.mark.parametrize(
    "line",
    [
        *("status --help", "status -h", "status --", "status --use ada", "status --user"),
        *("status --user=", "status --user --all", "status --all=yes", "status  17", "wait"),
        *("output", "output 17 18", "output --follow", "cancel --foo", "hold --since 2h"),
    ],
)
def test_other_lines_are_left_to_typer(line: str) -> None:
    assert quick_start.parse_plain(line.split(" ")) is None


def test_the_final_states_are_those_of_the_model() -> None:
    assert {str(state) for state in FINAL} == job_commands.ENDED


def loaded_modules(code: str) -> set[str]:
    package = str(Path(metasched.__file__).parents[1])
    code = f"import sys; sys.path.append({package!r}); {code}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_a_plain_line_loads_nothing_slow() -> None:
    code = "from metasched.cli import main, job_commands, quick_start"
    loaded = loaded_modules(code)
    assert not loaded & {"typing", "typer", "dataclasses", "pathlib", "argparse", "inspect", "rich"}
    assert not [name for name in loaded if name.startswith(("metasched.core", "metasched.model"))]


def test_a_submission_loads_nothing_slow() -> None:
    line = ["-n", "2", "-t", "5", "--mem=1G", "-o", "/tmp/x.out", "--wrap", "true"]
    code = "from metasched.cli.submit import prepare_submission; "
    code += "from metasched.client.options import parse_command_line; "
    code += f"prepare_submission(*parse_command_line({line}), environ={{}}, now=0.0)"
    slow = {"typing", "dataclasses", "pathlib", "argparse", "inspect", "hashlib", "shlex"}
    assert not loaded_modules(code) & {*slow, "msgspec", "datetime", "metasched.model.arrays"}


@pytest.mark.parametrize("arguments", [["status"], ["wait", "17"], ["output", "17"]])
def test_plain_lines_do_not_reach_typer(
    arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from metasched.client.connection import DaemonUnreachable

    monkeypatch.setenv("METASCHED_SOCKET", str(tmp_path / "none"))
    with pytest.raises(DaemonUnreachable):
        quick_start.run_plain(arguments)
