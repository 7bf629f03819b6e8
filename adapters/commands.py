"""Runs a manager's commands: each with a time limit, and never outliving its caller."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from metasched.adapters.base import Refused, Unreachable

_LOOK = 0.25  # seconds between looks at what a slow command has said so far
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl


@dataclass(frozen=True)
class Answer:
    """What a command left: its exit code and its words."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """What it said against it, in one line."""
        said = "; ".join(line.strip() for line in self.err.splitlines() if line.strip())
        return said[:500] or "no explanation"


class Stopped(Unreachable):
    """A command that was killed for what it `said`, at most `seconds` after it began to say it."""

    def __init__(self, name: str, said: str, seconds: float) -> None:
        super().__init__(f"{name}: {said.strip()[-500:]}")
        self.said, self.seconds = said, seconds


def run(
    argv: Sequence[str],
    environment: Mapping[str, str],
    timeout: float,
    *,
    stdin: int | None = None,
    keep: Sequence[int] = (),
    enough: Callable[[str], bool] | None = None,
) -> Answer:
    """The answer of one command; Unreachable if it cannot start or gives none in `timeout` s.

    It reads from the descriptor `stdin` (None: nothing) and inherits those of `keep`. If `enough`
    says so of what it has complained so far it is killed: Stopped. Refused: no command can be
    given these arguments.
    """
    name = os.path.basename(argv[0])
    try:
        process = subprocess.Popen(
            argv,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=keep,
            preexec_fn=dying_with(os.getpid()),
        )
    except UnicodeEncodeError:
        raise Refused("an option, a path or an argument is no text") from None
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise Refused("the arguments are too long") from None
        raise Unreachable(f"{argv[0]}: {error.strerror}") from None
    with process:
        try:
            out, err = _awaited(process, name, timeout, enough)
        finally:
            process.kill()
    if process.returncode < 0:
        raise Unreachable(f"{name} was ended by signal {-process.returncode}")
    return Answer(process.returncode, _text(out), _text(err))


def _awaited(
    process: subprocess.Popen[bytes],
    name: str,
    timeout: float,
    enough: Callable[[str], bool] | None,
) -> tuple[bytes, bytes]:
    begun = silent = time.monotonic()  # at `silent` it had not yet said enough
    while True:
        looked = time.monotonic()
        left = begun + timeout - looked
        try:
            return process.communicate(timeout=max(0.0, min(_LOOK, left) if enough else left))
        except subprocess.TimeoutExpired as waiting:
            said = _text(waiting.stderr or b"")
        if enough is not None and enough(said):
            process.kill()
            process.wait()
            raise Stopped(name, said, time.monotonic() - silent)
        if time.monotonic() >= begun + timeout:
            raise Unreachable(f"{name}: no answer within {timeout:g} s")
        silent = looked


def dying_with(caller: int) -> Callable[[], None]:
    """For `preexec_fn`: the command is killed when the thread that started it ends."""

    def arm() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != caller:
            os._exit(1)

    return arm


@contextmanager
def memory_file(content: bytes) -> Iterator[int]:
    """The descriptor of an open nameless file with this content, to be read from its start."""
    with open(os.memfd_create("metasched"), "wb") as file:
        file.write(content)
        file.flush()
        file.seek(0)
        yield file.fileno()


def _text(said: bytes) -> str:
    return said.decode(errors="replace")
