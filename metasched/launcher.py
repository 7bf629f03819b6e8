"""The only code of metasched that may run as root: runs a manager's command as a job's owner.

Standard library only, and nothing of metasched: `python3 -I -S launcher.py --config FILE`. It
reads one file of root's, listens on a unix socket for one account (the daemon's, by SO_PEERCRED),
and for each connection takes one message

    length (4 bytes, big-endian), JSON {"uid", "cluster", "verb", "arguments", "directory", "umask"}

with at most four descriptors, which become 0 to 3 of the command: script, output, errors, and one
more file. What flows through them is never read here, and no shell is involved. It then

1. checks the uid against the site's policy, and the verb and arguments against `VERBS`;
2. forks; the child takes the owner's groups, gid and uid, for good, and only then
3. enters the directory and executes the program that the file names for cluster and verb, with an
   environment of which nothing comes from the message, and no other descriptor.

The answer is one JSON line: {"code": n} or {"signal": n} when the command has ended, {"pid": n}
for one that goes on by itself, {"refused": why} when nothing was executed. Commands die with the
launcher and with the connection; supervisors of local jobs go on.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import pwd
import re
import select
import signal
import socket
import stat
import struct
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

LONGEST_MESSAGE = 1 << 20  # bytes
MOST_ARGUMENTS = 10_000
READ_SECONDS = 10.0  # for a whole message
RUN_SECONDS = 120.0  # for a command
PAUSE_SECONDS = 0.1  # after an error of the system
MOST_LINKS = 20
MOST_AT_ONCE = 64  # connections; more wait in the kernel's queue
LEAST_UID = 1000  # below are root and the system's accounts, whatever the file says
MOST_UID = 59_999

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_IDS = re.compile(r"[0-9][0-9_,.:%\[\]-]*")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Verb:
    """What may be asked for: `takes` tells a permitted argument, `detached` commands go on."""

    takes: Callable[[str], bool]
    detached: bool = False


def _any(_: str) -> bool:
    return True


def _id(text: str) -> bool:
    """Ids of jobs: no option, no name, no path."""
    return _IDS.fullmatch(text) is not None


def _none(_: str) -> bool:
    return False


ENTER = "enter"  # executes nothing: whether the owner may enter a directory
VERBS = {
    "submit": Verb(_any),
    "cancel": Verb(_id),
    "hold": Verb(_id),
    "release": Verb(_id),
    "supervise": Verb(_none, detached=True),
    ENTER: Verb(_none),
}


class Refused(Exception):
    """A message or a configuration that is not acted on."""


# The site's file.


@dataclass(frozen=True)
class Policy:
    """The file: who may ask, for whom, and what is executed for (cluster, verb)."""

    socket: str
    account: int
    min_uid: int = LEAST_UID
    max_uid: int = MOST_UID
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    programs: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def owner(self, uid: int) -> pwd.struct_passwd:
        """The account of that uid, if it may have jobs."""
        if not max(self.min_uid, LEAST_UID) <= uid <= self.max_uid or uid == self.account:
            raise Refused(f"user id {uid} may not have jobs here")
        try:
            owner = pwd.getpwuid(uid)
        except KeyError:
            raise Refused(f"there is no account with user id {uid}") from None
        if owner.pw_name in self.deny or (self.allow and owner.pw_name not in self.allow):
            raise Refused(f"user {owner.pw_name} may not have jobs here")
        if owner.pw_uid != uid or owner.pw_gid == 0:
            raise Refused(f"user {owner.pw_name} has the group of root")
        return owner


def load(path: str) -> Policy:
    """The policy of a file that only root can have written. Refused, in one line, if it is not."""
    _only_roots(path)
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path}: {error}; mend that line") from None
    clusters = _typed(table.pop("cluster", {}), dict, "cluster")
    programs: dict[tuple[str, str], tuple[str, ...]] = {}
    environments: dict[str, dict[str, str]] = {}
    for name, given in clusters.items():
        for key, value in _typed(given, dict, f"cluster.{name}").items():
            where = f"{key} of cluster {name}"
            if key == "environment":
                environments[name] = {
                    k: _typed(v, str, where) for k, v in _typed(value, dict, where).items()
                }
            elif key in VERBS and key != ENTER:
                programs[name, key] = _program(_texts(value, where), where)
            else:
                raise Refused(f"unknown key {where}; there are environment, {', '.join(VERBS)}")
    try:
        account = pwd.getpwnam(_typed(table.pop("account", None), str, "account")).pw_uid
    except KeyError:
        raise Refused(f"no such account, account in {path}; name that of the daemon") from None
    if account == 0:
        raise Refused("account is root; the daemon needs an ordinary one")
    policy = Policy(
        socket=_typed(table.pop("socket", None), str, "socket"),
        account=account,
        min_uid=_typed(table.pop("min_uid", LEAST_UID), int, "min_uid"),
        max_uid=_typed(table.pop("max_uid", MOST_UID), int, "max_uid"),
        allow=_texts(table.pop("allow", []), "allow"),
        deny=_texts(table.pop("deny", []), "deny"),
        programs=programs,
        environments=environments,
    )
    if table:
        raise Refused(f"unknown key {min(table)} in {path}; take it out")
    if policy.min_uid < LEAST_UID:
        raise Refused(f"min_uid is {policy.min_uid}; it must be {LEAST_UID} or more")
    return policy


def _typed(value: Any, kind: type, name: str) -> Any:
    if type(value) is not kind:  # a bool is an int
        raise Refused(f"{name} is {value!r}; it must be of type {kind.__name__}")
    return value


def _texts(value: Any, name: str) -> tuple[str, ...]:
    return tuple(_typed(text, str, name) for text in _typed(value, list, name))


def _program(words: tuple[str, ...], where: str) -> tuple[str, ...]:
    """A program with its first arguments; all files among them are root's."""
    if not words or not words[0].startswith("/"):
        raise Refused(f"{where} is no absolute path; write the whole path of the program")
    for word in words:
        if word.startswith("/"):
            _only_roots(word)
    return words


