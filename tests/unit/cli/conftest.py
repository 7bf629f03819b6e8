"""Fixtures of the command line's tests: an empty home, a fake daemon, a run in this process."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from metasched import cli
from tests.unit.cli.fake_daemon import Completed, FakeDaemon, FakeDaemonServer, Run


@pytest.fixture
def daemon(home: Path) -> Iterator[FakeDaemon]:
    with tempfile.TemporaryDirectory(prefix="ms") as short:  # a socket's path is at most 107 bytes
        fake = FakeDaemon(Path(short, "s"))
        with FakeDaemonServer(fake) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            os.environ["METASCHED_SOCKET"] = str(fake.path)  # restored by the fixture `home`
            try:
                yield fake
            finally:
                server.released.set()
                server.shutdown()
                thread.join()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home without daemon, configuration or environment."""
    for name in ("METASCHED_CONFIG", "METASCHED_SOCKET", "_METASCHED_COMPLETE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `metasched` with these arguments in this process."""

    def run(*arguments: str) -> Completed:
        monkeypatch.setattr(sys, "argv", ["metasched", *arguments])
        capsys.readouterr()
        code = cli.main()
        captured = capsys.readouterr()
        return Completed(code, captured.out, captured.err)

    return run
