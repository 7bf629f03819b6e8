"""Running a manager's commands, each with a time limit; none outlives the calling process."""

from __future__ import annotations

import errno
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Protocol

from metasched.model.adapter_errors import Refused, Unreachable
from metasched.processes.child_processes import ChildProcessGroup

_STDERR_CHECK_INTERVAL = 0.25  # seconds between checks of the errors of a running command
_BLOCK_SIZE = 2**16  # bytes
MAX_OUTPUT = 2**28  # bytes of a command's output; a listing of 100,000 jobs takes a tenth
_child_group = ChildProcessGroup()


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command that has ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def error_message(self) -> str:
        """The standard error as a single line."""
        return _single_line(self.stderr)


class RunningCommand(Protocol):
    """The part of `subprocess.Popen` that `wait_for_result` uses."""

    @property
    def stdout(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None: ...

    @property
    def returncode(self) -> int: ...

    def wait(self, timeout: float = ...) -> object: ...

    def kill(self) -> None: ...

    def __enter__(self) -> object: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


class CommandAborted(Unreachable):
    """A command was killed because of its standard error.

    The text that matched appeared at most `detection_delay` seconds before the kill.
    """

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
) -> CommandResult:
    """Run a command to its end and return its result.

    It reads from the descriptor `stdin` (None: nothing) and inherits the descriptors `pass_fds`.
    Raises Refused if no command can take these arguments. Raises Unreachable if it cannot start,
    exceeds `timeout` seconds or `MAX_OUTPUT` bytes, or is killed by a signal; CommandAborted as
    `wait_for_result` does.
    """
    process = start_command(argv, environment, stdin=stdin, pass_fds=pass_fds, umask=umask)
    return wait_for_result(process, os.path.basename(argv[0]), timeout, should_abort)


def start_command(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int | None = None,
    output: int = subprocess.PIPE,
    pass_fds: Sequence[int] = (),
    umask: int = -1,
) -> subprocess.Popen[bytes]:
    """Start a command that ends with this process; its output and errors go to `output`.

    Raises as `run_command` does.
    """
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
        raise Refused("an option, a path or an argument cannot be encoded") from None
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise Refused("the arguments are too long") from None
        raise Unreachable(f"{argv[0]}: {error.strerror}") from None


def wait_for_result(
    process: RunningCommand,
    program: str,
    timeout: float,
    should_abort: Callable[[str], bool] | None = None,
    max_output: int = MAX_OUTPUT,
) -> CommandResult:
    """Wait for a command that was just started; Unreachable if it exceeds `timeout` seconds.

    If `should_abort(standard error so far)` is true, kill it and raise CommandAborted.
    """
    with process:
        try:
            stdout, stderr = _read_output(process, program, timeout, should_abort, max_output)
        finally:
            process.kill()
    if process.returncode < 0:
        raise Unreachable(f"{program} was killed by signal {-process.returncode}")
    return CommandResult(process.returncode, _decode(stdout), _decode(stderr))


def _read_output(
    process: RunningCommand,
    program: str,
    timeout: float,
    should_abort: Callable[[str], bool] | None,
    max_output: int,
) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    stdout, stderr = bytearray(), bytearray()
    started = last_check = time.monotonic()
    with selectors.DefaultSelector() as pipes:
        pipes.register(process.stdout, selectors.EVENT_READ, stdout)
        pipes.register(process.stderr, selectors.EVENT_READ, stderr)
        while pipes.get_map():
            now = time.monotonic()
            if now >= started + timeout:
                detail = f" ({_single_line(_decode(stderr))})" if stderr else ""
                raise Unreachable(f"{program}: no answer within {timeout:.3g} s{detail}")
            for key, _ in pipes.select(min(_STDERR_CHECK_INTERVAL, started + timeout - now)):
                block = os.read(key.fd, _BLOCK_SIZE)
                key.data.extend(block)
                if not block:
                    pipes.unregister(key.fileobj)
            if len(stdout) + len(stderr) > max_output:
                raise Unreachable(f"{program}: more than {max_output >> 20} MiB of output")
            if should_abort is not None and should_abort(_decode(stderr)):
                process.kill()
                process.wait()
                raise CommandAborted(program, _decode(stderr), time.monotonic() - last_check)
            last_check = now
    try:
        process.wait(max(0.0, started + timeout - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{program}: did not exit within {timeout:.3g} s") from None
    return bytes(stdout), bytes(stderr)


@contextmanager
def memory_file(content: bytes) -> Iterator[int]:
    """Yield the descriptor of an anonymous file with this content, at its start."""
    with open(os.memfd_create("metasched"), "wb") as file:
        file.write(content)
        file.flush()
        file.seek(0)
        yield file.fileno()


def _decode(output: bytes | bytearray) -> str:
    return output.decode(errors="replace")


def _single_line(text: str) -> str:
    return "; ".join(filter(None, map(str.strip, text.splitlines())))[:500] or "no explanation"