def _only_roots(path: str, links: int = 0) -> None:
    """Refused unless nobody but root can change the file, nor what leads to it."""
    if path != "/":
        _only_roots(os.path.dirname(path), links)
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode) and found.st_uid == 0 and links < MOST_LINKS:
            folder = os.path.realpath(os.path.dirname(path))
            target = os.path.join(folder, os.readlink(path))
            _only_roots(os.path.normpath(target), links + 1)
            return
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}; mend the path") from None
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if found.st_uid != 0 or (found.st_mode & 0o022 and not sticky):
        raise Refused(f"{path} can be changed by others than root; chown and chmod it")


# One message.


@dataclass(frozen=True)
class Request:
    """One valid message: who, what, where."""

    owner: pwd.struct_passwd
    cluster: str
    verb: str
    command: tuple[str, ...]  # empty: only enter the directory
    directory: str
    umask: int
    environment: Mapping[str, str]


def understand(body: bytes, policy: Policy) -> Request:
    """The request that a message makes. Refused for whatever the policy does not permit."""
    try:
        said = json.loads(body.decode())
    except (ValueError, RecursionError):
        raise Refused("the message is no JSON") from None
    keys = ("uid", "cluster", "verb", "arguments", "directory", "umask")
    if type(said) is not dict or said.keys() != set(keys):
        raise Refused(f"the message must have {', '.join(keys)}")
    uid, umask = _typed(said["uid"], int, "uid"), _typed(said["umask"], int, "umask")
    cluster, verb, directory = (_typed(said[k], str, k) for k in ("cluster", "verb", "directory"))
    arguments = _texts(said["arguments"], "arguments")
    owner = policy.owner(uid)
    if verb != ENTER and (cluster, verb) not in policy.programs:
        raise Refused(f"{verb[:80]!r} is not configured for cluster {cluster[:80]!r}")
    program = policy.programs.get((cluster, verb), ())
    if len(arguments) > MOST_ARGUMENTS:
        raise Refused(f"more than {MOST_ARGUMENTS} arguments")
    for text in (*arguments, directory):
        if "\0" in text or not _encodes(text):
            raise Refused("an argument is no text")
    unfit = next((text for text in arguments if not VERBS[verb].takes(text)), None)
    if unfit is not None:
        raise Refused(f"argument {unfit[:80]!r} is not permitted for {verb}")
    if not directory.startswith("/"):
        raise Refused(f"directory {directory[:80]!r} is not absolute")
    if not 0 <= umask <= 0o777:
        raise Refused(f"umask {umask} makes no sense")
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "HOME": owner.pw_dir,
        "SHELL": owner.pw_shell or "/bin/sh",
        "USER": owner.pw_name,
        "LOGNAME": owner.pw_name,
        **policy.environments.get(cluster, {}),
    }
    return Request(owner, cluster, verb, program + arguments, directory, umask, environment)


