"""Runs a manager's commands: each with a time limit, and never outliving its caller."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from metasched.adapters.base import Unreachable

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


def run(argv: list[str], environment: Mapping[str, str], timeout: float) -> Answer:
    """The answer of one command; Unreachable if it cannot start or gives none in `timeout` s."""
    name = os.path.basename(argv[0])
    try:
        done = subprocess.run(
            argv,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            preexec_fn=dying_with(os.getpid()),
        )
    except OSError as error:
        raise Unreachable(f"{argv[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{name}: no answer within {timeout:g} s") from None
    if done.returncode < 0:
        raise Unreachable(f"{name} was ended by signal {-done.returncode}")
    return Answer(
        done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )


def dying_with(caller: int) -> Callable[[], None]:
    """For `preexec_fn`: the command is killed when the thread that started it ends."""

    def arm() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != caller:
            os._exit(1)

    return arm


@contextmanager
def memory_file(content: bytes) -> Iterator[str]:
    """The path of a nameless file with this content, for this process and its children."""
    with open(os.memfd_create("metasched"), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"
