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
from metasched.licence_servers.base import ProbeError, Report, server_class
from metasched.timeouts import listening

GRACE = 10.0  # seconds that an interpreter may take to start and to read, beyond the time-out
_MOST = 2**26  # bytes of an answer
_BLOCK = 2**16


@dataclass(frozen=True)
class Question:
    """What to ask: a kind of server with its options; `timeout` seconds for its answer.

    With a `text` nobody is asked: that is what the server has said.
    """

    kind: str
    options: dict[str, Any]
    timeout: float
    text: str | None = None


@dataclass(frozen=True)
class Answer:
    """What was understood, or in one line why there is nothing."""

    report: Report | None = None
    words: str = ""


async def probe(question: Question, grace: float = GRACE) -> Report:
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
        async with listening(question.timeout + grace):
            said = await _conversation(process, question)
    except TimeoutError:
        raise ProbeError(f"no answer within {question.timeout:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if not said.endswith(b"\n"):
        raise ProbeError(f"the probe died{_cause(process.returncode)}")
    answer = msgspec.json.decode(said, type=Answer)
    if answer.report is None:
        raise ProbeError(answer.words)
    return answer.report


async def _conversation(process: asyncio.subprocess.Process, question: Question) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ConnectionError):  # a probe that died tells by its silence
        process.stdin.write(msgspec.json.encode(question))
        await process.stdin.drain()
        process.stdin.close()
    said = bytearray()
    while block := await process.stdout.read(_BLOCK):
        said += block
        if len(said) > _MOST:
            raise ProbeError(f"an answer of more than {_MOST >> 20} MiB")
    await process.wait()
    return bytes(said)


def _cause(code: int | None) -> str:
    if not code:
        return ""
    return f" of signal {-code}" if code < 0 else f" with exit code {code}"


def answer_to(question: Question) -> Answer:
    """Ask and read; every failure becomes an answer."""
    try:
        kind = server_class(question.kind)
    except KeyError:
        return Answer(words=f"there is no kind of licence server {question.kind!r}")
    try:
        now = time.time()
        text = question.text
        if text is None:
            text = kind(msgspec.convert(question.options, kind.Options), question.timeout).ask()
        return Answer(kind.read(text, now))
    except ProbeError as error:
        return Answer(words=str(error))
    except Exception as error:
        traceback.print_exc()  # to the daemon's log: a defect, perhaps of a plug-in
        return Answer(words=str(ProbeError(f"a defect of the probe: {error!r}")))


def main() -> int:
    die_with_parent()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print of a library must not spoil the answer
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    answers.write(msgspec.json.encode(answer_to(question)) + b"\n")
    answers.close()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)  # what a command left behind in the background
    return 0


if __name__ == "__main__":
    sys.exit(main())