def _encodes(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """The body of the one message on a connection, and its descriptors."""
    until = time.monotonic() + READ_SECONDS
    connection.settimeout(READ_SECONDS)
    try:
        head, descriptors, flags, _ = socket.recv_fds(connection, 4, 4, socket.MSG_CMSG_CLOEXEC)
        if flags & socket.MSG_CTRUNC:
            raise Refused("more than four descriptors")
        head += _exactly(connection, 4 - len(head), until)
        (length,) = struct.unpack(">I", head)
        if length > LONGEST_MESSAGE:
            raise Refused(f"the message is longer than {LONGEST_MESSAGE} bytes")
        return _exactly(connection, length, until), descriptors
    except TimeoutError:
        raise Refused(f"no whole message in {READ_SECONDS:g} s") from None


def _exactly(connection: socket.socket, length: int, until: float) -> bytes:
    pieces, left = [], length
    while left:
        if (seconds := until - time.monotonic()) <= 0:
            raise TimeoutError
        connection.settimeout(seconds)
        piece = connection.recv(min(left, 1 << 16))
        if not piece:
            raise Refused("the message broke off")
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


# Acting as somebody.


def become(request: Request, descriptors: list[int], failure: int, parent: int) -> NoReturn:
    """In the child: turn into the owner's command. What goes wrong is told through `failure`."""
    at = "the account"
    try:
        os.setsid()
        owner = request.owner
        os.setgroups(os.getgrouplist(owner.pw_name, owner.pw_gid))
        os.setresgid(owner.pw_gid, owner.pw_gid, owner.pw_gid)
        os.setresuid(owner.pw_uid, owner.pw_uid, owner.pw_uid)
        if 0 in (*os.getresuid(), *os.getresgid(), *os.getgroups()):
            raise PermissionError(0, "it has the group of root")
        if not VERBS[request.verb].detached:
            # Set now: a change of uid clears the first; jobs themselves may need sudo and the like.
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
        os.umask(request.umask)
        at = f"directory {request.directory}"
        os.chdir(request.directory)
        if not request.command:
            os._exit(0)
        at = request.command[0]
        _keep(descriptors, failure)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execve(request.command[0], request.command, request.environment)
    except OSError as error:
        os.write(failure, f"{at}: {error.strerror}"[:4000].encode(errors="replace"))
    except BaseException as error:
        os.write(failure, f"{at}: {type(error).__name__}".encode(errors="replace"))
    finally:
        os._exit(1)


def _keep(descriptors: list[int], failure: int) -> None:
    """Number the descriptors from 0; the first three exist in any case; close all others."""
    nothing = os.open(os.devnull, os.O_RDWR)
    given = descriptors + [nothing] * (3 - len(descriptors))
    high = [_above(descriptor) for descriptor in given]
    for number, descriptor in enumerate(high):
        os.dup2(descriptor, number)
    os.closerange(len(given), failure)  # it is above them: see `act`
    os.closerange(failure + 1, os.sysconf("SC_OPEN_MAX"))


def _above(descriptor: int) -> int:
    """The same open file under a number that no command begins with."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)


def act(request: Request, descriptors: list[int], connection: socket.socket) -> dict[str, Any]:
    """Execute a request; what to answer."""
    told, low = os.pipe2(os.O_CLOEXEC)
    failure = _above(low)
    os.close(low)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        become(request, descriptors, failure, parent)
    os.close(failure)
    for descriptor in descriptors:
        os.close(descriptor)
    with open(told, "rb") as reader:
        _wait_for(told, pid, connection)  # a directory may be one that never answers
        complaint = reader.read()  # ends with the child's exec, or with the child
    if complaint:
        os.waitpid(pid, 0)
        return {"refused": complaint.decode(errors="replace")}
    if VERBS[request.verb].detached:
        return {"pid": pid}
    return _await(pid, connection)


def _await(pid: int, connection: socket.socket) -> dict[str, Any]:
    """How the command ended."""
    _wait_for(os.pidfd_open(pid), pid, connection)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return {"code": os.WEXITSTATUS(status)}


def _wait_for(what: int, pid: int, connection: socket.socket) -> None:
    """Until it can be read; the child is killed if that takes too long or nobody waits for it."""
    ready, _, _ = select.select([what, connection.fileno()], [], [], RUN_SECONDS)
    if what not in ready:
        os.kill(pid, signal.SIGKILL)  # it is our child, not waited for, and may leave its group
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def converse(connection: socket.socket, policy: Policy) -> None:
    """One connection from its message to its answer."""
    asked = ""
    try:
        body, descriptors = receive(connection)
        request = understand(body, policy)
        asked = f"{request.verb} on {request.cluster!r} as {request.owner.pw_name}"
        answer = act(request, descriptors, connection)
    except Refused as error:
        answer = {"refused": str(error)}
    print(f"{asked or 'a message'}: {json.dumps(answer)}", file=sys.stderr, flush=True)
    connection.settimeout(READ_SECONDS)
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(answer).encode() + b"\n")


# The process.


def peer(connection: socket.socket) -> int:
    """The user id of whoever has connected, by the kernel's word."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("iII", credentials)[1])


def listen(policy: Policy) -> socket.socket:
    """The socket, for the daemon's account and root only, in a folder that is root's."""
    folder = os.path.dirname(policy.socket)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    _only_roots(folder)
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(policy.socket).st_mode):
            raise Refused(f"{policy.socket} is no socket; name another, or remove it")
    draft = f"{policy.socket}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(draft)
    finally:
        os.umask(before)
    os.chown(draft, policy.account, -1)
    listener.listen(MOST_AT_ONCE)
    os.rename(draft, policy.socket)
    return listener


