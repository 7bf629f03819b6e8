"""The end of a task's output: what is shown of it, and what a hung filesystem costs."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from metasched.web import output
from metasched.web.output import MAX_LINES, SILENT, TAIL, OutputReader, Tail, read_tail


def test_the_last_lines_of_a_regular_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("a\nb\n")
    assert read_tail(path) == Tail(str(path), ["a", "b"], False)
    path.write_text("".join(f"{n}\n" for n in range(MAX_LINES + 1)))
    assert read_tail(path).lines == [str(n) for n in range(1, MAX_LINES + 1)]
    assert read_tail(path).is_cut
    path.write_bytes(b"\xff" * (TAIL + 1))
    assert read_tail(path) == Tail(str(path), ["\N{REPLACEMENT CHARACTER}" * TAIL], True)
    os.mkfifo(tmp_path / "fifo")
    for other in (tmp_path / "fifo", Path("/dev/zero")):
        assert read_tail(other).problem == "it is no regular file"
    assert read_tail(tmp_path / "none").problem == "No such file or directory"
    assert read_tail(Path("a\0b")).problem


def test_a_hung_filesystem_delays_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often its owner asks, it occupies a single thread."""
    answers, calls = threading.Event(), []

    def hang(path: Path) -> Tail:
        calls.append(path.name)
        if path.name == "hung":
            answers.wait(60)
        return Tail(str(path), [], False)

    monkeypatch.setattr(output, "read_tail", hang)
    monkeypatch.setattr(output, "READ_SECONDS", 0.05)
    reader = OutputReader()

    async def ask(owner: str, name: str) -> str:
        return (await reader.read(None, owner, str(tmp_path), name)).problem

    async def scenario() -> None:
        for _ in range(20):
            assert await ask("ann", "hung") == SILENT
        assert calls == ["hung"]
        assert await ask("ann", "other") == SILENT
        monkeypatch.setattr(output, "READ_SECONDS", 60.0)
        assert await ask("ben", "other") == ""
        answers.set()
        assert await ask("ann", "other") == ""
        assert calls == ["hung", "other", "other"]

    try:
        asyncio.run(scenario())
    finally:
        answers.set()


def test_pages_of_an_owner_share_an_answer_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def read(launcher: Path, owner: str, directory: str, path: str) -> Tail:
        calls.append(owner)
        return Tail(path, [owner], False)

    monkeypatch.setattr(output, "_read_as_owner", read)
    reader = OutputReader()

    async def scenario() -> None:
        for owner in ("ann", "ann", "ben", "ann"):
            assert (await reader.read(Path("/l"), owner, "/d", "out")).lines == [owner]

    asyncio.run(scenario())
    assert calls == ["ann", "ben"]
