"""A process of ours that computes beside the daemon, and the daemon's end of its pipe.

It holds nothing of the daemon's, runs at a lower priority, and is ended if it does not answer.
Messages are pickles of metasched's own types; no other process has the pipe.
"""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import resource
import signal
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, BinaryIO, Generic, TypeVar

from metasched.processes.child_processes import die_with_parent

NICENESS = 10
_LENGTH = struct.Struct("!Q")  # precedes each message

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class ProcessLost(Exception):
    """The process has ended or does not answer; its state is lost."""


class PickledProcess(Generic[Request, Reply]):
    """A process that answers requests in sequence. It starts with the first request."""

    def __init__(self, module: str) -> None:
        """`module` is run; it calls `answer_requests`."""
        self._module = module
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Its process id; None: it does not run."""
        return None if self._process is None else self._process.pid

    async def ask(self, request: Request, time_limit: float) -> Reply:
        """Return the answer to a request, within seconds. ProcessLost if there is none."""
        try:
            async with asyncio.timeout(time_limit):
                return await self._exchange(await asyncio.to_thread(_encoded, request))
        except (OSError, EOFError, TimeoutError, pickle.UnpicklingError) as error:
            await self.close()
            raise ProcessLost(str(error)) from error
        except BaseException:  # its answer would be taken for that of the next request
            await self.close()
            raise

    async def _exchange(self, message: bytes) -> Reply:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # no imports from the daemon's working folder
                "-m",
                self._module,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(message)
        await process.stdin.drain()
        (length,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
        answer = await process.stdout.readexactly(length)
        reply: Reply = await asyncio.to_thread(pickle.loads, answer)
        return reply

    async def close(self) -> None:
        """End it; a later request begins anew."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def answer_requests(answer: Callable[[Any], object], memory: int | None = None) -> None:
    """Answer requests of the daemon, in the process, until it closes the pipe or is killed.

    `memory` is the most address space in bytes, None: any. Above it `answer` gets a MemoryError.
    """
    die_with_parent()
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    if memory is not None and (hard_limit == resource.RLIM_INFINITY or memory < hard_limit):
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the daemon decides
    os.nice(NICENESS)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of a policy of another package must not mix with replies
    with suppress(BrokenPipeError):
        while (message := _read(sys.stdin.buffer)) is not None:
            replies.write(_encoded(answer(pickle.loads(message))))
            replies.flush()


def _read_only(mapping: dict[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(mapping)


class _Pickler(pickle.Pickler):
    """Also pickles the empty mapping that stands for no resources."""

    dispatch_table: Mapping[type, Any] = {
        MappingProxyType: lambda mapping: (_read_only, (dict(mapping),))
    }


def _encoded(message: object) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(message)
    return _LENGTH.pack(buffer.tell()) + buffer.getbuffer()


def _read(stream: BinaryIO) -> bytes | None:
    """Return the next message; None: the daemon has ended."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    body = stream.read(length)
    return body if len(body) == length else None
