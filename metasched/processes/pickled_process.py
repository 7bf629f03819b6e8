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
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from metasched.processes.frames import (
    framed,
    read_frame,
    read_frames,
    replies_to_parent,
    wait_for_end,
)

NICENESS = 10
MAX_REPLY = 2**30  # bytes

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
                return await self._exchange(await asyncio.to_thread(_frame_of, request))
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
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
        answer = await read_frame(process.stdout, MAX_REPLY)
        reply: Reply = await asyncio.to_thread(pickle.loads, answer)
        return reply

    async def close(self) -> None:
        """End it; a later request begins anew."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await wait_for_end(process)


def answer_requests(answer: Callable[[Any], object], memory: int | None = None) -> None:
    """Answer requests of the daemon, in the process, until it closes the pipe or is killed.

    `memory` is the most address space in bytes, None: any. Above it `answer` gets a MemoryError.
    """
    replies = replies_to_parent()
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    if memory is not None and (hard_limit == resource.RLIM_INFINITY or memory < hard_limit):
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the daemon decides
    os.nice(NICENESS)
    with suppress(BrokenPipeError):
        for message in read_frames(sys.stdin.buffer):
            replies.write(_frame_of(answer(pickle.loads(message))))
            replies.flush()


def _read_only(mapping: dict[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(mapping)


class _Pickler(pickle.Pickler):
    """Also pickles the empty mapping that stands for no resources."""

    dispatch_table: Mapping[type, Any] = {
        MappingProxyType: lambda mapping: (_read_only, (dict(mapping),))
    }


def _frame_of(message: object) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(message)
    return framed(buffer.getbuffer())
