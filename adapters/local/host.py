"""What `local` does on the host: the nursery of supervisors, their records, their processes."""

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
from metasched.adapters.launcher_client import Launcher

ANSWER = 10.0  # seconds that the nursery may take to fork a batch
BATCH = 100  # folders handed to the nursery at once: less than a pipe holds, both ways
LONGEST_LINE = 32  # bytes of an answer to one question
LONGEST_RECORD = 1 << 16  # bytes


_NUMBER, _MOMENT = re.compile(r"\d{1,18}"), re.compile(r"\d{1,11}(\.\d{1,20})?")
_STATE = re.compile("completed|failed|timeout|cancelled|out_of_memory|node_fail")
_WORD = re.compile(r"[^\n]{0,10000}")
_CLAIMED = {"pid": re.compile(r"\d{1,9}"), "start": _NUMBER, "boot": _WORD, "time": _MOMENT}
_UNBEGUN = {"state": _STATE, "word": _WORD}
_ENDED = {
    "state": _STATE,
    "time": _MOMENT,
    "cpu_seconds": _MOMENT,
    "max_memory": re.compile(r"\d{1,12}"),
    "word": _WORD,
    "signal": re.compile(r"\d{1,2}"),
    "exit_code": re.compile(r"\d{1,3}"),
}
_OPTIONAL = {"signal", "exit_code"}


class Nursery:
    """The process that forks supervisors; started when first needed, ended with the adapter.

    It acts as this account or, with `launcher`, as `user`, who may be against us: nothing that
    it says is taken on trust.
    """

    def __init__(self, errors: Path, launcher: Launcher | None = None, user: str = "") -> None:
        self._errors, self._launcher, self._user = errors, launcher, user
        self._pipes: tuple[int, int] | None = None  # to write to it, to read from it
        self._process: subprocess.Popen[bytes] | None = None  # of this account

    def fork(self, folders: Sequence[Path]) -> list[tuple[int, int]]:
        """(pid, start time) of a new supervisor for each folder. OSError if it does not answer."""
        answers: list[tuple[int, int]] = []
        for first in range(0, len(folders), BATCH):
            batch = folders[first : first + BATCH]
            answers += self._ask([os.fsencode(folder) for folder in batch])
        return answers

    def cancel(self, folder: Path) -> None:
        """Have the supervisor of that folder end its job. OSError if it does not answer."""
        self._ask([b"cancel " + os.fsencode(folder)])

    def sweep(self, folder: Path) -> None:
        """Kill what a dead supervisor of that folder left. OSError if it does not answer."""
        self._ask([b"sweep " + os.fsencode(folder)])

    def _ask(self, questions: Sequence[bytes]) -> list[tuple[int, int]]:
        try:
            return self._asked(questions)
        except OSError:
            self.close(0.0)
            raise

    def _asked(self, questions: Sequence[bytes]) -> list[tuple[int, int]]:
        writes, reads = self._pipes or self._start()
        message = b"".join(question + b"\0" for question in questions)
        if os.write(writes, message) != len(message):
            raise BrokenPipeError("the nursery does not listen")
        ready = select.poll()
        ready.register(reads, select.POLLIN)
        got = b""
        until = time.monotonic() + ANSWER
        while got.count(b"\n") < len(questions):
            if not ready.poll(max(until - time.monotonic(), 0) * 1000):
                raise TimeoutError(f"the nursery did not answer within {ANSWER:g} s")
            piece = os.read(reads, 65536)
            if not piece:
                raise BrokenPipeError("the nursery has died")
            got += piece
            if len(got) > LONGEST_LINE * len(questions):
                raise OSError("the nursery talks nonsense")
        pairs = re.findall(rb"(\d{1,10}) (\d{1,19})\n", got)
        if len(pairs) != len(questions):
            raise OSError("the nursery talks nonsense")
        return [(int(pid), int(start)) for pid, start in pairs]

    def _start(self) -> tuple[int, int]:
        theirs, writes = os.pipe()
        reads, answers = os.pipe()
        try:
            os.set_blocking(writes, False)
            with open(self._errors, "ab") as errors:
                if self._launcher is not None:
                    self._launcher.detached(
                        self._user, "supervise", theirs, answers, errors.fileno()
                    )
                else:
                    self._process = subprocess.Popen(
                        [sys.executable, "-I", "-S", supervisor.__file__],
                        stdin=theirs,
                        stdout=answers,
                        stderr=errors,
                        start_new_session=True,
                    )
        except BaseException:
            os.close(writes)
            os.close(reads)
            raise
        finally:
            os.close(theirs)
            os.close(answers)
        self._pipes = writes, reads
        return self._pipes

    def close(self, patience: float = ANSWER) -> None:
        pipes, self._pipes = self._pipes, None
        process, self._process = self._process, None
        for descriptor in pipes or ():
            os.close(descriptor)
        if process is None:
            return
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def spec_field(key: str, value: str) -> bytes:
    """One field of a job's `spec`."""
    return f"{key}={value}".encode(errors="surrogateescape")


def read_record(folder: Path, name: str) -> dict[str, str] | None:
    """A supervisor's `claim` or `ended` file; None if there is none, {} if it cannot be right.

    Power may have cut it short, and where jobs have owners they may have put anything there.
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
        text = os.read(descriptor, LONGEST_RECORD).decode(errors="replace")
    finally:
        os.close(descriptor)
    found = dict(line.split("=", 1) for line in text.split("\n") if "=" in line)
    wanted = _ENDED if name == "ended" else _UNBEGUN if "state" in found else _CLAIMED
    there = found.keys() >= wanted.keys() - _OPTIONAL
    right = all(wanted[key].fullmatch(found[key]) for key in wanted.keys() & found.keys())
    return found if text.endswith("\n") and there and right else {}


def share(folder: Path, uid: int) -> None:
    """Let one more account work in a folder of ours, but not remove or replace what is ours.

    By a POSIX access list (acl(5); its layout is that of the kernel's posix_acl_xattr.h) and the
    sticky bit. OSError if the filesystem knows none.
    """
    nobody, all_of_it, nothing = 0xFFFFFFFF, 7, 0
    entries = (
        (0x01, all_of_it, nobody),  # owner
        (0x02, all_of_it, uid),
        (0x04, nothing, nobody),  # group
        (0x10, all_of_it, nobody),  # mask
        (0x20, nothing, nobody),  # others
    )
    listed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(folder, "system.posix_acl_access", listed)
    os.chmod(folder, 0o1770)  # the group's bits are the list's mask
