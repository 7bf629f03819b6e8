"""Crash points: places at which the daemon or a worker changes something outside its process.

Crash points are not listed in the code. `install` wraps the primitives that have external effects:
database commits, pipe messages, new processes, files and signals. Each point is named after the
functions of metasched on the stack, so that new code has crash points, too. A process records each
point that it passes for the first time, and dies at the point that its `Orders` choose. The package
contains none of this.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import msgspec

from metasched.adapters.protocol import WorkerCall, WorkerReply
from metasched.adapters.worker import AdapterHost
from metasched.daemon import worker_process
from metasched.db.ledger import Ledger
from metasched.plug_ins import host
from metasched.processes.frames import read_frame

FOLDER = "METASCHED_CHAOS"  # the environment variable that names the folder of orders and notes
ROOT = str(Path(__file__).parents[2])
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_FILES = {"os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.kill"}

# Distinguishes passages through the same function, by the stored events or by the worker call.
_MEANING: dict[str, Callable[[dict[str, Any]], str]] = {
    "Ledger.add_to_group": lambda variables: "+".join(
        sorted({type(e).__name__ for e, _ in variables["steps"]})
    ),
    "WorkerProcess.write_call": lambda variables: str(variables["call"].operation),
    "AdapterHost.execute": lambda variables: str(variables["call"].operation),
}

_ANSWER = "AdapterHost.execute"  # a worker carries out a call
_MAIN = {("metasched.api.server", "serve"), ("metasched.adapters.worker", "main")}

Role = Literal["daemon", "worker"]


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Where a daemon and its workers die.

    `new`: a process dies at the first point at which no process has died before. If `about` is not
    empty, the name of the point must contain a word of it. Without `new`, a process dies after a
    number of passages drawn by `seed`, `mean` on average. `mean` 0: no process dies.
    `most`: processes that start after that many deaths live. `late`: no process dies before `arm`
    is called. `together`: a dying worker kills the daemon, too, as when the host fails. With
    `stopped` nothing dies: what follows a point happens when the process is resumed.
    """

    new: bool = False
    about: tuple[str, ...] = ()
    seed: str = ""
    mean: int = 0
    most: int | None = None
    late: bool = False
    roles: tuple[Role, ...] = ("daemon", "worker")
    together: bool = False
    in_c: bool = False  # by a fault in C instead of SIGKILL
    stopped: bool = False  # by SIGSTOP instead of SIGKILL: the process can be resumed

    def write(self, folder: Path) -> None:
        draft = folder / "orders.draft"
        draft.write_bytes(msgspec.json.encode(self))
        (folder / "armed").unlink(missing_ok=True)
        draft.rename(folder / "orders")


def arm(folder: Path) -> None:
    """Let processes with `late` orders die from now on."""
    (folder / "armed").touch()


