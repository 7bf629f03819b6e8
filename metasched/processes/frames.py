"""Frames: messages between metasched and its child processes, each after its length.

The reader bounds the length, so a process that sends garbage takes no memory. Limits of time are
the caller's.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, BinaryIO

from metasched.processes.child_processes import die_with_parent

_LENGTH = struct.Struct("!I")  # precedes each message
_MAX_REQUEST = 2**30  # bytes; the first four bytes of a JSON object are a greater length
_BLOCK = 2**20  # bytes that are received at once


def framed(message: bytes | memoryview) -> bytes:
    """Return the frame of a message. Raises ValueError from 4 GiB on."""
    if len(message) >= 2**32:
        raise ValueError("a message of more than 4 GiB")
    return _LENGTH.pack(len(message)) + message


async def read_frame(stream: asyncio.StreamReader, limit: int) -> bytes:
    """Return the next message of a child process.

    Raises EOFError if the process has ended, perhaps amid a frame. Raises ValueError if the message
    has more bytes than `limit`: the process must be killed then.
    """
    try:
        length = _length_of(await stream.readexactly(_LENGTH.size), limit)
        return await stream.readexactly(length)
    except asyncio.IncompleteReadError:
        raise EOFError("its process ended") from None


async def wait_for_end(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of a process; what it still writes is dropped."""
    dropping = asyncio.create_task(drop_output(process))
    try:
        await process.wait()
    finally:
        dropping.cancel()


async def drop_output(process: asyncio.subprocess.Process) -> None:
    """Read what a process that is of no use any more still writes, to the end.

    asyncio reads no pipe with much unread output, and waits for its end with that of the process.
    """
    assert process.stdout is not None
    with suppress(RuntimeError):  # another task still reads
        while await process.stdout.read(_BLOCK):
            pass


def receive_frame(connection: socket.socket, deadline: float, limit: int) -> bytes:
    """Return the next message, by a monotonic time. Raises as `read_frame`, and OSError.

    After the deadline the OSError is a TimeoutError.
    """
    length = _length_of(_receive_exactly(connection, _LENGTH.size, deadline), limit)
    return _receive_exactly(connection, length, deadline)


def send_frame(connection: socket.socket, message: bytes, deadline: float) -> None:
    """Send a message by a monotonic time. Raises OSError, after the deadline TimeoutError."""
    connection.settimeout(_seconds_until(deadline))
    connection.sendall(framed(message))


def read_frames(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the messages of the parent process until it closes the pipe, perhaps amid a frame.

    Raises ValueError if the parent sends a message of more than 1 GiB, or JSON without a length.
    """
    while len(header := stream.read(_LENGTH.size)) == _LENGTH.size:
        (length,) = _LENGTH.unpack(header)
        if length > _MAX_REQUEST:
            raise ValueError("a message of more than 1 GiB")
        message = stream.read(length)
        if len(message) < length:
            return
        yield message


def write_frame(stream: IO[bytes], message: bytes) -> None:
    """Write a message to the parent process. Raises as `framed`, and OSError."""
    stream.write(framed(message))
    stream.flush()


def replies_to_parent() -> BinaryIO:
    """Return the standard output, for frames alone: output of libraries goes to standard error.

    From now on this process ends with its parent.
    """
    die_with_parent()
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def _length_of(header: bytes, limit: int) -> int:
    (length,) = _LENGTH.unpack(header)
    if length > limit:
        raise ValueError(f"an answer of more than {limit >> 20} MiB")
    return int(length)


def _receive_exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    received = bytearray()
    while len(received) < size:
        connection.settimeout(_seconds_until(deadline))
        part = connection.recv(min(size - len(received), _BLOCK))
        if not part:
            raise EOFError("its process ended")
        received += part
    return bytes(received)


def _seconds_until(deadline: float) -> float:
    if (seconds := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return seconds
