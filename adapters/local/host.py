"""Fork servers of supervisors, the records of supervisors, and permissions of job folders."""

from __future__ import annotations

import errno
import os
import re
import select
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from metasched.adapters import supervisor
from metasched.adapters.launcher_client import LauncherClient
from metasched.model.adapter_errors import SiteFault

FORK_SERVER_TIMEOUT = 10.0  # seconds for the reply to a batch of requests
FORK_BATCH_SIZE = 100  # folders in a batch: requests and replies fit into their pipes
MAX_REPLY_LINE = 32  # bytes of the reply to a request
MAX_RECORD_SIZE = 1 << 16  # bytes


_NUMBER, _TIME = re.compile(r"\d{1,18}"), re.compile(r"\d{1,11}(\.\d{1,20})?")
_STATE = re.compile("completed|failed|timeout|cancelled|out_of_memory|node_fail")
_TEXT = re.compile(r"[^\n]{0,10000}")
_CLAIM_FIELDS = {"pid": re.compile(r"\d{1,9}"), "start": _NUMBER, "boot": _TEXT, "time": _TIME}
_WITHDRAWN_FIELDS = {"state": _STATE, "reason": _TEXT}
_END_FIELDS = {
    "state": _STATE,
    "time": _TIME,
    "cpu_seconds": _TIME,
    "max_memory": re.compile(r"\d{1,12}"),
    "reason": _TEXT,
    "signal": re.compile(r"\d{1,2}"),
    "exit_code": re.compile(r"\d{1,3}"),
}
_OPTIONAL_FIELDS = {"signal", "exit_code"}


class ForkServer:
    """The process that forks supervisors; started with the first request, ended with the adapter.

    It runs as this account or, with `launcher`, as `user`. A user may be hostile, so every reply
    is checked.
    """

    def __init__(
        self, error_log: Path, launcher: LauncherClient | None = None, user: str = ""
    ) -> None:
        self._error_log, self._launcher, self._user = error_log, launcher, user
        self._pipes: tuple[int, int] | None = None  # (for requests, for replies)
        self._process: subprocess.Popen[bytes] | None = None  # None if a launcher started it

    def fork(self, folders: Sequence[Path]) -> list[tuple[int, int]]:
        """Fork a supervisor for each folder; return its (pid, start time). Raises OSError."""
        return self._request("", folders)

    def cancel(self, folders: Sequence[Path]) -> None:
        """Signal the supervisors of the folders to end their jobs. Raises OSError."""
        self._request("cancel ", folders)

    def sweep(self, folders: Sequence[Path]) -> None:
        """Kill the processes that dead supervisors of the folders left. Raises OSError."""
        self._request("sweep ", folders)

    def _request(self, verb: str, folders: Sequence[Path]) -> list[tuple[int, int]]:
        requests = [verb.encode() + os.fsencode(folder) for folder in folders]
        pairs: list[tuple[int, int]] = []
        try:
            for first in range(0, len(requests), FORK_BATCH_SIZE):
                pairs += self._exchange(requests[first : first + FORK_BATCH_SIZE])
        except OSError:
            self.close(0.0)
            raise
        return pairs

    def _exchange(self, requests: Sequence[bytes]) -> list[tuple[int, int]]:
        write_fd, read_fd = self._pipes or self._start()
        message = b"".join(request + b"\0" for request in requests)
        if os.write(write_fd, message) != len(message):
            raise BrokenPipeError("the fork server does not read its requests")
        poller = select.poll()
        poller.register(read_fd, select.POLLIN)
        received = b""
        deadline = time.monotonic() + FORK_SERVER_TIMEOUT
        while received.count(b"\n") < len(requests):
            if not poller.poll(max(deadline - time.monotonic(), 0) * 1000):
                raise TimeoutError(f"no reply of the fork server within {FORK_SERVER_TIMEOUT:g} s")
            block = os.read(read_fd, 65536)
            if not block:
                raise BrokenPipeError("the fork server has died")
            received += block
            if len(received) > MAX_REPLY_LINE * len(requests):
                raise OSError("invalid reply of the fork server")
        pairs = re.findall(rb"(\d{1,10}) (\d{1,19})\n", received)
        if len(pairs) != len(requests):
            raise OSError("invalid reply of the fork server")
        return [(int(pid), int(start)) for pid, start in pairs]

    def _start(self) -> tuple[int, int]:
        child_stdin, write_fd = os.pipe()
        read_fd, child_stdout = os.pipe()
        try:
            os.set_blocking(write_fd, False)
            with open(self._error_log, "ab") as error_log:
                if self._launcher is not None:
                    self._launcher.start_detached(
                        self._user, "supervise", child_stdin, child_stdout, error_log.fileno()
                    )
                else:
                    self._process = subprocess.Popen(
                        [sys.executable, "-I", "-S", supervisor.__file__],
                        stdin=child_stdin,
                        stdout=child_stdout,
                        stderr=error_log,
                        start_new_session=True,
                    )
        except BaseException:
            os.close(write_fd)
            os.close(read_fd)
            raise
        finally:
            os.close(child_stdin)
            os.close(child_stdout)
        self._pipes = write_fd, read_fd
        return self._pipes

    def close(self, timeout: float = FORK_SERVER_TIMEOUT) -> None:
        pipes, self._pipes = self._pipes, None
        process, self._process = self._process, None
        for descriptor in pipes or ():
            os.close(descriptor)
        if process is None:
            return
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def read_record(folder: Path, name: str) -> dict[str, str] | None:
    """Read a supervisor's `claim` or `ended` file; None if there is none, {} if it is invalid.

    A loss of power may have truncated it. In site mode the job's owner may have written anything.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(folder / name, flags)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EACCES, errno.ENXIO):
            return {}
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return {}
        text = os.read(descriptor, MAX_RECORD_SIZE).decode(errors="replace")
    finally:
        os.close(descriptor)
    record = dict(line.split("=", 1) for line in text.split("\n") if "=" in line)
    if name == "ended":
        patterns = _END_FIELDS
    else:
        patterns = _WITHDRAWN_FIELDS if "state" in record else _CLAIM_FIELDS
    complete = record.keys() >= patterns.keys() - _OPTIONAL_FIELDS
    valid = all(patterns[key].fullmatch(record[key]) for key in patterns.keys() & record.keys())
    return record if text.endswith("\n") and complete and valid else {}


def require_open_path(folder: Path) -> None:
    """Raise SiteFault unless the owners of jobs can reach a folder."""
    try:
        for path in (folder, *folder.parents):
            if not path.stat().st_mode & 0o001:
                raise SiteFault(f"{path} is closed to the owners of jobs; chmod o+x it")
    except OSError as error:
        raise SiteFault(f"{error.filename}: {error.strerror}; chmod o+x it") from None


def grant_access(folder: Path, uid: int) -> None:
    """Let another account write in a folder of this account, but not remove or replace its files.

    This takes a POSIX access list (acl(5), in the layout of the kernel's posix_acl_xattr.h) and
    the sticky bit. Raises OSError if the filesystem has no access lists.
    """
    undefined_id, full_access, no_access = 0xFFFFFFFF, 7, 0
    entries = (
        (0x01, full_access, undefined_id),  # owner
        (0x02, full_access, uid),
        (0x04, no_access, undefined_id),  # group
        (0x10, full_access, undefined_id),  # mask
        (0x20, no_access, undefined_id),  # others
    )
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(folder, "system.posix_acl_access", acl)
    os.chmod(folder, 0o1770)  # the group's bits are the list's mask
