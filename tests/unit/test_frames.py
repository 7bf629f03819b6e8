"""Frames of child processes: whatever a child writes, its reader is bounded and says so once."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import struct
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metasched.processes.frames import (
    framed,
    read_frame,
    read_frames,
    receive_frame,
    send_frame,
    wait_for_end,
    write_frame,
)
from metasched.processes.pickled_process import PickledProcess, ProcessLost

LIMIT = 2**20  # bytes
SECONDS = 20.0
TOO_LONG = [
    struct.pack("!I", LIMIT + 1),
    b"\xff" * 4,
    struct.pack("!Q", 2**63) + b"x",
    b'{"a line": 1}\n',
    b"Traceback (most recent call last):\n",
]


def read_stream(written: bytes) -> list[bytes]:
    """Read frames from a pipe of asyncio that ends after `written`."""

    async def read() -> list[bytes]:
        stream = asyncio.StreamReader()
        stream.feed_data(written)
        stream.feed_eof()
        messages = []
        while not stream.at_eof():
            messages.append(await read_frame(stream, LIMIT))
        return messages

    return asyncio.run(read())


def read_socket(written: bytes) -> list[bytes]:
    """Read frames from a socket whose other end is closed after `written`."""
    ours, theirs = socket.socketpair()
    with ours:

        def write() -> None:
            with theirs, suppress(ConnectionError):  # garbage is not read to its end
                theirs.sendall(written)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            messages, size = [], 0
            while size < len(written):
                messages.append(receive_frame(ours, time.monotonic() + SECONDS, LIMIT))
                size += len(framed(messages[-1]))
            return messages
        finally:
            ours.close()
            writer.join()


READERS = [read_stream, read_socket]
Reader = Callable[[bytes], list[bytes]]


@given(st.lists(st.binary(max_size=9), max_size=4))
@example([b"", b"x" * LIMIT, b"{}"])
def test_messages_arrive_as_they_were_written(messages: list[bytes]) -> None:
    pipe = io.BytesIO()
    for message in messages:
        write_frame(pipe, message)
    for reader in READERS:
        assert reader(pipe.getvalue()) == messages
    pipe.seek(0)
    assert list(read_frames(pipe)) == messages


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("end", range(1, 8))
def test_half_a_frame_is_the_end_of_the_process(reader: Reader, end: int) -> None:
    whole, half = framed(b"first"), framed(b"half")[:end]
    with pytest.raises(EOFError, match="its process ended"):
        reader(whole + half)
    assert list(read_frames(io.BytesIO(whole + half))) == [b"first"]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("garbage", TOO_LONG)
def test_garbage_is_refused_before_memory_is_taken(reader: Reader, garbage: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"^an answer of more than 1 MiB$"):
            reader(garbage)
        assert tracemalloc.get_traced_memory()[1] < LIMIT
    finally:
        tracemalloc.stop()


def test_a_parent_that_writes_lines_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 1 GiB"):
        next(read_frames(io.BytesIO(b'{"a line": 1}\n')))


@pytest.mark.parametrize("beginning", [b"", b"\0\0", framed(b"half")[:6]])
def test_silence_ends_with_the_deadline(beginning: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(beginning)
        with pytest.raises(TimeoutError):
            receive_frame(ours, time.monotonic() + 0.05, LIMIT)
        with pytest.raises(TimeoutError):  # nobody reads
            send_frame(ours, b"x" * 2**24, time.monotonic() + 0.05)


def test_a_message_has_a_limit() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 2**32

    with pytest.raises(ValueError, match="more than 4 GiB"):
        framed(Huge())


@pytest.mark.parametrize(
    ("lie", "cause"),
    [
        ("b'ha'", "its process ended"),
        ("(8).to_bytes(4, 'big') + b'half'", "its process ended"),
        ("(2**63).to_bytes(8, 'big')", "an answer of more than 1024 MiB"),
        ("b'garbage' * 100", "an answer of more than 1024 MiB"),
        ("(7).to_bytes(4, 'big') + b'garbage'", "pickle"),
    ],
)
def test_a_process_that_lies_is_lost(
    lie: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lying.py").write_text(
        f"import os, sys\nsys.stdin.buffer.read(4)\nos.write(1, {lie})\nos._exit(0)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def ask() -> None:
        process = PickledProcess[int, int]("lying")
        with pytest.raises(ProcessLost, match=cause):
            await process.ask(1, SECONDS)
        assert process.pid is None

    asyncio.run(ask())


def test_a_process_that_is_silent_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "silent.py").write_text(
        "import time\nprint(end='\\0\\0', flush=True)\ntime.sleep(60)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def ask() -> None:
        process = PickledProcess[int, int]("silent")
        with pytest.raises(ProcessLost):
            await process.ask(1, 0.5)
        assert process.pid is None

    asyncio.run(ask())


def test_a_process_that_floods_its_pipe_between_requests_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flooding.py").write_text(
        "import os, pickle, sys\n"
        "from metasched.processes.frames import framed, read_frames\n"
        "next(read_frames(sys.stdin.buffer))\n"
        "os.write(1, framed(pickle.dumps('first')))\n"
        "while True:\n    os.write(1, b'garbage' * 2**13)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))

    async def ask() -> None:
        process = PickledProcess[int, str]("flooding")
        async with asyncio.timeout(SECONDS):
            assert await process.ask(1, SECONDS) == "first"
            await asyncio.sleep(0.5)  # its pipe is not read any more
            with pytest.raises(ProcessLost, match="an answer of more than 1024 MiB"):
                await process.ask(2, SECONDS)
        assert process.pid is None

    asyncio.run(ask())


def test_the_end_of_a_process_is_awaited_behind_its_output() -> None:
    async def end() -> int | None:
        process = await asyncio.create_subprocess_exec(
            *("head", "-c", "10000000", "/dev/zero"), stdout=asyncio.subprocess.PIPE
        )
        await asyncio.sleep(0.2)
        async with asyncio.timeout(SECONDS):
            await wait_for_end(process)
        return process.returncode

    assert asyncio.run(end()) == 0
