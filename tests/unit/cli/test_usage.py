"""Wrong usage, help texts, version and completion."""

from __future__ import annotations

import os

import pytest

from metasched.cli import app as cli_app
from metasched.client.options import OPTIONS
from tests.unit.cli.fake_daemon import FakeDaemon, Run, started


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sttus"], 'unknown command "sttus", metasched; did you mean status?'),
        (["frobnicate"], 'unknown command "frobnicate", metasched; see `metasched --help`'),
        (["--verbose"], 'unknown option "--verbose", metasched; '),
        (
            ["status", "--usr", "x"],
            'unknown option "--usr", metasched status; did you mean --user',
        ),
        (["status", "--user"], ", metasched status; see `metasched status --help`"),
        (["status", "x"], '"x" is no job, JOB; write 17, 17_3 for a task'),
        (["story", "17_"], '"17_" is no job'),
        (["wait", "-1"], "unknown option"),
        (["wait"], "missing argument"),
        (["story", "17", "18"], "metasched story; "),
        (
            ["cancel"],
            "nothing to cancel, metasched cancel; name jobs, --user, --state or --cluster",
        ),
        (["status", "--since", "soon"], '"soon" is no time, --since; '),
        (["demo", "--jobs", "0"], "--jobs"),
        (["demo", "--jobs", "x"], "--jobs"),
        (["submit", "--arary", "1-3", "x"], 'unknown option "--arary", metasched submit; did'),
        (
            ["submit", "--reservation", "x", "--wrap", "x"],
            '"x" is no number from 1 to 2147483647, --res',
        ),
        (["reserve", "--size", "4"], "no --duration, metasched reserve; "),
        (["reserve", "--duration", "1h"], "no --size, metasched reserve; "),
        (["reserve", "-n", "0", "--duration", "1h"], '"0" is no number from 1 to 2147483647, --s'),
        (["reserve", "-n", "1", "--duration", "0"], '"0" is no sensible duration, --duration; '),
        (["reserve", "-n", "1", "--start", "+1h"], "no end, --start; "),
        (
            ["reserve", "-n", "1", "--duration", "1h", "-L", "matlab,matlab"],
            'licence "matlab" is there twice, --licence; write NAME:N once',
        ),
        (["reserve", "-n", "1", "--end", "+1h"], "--end without --start"),
        (
            ["reserve", "-n", "1", "--start", "+2h", "--end", "+1h"],
            "the end is not after the start",
        ),
        (["reserve", "-n", "1", "--start", "soon", "--end", "+1h"], '"soon" is no time, --start; '),
        (["reserve", "--at-least", "1", "--duration", "1h"], "only one of --at-least and --at-mo"),
        (["reservation", "cancel", "x"], '"x" is no number from 1 to 2147483647, ID; '),
        (["submit", "-n", "0", "--wrap", "x"], '"0" is no number from 1 to 2147483647, --ntasks; '),
        (["submit", "no\nsuch\x1b[31m\udcff"], 'No such file or directory, script "no\\nsuch\\x1b'),
        (["submit", "--config", "no.toml", "--wrap", "x"], "no.toml; name another file"),
        (["status", "--config", "no.toml"], "no.toml; name another file with --config"),
        (["serve", "-c", "no.toml"], "no.toml"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    daemon: FakeDaemon, run: Run, arguments: list[str], message: str
) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("metasched: error: ")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert daemon.requests == []


def test_help_names_every_command(run: Run) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        done = run(*arguments)
        assert done.code == 0
        assert all(f"\n  {name} " in done.out for name in cli_app.COMMANDS)


@pytest.mark.parametrize("command", cli_app.COMMANDS)
def test_help_has_examples(run: Run, command: str) -> None:
    done = run(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"Examples:\n    metasched {command}" in done.out


def test_help_of_submit_names_every_option(run: Run) -> None:
    output = run("submit", "-h").out
    assert all(name in output for option in OPTIONS for name in option.names)
    public = "ntasks cpus-per-task nodes mem mem-per-cpu gpus gres exclusive time begin deadline"
    public += " licence urgency cluster account partition qos constraint native reservation array"
    public += " dependency name output error chdir export requeue hold dry-run wrap parsable wait"
    output = output.replace(",", " ")
    assert all(f"--{name} " in output for name in [*public.split(), "json", "strict", "config"])


def test_version(run: Run) -> None:
    output = run("--version").out
    assert output.startswith("metasched ")
    assert "compiled" not in output  # the source tree is never compiled


def test_completion_knows_commands_and_options() -> None:
    def completed(*arguments: str) -> list[str]:
        environment = {"_METASCHED_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(arguments)}
        environ = {**os.environ, **environment, "COMP_CWORD": str(len(arguments) - 1)}
        out, _ = started(env=environ).communicate()
        return out.decode().split()

    assert completed("metasched", "sta") == ["status"]
    assert completed("metasched", "submit", "--urg") == ["--urgency"]
