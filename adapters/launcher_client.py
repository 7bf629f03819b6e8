"""Client of the site's launcher, which runs commands as the owner of a job (site mode).

`metasched/launcher.py` documents the message. Script, output and errors flow through descriptors
that are sent with it, so the launcher reads none of them.
"""

from __future__ import annotations

import json
import math
import os
import pwd
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from metasched.launcher import MISMATCH_REMEDY, PROTOCOL
from metasched.model.adapter_errors import Refused, SiteFault, Unreachable
from metasched.processes.commands import CommandResult, wait_for_result

REPLY_TIMEOUT = 10.0  # seconds for a reply of the launcher that waits for no command

# A call that executes several commands starts another only if so many seconds of its time remain
RESERVED_TIME = 0.25
MAX_LOGGED_TAGS = 50  # of a request, for the launcher's log

# `deadline`: monotonic seconds, None: no deadline; `job`: tags of the jobs that it works for
_thread = threading.local()


@contextmanager
def owner_deadline(seconds: float | None) -> Iterator[None]:
    """Let this thread wait for commands no longer than `seconds` in all.

    A user, or a slow manager, may delay each of several commands; the deadline bounds their sum.
    """
    _thread.deadline = None if seconds is None else time.monotonic() + seconds
    try:
        yield
    finally:
        _thread.deadline = None


def remaining_seconds(timeout: float) -> float:
    """Return `timeout`, or the seconds until the thread's deadline if they are fewer.

    Raises Unreachable after the deadline.
    """
    deadline: float | None = getattr(_thread, "deadline", None)
    if deadline is None:
        return timeout
    if (remaining := deadline - time.monotonic()) <= 0:
        raise Unreachable("the commands of this call took too long")
    return min(timeout, remaining)


class TimeBudget:
    """Time of a call that executes a command for each of several tasks.

    No further command is started if it would probably be cut off by the thread's deadline: its
    result would be uncertain.
    """

    def __init__(self) -> None:
        deadline: float | None = getattr(_thread, "deadline", None)
        self._deadline = math.inf if deadline is None else deadline
        self._step_started = time.monotonic()
        # seconds that must remain to start a command, once another was executed
        self._reserve = (self._deadline - self._step_started) * RESERVED_TIME
        self._steps = 0

    def start_step(self) -> None:
        """Raise Unreachable if too little time remains for another command."""
        now = time.monotonic()
        if self._steps:
            self._reserve = max(self._reserve, 2 * (now - self._step_started))
        remaining = self._deadline - now
        if remaining < math.inf and remaining <= (self._reserve if self._steps else 0.0):
            raise Unreachable(f"the time of this call was over after {self._steps} commands")
        self._step_started = now
        self._steps += 1


@contextmanager
def requests_for(tags: Sequence[str]) -> Iterator[None]:
    """Name the dispatches for which this thread makes requests, for the launcher's log."""
    _thread.job = " ".join(tags[:MAX_LOGGED_TAGS])
    try:
        yield
    finally:
        _thread.job = ""


