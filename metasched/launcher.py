"""The only part of metasched that may run as root: runs commands as the owners of jobs.

It imports the standard library only: `python3 -I -S launcher.py --config FILE`. It reads a
configuration file, which only root may write, again whenever it changes. It listens on a unix
socket for the account of the daemon (checked by SO_PEERCRED). Each connection carries a message

    length (4 bytes, big-endian),
    JSON {"protocol", "uid", "cluster", "verb", "arguments", "directory", "umask", "job"}

and at most four descriptors, which become 0 to 3 of the command: script, output, errors and another
file. The launcher never reads from them, and involves no shell. For each message it

1. checks the uid against the site's policy, and verb and arguments against `VERBS`;
2. forks; the child takes the groups, gid and uid of the owner irrevocably;
3. in the child, enters the directory and executes the program configured for cluster and verb. Its
   environment contains nothing from the message, and no other descriptor is open.

The verb "tail" executes nothing: as the owner, it writes the last bytes of a regular file, named by
its argument, to descriptor 1. Code 1: the file has more.

The message {"protocol", "cluster", "verb": "check", "arguments"} executes nothing: its arguments
are the verbs that the daemon needs on the cluster. The answer is a JSON line with "protocol" and

    {"code": n} or {"signal": n}                 after the end of the command, or a check
    {"pid": n}                                   of a detached command
    {"refused": reason, "retryable": boolean}    not executed, because of this user or request
    {"fault": reason}                            not executed, because of a fault of the site

A fault never depends on the user, so no user can close a cluster to others. A message of another
protocol is a fault. Commands end with the launcher and with the connection. Detached commands
(supervisors of local jobs) continue.
Standard error has a line for each request. Under systemd the launcher reports that it listens, and
then that its loop runs.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import fcntl
import grp
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
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

PROTOCOL = 2  # of messages and answers
MISMATCH_REMEDY = (
    "install the same release of both, then restart metasched-launcher.service and "
    "metasched.service"
)
MAX_MESSAGE_BYTES = 1 << 20
MAX_ARGUMENTS = 10_000
READ_TIMEOUT = 10.0  # seconds for a whole message
RUN_TIMEOUT = 120.0  # seconds for a command
TAIL_TIMEOUT = 5.0  # seconds to read the end of a file, whose filesystem may hang
TAIL_BYTES = 16 << 10  # from the end of a file
ERROR_PAUSE = 0.1  # seconds after a system error
MAX_SYMLINKS = 20
MAX_CONNECTIONS = 64  # at a time; more wait in the kernel's queue
LOWEST_UID = 1000  # root and system accounts are below; the configuration cannot change it
HIGHEST_UID = 59_999
# Their members can become root, or read everybody's files: a daemon taken over must not be them.
DENIED_GROUPS = (
    *("root", "sudo", "wheel", "admin", "adm", "shadow", "disk", "kmem"),
    *("docker", "lxd", "incus-admin", "libvirt", "microk8s"),
)
MAX_LOGGED = 1000  # characters of the arguments or jobs of a request in the log
MAX_LOGGED_NAME = 200  # characters of any other value in the log
MAX_ADDRESS_BYTES = 107  # kernel limit for the address of a unix socket
# Errors of execve that depend on the user: a program that only some groups may execute, the
# number of the user's processes, the length of the user's options.
_USERS_EXEC_ERRORS = (errno.EACCES, errno.EPERM, errno.E2BIG, errno.EAGAIN, errno.ENOMEM)
_PASSING_ERRORS = (errno.EAGAIN, errno.ENOMEM)  # the same request may succeed later

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_JOB_IDS = re.compile(r"[0-9][0-9_,.:%\[\]-]*")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Verb:
    """An operation that the daemon may request."""

    allows: Callable[[str], bool]  # whether an argument is permitted
    detached: bool = False  # the command continues after the answer
    for_denied: bool = False  # also for members of `deny_groups`, whose jobs may run already
    has_program: bool = True  # which launcher.toml names
    timeout: float = RUN_TIMEOUT  # seconds


def _allow_any(_: str) -> bool:
    return True


def _allow_job_ids(text: str) -> bool:
    """Return whether an argument consists of job ids, not of an option, name or path."""
    return _JOB_IDS.fullmatch(text) is not None


def _allow_none(_: str) -> bool:
    return False


ENTER = "enter"  # executes nothing: checks that the owner may enter a directory
TAIL = "tail"  # executes nothing: reads the end of a file
CHECK = "check"  # executes nothing: checks the configuration of a cluster, for no owner
VERBS = {
    "submit": Verb(_allow_any),
    "cancel": Verb(_allow_job_ids, for_denied=True),
    "hold": Verb(_allow_job_ids, for_denied=True),
    "release": Verb(_allow_job_ids, for_denied=True),
    "supervise": Verb(_allow_none, detached=True),
    ENTER: Verb(_allow_none, has_program=False),
    TAIL: Verb(_allow_any, has_program=False, timeout=TAIL_TIMEOUT),
}
PROGRAM_VERBS = tuple(name for name, verb in VERBS.items() if verb.has_program)


class LauncherError(Exception):
    """The request is refused, because of its user or its content.

    With `retryable` the same request may be accepted later.
    """

    def __init__(self, reason: str, retryable: bool = False) -> None:
        super().__init__(reason)
        self.retryable = retryable


class SiteFault(LauncherError):
    """The configuration or the host is at fault: the request of any user would fail."""


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
    deny_groups: tuple[str, ...] = DENIED_GROUPS  # names; absent groups have no members
    known_groups: frozenset[str] = frozenset()  # of `deny_groups`: existed when the file was read
    # program and first arguments by (cluster, verb)
    programs: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by cluster
    gains_privileges: frozenset[str] = frozenset()  # clusters with `no_new_privs = false`

    @property
    def clusters(self) -> list[str]:
        """The names of the configured clusters."""
        return sorted({cluster for cluster, _ in self.programs} | self.environments.keys())

    def owner(self, uid: int, may_be_denied: bool = False) -> pwd.struct_passwd:
        """Return the account with this uid. LauncherError if it may not own jobs.

        With `may_be_denied` its groups do not matter.
        """
        if not max(self.min_uid, LOWEST_UID) <= uid <= self.max_uid or uid == self.account:
            raise LauncherError(f"user id {uid} may not have jobs here")
        try:
            owner = pwd.getpwuid(uid)
        except KeyError:
            # perhaps the directory service is away
            raise LauncherError(f"there is no account with user id {uid}", True) from None
        if owner.pw_name in self.deny or (self.allow and owner.pw_name not in self.allow):
            raise LauncherError(f"user {owner.pw_name} may not have jobs here")
        if owner.pw_uid != uid or owner.pw_gid == 0:
            raise LauncherError(f"user {owner.pw_name} has the group of root")
        if may_be_denied:
            return owner
        denied = self.denied_group_ids()
        groups = set(os.getgrouplist(owner.pw_name, owner.pw_gid))
        for name, group_id in denied.items():
            if group_id in groups:
                raise LauncherError(
                    f"user {owner.pw_name} is in group {name}, which may not have jobs here "
                    "(deny_groups of launcher.toml)"
                )
        return owner

    def denied_group_ids(self) -> dict[str, int]:
        """Return the ids of `deny_groups` by name. SiteFault if a group is not found any more.

        A directory service that is away hides its groups, and so who is denied.
        """
        ids: dict[str, int] = {}
        for name in self.deny_groups:
            group_id = _group_id(name)
            if group_id is not None:
                ids[name] = group_id
            elif name in self.known_groups:
                raise SiteFault(
                    f"group {name} of deny_groups cannot be looked up; is the directory service "
                    "away? If the group was deleted, restart the launcher"
                )
        return ids

    def program(self, cluster: str, verb: str) -> tuple[str, ...]:
        """Return the program and first arguments of a verb. SiteFault if no user can run it."""
        if cluster not in self.clusters:
            names = ", ".join(self.clusters) or "none"
            raise SiteFault(
                f"launcher.toml has no cluster {cluster[:80]!r}, only {names}; "
                "make the names agree with metasched.toml"
            )
        program = self.programs.get((cluster, verb))
        if program is None:
            raise SiteFault(
                f"launcher.toml has no {verb[:80]!r} for cluster {cluster[:80]!r}; add its program"
            )
        _require_executable(program[0])
        for argument in program[1:]:
            if argument.startswith("/"):
                _require_usable(argument, stat.S_IRGRP | stat.S_IROTH, "chmod o+r")
        return program


def _group_id(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


class LauncherPolicyFile:
    """The configuration file, read again when it has changed."""

    def __init__(self, path: str) -> None:
        """Read the file. SiteFault if it is invalid."""
        self._path = path
        self._version = self._read_version()
        self.policy = load_policy(path)  # at the start of the launcher

    def _read_version(self) -> tuple[int, ...]:
        """Return numbers that differ after each change of the file."""
        try:
            status = os.stat(self._path)
        except OSError as error:
            raise SiteFault(f"{self._path}: {error.strerror}; restore the file") from None
        return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size

    def current_policy(self) -> LauncherPolicy:
        """Return the present policy. SiteFault while the file is invalid: nothing is executed."""
        if self._read_version() == self._version:
            return self.policy
        policy = load_policy(self._path)
        for key in ("socket", "account"):
            if getattr(policy, key) != getattr(self.policy, key):
                raise SiteFault(f"{key} has changed in {self._path}; restart the launcher")
        return policy


def load_policy(path: str) -> LauncherPolicy:
    """Read the configuration. SiteFault if it is invalid or not root's alone."""
    require_root_owned(path)
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise SiteFault(f"{path}: {error.strerror}; restore the file") from None
    except (ValueError, RecursionError) as error:
        raise SiteFault(f"{path}: {error}; correct that line") from None
    clusters = _require_type(table.pop("cluster", {}), dict, "cluster")
    programs: dict[tuple[str, str], tuple[str, ...]] = {}
    environments: dict[str, dict[str, str]] = {}
    gains_privileges: set[str] = set()
    for name, cluster_table in clusters.items():
        environments[name] = {}
        for key, value in _require_type(cluster_table, dict, f"cluster.{name}").items():
            where = f"{key} of cluster {name}"
            if key == "environment":
                environments[name] = {
                    variable: _require_type(setting, str, where)
                    for variable, setting in _require_type(value, dict, where).items()
                }
            elif key == "no_new_privs":
                if not _require_type(value, bool, where):
                    gains_privileges.add(name)
            elif key in PROGRAM_VERBS:
                programs[name, key] = _require_program(_require_strings(value, where), where)
            else:
                raise SiteFault(
                    f"unknown key {where}; there are environment, no_new_privs, "
                    f"{', '.join(PROGRAM_VERBS)}"
                )
    try:
        account = pwd.getpwnam(_require_type(table.pop("account", None), str, "account")).pw_uid
    except KeyError:
        raise SiteFault(f"no such account, account in {path}; name that of the daemon") from None
    if account == 0:
        raise SiteFault("account is root; the daemon needs an ordinary one")
    deny_groups = _deny_groups(table)
    policy = LauncherPolicy(
        socket=_require_type(table.pop("socket", None), str, "socket"),
        account=account,
        min_uid=_require_type(table.pop("min_uid", LOWEST_UID), int, "min_uid"),
        max_uid=_require_type(table.pop("max_uid", HIGHEST_UID), int, "max_uid"),
        allow=_require_strings(table.pop("allow", []), "allow"),
        deny=_require_strings(table.pop("deny", []), "deny"),
        deny_groups=deny_groups,
        known_groups=frozenset(name for name in deny_groups if _group_id(name) is not None),
        programs=programs,
        environments=environments,
        gains_privileges=frozenset(gains_privileges),
    )
    if table:
        raise SiteFault(f"unknown key {min(table)} in {path}; take it out")
    if policy.min_uid < LOWEST_UID:
        raise SiteFault(f"min_uid is {policy.min_uid}; it must be {LOWEST_UID} or more")
    return policy


