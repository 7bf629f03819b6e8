"""The only part of metasched that may run as root: runs commands as the owners of jobs.

It imports the standard library only: `python3 -I -S launcher.py --config FILE`. It reads a
configuration file, which only root may write, and listens on a unix socket for the account of
the daemon (checked by SO_PEERCRED). Each connection carries a message

    length (4 bytes, big-endian), JSON {"uid", "cluster", "verb", "arguments", "directory", "umask"}

and at most four descriptors, which become 0 to 3 of the command: script, output, errors and another
file. The launcher never reads from them, and involves no shell. For each message it

1. checks the uid against the site's policy, and verb and arguments against `VERBS`;
2. forks; the child takes the groups, gid and uid of the owner irrevocably;
3. in the child, enters the directory and executes the program configured for cluster and verb. Its
   environment contains nothing from the message, and no other descriptor is open.

The answer is a JSON line: {"code": n} or {"signal": n} after the end of the command, {"pid": n}
for a detached command, {"refused": reason} if nothing was executed. Commands end with the launcher
and with the connection. Detached commands (supervisors of local jobs) continue.
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

MAX_MESSAGE_BYTES = 1 << 20
MAX_ARGUMENTS = 10_000
READ_TIMEOUT = 10.0  # seconds for a whole message
RUN_TIMEOUT = 120.0  # seconds for a command
ERROR_PAUSE = 0.1  # seconds after a system error
MAX_SYMLINKS = 20
MAX_CONNECTIONS = 64  # at a time; further ones wait in the kernel's queue
LOWEST_UID = 1000  # root and system accounts are below; the configuration cannot change it
HIGHEST_UID = 59_999

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_JOB_IDS = re.compile(r"[0-9][0-9_,.:%\[\]-]*")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Verb:
    """An operation that the daemon may request."""

    allows: Callable[[str], bool]  # whether an argument is permitted
    detached: bool = False  # the command continues after the answer


def _allow_any(_: str) -> bool:
    return True


def _allow_job_ids(text: str) -> bool:
    """Return whether an argument consists of job ids, not of an option, name or path."""
    return _JOB_IDS.fullmatch(text) is not None


def _allow_none(_: str) -> bool:
    return False


ENTER = "enter"  # executes nothing: checks that the owner may enter a directory
VERBS = {
    "submit": Verb(_allow_any),
    "cancel": Verb(_allow_job_ids),
    "hold": Verb(_allow_job_ids),
    "release": Verb(_allow_job_ids),
    "supervise": Verb(_allow_none, detached=True),
    ENTER: Verb(_allow_none),
}


class LauncherError(Exception):
    """The message or the configuration is refused."""


# The configuration


@dataclass(frozen=True)
class LauncherPolicy:
    """The configuration file."""

    socket: str
    account: int  # uid of the daemon
    min_uid: int = LOWEST_UID  # of job owners
    max_uid: int = HIGHEST_UID
    allow: tuple[str, ...] = ()  # user names; empty: all
    deny: tuple[str, ...] = ()  # user names
    # program and first arguments by (cluster, verb)
    programs: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by cluster

    def owner(self, uid: int) -> pwd.struct_passwd:
        """Return the account with this uid. LauncherError if it may not own jobs."""
        if not max(self.min_uid, LOWEST_UID) <= uid <= self.max_uid or uid == self.account:
            raise LauncherError(f"user id {uid} may not have jobs here")
        try:
            owner = pwd.getpwuid(uid)
        except KeyError:
            raise LauncherError(f"there is no account with user id {uid}") from None
        if owner.pw_name in self.deny or (self.allow and owner.pw_name not in self.allow):
            raise LauncherError(f"user {owner.pw_name} may not have jobs here")
        if owner.pw_uid != uid or owner.pw_gid == 0:
            raise LauncherError(f"user {owner.pw_name} has the group of root")
        return owner


def load_policy(path: str) -> LauncherPolicy:
    """Read the configuration. LauncherError if it is invalid or not root's alone."""
    _require_root_owned(path)
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except (ValueError, RecursionError) as error:
        raise LauncherError(f"{path}: {error}; correct that line") from None
    clusters = _require_type(table.pop("cluster", {}), dict, "cluster")
    programs: dict[tuple[str, str], tuple[str, ...]] = {}
    environments: dict[str, dict[str, str]] = {}
    for name, cluster_table in clusters.items():
        for key, value in _require_type(cluster_table, dict, f"cluster.{name}").items():
            where = f"{key} of cluster {name}"
            if key == "environment":
                environments[name] = {
                    variable: _require_type(setting, str, where)
                    for variable, setting in _require_type(value, dict, where).items()
                }
            elif key in VERBS and key != ENTER:
                programs[name, key] = _require_program(_require_strings(value, where), where)
            else:
                raise LauncherError(
                    f"unknown key {where}; there are environment, {', '.join(VERBS)}"
                )
    try:
        account = pwd.getpwnam(_require_type(table.pop("account", None), str, "account")).pw_uid
    except KeyError:
        raise LauncherError(
            f"no such account, account in {path}; name that of the daemon"
        ) from None
    if account == 0:
        raise LauncherError("account is root; the daemon needs an ordinary one")
    policy = LauncherPolicy(
        socket=_require_type(table.pop("socket", None), str, "socket"),
        account=account,
        min_uid=_require_type(table.pop("min_uid", LOWEST_UID), int, "min_uid"),
        max_uid=_require_type(table.pop("max_uid", HIGHEST_UID), int, "max_uid"),
        allow=_require_strings(table.pop("allow", []), "allow"),
        deny=_require_strings(table.pop("deny", []), "deny"),
        programs=programs,
        environments=environments,
    )
    if table:
        raise LauncherError(f"unknown key {min(table)} in {path}; take it out")
    if policy.min_uid < LOWEST_UID:
        raise LauncherError(f"min_uid is {policy.min_uid}; it must be {LOWEST_UID} or more")
    return policy


