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

from metasched.adapters.commands import Answer, answer_of
from metasched.adapters.errors import Refused, Unreachable

ANSWER = 10.0  # seconds that the launcher may take where nothing but itself is waited for


class Launcher:
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
        keep: int | None = None,
    ) -> Launched:
        """Have `verb` carried out as `user`; `keep` becomes descriptor 3 of the command.

        Refused: there is no such account. Unreachable: no launcher is there.
        """
        with ExitStack() as ours:
            reads, writes = zip(os.pipe(), os.pipe(), strict=True)
            for descriptor in writes:
                ours.callback(os.close, descriptor)
            theirs = [ours.enter_context(open(os.devnull)).fileno() if stdin is None else stdin]
            theirs += [*writes, *([] if keep is None else [keep])]
            try:
                connection = self._ask(user, verb, arguments, directory, umask, theirs)
            except BaseException:
                for descriptor in reads:
                    os.close(descriptor)
                raise
            return Launched(connection, *reads)

    def run(
        self,
        user: str,
        verb: str,
        arguments: Sequence[str],
        timeout: float,
        *,
        directory: str = "/",
        stdin: int | None = None,
    ) -> Answer:
        """The answer of a command within `timeout` seconds; as `commands.run` otherwise."""
        command = self.start(user, verb, arguments, directory=directory, stdin=stdin)
        return answer_of(command, verb, timeout)

    def detached(
        self, user: str, verb: str, stdin: int, stdout: int, stderr: int, directory: str = "/"
    ) -> None:
        """Have a command begun that goes on by itself, with these descriptors."""
        with self._ask(user, verb, (), directory, 0o022, [stdin, stdout, stderr]) as connection:
            _read(connection, ANSWER)

    def enter(self, user: str, directory: str) -> None:
        """Refused if the user may have no jobs, or may not enter the directory."""
        with self._ask(user, "enter", (), directory, 0o022, []) as connection:
            _read(connection, ANSWER)

    def _ask(
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
            connection.settimeout(ANSWER)
            connection.connect(str(self._path))
            head = struct.pack(">I", len(body))
            # the descriptors travel with the first bytes, which are never split
            socket.send_fds(connection, [head], descriptors)
            connection.sendall(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has refused already, and says why
        except OSError as error:
            connection.close()
            raise Unreachable(f"launcher at {self._path}: {error.strerror or error}") from None
        return connection


class Launched:
    """A command under way, to be used as a `subprocess.Popen`; leaving the block kills it."""

    def __init__(self, connection: socket.socket, out: int, err: int) -> None:
        self._connection = connection
        self.stdout, self.stderr = open(out, "rb", 0), open(err, "rb", 0)  # noqa: SIM115
        self.returncode = 0

    def wait(self, timeout: float = ANSWER) -> None:
        """Until it has ended, or once killed until nothing of it holds its output.

        Refused: it was never executed. Unreachable: the launcher has died, or says nothing.
        """
        if self._connection.fileno() != -1:
            told = _read(self._connection, timeout)
            self.returncode = told.get("code", -told.get("signal", 0))
            return
        until = time.monotonic() + timeout
        left = [self.stdout, self.stderr]
        while left and time.monotonic() < until:
            for pipe in select.select(left, [], [], timeout)[0]:
                if not pipe.read(1 << 16):
                    left.remove(pipe)

    def kill(self) -> None:
        """The launcher kills what nobody waits for."""
        self._connection.close()

    def __enter__(self) -> Launched:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
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


def name_of(uid: int) -> str:
    """The account of a user id, as it is written everywhere; the number if it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _read(connection: socket.socket, seconds: float) -> dict[str, int]:
    """The launcher's answer. Refused and Unreachable as it says or does not say."""
    connection.settimeout(seconds)
    said = b""
    try:
        while not said.endswith(b"\n"):
            piece = connection.recv(1 << 16)
            if not piece:
                raise Unreachable("the launcher broke off")
            said += piece
    except OSError as error:
        raise Unreachable(f"the launcher: {error}") from None
    told: dict[str, int] = json.loads(said)
    if "refused" in told:
        raise Refused(str(told["refused"]))
    return told
