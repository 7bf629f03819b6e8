"""The command `web`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.unit.cli.fake_daemon import FakeDaemon, Run

URL = "https://site.example:6450/web/sign-in?link=secret&x"
BROWSER = f"""#!{sys.executable}
import json, os, sys
path = sys.argv[1].removeprefix("file://")
status = {{"mode": os.stat(path).st_mode & 0o777, "folder": os.stat(os.path.dirname(path)).st_mode}}
with open(os.environ["SEEN"], "w") as file:
    json.dump(status | {{"argv": sys.argv[1:], "page": open(path).read()}}, file)
"""


@pytest.fixture
def seen(daemon: FakeDaemon, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where a browser writes what it was asked to open."""
    daemon.answer("/tokens/link", {"url": URL, "expires": "2090-01-31T10:00:00+00:00"})
    program = home / "browser"
    program.write_text(BROWSER)
    program.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(program))
    monkeypatch.setenv("SEEN", str(home / "seen"))
    for name in ("SUDO_UID", "DOAS_USER"):
        monkeypatch.delenv(name, raising=False)
    return home / "seen"


@pytest.mark.parametrize("mode", [0o700, 0o755, None])
def test_a_browser_gets_the_link_by_a_file_of_the_account(
    mode: int | None, seen: Path, run: Run, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    """No other account sees it: in a command line, or in a folder that others may read."""
    runtime = Path(os.environ["XDG_RUNTIME_DIR"])
    if mode is not None:
        runtime.mkdir(mode=mode)
        runtime.chmod(mode)
    monkeypatch.setattr("tempfile.tempdir", str(home))
    done = run("web", "--open")
    assert (done.code, done.out) == (0, "")
    opened = json.loads(seen.read_text())
    assert "secret" not in str(opened["argv"])
    assert 'url=https://site.example:6450/web/sign-in?link=secret&amp;x"' in opened["page"]
    assert (opened["mode"], opened["folder"] & 0o777) == (0o600, 0o700)
    assert opened["argv"][0].startswith(f"file://{runtime}/") == (mode == 0o700)


def test_no_browser_leaves_no_link_behind(
    seen: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Path(os.environ["XDG_RUNTIME_DIR"])
    runtime.mkdir(mode=0o700)
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    done = run("web", "--open")
    assert done.code != 0
    assert done.err.count("\n") == 1
    assert list(runtime.iterdir()) == []


def test_a_browser_named_by_the_caller_of_sudo_is_not_started(
    seen: Path, run: Run, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_UID", "4711")
    assert run("web", "--open").code != 0
    assert (seen.exists(), daemon.requests) == (False, [])


def test_help_makes_the_link_no_argument(run: Run) -> None:
    assert "$(metasched web)" not in run("web", "--help").out
