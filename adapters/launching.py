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
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from metasched.adapters.base import Refused, Unreachable
from metasched.adapters.commands import Answer

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
            return Launched(verb, connection, reads)

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
        with self.start(user, verb, arguments, directory=directory, stdin=stdin) as command:
            try:
                out, err = command.communicate(timeout)
            except subprocess.TimeoutExpired:
                raise Unreachable(f"{verb}: no answer within {timeout:g} s") from None
        if command.returncode < 0:
            raise Unreachable(f"{verb} was ended by signal {-command.returncode}")
        return Answer(
            command.returncode, out.decode(errors="replace"), err.decode(errors="replace")
        )

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

    def __init__(self, name: str, connection: socket.socket, reads: Sequence[int]) -> None:
        self._name, self._connection = name, connection
        self._open = {reads[0]: b"", reads[1]: b""}
        self._reads = tuple(reads)
        self._left = set(reads)
        self.returncode = 0

    def communicate(self, timeout: float) -> tuple[bytes, bytes]:
        """Its output and errors once it has ended; TimeoutExpired with what it said so far.

        Refused: it was never executed. Unreachable: the launcher has died.
        """
        until = time.monotonic() + timeout
        while self._left:
            ready, _, _ = select.select([*self._left], [], [], max(until - time.monotonic(), 0.0))
            if not ready:
                out, err = (self._open[descriptor] for descriptor in self._reads)
                raise subprocess.TimeoutExpired(self._name, timeout, out, err)
            for descriptor in ready:
                piece = os.read(descriptor, 1 << 16)
                self._open[descriptor] += piece
                if not piece:
                    self._left.discard(descriptor)
        answer = _read(self._connection, ANSWER)
        self.returncode = answer.get("code", -answer.get("signal", 0))
        out, err = (self._open[descriptor] for descriptor in self._reads)
        return out, err

    def kill(self) -> None:
        """The launcher kills what nobody waits for."""
        self._connection.close()

    def wait(self) -> None:
        """Until the command holds its output no more: it has been killed."""
        until = time.monotonic() + ANSWER
        while self._left and time.monotonic() < until:
            for descriptor in select.select([*self._left], [], [], ANSWER)[0]:
                if not os.read(descriptor, 1 << 16):
                    self._left.discard(descriptor)

    def __enter__(self) -> Launched:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        for descriptor in self._reads:
            os.close(descriptor)


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
    answer: dict[str, int] = json.loads(said)
    if "refused" in answer:
        raise Refused(str(answer["refused"]))
    return answer
