"""The process that runs snapshots forward, and the daemon's end of its pipe.

A pass of a local policy cannot be interrupted, and a thread would hold the interpreter's lock
meanwhile. A process holds nothing of the daemon's, runs at a lower priority, and is ended if it
does not answer. Messages are pickles of our own types; nobody else has the pipe.
"""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import signal
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, Protocol

from metasched.forecast.estimates import Estimates, estimate_starts
from metasched.forecast.run_times import RunTimeModel
from metasched.forecast.snapshot import Snapshot

# Processor time of a request: after the first no more forward runs begin than the fewest, after
# the second no pass of a policy. Nine runs of 7,000 waiting tasks on two clusters take 12 s
FEWEST_AFTER = 4.0
CPU_SECONDS = 30.0
# Seconds until the process is ended: one pass of `rcbo` beside 2,000 tasks takes 3.5 s after that,
# and the host may be busy
TIME_LIMIT = 300.0
NICE = 10
_LENGTH = struct.Struct("!Q")  # precedes each message


class EndedRunTime(NamedTuple):
    """What `RunTimeModel.add` takes; times in seconds."""

    user: str
    user_class: str
    limit: float
    run_time: float


class ForecastRequest(NamedTuple):
    """Ended tasks to learn from, and a snapshot to run forward."""

    learnt: tuple[EndedRunTime, ...]
    snapshot: Snapshot
    targets: frozenset[int]
    seed: int


class ForecastReply(NamedTuple):
    """The estimates, and the processor seconds that they took."""

    estimates: Estimates | None  # None: too few forward runs ended in time
    used: float


class NoForecast(Exception):
    """The process has ended or does not answer; what it had learnt is lost."""


class ForecastRunner(Protocol):
    """Answers requests, one at a time. Keeps what it has learnt."""

    async def run(self, request: ForecastRequest) -> ForecastReply:
        """Learn, then run forward. Raises NoForecast."""

    async def close(self) -> None:
        """End; a later request begins anew."""


class RequestHandler:
    """Learns from and answers requests, in whatever process."""

    def __init__(self) -> None:
        self._model = RunTimeModel()

    def handle(self, request: ForecastRequest) -> ForecastReply:
        for ended in request.learnt:
            self._model.add(*ended)
        begun = time.process_time()
        estimates = estimate_starts(
            request.snapshot,
            self._model,
            request.seed,
            targets=request.targets,
            may_begin=lambda: time.process_time() - begun < FEWEST_AFTER,
            may_continue=lambda: time.process_time() - begun < CPU_SECONDS,
        )
        return ForecastReply(estimates, time.process_time() - begun)


class ForecastProcess:
    """A `ForecastRunner` in a process of its own, which starts with the first request."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, request: ForecastRequest) -> ForecastReply:
        try:
            async with asyncio.timeout(TIME_LIMIT):
                return await self._exchange(await asyncio.to_thread(_encoded, request))
        except (OSError, EOFError, TimeoutError, pickle.UnpicklingError) as error:
            await self.close()
            raise NoForecast(str(error)) from error
        except BaseException:  # its answer would be taken for that of the next request
            await self.close()
            raise

    async def _exchange(self, message: bytes) -> ForecastReply:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # nothing of the folder in which the daemon was started
                "-m",
                "metasched.daemon.forecast_process",
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
        reply: ForecastReply = await asyncio.to_thread(pickle.loads, answer)
        return reply

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


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


def _read(stream: BinaryIO) -> ForecastRequest | None:
    """Return the next request; None: the daemon has ended."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    body = stream.read(length)
    if len(body) < length:
        return None
    request: ForecastRequest = pickle.loads(body)
    return request


def main() -> None:
    """Answer requests until the daemon closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the daemon decides
    os.nice(NICE)
    handler = RequestHandler()
    with suppress(BrokenPipeError):
        while (request := _read(sys.stdin.buffer)) is not None:
            sys.stdout.buffer.write(_encoded(handler.handle(request)))
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    from metasched.daemon import forecast_process  # its types have this name in the daemon

    forecast_process.main()
