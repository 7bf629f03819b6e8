"""Asks the site's launcher to run a command as the owner of a job (site mode).

The message is described in `metasched/launcher.py`. Script, output and errors flow through
descriptors that travel with it, so the launcher sees none of them.
"""

from __future__ import annotations

import json
import os
import pwd
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from metasched.adapters.commands import CommandResult, wait_for_result
from metasched.adapters.errors import Refused, Unreachable

REPLY_TIMEOUT = 10.0  # seconds that the launcher may take where nothing but itself is waited for


class LauncherClient:
    """The launcher, for the jobs of one cluster."""

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
        """Have `verb` carried out as `user`; `keep` becomes descriptor 3 of the command.

        Refused: there is no such account. Unreachable: no launcher is there.
        """
        with ExitStack() as exit_stack:
            read_ends, write_ends = zip(os.pipe(), os.pipe(), strict=True)
            for descriptor in write_ends:
                exit_stack.callback(os.close, descriptor)
            passed_fds = [
                exit_stack.enter_context(open(os.devnull)).fileno() if stdin is None else stdin
            ]
            passed_fds += [*write_ends, *([] if extra_fd is None else [extra_fd])]
            try:
                connection = self._send_request(user, verb, arguments, directory, umask, passed_fds)
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
        """The answer of a command within `timeout` seconds; as `commands.run` otherwise."""
        command = self.start(user, verb, arguments, directory=directory, stdin=stdin)
        return wait_for_result(command, verb, timeout)

    def start_detached(
        self, user: str, verb: str, stdin: int, stdout: int, stderr: int, directory: str = "/"
    ) -> None:
        """Have a command begun that goes on by itself, with these descriptors."""
        with self._send_request(
            user, verb, (), directory, 0o022, [stdin, stdout, stderr]
        ) as connection:
            _read_reply(connection, REPLY_TIMEOUT)

    def check_access(self, user: str, directory: str) -> None:
        """Refused if the user may have no jobs, or may not enter the directory."""
        with self._send_request(user, "enter", (), directory, 0o022, []) as connection:
            _read_reply(connection, REPLY_TIMEOUT)

    def _send_request(
        self,
        user: str,
        verb: str,
        arguments: Sequence[str],
        directory: str,
        umask: int,
        descriptors: Sequence[int],
    ) -> socket.socket:
        body = json.dumps(
            {
                "uid": uid_of(user),
                "cluster": self._cluster,
                "verb": verb,
                "arguments": list(arguments),
                "directory": directory,
                "umask": umask,
            }
        ).encode()
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(REPLY_TIMEOUT)
            connection.connect(str(self._path))
            header = struct.pack(">I", len(body))
            # the descriptors travel with the first bytes, which are never split
            socket.send_fds(connection, [header], descriptors)
            connection.sendall(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has refused already, and says why
        except OSError as error:
            connection.close()
            raise Unreachable(f"launcher at {self._path}: {error.strerror or error}") from None
        return connection


class LaunchedCommand:
    """A command under way, to be used as a `subprocess.Popen`; leaving the block kills it."""

    def __init__(self, connection: socket.socket, stdout_fd: int, stderr_fd: int) -> None:
        self._connection = connection
        self.stdout, self.stderr = open(stdout_fd, "rb", 0), open(stderr_fd, "rb", 0)  # noqa: SIM115
        self.returncode = 0

    def wait(self, timeout: float = REPLY_TIMEOUT) -> None:
        """Until it has ended, or once killed until nothing of it holds its output.

        Refused: it was never executed. Unreachable: the launcher has died, or says nothing.
        """
        if self._connection.fileno() != -1:
            reply = _read_reply(self._connection, timeout)
            self.returncode = reply.get("code", -reply.get("signal", 0))
            return
        deadline = time.monotonic() + timeout
        open_pipes = [self.stdout, self.stderr]
        while open_pipes and time.monotonic() < deadline:
            for pipe in select.select(open_pipes, [], [], timeout)[0]:
                if not pipe.read(1 << 16):
                    open_pipes.remove(pipe)

    def kill(self) -> None:
        """The launcher kills what nobody waits for."""
        self._connection.close()

    def __enter__(self) -> LaunchedCommand:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self.stdout.close()
        self.stderr.close()


def uid_of(user: str) -> int:
    """The user id of an account. Refused if there is none of that name."""
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise Refused(f"there is no account {user!r} on this host") from None


def user_name_of(uid: int) -> str:
    """The account of a user id, as it is written everywhere; the number if it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _read_reply(connection: socket.socket, timeout: float) -> dict[str, int]:
    """The launcher's answer. Refused and Unreachable as it says or does not say."""
    connection.settimeout(timeout)
    received = b""
    try:
        while not received.endswith(b"\n"):
            block = connection.recv(1 << 16)
            if not block:
                raise Unreachable("the launcher broke off")
            received += block
    except OSError as error:
        raise Unreachable(f"the launcher: {error}") from None
    reply: dict[str, int] = json.loads(received)
    if "refused" in reply:
        raise Refused(str(reply["refused"]))
    return reply