class LauncherClient:
    """The launcher, for the jobs of one cluster. Its methods are thread-safe."""

    def __init__(self, path: Path, cluster: str) -> None:
        self._path, self._cluster = path, cluster

    def start(
        self,
        user: str,
        verb: str,
        arguments: Sequence[str] = (),
        *,
        directory: str = "/",
        umask: int = 0o022,
        stdin: int | None = None,
        extra_fd: int | None = None,
    ) -> LaunchedCommand:
        """Start the command of `verb` as `user`; `extra_fd` becomes its descriptor 3.

        Raises Refused if there is no such account, Unreachable if no launcher listens.
        """
        with ExitStack() as stack:
            read_ends, write_ends = zip(os.pipe(), os.pipe(), strict=True)
            for descriptor in write_ends:
                stack.callback(os.close, descriptor)
            if stdin is None:
                stdin = stack.enter_context(open(os.devnull)).fileno()
            passed_fds = [stdin, *write_ends, *([] if extra_fd is None else [extra_fd])]
            try:
                message = _message(user, verb, arguments, directory, umask)
                connection = self._send(message, passed_fds)
            except BaseException:
                for descriptor in read_ends:
                    os.close(descriptor)
                raise
            return LaunchedCommand(connection, *read_ends)

    def run(
        self,
        user: str,
        verb: str,
        arguments: Sequence[str],
        timeout: float,
        *,
        directory: str = "/",
        stdin: int | None = None,
    ) -> CommandResult:
        """Run the command of `verb` to its end, within `timeout` seconds; see `run_command`."""
        timeout = remaining_seconds(timeout)
        command = self.start(user, verb, arguments, directory=directory, stdin=stdin)
        return wait_for_result(command, verb, timeout)

    def start_detached(
        self, user: str, verb: str, stdin: int, stdout: int, stderr: int, directory: str = "/"
    ) -> None:
        """Start a command with these descriptors that continues after this call."""
        message = _message(user, verb, (), directory, 0o022)
        with self._send(message, [stdin, stdout, stderr]) as connection:
            _read_reply(connection, remaining_seconds(REPLY_TIMEOUT))

    def check_access(self, user: str, directory: str) -> None:
        """Raise Refused if the user may have no jobs, or may not enter the directory."""
        with self._send(_message(user, "enter", (), directory, 0o022)) as connection:
            _read_reply(connection, remaining_seconds(REPLY_TIMEOUT))

    def tail(self, user: str, path: str, timeout: float, directory: str = "/") -> tuple[str, bool]:
        """Return the last 16 KiB of a regular file, read as `user`, and whether it has more.

        Raises Refused with the cause if the user cannot read it, Unreachable after `timeout`
        seconds.
        """
        command = self.run(user, "tail", [path], timeout, directory=directory)
        return command.stdout, command.exit_code == 1

    def check_cluster(self, verbs: Sequence[str]) -> None:
        """Raise SiteFault unless launcher.toml has usable programs of these verbs for the cluster.

        Raises Unreachable if no launcher answers.
        """
        with self._send({"verb": "check", "arguments": list(verbs)}) as connection:
            try:
                _read_reply(connection, REPLY_TIMEOUT)
            except Refused as error:
                raise SiteFault(f"launcher: {error.reason}") from None

    def _send(
        self, message: Mapping[str, object], descriptors: Sequence[int] = ()
    ) -> socket.socket:
        """Send a message; return the connection, on which the reply comes."""
        body = json.dumps({"protocol": PROTOCOL, "cluster": self._cluster, **message}).encode()
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(REPLY_TIMEOUT)
            connection.connect(str(self._path))
            header = struct.pack(">I", len(body))
            # the descriptors travel with the first bytes, which are never split
            socket.send_fds(connection, [header], descriptors)
            connection.sendall(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the launcher hung up before it read everything; its reply, read later, says why
        except OSError as error:
            connection.close()
            raise Unreachable(f"launcher at {self._path}: {error.strerror or error}") from None
        return connection


def _message(
    user: str,
    verb: str,
    arguments: Sequence[str],
    directory: str,
    umask: int,
) -> dict[str, object]:
    """Return the message of a request as `user`. Raises Refused if there is no such account."""
    return {
        "uid": uid_of(user),
        "verb": verb,
        "arguments": list(arguments),
        "directory": directory,
        "umask": umask,
        "job": getattr(_thread, "job", ""),
    }


class LaunchedCommand:
    """A running command with the interface of `subprocess.Popen`; leaving the block kills it."""

    def __init__(self, connection: socket.socket, stdout_fd: int, stderr_fd: int) -> None:
        self._connection = connection
        self.stdout, self.stderr = open(stdout_fd, "rb", 0), open(stderr_fd, "rb", 0)  # noqa: SIM115
        self.returncode = 0

    def wait(self, timeout: float = REPLY_TIMEOUT) -> None:
        """Wait for its end; after `kill`, until no process has its output open.

        Raises Refused or SiteFault if it was never executed, Unreachable if the launcher died or
        is silent.
        """
        if self._connection.fileno() != -1:
            reply = _read_reply(self._connection, timeout)
            self.returncode = reply.get("code", -reply.get("signal", 0))
            return
        deadline = time.monotonic() + timeout
        open_pipes = [self.stdout, self.stderr]
        while open_pipes and time.monotonic() < deadline:
            poll = select.poll()  # select() cannot handle descriptors over 1023
            for pipe in open_pipes:
                poll.register(pipe, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(timeout * 1000)}
            for pipe in [pipe for pipe in open_pipes if pipe.fileno() in ready]:
                if not pipe.read(1 << 16):
                    open_pipes.remove(pipe)

    def kill(self) -> None:
        """Close the connection: the launcher then kills the command."""
        self._connection.close()

    def __enter__(self) -> LaunchedCommand:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        self.stdout.close()
        self.stderr.close()


def uid_of(user: str) -> int:
    """Return the user id of an account. Raises Refused if there is none of that name."""
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        # perhaps the directory service is away
        reason = f"there is no account {user!r} on this host"
        raise Refused(reason, retryable=True, scope="user") from None


def user_name_of(uid: int) -> str:
    """Return the account name of a user id; the number if it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def _read_reply(connection: socket.socket, timeout: float) -> dict[str, int]:
    """Return the launcher's reply.

    Raises Refused if it refuses the user or the request, SiteFault if the site is at fault,
    Unreachable if no reply comes.
    """
    connection.settimeout(timeout)
    received = b""
    try:
        while not received.endswith(b"\n"):
            block = connection.recv(1 << 16)
            if not block:
                raise Unreachable("the launcher closed the connection")
            received += block
    except OSError as error:
        raise Unreachable(f"the launcher: {error}") from None
    reply: dict[str, Any] = json.loads(received)
    if reply.get("protocol") != PROTOCOL:
        # what it says of the request may mean something else
        raise SiteFault(
            f"the launcher has protocol {reply.get('protocol')}, this daemon {PROTOCOL}; "
            f"{MISMATCH_REMEDY}"
        )
    if "fault" in reply:
        raise SiteFault(f"launcher: {reply['fault']}")
    if "refused" in reply:
        raise Refused(str(reply["refused"]), bool(reply.get("retryable")), scope="user")
    return reply
