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

from metasched.adapters.child_processes import ChildProcessGroup
from metasched.adapters.errors import Refused, Unreachable

if TYPE_CHECKING:
    from metasched.adapters.launcher_client import LaunchedCommand

_STDERR_CHECK_INTERVAL = 0.25  # seconds between looks at what a slow command has said so far
_BLOCK_SIZE = 2**16  # bytes
MAX_OUTPUT = 2**28  # bytes of one answer; a listing of 100,000 jobs takes a tenth of it
_child_group = ChildProcessGroup()


@dataclass(frozen=True)
class CommandResult:
    """What a command left: its exit code and its words."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def error_message(self) -> str:
        """What it said against it, in one line."""
        return _single_line(self.stderr)


class CommandAborted(Unreachable):
    """A command that was killed for what it `said`, at most `seconds` after it began to say it."""

    def __init__(self, program: str, stderr: str, detection_delay: float) -> None:
        super().__init__(f"{program}: {_single_line(stderr)}")
        self.stderr, self.detection_delay = stderr, detection_delay


def run_command(
    argv: Sequence[str],
    environment: Mapping[str, str],
    timeout: float,
    *,
    stdin: int | None = None,
    pass_fds: Sequence[int] = (),
    umask: int = -1,
    should_abort: Callable[[str], bool] | None = None,
    max_output: int = MAX_OUTPUT,
) -> CommandResult:
    """The answer of one command, `most` bytes at the most; Unreachable if it cannot start.

    It reads from the descriptor `stdin` (None: nothing) and inherits those of `keep`. Refused: no
    command can be given these arguments.
    """
    process = start_command(argv, environment, stdin=stdin, pass_fds=pass_fds, umask=umask)
    return wait_for_result(process, os.path.basename(argv[0]), timeout, should_abort, max_output)


def start_command(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int | None = None,
    output: int = subprocess.PIPE,
    pass_fds: Sequence[int] = (),
    umask: int = -1,
) -> subprocess.Popen[bytes]:
    """A command that ends with this process; `said` takes what it says. Raises as `run` does."""
    try:
        return subprocess.Popen(
            argv,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=output,
            stderr=output,
            pass_fds=pass_fds,
            umask=umask,
            process_group=_child_group.group_id(),
        )
    except UnicodeEncodeError:
        raise Refused("an option, a path or an argument is no text") from None
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise Refused("the arguments are too long") from None
        raise Unreachable(f"{argv[0]}: {error.strerror}") from None


def wait_for_result(
    process: subprocess.Popen[bytes] | LaunchedCommand,
    program: str,
    timeout: float,
    should_abort: Callable[[str], bool] | None = None,
    max_output: int = MAX_OUTPUT,
) -> CommandResult:
    """What a command that was just started answers; Unreachable if nothing in `timeout` s.

    If `enough` says so of what it has complained so far it is killed: Stopped.
    """
    with process:
        try:
            stdout, stderr = _read_output(process, program, timeout, should_abort, max_output)
        finally:
            process.kill()
    if process.returncode < 0:
        raise Unreachable(f"{program} was ended by signal {-process.returncode}")
    return CommandResult(process.returncode, _decode(stdout), _decode(stderr))


def _read_output(
    process: subprocess.Popen[bytes] | LaunchedCommand,
    program: str,
    timeout: float,
    should_abort: Callable[[str], bool] | None,
    max_output: int,
) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    stdout, stderr = bytearray(), bytearray()
    started = last_check = time.monotonic()  # at `silent` it had not yet said enough
    with selectors.DefaultSelector() as pipes:
        pipes.register(process.stdout, selectors.EVENT_READ, stdout)
        pipes.register(process.stderr, selectors.EVENT_READ, stderr)
        while pipes.get_map():
            now = time.monotonic()
            if now >= started + timeout:
                detail = f" ({_single_line(_decode(stderr))})" if stderr else ""
                raise Unreachable(f"{program}: no answer within {timeout:g} s{detail}")
            for key, _ in pipes.select(min(_STDERR_CHECK_INTERVAL, started + timeout - now)):
                block = os.read(key.fd, _BLOCK_SIZE)
                key.data.extend(block)
                if not block:
                    pipes.unregister(key.fileobj)
            if len(stdout) + len(stderr) > max_output:
                raise Unreachable(f"{program}: an answer of more than {max_output >> 20} MiB")
            if should_abort is not None and should_abort(_decode(stderr)):
                process.kill()
                process.wait()
                raise CommandAborted(program, _decode(stderr), time.monotonic() - last_check)
            last_check = now
    try:
        process.wait(max(0.0, started + timeout - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{program}: no end within {timeout:g} s") from None
    return bytes(stdout), bytes(stderr)


@contextmanager
def memory_file(content: bytes) -> Iterator[int]:
    """The descriptor of an open nameless file with this content, to be read from its start."""
    with open(os.memfd_create("metasched"), "wb") as file:
        file.write(content)
        file.flush()
        file.seek(0)
        yield file.fileno()


def _decode(output: bytes | bytearray) -> str:
    return output.decode(errors="replace")


def _single_line(text: str) -> str:
    return "; ".join(filter(None, map(str.strip, text.splitlines())))[:500] or "no explanation"
