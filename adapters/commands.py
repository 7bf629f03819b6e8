"""Runs a manager's commands: each with a time limit, and never outliving its caller."""

from __future__ import annotations

import errno
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metasched.adapters.child_processes import Guard
from metasched.adapters.errors import Refused, Unreachable

if TYPE_CHECKING:
    from metasched.adapters.launcher_client import Launched

_LOOK = 0.25  # seconds between looks at what a slow command has said so far
_BLOCK = 2**16  # bytes
MOST = 2**28  # bytes of one answer; a listing of 100,000 jobs takes a tenth of it
_guard = Guard()


@dataclass(frozen=True)
class Answer:
    """What a command left: its exit code and its words."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """What it said against it, in one line."""
        return _line(self.err)


class Stopped(Unreachable):
    """A command that was killed for what it `said`, at most `seconds` after it began to say it."""

    def __init__(self, name: str, said: str, seconds: float) -> None:
        super().__init__(f"{name}: {_line(said)}")
        self.said, self.seconds = said, seconds


def run(
    argv: Sequence[str],
    environment: Mapping[str, str],
    timeout: float,
    *,
    stdin: int | None = None,
    keep: Sequence[int] = (),
    umask: int = -1,
    enough: Callable[[str], bool] | None = None,
    most: int = MOST,
) -> Answer:
    """The answer of one command, `most` bytes at the most; Unreachable if it cannot start.

    It reads from the descriptor `stdin` (None: nothing) and inherits those of `keep`. Refused: no
    command can be given these arguments.
    """
    process = begin(argv, environment, stdin=stdin, keep=keep, umask=umask)
    return answer_of(process, os.path.basename(argv[0]), timeout, enough, most)


def begin(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int | None = None,
    said: int = subprocess.PIPE,
    keep: Sequence[int] = (),
    umask: int = -1,
) -> subprocess.Popen[bytes]:
    """A command that ends with this process; `said` takes what it says. Raises as `run` does."""
    try:
        return subprocess.Popen(
            argv,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=said,
            stderr=said,
            pass_fds=keep,
            umask=umask,
            process_group=_guard.group(),
        )
    except UnicodeEncodeError:
        raise Refused("an option, a path or an argument is no text") from None
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise Refused("the arguments are too long") from None
        raise Unreachable(f"{argv[0]}: {error.strerror}") from None


def answer_of(
    process: subprocess.Popen[bytes] | Launched,
    name: str,
    timeout: float,
    enough: Callable[[str], bool] | None = None,
    most: int = MOST,
) -> Answer:
    """What a command that was just started answers; Unreachable if nothing in `timeout` s.

    If `enough` says so of what it has complained so far it is killed: Stopped.
    """
    with process:
        try:
            out, err = _awaited(process, name, timeout, enough, most)
        finally:
            process.kill()
    if process.returncode < 0:
        raise Unreachable(f"{name} was ended by signal {-process.returncode}")
    return Answer(process.returncode, _text(out), _text(err))


def _awaited(
    process: subprocess.Popen[bytes] | Launched,
    name: str,
    timeout: float,
    enough: Callable[[str], bool] | None,
    most: int,
) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = bytearray(), bytearray()
    begun = silent = time.monotonic()  # at `silent` it had not yet said enough
    with selectors.DefaultSelector() as pipes:
        pipes.register(process.stdout, selectors.EVENT_READ, out)
        pipes.register(process.stderr, selectors.EVENT_READ, err)
        while pipes.get_map():
            looked = time.monotonic()
            if looked >= begun + timeout:
                said = f" ({_line(_text(err))})" if err else ""
                raise Unreachable(f"{name}: no answer within {timeout:g} s{said}")
            for key, _ in pipes.select(min(_LOOK, begun + timeout - looked)):
                block = os.read(key.fd, _BLOCK)
                key.data.extend(block)
                if not block:
                    pipes.unregister(key.fileobj)
            if len(out) + len(err) > most:
                raise Unreachable(f"{name}: an answer of more than {most >> 20} MiB")
            if enough is not None and enough(_text(err)):
                process.kill()
                process.wait()
                raise Stopped(name, _text(err), time.monotonic() - silent)
            silent = looked
    try:
        process.wait(max(0.0, begun + timeout - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{name}: no end within {timeout:g} s") from None
    return bytes(out), bytes(err)


@contextmanager
def memory_file(content: bytes) -> Iterator[int]:
    """The descriptor of an open nameless file with this content, to be read from its start."""
    with open(os.memfd_create("metasched"), "wb") as file:
        file.write(content)
        file.flush()
        file.seek(0)
        yield file.fileno()


def _text(said: bytes | bytearray) -> str:
    return said.decode(errors="replace")


def _line(said: str) -> str:
    return "; ".join(filter(None, map(str.strip, said.splitlines())))[:500] or "no explanation"