def _require_type(value: Any, expected_type: type, name: str) -> Any:
    if type(value) is not expected_type:  # a bool is an int
        raise LauncherError(f"{name} is {value!r}; it must be of type {expected_type.__name__}")
    return value


def _require_strings(value: Any, name: str) -> tuple[str, ...]:
    return tuple(_require_type(item, str, name) for item in _require_type(value, list, name))


def _require_program(command: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Return a program with its first arguments. LauncherError unless root owns its files."""
    if not command or not command[0].startswith("/"):
        raise LauncherError(f"{where} is no absolute path; write the whole path of the program")
    for argument in command:
        if argument.startswith("/"):
            _require_root_owned(argument)
    return command


def _require_root_owned(path: str, links_followed: int = 0) -> None:
    """LauncherError if an account other than root can change the file or a folder of its path."""
    if path != "/":
        _require_root_owned(os.path.dirname(path), links_followed)
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode) and status.st_uid == 0 and links_followed < MAX_SYMLINKS:
            folder = os.path.realpath(os.path.dirname(path))
            target = os.path.join(folder, os.readlink(path))
            _require_root_owned(os.path.normpath(target), links_followed + 1)
            return
    except OSError as error:
        raise LauncherError(f"{path}: {error.strerror}; correct the path") from None
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_uid != 0 or (status.st_mode & 0o022 and not sticky):
        raise LauncherError(f"{path} can be changed by others than root; chown and chmod it")


# Messages


@dataclass(frozen=True)
class LauncherRequest:
    """A valid message."""

    owner: pwd.struct_passwd
    cluster: str
    verb: str
    command: tuple[str, ...]  # empty: only enter the directory
    directory: str
    umask: int
    environment: Mapping[str, str]


def parse_request(body: bytes, policy: LauncherPolicy) -> LauncherRequest:
    """Parse a message. LauncherError for anything that the policy does not permit."""
    try:
        message = json.loads(body.decode())
    except (ValueError, RecursionError):
        raise LauncherError("the message is no JSON") from None
    keys = ("uid", "cluster", "verb", "arguments", "directory", "umask")
    if type(message) is not dict or message.keys() != set(keys):
        raise LauncherError(f"the message must have {', '.join(keys)}")
    uid, umask = (
        _require_type(message["uid"], int, "uid"),
        _require_type(message["umask"], int, "umask"),
    )
    cluster, verb, directory = (
        _require_type(message[key], str, key) for key in ("cluster", "verb", "directory")
    )
    arguments = _require_strings(message["arguments"], "arguments")
    owner = policy.owner(uid)
    if verb != ENTER and (cluster, verb) not in policy.programs:
        raise LauncherError(f"{verb[:80]!r} is not configured for cluster {cluster[:80]!r}")
    program = policy.programs.get((cluster, verb), ())
    if len(arguments) > MAX_ARGUMENTS:
        raise LauncherError(f"more than {MAX_ARGUMENTS} arguments")
    for text in (*arguments, directory):
        if "\0" in text or not _is_encodable(text):
            raise LauncherError("an argument is no text")
    forbidden = next((text for text in arguments if not VERBS[verb].allows(text)), None)
    if forbidden is not None:
        raise LauncherError(f"argument {forbidden[:80]!r} is not permitted for {verb}")
    if not directory.startswith("/"):
        raise LauncherError(f"directory {directory[:80]!r} is not absolute")
    if not 0 <= umask <= 0o777:
        raise LauncherError(f"umask {umask} makes no sense")
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
    return LauncherRequest(owner, cluster, verb, program + arguments, directory, umask, environment)


def _is_encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def receive_message(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return the body of the message on a connection, and its descriptors."""
    deadline = time.monotonic() + READ_TIMEOUT
    connection.settimeout(READ_TIMEOUT)
    try:
        header, descriptors, flags, _ = socket.recv_fds(connection, 4, 4, socket.MSG_CMSG_CLOEXEC)
        if flags & socket.MSG_CTRUNC:
            raise LauncherError("more than four descriptors")
        header += _receive_exactly(connection, 4 - len(header), deadline)
        (length,) = struct.unpack(">I", header)
        if length > MAX_MESSAGE_BYTES:
            raise LauncherError(f"the message is longer than {MAX_MESSAGE_BYTES} bytes")
        return _receive_exactly(connection, length, deadline), descriptors
    except TimeoutError:
        raise LauncherError(f"no whole message in {READ_TIMEOUT:g} s") from None


def _receive_exactly(connection: socket.socket, length: int, deadline: float) -> bytes:
    pieces, remaining = [], length
    while remaining:
        if (seconds := deadline - time.monotonic()) <= 0:
            raise TimeoutError
        connection.settimeout(seconds)
        piece = connection.recv(min(remaining, 1 << 16))
        if not piece:
            raise LauncherError("the message broke off")
        pieces.append(piece)
        remaining -= len(piece)
    return b"".join(pieces)


# Execution as an owner


def run_as_owner(
    request: LauncherRequest, descriptors: list[int], failure_pipe: int, parent: int
) -> NoReturn:
    """In the child: become the owner's command, or write the error to `failure_pipe`."""
    subject = "the account"
    try:
        os.setsid()
        owner = request.owner
        os.setgroups(os.getgrouplist(owner.pw_name, owner.pw_gid))
        os.setresgid(owner.pw_gid, owner.pw_gid, owner.pw_gid)
        os.setresuid(owner.pw_uid, owner.pw_uid, owner.pw_uid)
        if 0 in (*os.getresuid(), *os.getresgid(), *os.getgroups()):
            raise PermissionError(0, "it has the group of root")
        if not VERBS[request.verb].detached:
            # Set now: a change of uid clears the first. Not for jobs, which may need sudo.
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
        os.umask(request.umask)
        subject = f"directory {request.directory}"
        os.chdir(request.directory)
        if not request.command:
            os._exit(0)
        subject = request.command[0]
        _install_descriptors(descriptors, failure_pipe)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execve(request.command[0], request.command, request.environment)
    except OSError as error:
        os.write(failure_pipe, f"{subject}: {error.strerror}"[:4000].encode(errors="replace"))
    except BaseException as error:
        os.write(failure_pipe, f"{subject}: {type(error).__name__}".encode(errors="replace"))
    finally:
        os._exit(1)


def _install_descriptors(descriptors: list[int], failure_pipe: int) -> None:
    """Renumber descriptors from 0, open those missing of the first three, close all others."""
    null_device = os.open(os.devnull, os.O_RDWR)
    inherited = descriptors + [null_device] * (3 - len(descriptors))
    high_copies = [_duplicate_high(descriptor) for descriptor in inherited]
    for number, descriptor in enumerate(high_copies):
        os.dup2(descriptor, number)
    os.closerange(len(inherited), failure_pipe)  # the pipe is above them, see `execute`
    os.closerange(failure_pipe + 1, os.sysconf("SC_OPEN_MAX"))


def _duplicate_high(descriptor: int) -> int:
    """Duplicate a descriptor to a number above those of a command."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)


def execute(
    request: LauncherRequest, descriptors: list[int], connection: socket.socket
) -> dict[str, Any]:
    """Execute a request; return the answer."""
    read_end, low_descriptor = os.pipe2(os.O_CLOEXEC)
    failure_pipe = _duplicate_high(low_descriptor)
    os.close(low_descriptor)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        run_as_owner(request, descriptors, failure_pipe, parent)
    os.close(failure_pipe)
    for descriptor in descriptors:
        os.close(descriptor)
    with open(read_end, "rb") as reader:
        _wait_until_readable(read_end, pid, connection)  # the filesystem of the directory may hang
        failure_text = reader.read()  # ends with the child's exec, or with the child
    if failure_text:
        os.waitpid(pid, 0)
        return {"refused": failure_text.decode(errors="replace")}
    if VERBS[request.verb].detached:
        return {"pid": pid}
    return _wait_for_exit(pid, connection)


def _wait_for_exit(pid: int, connection: socket.socket) -> dict[str, Any]:
    """Wait for the end of the command; return the answer."""
    _wait_until_readable(os.pidfd_open(pid), pid, connection)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return {"code": os.WEXITSTATUS(status)}


def _wait_until_readable(descriptor: int, pid: int, connection: socket.socket) -> None:
    """Wait until readable; kill the child after RUN_TIMEOUT or when the peer disconnects."""
    ready, _, _ = select.select([descriptor, connection.fileno()], [], [], RUN_TIMEOUT)
    if descriptor not in ready:
        os.kill(
            pid, signal.SIGKILL
        )  # an unreaped child: its pid is valid; it may have left its group
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def serve_connection(connection: socket.socket, policy: LauncherPolicy) -> None:
    """Read the message of a connection, execute it and write the answer."""
    description = ""
    try:
        body, descriptors = receive_message(connection)
        request = parse_request(body, policy)
        description = f"{request.verb} on {request.cluster!r} as {request.owner.pw_name}"
        answer = execute(request, descriptors, connection)
    except LauncherError as error:
        answer = {"refused": str(error)}
    print(f"{description or 'a message'}: {json.dumps(answer)}", file=sys.stderr, flush=True)
    connection.settimeout(READ_TIMEOUT)
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(answer).encode() + b"\n")


# The server


def peer_uid(connection: socket.socket) -> int:
    """Return the user id of the peer, as reported by the kernel."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("iII", credentials)[1])


def listen(policy: LauncherPolicy) -> socket.socket:
    """Listen on the socket, in a folder of root, for root and the account of the daemon."""
    folder = os.path.dirname(policy.socket)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    _require_root_owned(folder)
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(policy.socket).st_mode):
            raise LauncherError(f"{policy.socket} is no socket; name another, or remove it")
    temporary_path = f"{policy.socket}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary_path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous_umask = os.umask(0o177)
    try:
        listener.bind(temporary_path)
    finally:
        os.umask(previous_umask)
    os.chown(temporary_path, policy.account, -1)
    listener.listen(MAX_CONNECTIONS)
    os.rename(temporary_path, policy.socket)
    return listener