class Points:
    """The crash points of this process."""

    def __init__(self, role: Role, folder: Path) -> None:
        self._role, self._pid, self._armed = role, os.getpid(), folder / "armed"
        self._orders = msgspec.json.decode((folder / "orders").read_bytes(), type=Orders)
        self._passed = os.open(folder / "passed", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._deaths = os.open(folder / "deaths", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        deaths = deaths_in(folder)
        self._recorded: set[str] = set()
        self._members: list[str] = []  # functions that joined the open group of the ledger
        self._died_at = {point for _, point in deaths}
        draw = random.Random(f"{self._orders.seed} {role} {len(deaths)}")
        self._remaining = draw.expovariate(1 / self._orders.mean) if self._orders.mean else None
        self._lives = self._orders.most is not None and len(deaths) >= self._orders.most
        # The daemon restarts a worker that dies at its start with growing delay. So every second
        # worker lives until it has answered a poll.
        workers = sum(dead == "worker" for dead, _ in deaths)
        self._spared = role == "worker" and workers % 2 == 1

    def passed(self, passage: str, frame: FrameType) -> None:
        """Record a passage before or after `what`; die here if the orders say so."""
        if os.getpid() != self._pid or (location := _place(frame)) is None:
            return  # a child before its exec, or no code of metasched
        if location.endswith("Writer.commit_group") and self._members:
            for member in self._members:
                self._pass(f"{member}: {passage}")
            if passage == "after the commit":
                self._members.clear()
        else:
            self._pass(f"{location}: {passage}")

    def join_group(self, frame: FrameType) -> None:
        """Let the next commit of the group stand for what this frame stores in it."""
        self._members.append(_place(frame) or "")

    def _pass(self, point: str) -> None:
        if point not in self._recorded:
            self._recorded.add(point)
            with contextlib.suppress(OSError):  # the fault may be a full disk
                os.write(self._passed, f"{self._role}\t{point}\n".encode())
        if self._spared:
            self._spared = not point.endswith(f"after {_ANSWER}(poll)")
        elif self._dies(point):
            self._die(point)

    def _dies(self, point: str) -> bool:
        if self._lives or self._role not in self._orders.roles:
            return False
        if self._orders.late and not self._armed.exists():
            return False
        if self._orders.new:
            about = self._orders.about
            is_match = not about or any(pattern in point for pattern in about)
            return is_match and point not in self._died_at
        if self._remaining is None:
            return False
        self._remaining -= 1
        return self._remaining < 0

    def _die(self, point: str) -> None:
        self._pid = 0  # the kill is not a crash point, and what is resumed dies nowhere
        os.write(self._deaths, f"{self._role}\t{point}\n".encode())
        number = signal.SIGSTOP if self._orders.stopped else signal.SIGKILL
        if self._role == "worker" and self._orders.together:
            os.kill(os.getppid(), number)
        if self._orders.in_c:
            ctypes.string_at(0)
        os.kill(os.getpid(), number)


def noted(path: Path) -> list[tuple[str, str]]:
    """Return (role, point) of each line of a file of notes."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    return [(role, point) for role, _, point in (line.partition("\t") for line in lines)]


def deaths_in(folder: Path) -> list[tuple[str, str]]:
    """Return (role, point) of every process that died as ordered, in order of death."""
    return noted(folder / "deaths")


def passed_in(folder: Path) -> set[tuple[str, str]]:
    """Return (role, point) of every crash point that any process passed."""
    return set(noted(folder / "passed"))


def _place(frame: FrameType | None) -> str | None:
    """Return the functions of metasched on the stack, outermost first; None if there are none."""
    names: list[str] = []
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("metasched."):
            name = frame.f_code.co_qualname.replace("<locals>.", "")
            if (module, name) in _MAIN:
                return " > ".join(reversed(names)) or name
            meaning = _MEANING.get(name)
            detail = f"({meaning(frame.f_locals)})" if meaning else ""
            names.append(f"{module.rpartition('.')[2]}.{name}{detail}")
        frame = frame.f_back
    return " > ".join(reversed(names)) or None


def install(role: Role) -> None:
    """Wrap the primitives, so that this process has crash points from now on."""
    points = Points(role, Path(os.environ[FOLDER]))

    def wrap(owner: Any, name: str, before: str, after: str) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **options: Any) -> Any:
            points.passed(before, sys._getframe(1))
            result = original(*args, **options)
            points.passed(after, sys._getframe(1))
            return result

        setattr(owner, name, wrapped)

    class Connection(sqlite3.Connection):
        def commit(self) -> None:
            points.passed("before the commit", sys._getframe(1))
            super().commit()
            points.passed("after the commit", sys._getframe(1))

        def __exit__(self, *error: Any) -> Literal[False]:
            points.passed("before the commit", sys._getframe(1))
            done = super().__exit__(*error)
            points.passed("after the commit", sys._getframe(1))
            return done

    original_connect = sqlite3.connect

    def connect(*args: Any, **options: Any) -> Any:
        return original_connect(*args, **{"factory": Connection} | options)

    sqlite3.connect = sqlite3.dbapi2.connect = connect
    if role == "daemon":
        with contextlib.suppress(ImportError):  # only the daemon uses PostgreSQL
            import psycopg

            wrap(psycopg.Connection, "commit", "before the commit", "after the commit")
    _wrap_group(points)
    wrap(subprocess.Popen, "__init__", "before the process", "after the process began")
    wrap(asyncio.StreamWriter, "write", "before the message", "after the message")
    _wrap_answers(points)

    async def read(stream: asyncio.StreamReader, limit: int) -> bytes:
        message = await read_frame(stream, limit)
        points.passed("after the answer", sys._getframe(1))
        return message

    for reader in (worker_process, host):
        reader.read_frame = read  # type: ignore[attr-defined]
    sys.addaudithook(lambda event, args: _audited(points, event, args))


def _wrap_group(points: Points) -> None:
    write_steps, write_notices = Ledger._write_steps, Ledger._write_notices

    def written(self: Ledger, steps: Any) -> None:
        write_steps(self, steps)
        points.join_group(sys._getframe(1))

    def noticed(self: Ledger, records: Any, conditions: Any) -> None:
        write_notices(self, records, conditions)
        points.join_group(sys._getframe(1))

    Ledger._write_steps = written  # type: ignore[method-assign]
    Ledger._write_notices = noticed  # type: ignore[method-assign]


def _wrap_answers(points: Points) -> None:
    answer = AdapterHost.execute

    def answered(self: AdapterHost, call: WorkerCall) -> WorkerReply:
        points.passed(f"before {_ANSWER}({call.operation})", sys._getframe(1))
        done = answer(self, call)
        points.passed(f"after {_ANSWER}({call.operation})", sys._getframe(1))
        return done

    AdapterHost.execute = answered  # type: ignore[method-assign]


def _audited(points: Points, event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        path, mode, flags = args
        writes = set(mode) & set("wax+") if mode else flags & _WRITING
        is_internal = "__pycache__" in str(path) or str(path).startswith(("/dev/", "/proc/"))
        if writes and not is_internal:
            points.passed("before writing a file", sys._getframe(2))
    elif event in _FILES or event == "signal.pidfd_send_signal":
        points.passed(f"before {event}", sys._getframe(2))