def _deny_groups(table: dict[str, Any]) -> tuple[str, ...]:
    """Return the denied groups. A group that the file names must exist: it may be misspelt."""
    if "deny_groups" not in table:
        return DENIED_GROUPS
    names = _require_strings(table.pop("deny_groups"), "deny_groups")
    for name in names:
        if name not in DENIED_GROUPS and _group_id(name) is None:
            raise SiteFault(f"there is no group {name!r}, deny_groups; correct the name")
    return names


def _require_type(value: Any, expected_type: type, name: str) -> Any:
    if type(value) is not expected_type:  # a bool is an int
        raise SiteFault(f"{name} is {value!r}; it must be of type {expected_type.__name__}")
    return value


def _require_strings(value: Any, name: str) -> tuple[str, ...]:
    return tuple(_require_type(text, str, name) for text in _require_type(value, list, name))


def _require_program(command: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Return a program with its first arguments. SiteFault unless root owns its files."""
    if not command or not command[0].startswith("/"):
        raise SiteFault(f"{where} is no absolute path; write the whole path of the program")
    for argument in command:
        if argument.startswith("/"):
            require_root_owned(argument)
    return command


def require_root_owned(path: str, links_followed: int = 0, owners: Collection[int] = (0,)) -> None:
    """SiteFault if an account other than root can change the file or a folder of its path.

    `owners` are the uids that may own parts of the path.
    """
    if path != "/":
        require_root_owned(os.path.dirname(path), links_followed, owners)
    try:
        status = os.lstat(path)
        is_followed = status.st_uid in owners and links_followed < MAX_SYMLINKS
        if stat.S_ISLNK(status.st_mode) and is_followed:
            folder = os.path.realpath(os.path.dirname(path))
            target = os.path.join(folder, os.readlink(path))
            require_root_owned(os.path.normpath(target), links_followed + 1, owners)
            return
    except OSError as error:
        raise SiteFault(f"{path}: {error.strerror}; correct the path") from None
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_uid not in owners or (status.st_mode & 0o022 and not sticky):
        raise SiteFault(f"{path} can be changed by others than root; chown and chmod it")


def _require_usable(path: str, anybody: int, remedy: str) -> os.stat_result:
    """SiteFault unless some ordinary account has any of the permissions `anybody`.

    Whether a certain user has it depends on groups, and is found out as that user.
    """
    try:
        for folder in path_folders(path):
            if not os.stat(folder).st_mode & (stat.S_IXGRP | stat.S_IXOTH):
                raise SiteFault(f"{folder} is closed to the owners of jobs; chmod o+x it")
        status = os.stat(path)
    except OSError as error:
        raise SiteFault(f"{path}: {error.strerror}; correct launcher.toml, or restore it") from None
    if not status.st_mode & anybody:
        raise SiteFault(f"{path} is closed to the owners of jobs; {remedy} it")
    return status


def path_folders(path: str) -> list[str]:
    """Return the folders above a path, the nearest first."""
    folders = []
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        folders.append(path)
    return folders


def _require_executable(path: str) -> None:
    """SiteFault unless the path is a program that some ordinary account can execute."""
    status = _require_usable(path, stat.S_IXGRP | stat.S_IXOTH, "chmod o+x")
    if not stat.S_ISREG(status.st_mode):
        raise SiteFault(f"{path} is no program; correct launcher.toml")


# Messages


@dataclass(frozen=True)
class LauncherRequest:
    """A valid message of a daemon that is to act as an owner."""

    owner: pwd.struct_passwd
    cluster: str
    verb: str
    command: tuple[str, ...]  # of TAIL the path; empty: only enter the directory
    directory: str
    umask: int
    environment: Mapping[str, str]
    no_new_privs: bool  # whether programs may not gain privileges (setuid, file capabilities)


def parse_message(body: bytes) -> dict[str, Any]:
    """Parse a message. SiteFault if it has another protocol, and so perhaps other fields."""
    try:
        message = json.loads(body.decode())
    except (ValueError, RecursionError):
        raise LauncherError("the message is no JSON") from None
    if type(message) is not dict:
        raise LauncherError("the message is no JSON object")
    if message.get("protocol") != PROTOCOL:
        raise SiteFault(
            f"the daemon has protocol {shorten(message.get('protocol'), 20)}, this launcher "
            f"{PROTOCOL}; {MISMATCH_REMEDY}"
        )
    return message


def parse_request(message: dict[str, Any], policy: LauncherPolicy) -> LauncherRequest | None:
    """Validate a message; None for a check, which was successful.

    LauncherError for anything that the policy does not permit.
    """
    is_check = message.get("verb") == CHECK
    keys = ["protocol", "cluster", "verb", "arguments"]
    if not is_check:
        keys += ["uid", "directory", "umask", "job"]
    if message.keys() != set(keys):
        raise LauncherError(f"the message must have {', '.join(keys)}")
    if is_check:
        cluster = _require_request_type(message["cluster"], str, "cluster")
        for verb in _require_request_strings(message["arguments"], "arguments"):
            policy.program(cluster, verb)
        policy.denied_group_ids()
        return None
    uid, umask = (
        _require_request_type(message["uid"], int, "uid"),
        _require_request_type(message["umask"], int, "umask"),
    )
    cluster, verb, directory = (
        _require_request_type(message[key], str, key) for key in ("cluster", "verb", "directory")
    )
    arguments = _require_request_strings(message["arguments"], "arguments")
    owner = policy.owner(uid, may_be_denied=verb in VERBS and VERBS[verb].for_denied)
    has_no_program = verb in VERBS and not VERBS[verb].has_program
    program = () if has_no_program else policy.program(cluster, verb)
    if verb == TAIL and len(arguments) != 1:
        raise LauncherError(f"{TAIL} has a path as its only argument")
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
    command = program + arguments
    return LauncherRequest(
        *(owner, cluster, verb, command, directory, umask, environment),
        no_new_privs=cluster not in policy.gains_privileges,
    )


def _require_request_type(value: Any, expected_type: type, name: str) -> Any:
    """Return a value of a message. LauncherError if its type is wrong."""
    try:
        return _require_type(value, expected_type, name)
    except SiteFault as error:
        raise LauncherError(str(error)) from None


def _require_request_strings(value: Any, name: str) -> tuple[str, ...]:
    return tuple(
        _require_request_type(text, str, name) for text in _require_request_type(value, list, name)
    )


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
    """In the child: become the owner's command, or write the error to `failure_pipe`.

    The error is the JSON of an answer.
    """
    subject, executing = "the account", False
    try:
        os.setsid()
        owner = request.owner
        os.setgroups(os.getgrouplist(owner.pw_name, owner.pw_gid))
        os.setresgid(owner.pw_gid, owner.pw_gid, owner.pw_gid)
        os.setresuid(owner.pw_uid, owner.pw_uid, owner.pw_uid)
        if 0 in (*os.getresuid(), *os.getresgid(), *os.getgroups()):
            raise PermissionError(0, "it has the group of root")
        # no process of the owner may trace this process, which still has the memory of the launcher
        if _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
            raise PermissionError(0, "the kernel does not protect it")
        if request.no_new_privs and _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise PermissionError(0, "the kernel refuses no_new_privs")
        if not VERBS[request.verb].detached:
            # set now: a change of uid clears it
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
        os.umask(request.umask)
        subject = f"directory {request.directory}"
        os.chdir(request.directory)
        if not request.command:
            os._exit(0)
        subject = request.command[0]
        _install_descriptors(descriptors, failure_pipe)
        if request.verb == TAIL:
            subject = "file"
            os._exit(int(_write_tail(request.command[0])))
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        executing = True
        os.execve(request.command[0], request.command, request.environment)
    except OSError as error:
        reason = f"{subject}: {error.strerror}"
        if executing and error.errno not in _USERS_EXEC_ERRORS:
            _write_failure(failure_pipe, {"fault": reason})
        elif error.errno == errno.ENOENT and _may_be_unmounted(request.directory):
            reason += "; is its filesystem mounted?"
            _write_failure(failure_pipe, {"refused": reason, "retryable": True})
        else:
            retryable = error.errno in _PASSING_ERRORS
            _write_failure(failure_pipe, {"refused": reason, "retryable": retryable})
    except BaseException as error:
        reason = f"{subject}: {type(error).__name__}"
        _write_failure(failure_pipe, {"refused": reason, "retryable": False})
    finally:
        os._exit(1)


def _write_tail(path: str) -> bool:
    """Write the end of a regular file to descriptor 1; return whether it has more. OSError.

    It never waits for a FIFO, a device or a lease, and reads no more than the size of the file: so
    it reads nothing of /proc.
    """
    source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    status = os.fstat(source)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    begin = max(status.st_size - TAIL_BYTES, 0)
    content = memoryview(os.pread(source, status.st_size - begin, begin))
    while content:
        content = content[os.write(1, content) :]
    return begin > 0


def _may_be_unmounted(directory: str) -> bool:
    """Return whether a missing directory may be on a filesystem that is not mounted now.

    The nearest folder that exists is then the mount point: empty, and root's.
    """
    for folder in path_folders(directory):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            try:
                return os.stat(folder).st_uid == 0 and not os.listdir(folder)
            except PermissionError:
                return False
    return False


def _write_failure(failure_pipe: int, answer: dict[str, Any]) -> None:
    """Write an answer of bounded length: the pipe takes it at once."""
    answer = {key: text[:4000] if type(text) is str else text for key, text in answer.items()}
    os.write(failure_pipe, json.dumps(answer).encode())


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
    """Execute a request; return the answer. SiteFault if no process or descriptor is free."""
    parent = os.getpid()
    try:
        read_end, low_descriptor = os.pipe2(os.O_CLOEXEC)
        failure_pipe = _duplicate_high(low_descriptor)
        os.close(low_descriptor)
        pid = os.fork()
    except OSError as error:
        raise SiteFault(f"the launcher cannot start a process: {error.strerror}") from None
    if pid == 0:
        run_as_owner(request, descriptors, failure_pipe, parent)
    os.close(failure_pipe)
    for descriptor in descriptors:
        os.close(descriptor)
    with open(read_end, "rb") as reader:
        # the filesystem of the directory may hang
        _wait_until_readable(read_end, pid, connection, VERBS[request.verb].timeout)
        failure_text = reader.read()  # ends with the child's exec, or with the child
    if failure_text:
        os.waitpid(pid, 0)
        failure: dict[str, Any] = json.loads(failure_text)
        return failure
    if VERBS[request.verb].detached:
        return {"pid": pid}
    return _wait_for_exit(pid, connection, VERBS[request.verb].timeout)


def _wait_for_exit(pid: int, connection: socket.socket, timeout: float) -> dict[str, Any]:
    """Wait for the end of the command; return the answer."""
    _wait_until_readable(os.pidfd_open(pid), pid, connection, timeout)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return {"code": os.WEXITSTATUS(status)}


def _wait_until_readable(
    descriptor: int, pid: int, connection: socket.socket, timeout: float
) -> None:
    """Wait until readable; kill the child after `timeout` s or when the peer disconnects."""
    ready, _, _ = select.select([descriptor, connection.fileno()], [], [], timeout)
    if descriptor not in ready:
        os.kill(
            pid, signal.SIGKILL
        )  # an unreaped child: its pid is valid; it may have left its group
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def serve_connection(connection: socket.socket, policy_file: LauncherPolicyFile) -> None:
    """Read the message of a connection, execute it and write the answer."""
    message: dict[str, Any] = {}
    started = time.monotonic()
    answer: dict[str, Any]
    try:
        body, descriptors = receive_message(connection)
        message = parse_message(body)
        request = parse_request(message, policy_file.current_policy())
        if request is not None and request.verb == TAIL:
            # a child in a hung filesystem cannot be killed: it must keep no connection
            signal.alarm(int(2 * TAIL_TIMEOUT))
        answer = {"code": 0} if request is None else execute(request, descriptors, connection)
    except SiteFault as error:
        answer = {"fault": str(error)}
    except LauncherError as error:
        answer = {"refused": str(error), "retryable": error.retryable}
    log(f"{describe(message)} {json.dumps(answer)} after {time.monotonic() - started:.1f} s")
    answer["protocol"] = PROTOCOL
    connection.settimeout(READ_TIMEOUT)
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(answer).encode() + b"\n")


def describe(message: dict[str, Any]) -> str:
    """Return verb, cluster, user, job, directory and arguments of a message as ASCII on a line.

    Nothing of the message has been checked, so every value is escaped and shortened.
    """
    uid, user = message.get("uid"), ""
    if type(uid) is int and 0 <= uid < 1 << 31:
        with contextlib.suppress(KeyError):
            user = pwd.getpwuid(uid).pw_name
    values = {
        "verb": message.get("verb"),
        "cluster": message.get("cluster"),
        "uid": uid,
        "user": user,
        "job": message.get("job"),
        "directory": message.get("directory"),
        "arguments": message.get("arguments"),
    }
    return " ".join(
        f"{key}={shorten(value, MAX_LOGGED if key in ('job', 'arguments') else MAX_LOGGED_NAME)}"
        for key, value in values.items()
        if value not in (None, "", [])
    )


def shorten(value: object, length: int) -> str:
    """Return at most `length` characters of the JSON of a value, in printable ASCII."""
    text = json.dumps(value)
    return text if len(text) <= length else f"{text[:length]}... ({len(text)} characters)"


def log(text: str) -> None:
    """Write a line with the time (UTC) to standard error."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with contextlib.suppress(OSError):
        os.write(2, f"{now} {text}\n".encode())


# The service manager


@dataclass(frozen=True)
class ServiceManager:
    """systemd, as the starter of this process; the daemon has its own (sd_notify(3))."""

    address: str = ""  # of its datagram socket; "": another starter
    watchdog: float | None = None  # seconds within which it expects WATCHDOG=1; None: it does not

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> ServiceManager:
        """Take the variables of systemd out of an environment, so that no child inherits them.

        Whoever starts the process sets them: an address or number that is none counts as absent.
        """
        address = environment.pop("NOTIFY_SOCKET", "")
        microseconds = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", str(os.getpid()))
        if not address.startswith(("/", "@")) or len(os.fsencode(address)) > MAX_ADDRESS_BYTES:
            return cls()
        is_meant = pid == str(os.getpid()) and re.fullmatch(r"[1-9][0-9]{0,17}", microseconds)
        return cls(address, int(microseconds) / 1e6 if is_meant else None)

    def notify(self, **variables: str) -> None:
        """Send variables such as READY="1". Never blocks and never fails, also without listener."""
        if not self.address:
            return
        lines = (f"{name}={_one_line(value)}" for name, value in variables.items())
        message = "\n".join(lines).encode(errors="backslashreplace")
        address = f"\0{self.address[1:]}" if self.address[0] == "@" else self.address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        ):
            sender.setblocking(False)
            sender.sendto(message, address)


