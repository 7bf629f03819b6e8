"""A process that starts the daemons of a harness and kills all of them when it ends.

The reaper is this file run as a program. It is a sub-reaper, so that daemons and jobs that
leave their parents become its children. It kills all its descendants when its standard input ends
or the process that started it dies, by whatever signal.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_CLOSE_SECONDS = 20.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class ReaperError(Exception):
    """The reaper is dead, or could not start a program."""


class Reaper:
    """The harness's side of the reaper: one JSON line for each request and each answer.

    `inside` is a command that replaces itself with its arguments, such as `unshare -n`.
    """

    def __init__(self, log: Path, inside: Sequence[str] = ()) -> None:
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*inside, sys.executable, "-I", "-S", __file__, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C and group signals do not reach it
                text=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def started(self) -> bool:
        """Whether the reaper has replaced the command `inside`."""
        command = Path(f"/proc/{self.pid}/cmdline").read_bytes()
        return command.startswith(os.fsencode(sys.executable))

    def start(self, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
        answer = self._request({"start": list(argv), "env": dict(environment), "log": str(log)})
        if "pid" not in answer:
            raise ReaperError(f"{argv[0]}: {answer['error']}")
        return int(answer["pid"])

    def end(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a child and wait for its end; after ten seconds it is killed."""
        self._request({"end": pid, "signal": int(number)})

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=_CLOSE_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process.stdin is None or self._process.stdout is None:
            raise ReaperError("the reaper has no pipes")
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ReaperError("the reaper has died")
        answer: dict[str, Any] = json.loads(line)
        return answer


def dying_with(parent: int) -> Callable[[], None]:
    """For `preexec_fn`: the child is killed when the thread that started it ends."""
    prctl = ctypes.CDLL(None).prctl

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return arm


# The reaper itself, from here on: standard library only, one thread.


def _serve_starter(starter: int) -> NoReturn:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        starter_ends = os.pidfd_open(starter)
        if os.getppid() == starter:
            _serve(starter_ends, woken)
    finally:
        _end_children()
        os._exit(0)


def _serve(starter_ends: int, woken: int) -> None:
    pending = b""
    while True:
        ready, _, _ = select.select([0, starter_ends, woken], [], [])
        if starter_ends in ready:
            return
        if woken in ready:
            os.read(woken, 4096)
            _reap()
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                answer = json.dumps(_execute(json.loads(line))) + "\n"
                os.write(1, answer.encode())


def _execute(request: dict[str, Any]) -> dict[str, Any]:
    if "start" in request:
        with open(request["log"], "ab") as log:
            try:
                child = subprocess.Popen(
                    request["start"],
                    env=request["env"],
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=dying_with(os.getpid()),
                )
            except OSError as error:
                return {"error": str(error)}
        child.returncode = 0  # reaped by _reap, not by this object
        return {"pid": child.pid}
    pid = request["end"]
    end = time.monotonic() + 10
    os.kill(pid, request["signal"])
    while pid in _children():
        _reap()
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return {}


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _children() -> list[int]:
    children = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            if parent == os.getpid():
                children.append(int(name))
    return children


def _end_children() -> None:
    """Kill children until none is left: children of a killed process become our own."""
    try:
        while True:
            for pid in _children():
                os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


if __name__ == "__main__":
    _serve_starter(int(sys.argv[1]))