def serve(listener: socket.socket, policy: LauncherPolicy) -> NoReturn:
    """Fork a process per connection, until SIGTERM."""
    launcher_pid = os.getpid()
    children: set[int] = set()
    while True:
        while len(children) >= MAX_CONNECTIONS:
            children.discard(os.waitpid(-1, 0)[0])
        try:
            connection, _ = listener.accept()
            with connection:
                if peer_uid(connection) != policy.account:
                    continue
                pid = os.fork()
                if pid == 0:
                    _serve_in_child(listener, connection, policy, launcher_pid)
                children.add(pid)
        except OSError as error:  # no process or descriptor is free, or the peer has disconnected
            print(f"dropped a connection: {error}", file=sys.stderr, flush=True)
            time.sleep(ERROR_PAUSE)
        while children and (ended := os.waitpid(-1, os.WNOHANG)[0]):
            children.discard(ended)


def _serve_in_child(
    listener: socket.socket, connection: socket.socket, policy: LauncherPolicy, launcher_pid: int
) -> NoReturn:
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == launcher_pid:
            signal.alarm(int(READ_TIMEOUT + RUN_TIMEOUT + 10))  # in case any other call hangs
            listener.close()
            serve_connection(connection, policy)
    except BaseException as error:
        print(f"a defect: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(0)


def main() -> int:
    """Serve until SIGTERM. Exit with 1 and an error if the configuration is invalid."""
    parser = argparse.ArgumentParser(
        prog="metasched-launcher", description="Act as the owners of jobs (site mode)."
    )
    parser.add_argument(
        "--config", required=True, metavar="FILE", help="the configuration, owned by root"
    )
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")
    arguments = parser.parse_args()
    try:
        if os.geteuid() != 0:
            raise LauncherError("not root; start it as root")
        policy = load_policy(os.path.abspath(arguments.config))
        if arguments.check:
            return 0
        listener = listen(policy)
    except (LauncherError, OSError) as error:
        print(f"metasched: error: launcher: {error}", file=sys.stderr)
        return 1
    os.chdir("/")
    os.umask(0o077)
    print(f"metasched-launcher listens at {policy.socket}", file=sys.stderr, flush=True)
    serve(listener, policy)


if __name__ == "__main__":
    sys.exit(main())
