"""What `local` does on the host: the nursery of supervisors, their records, their processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from metasched.adapters import supervisor

ANSWER = 10.0  # seconds that the nursery may take to fork a batch
BATCH = 100  # folders handed to the nursery at once: less than a pipe holds, both ways
REST = 5.0  # seconds spent on killing what a dead supervisor left behind


class Nursery:
    """The process that forks supervisors; started when first needed, ended with the adapter."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, folders: Sequence[Path]) -> list[tuple[int, int]]:
        """(pid, start time) of a new supervisor for each folder. OSError if it does not answer."""
        answers: list[tuple[int, int]] = []
        for first in range(0, len(folders), BATCH):
            batch = folders[first : first + BATCH]
            try:
                answers += self._ask(batch)
            except OSError:
                self.close(0.0)
                raise
        return answers

    def _ask(self, folders: Sequence[Path]) -> list[tuple[int, int]]:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"".join(os.fsencode(folder) + b"\0" for folder in folders))
        ready = select.poll()
        ready.register(process.stdout, select.POLLIN)
        got = b""
        until = time.monotonic() + ANSWER
        while got.count(b"\n") < len(folders):
            if not ready.poll(max(until - time.monotonic(), 0) * 1000):
                raise TimeoutError(f"the nursery did not answer within {ANSWER:g} s")
            piece = os.read(process.stdout.fileno(), 65536)
            if not piece:
                raise BrokenPipeError("the nursery has died")
            got += piece
        pairs = [line.split() for line in got.splitlines()]
        return [(int(pid), int(start)) for pid, start in pairs]

    def _start(self) -> subprocess.Popen[bytes]:
        with open(self._errors, "ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,
            )
        return self._process

    def close(self, patience: float = ANSWER) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def spec_field(key: str, value: str) -> bytes:
    """One field of a job's `spec`."""
    return f"{key}={value}".encode(errors="surrogateescape")


def read_record(folder: Path, name: str) -> dict[str, str] | None:
    """A supervisor's `claim` or `ended` file; None if there is none, {} if power cut it short."""
    try:
        text = (folder / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    lines = [line.split("=", 1) for line in text.split("\n") if "=" in line]
    return dict(lines) if text.endswith("\n") else {}


def process_handle(pid: int, start: int) -> int | None:
    """A pidfd of the process of that pid and start time; None if it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        if supervisor.start_time(pid) == start:
            return descriptor
    except ProcessLookupError:
        pass
    os.close(descriptor)
    return None


def tell(claim: Mapping[str, str], number: int) -> None:
    """Send a signal to the supervisor that made this claim, if it lives."""
    if claim["boot"] != supervisor.boot_id():
        return
    descriptor = process_handle(int(claim["pid"]), int(claim["start"]))
    if descriptor is None:
        return
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def kill_rest(tag: str, index: int) -> None:
    """Kill every process that carries the task's environment, and all below it.

    What has cleared its environment and lost its parent at once cannot be told from other
    processes; only the supervisor, now dead, could have held it.
    """
    marks = {spec_field("METASCHED_TAG", tag), spec_field("METASCHED_TASK", str(index))}
    until = time.monotonic() + REST
    while time.monotonic() < until:
        found = [
            pid
            for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
            if marks <= _environment(pid)
        ]
        if not found:
            return
        for pid in found:
            for below in [*supervisor.descendants(pid), pid]:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(below, signal.SIGKILL)
        time.sleep(0.01)


def _environment(pid: int) -> set[bytes]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()  # gone, or somebody else's
