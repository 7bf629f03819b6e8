"""One probe in a process of its own: a question on its input, an answer on its output.

Whatever a probe does (hang, print megabytes, crash, leave children behind) ends with its process,
or by a kill of its whole process group.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from metasched.adapters.child_processes import die_with_parent
from metasched.licence_servers.base import LicenceServerError, UsageReport, licence_server_class
from metasched.timeouts import reply_timeout

STARTUP_GRACE = (
    10.0  # seconds that an interpreter may take to start and to read, beyond the time-out
)
_MAX_OUTPUT_BYTES = 2**26  # bytes of an answer
_BLOCK_BYTES = 2**16


@dataclass(frozen=True)
class ServerQuery:
    """What to ask: a kind of server with its options; `timeout` seconds for its answer.

    With a `text` nobody is asked: that is what the server has said.
    """

    server_type: str
    options: dict[str, Any]
    timeout: float
    output: str | None = None


@dataclass(frozen=True)
class QueryResult:
    """What was understood, or in one line why there is nothing."""

    report: UsageReport | None = None
    error: str = ""


async def query_server(query: ServerQuery, grace: float = STARTUP_GRACE) -> UsageReport:
    """What the server says, by one probe; ProbeError if it says nothing in time."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "metasched.licence_servers.process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"TZ": "UTC", "LC_ALL": "C"},
        start_new_session=True,
    )
    try:
        async with reply_timeout(query.timeout + grace):
            output = await _exchange(process, query)
    except TimeoutError:
        raise LicenceServerError(f"no answer within {query.timeout:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if not output.endswith(b"\n"):
        raise LicenceServerError(f"the probe died{_exit_cause(process.returncode)}")
    result = msgspec.json.decode(output, type=QueryResult)
    if result.report is None:
        raise LicenceServerError(result.error)
    return result.report


async def _exchange(process: asyncio.subprocess.Process, query: ServerQuery) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ConnectionError):  # a probe that died tells by its silence
        process.stdin.write(msgspec.json.encode(query))
        await process.stdin.drain()
        process.stdin.close()
    output = bytearray()
    while block := await process.stdout.read(_BLOCK_BYTES):
        output += block
        if len(output) > _MAX_OUTPUT_BYTES:
            raise LicenceServerError(f"an answer of more than {_MAX_OUTPUT_BYTES >> 20} MiB")
    await process.wait()
    return bytes(output)


def _exit_cause(code: int | None) -> str:
    if not code:
        return ""
    return f" of signal {-code}" if code < 0 else f" with exit code {code}"


def run_query(query: ServerQuery) -> QueryResult:
    """Ask and read; every failure becomes an answer."""
    try:
        server_type = licence_server_class(query.server_type)
    except KeyError:
        return QueryResult(error=f"there is no kind of licence server {query.server_type!r}")
    try:
        now = time.time()
        output = query.output
        if output is None:
            output = server_type(
                msgspec.convert(query.options, server_type.Options), query.timeout
            ).query()
        return QueryResult(server_type.parse(output, now))
    except LicenceServerError as error:
        return QueryResult(error=str(error))
    except Exception as error:
        traceback.print_exc()  # to the daemon's log: a defect, perhaps of a plug-in
        return QueryResult(error=str(LicenceServerError(f"a defect of the probe: {error!r}")))


def main() -> int:
    die_with_parent()
    result_pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print of a library must not spoil the answer
    query = msgspec.json.decode(sys.stdin.buffer.read(), type=ServerQuery)
    result_pipe.write(msgspec.json.encode(run_query(query)) + b"\n")
    result_pipe.close()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)  # what a command left behind in the background
    return 0


if __name__ == "__main__":
    sys.exit(main())
