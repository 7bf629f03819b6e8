"""Commands end with the process that ran them, however it ends. Uses real processes and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
CALLER = """
import sys
from metasched.processes.commands import run_command
for line in sys.stdin:
    command = ["/bin/sh", "-c", line]
    print(run_command(command, {"PATH": "/usr/bin:/bin"}, 600.0).stdout, end="", flush=True)
"""


@pytest.fixture
def caller() -> Iterator[subprocess.Popen[str]]:
    """Start a process that runs each input line as a command and prints its output."""
    command = [sys.executable, "-c", CALLER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def send_line(caller: subprocess.Popen[str], line: str) -> None:
    assert caller.stdin is not None
    caller.stdin.write(line + "\n")
    caller.stdin.flush()


def read_line(caller: subprocess.Popen[str]) -> str:
    assert caller.stdout is not None
    return caller.stdout.readline().strip()


def until(met: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not met():
        assert time.monotonic() < end
        time.sleep(0.02)


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def sleepers(caller: subprocess.Popen[str], folder: Path) -> list[int]:
    """Start an endless command with a background process; return the ids of both processes."""
    notes = folder / f"told.{time.monotonic_ns()}"
    send_line(caller, f"sleep 600 & echo $$ $! >{notes}.new; mv {notes}.new {notes}; sleep 600")
    until(notes.exists)
    return [int(pid) for pid in notes.read_text().split()]


def leader(caller: subprocess.Popen[str]) -> int:
    send_line(caller, "ps -o pgid= -p $$")
    return int(read_line(caller))


def test_all_that_a_killed_caller_had_started_is_killed(
    caller: subprocess.Popen[str], tmp_path: Path
) -> None:
    group = leader(caller)
    pids = sleepers(caller, tmp_path)
    caller.kill()
    until(lambda: all(map(ended, (*pids, group))))


def test_nothing_is_left_of_a_caller_that_ends_in_order(caller: subprocess.Popen[str]) -> None:
    group = leader(caller)
    assert caller.stdin is not None
    caller.stdin.close()
    assert caller.wait(30) == 0
    until(lambda: ended(group))


def test_if_the_guard_itself_is_killed_another_takes_its_place(
    caller: subprocess.Popen[str], tmp_path: Path
) -> None:
    before = leader(caller)
    os.kill(before, signal.SIGKILL)
    until(lambda: ended(before))
    assert leader(caller) != before
    pids = sleepers(caller, tmp_path)
    caller.kill()
    until(lambda: all(map(ended, pids)))