def _one_line(text: str) -> str:
    """Return a text without line breaks, which would begin another variable."""
    return "".join(c if c.isprintable() else " " for c in text)[:MAX_LOGGED]


# The server


def peer_uid(connection: socket.socket) -> int:
    """Return the user id of the peer, as reported by the kernel."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("iII", credentials)[1])


def listen(policy: LauncherPolicy) -> socket.socket:
    """Listen on the socket, in a folder of root, for root and the account of the daemon."""
    folder = os.path.dirname(policy.socket)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    require_root_owned(folder)
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


def serve(
    listener: socket.socket, policy_file: LauncherPolicyFile, manager: ServiceManager
) -> NoReturn:
    """Fork a process per connection, until SIGTERM."""
    account = policy_file.policy.account
    launcher_pid = os.getpid()
    children: set[int] = set()
    pause = None if manager.watchdog is None else manager.watchdog / 4  # seconds
    manager.notify(READY="1", STATUS=f"listens at {policy_file.policy.socket}")
    while True:
        if manager.watchdog is not None:
            manager.notify(WATCHDOG="1")
        # a child ends by its alarm, long before the watchdog's time
        while len(children) >= MAX_CONNECTIONS:
            children.discard(os.waitpid(-1, 0)[0])
        try:
            if not select.select([listener], [], [], pause)[0]:
                continue
            connection, _ = listener.accept()
            with connection:
                if (uid := peer_uid(connection)) != account:
                    log(f"dropped a connection of uid {uid}, not the account of the daemon")
                    continue
                pid = os.fork()
                if pid == 0:
                    _serve_in_child(listener, connection, policy_file, launcher_pid)
                children.add(pid)
        except OSError as error:  # no process or descriptor is free, or the peer has disconnected
            log(f"dropped a connection: {error}")
            time.sleep(ERROR_PAUSE)
        while children and (ended := os.waitpid(-1, os.WNOHANG)[0]):
            children.discard(ended)


def _serve_in_child(
    listener: socket.socket,
    connection: socket.socket,
    policy_file: LauncherPolicyFile,
    launcher_pid: int,
) -> NoReturn:
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == launcher_pid:
            signal.alarm(int(READ_TIMEOUT + RUN_TIMEOUT + 10))  # in case any other call hangs
            listener.close()
            serve_connection(connection, policy_file)
    except BaseException as error:
        log(f"a defect: {type(error).__name__}: {error}"[:MAX_LOGGED])
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
    manager = ServiceManager.from_environment(os.environ)
    try:
        if os.geteuid() != 0:
            raise LauncherError("not root; start it as root")
        policy_file = LauncherPolicyFile(os.path.abspath(arguments.config))
        policy = policy_file.policy
        if arguments.check:
            for cluster, verb in policy.programs:
                policy.program(cluster, verb)
            return 0
        listener = listen(policy)
    except (LauncherError, OSError) as error:
        print(f"metasched: error: launcher: {error}", file=sys.stderr)
        return 1
    os.chdir("/")
    os.umask(0o077)
    log(f"metasched-launcher listens at {policy.socket}, protocol {PROTOCOL}")
    serve(listener, policy_file, manager)


if __name__ == "__main__":
    sys.exit(main())
