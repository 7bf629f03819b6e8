"""Runs a query in a process: the query on its input, the result on its output.

A query that hangs, prints megabytes, crashes or leaves child processes ends with its process, or
by a kill of the whole process group.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from metasched.licence_servers.base import LicenceServerError, UsageReport, licence_server_class
from metasched.model.adapter_errors import Refused, Unreachable
from metasched.processes.child_processes import describe_exit
from metasched.processes.commands import CommandResult, start_command, wait_for_result
from metasched.processes.frames import (
    framed,
    read_frame,
    read_frames,
    replies_to_parent,
    wait_for_end,
    write_frame,
)
from metasched.times.timeouts import reply_timeout

STARTUP_GRACE = 10.0  # seconds added to the timeout for start of the interpreter and parsing
MAX_COMMAND_OUTPUT = 2**23  # bytes; lmstat lists ten thousand checkouts in a MiB
_MAX_RESULT_BYTES = 2**26


@dataclass(frozen=True)
class ServerQuery:
    """One query of a licence server."""

    server_type: str  # name of an entry point
    options: dict[str, Any]
    timeout: float  # seconds
    output: str | None = None  # an answer to be parsed; the server is not queried


@dataclass(frozen=True)
class QueryResult:
    """A report, or the error."""

    report: UsageReport | None = None
    error: str = ""


async def query_server(query: ServerQuery, grace: float = STARTUP_GRACE) -> UsageReport:
    """Query a server in a process of its own. LicenceServerError if it fails or exceeds its time.

    `grace` is in seconds, added to the timeout of the query.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # no imports from the daemon's working folder
        "-m",
        "metasched.licence_servers.process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"TZ": "UTC", "LC_ALL": "C"},
        start_new_session=True,
    )
    try:
        async with reply_timeout(query.timeout + grace):
            reply = await _exchange(process, query)
    except TimeoutError:
        raise LicenceServerError(f"no answer within {query.timeout:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await wait_for_end(process)
    if reply.report is None:
        raise LicenceServerError(reply.error)
    return reply.report


async def _exchange(process: asyncio.subprocess.Process, query: ServerQuery) -> QueryResult:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ConnectionError):  # a process that died is noticed by its missing result
        process.stdin.write(framed(msgspec.json.encode(query)))
        await process.stdin.drain()
        process.stdin.close()
    try:
        message = await read_frame(process.stdout, _MAX_RESULT_BYTES)
    except EOFError:
        cause = describe_exit(await process.wait())
        raise LicenceServerError(f"the probe died{cause}") from None
    except ValueError as error:
        raise LicenceServerError(str(error)) from None
    await wait_for_end(process)  # it ends what a command has left behind
    try:
        return msgspec.json.decode(message, type=QueryResult)
    except (msgspec.DecodeError, RecursionError) as error:
        raise LicenceServerError(f"the probe sent an invalid result ({error})") from None


def run_query(query: ServerQuery) -> QueryResult:
    """Query the server and parse its answer; return every failure as a result."""
    try:
        server_type = licence_server_class(query.server_type)
    except KeyError:
        return QueryResult(error=f"there is no kind of licence server {query.server_type!r}")
    try:
        now = time.time()
        output = query.output
        if output is None:
            options = msgspec.convert(query.options, server_type.Options)
            output = server_type(options, query.timeout).query()
        return QueryResult(server_type.parse(output, now))
    except LicenceServerError as error:
        return QueryResult(error=str(error))
    except Exception as error:
        traceback.print_exc()  # to the log of the daemon: a defect, perhaps of a plug-in
        return QueryResult(error=str(LicenceServerError(f"a defect of the probe: {error!r}")))


def query_command(command: Sequence[str], timeout: float) -> CommandResult:
    """Run a command that queries a server, for `timeout` seconds; return its result.

    The exit code may be any. LicenceServerError if the command did not end in time.
    """
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    try:
        process = start_command(command, environment)
        program = os.path.basename(command[0])
        return wait_for_result(process, program, timeout, max_output=MAX_COMMAND_OUTPUT)
    except (Refused, Unreachable) as error:
        raise LicenceServerError(error.reason) from None


def main() -> int:
    """Run the query on standard input and print its result as JSON."""
    replies = replies_to_parent()
    for message in read_frames(sys.stdin.buffer):
        query = msgspec.json.decode(message, type=ServerQuery)
        write_frame(replies, msgspec.json.encode(run_query(query)))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)  # background processes of a command
    return 0


if __name__ == "__main__":
    sys.exit(main())