def serve(listener: socket.socket, policy: Policy) -> NoReturn:
    """A process per connection, until SIGTERM."""
    launcher = os.getpid()
    under_way: set[int] = set()
    while True:
        while len(under_way) >= MOST_AT_ONCE:
            under_way.discard(os.waitpid(-1, 0)[0])
        try:
            connection, _ = listener.accept()
            with connection:
                if peer(connection) != policy.account:
                    continue
                pid = os.fork()
                if pid == 0:
                    _child(listener, connection, policy, launcher)
                under_way.add(pid)
        except OSError as error:  # no process or descriptor is left, or the peer has gone
            print(f"a connection is dropped: {error}", file=sys.stderr, flush=True)
            time.sleep(PAUSE_SECONDS)
        while under_way and (ended := os.waitpid(-1, os.WNOHANG)[0]):
            under_way.discard(ended)


def _child(
    listener: socket.socket, connection: socket.socket, policy: Policy, launcher: int
) -> NoReturn:
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == launcher:
            signal.alarm(int(READ_SECONDS + RUN_SECONDS + 10))  # whatever else should hang
            listener.close()
            converse(connection, policy)
    except BaseException as error:
        print(f"a defect: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(0)


def main() -> int:
    """Serve until SIGTERM; 1 with one line for what the admin must mend."""
    parser = argparse.ArgumentParser(
        prog="metasched-launcher", description="Act as the owners of jobs (site mode)."
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="root's own file")
    parser.add_argument("--check", action="store_true", help="only read the file")
    given = parser.parse_args()
    try:
        if os.geteuid() != 0:
            raise Refused("not root; start it as root")
        policy = load(os.path.abspath(given.config))
        if given.check:
            return 0
        listener = listen(policy)
    except (Refused, OSError) as error:
        print(f"metasched: error: launcher: {error}", file=sys.stderr)
        return 1
    os.chdir("/")
    os.umask(0o077)
    print(f"metasched-launcher listens at {policy.socket}", file=sys.stderr, flush=True)
    serve(listener, policy)


if __name__ == "__main__":
    sys.exit(main())
