"""Completion in a shell: own jobs, clusters, licences and reservations, and silence on failures."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from metasched.cli import completion
from tests.unit.cli.fake_daemon import FakeDaemon, row

BASH = """
eval "$(_METASCHED_COMPLETE=source_bash metasched)"
COMP_WORDS=({words}) COMP_CWORD={position}
_metasched_completion metasched
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
# the completion system needs a terminal: its functions print what they get
ZSH = """
compdef() {{ true }}
_arguments() {{ print -r -- "$@" }}
eval "$(_METASCHED_COMPLETE=source_zsh metasched)"
words=({words}) CURRENT={position}
_metasched_completion
"""


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Return a folder with the command `metasched`, which waits longer on a busy host."""
    command = tmp_path / "tools" / "metasched"
    command.parent.mkdir()
    source = "import sys; from metasched.cli import completion, main; "
    source += "completion.TIMEOUT = 30.0; sys.exit(main())"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{source}" "$@"\n')
    command.chmod(0o755)
    return command.parent


def completed(tools: Path, daemon: FakeDaemon, *words: str, shell: str = "bash") -> list[str]:
    """Return the words that a shell offers for the last word of a line."""
    quoted = " ".join(map(shlex.quote, words))
    script, position = (BASH, len(words) - 1) if shell == "bash" else (ZSH, len(words))
    done = subprocess.run(
        [shell, "-c", script.format(words=quoted, position=position)],
        env={
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "METASCHED_SOCKET": str(daemon.path),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    if shell == "zsh":
        _, _, offered = done.stdout.partition(":((")
        return shlex.split(offered.rstrip().removesuffix("))"))
    return done.stdout.split()


SHELLS = [
    pytest.param(
        shell, marks=pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is missing")
    )
    for shell in ("bash", "zsh")
]


@pytest.mark.install
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_names(tools: Path, daemon: FakeDaemon, shell: str) -> None:
    daemon.answer("/jobs", [row(17), row(170), row(18, array="2-3", task=2)])
    daemon.answer("/clusters", [{"cluster": "left"}, {"cluster": "right"}])
    daemon.answer("/licences", [{"licence": "matlab"}])
    daemon.answer("/reservations", [{"reservation": 3, "start": "2030-01-31T10:00:00Z"}])

    def offered(*words: str) -> list[str]:
        return completed(tools, daemon, "metasched", *words, shell=shell)

    assert offered("cancel", "17") == ["17", "170"]
    assert offered("cancel", "18_") == ["18_2"]
    assert offered("cluster", "drain", "") == ["left", "right"]
    assert offered("submit", "--cluster", "right,l") == ["right,left"]
    assert offered("submit", "-L", "") == ["matlab"]
    assert offered("reservation", "cancel", "") == ["3"]


@pytest.mark.install
def test_only_own_jobs_that_the_command_can_change(tools: Path, daemon: FakeDaemon) -> None:
    daemon.answer("/jobs", [])
    assert completed(tools, daemon, "metasched", "hold", "") == []
    assert completed(tools, daemon, "metasched", "output", "") == []
    hold, output = (query for _, _, query, _ in daemon.requests)
    assert hold["user"] == output["user"] == [pwd.getpwuid(os.geteuid()).pw_name]
    assert hold["state"] == ["queued,held,dispatching,pending"]
    assert "state" not in output


@pytest.mark.install
@pytest.mark.parametrize("answer", [(403, {"error": "no"}), {"not": "rows"}, b"", [{"job": "a b"}]])
def test_no_daemon_and_strange_answers_offer_nothing(
    tools: Path, daemon: FakeDaemon, answer: object
) -> None:
    daemon.answer("/jobs", answer)
    assert completed(tools, daemon, "metasched", "cancel", "") == []
    daemon.path = daemon.path.with_name("none")
    assert completed(tools, daemon, "metasched", "cancel", "") == []


def test_a_silent_daemon_is_not_waited_for(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "TIMEOUT", 0.05)
    monkeypatch.setenv("METASCHED_SOCKET", str(daemon.path))
    daemon.answer("/clusters", None)
    assert completion.complete_clusters("") == []
