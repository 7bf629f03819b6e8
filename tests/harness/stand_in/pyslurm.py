"""A stand-in for pyslurm for any Python: it calls Slurm's commands, and fails on request.

Requests are files in the folder of this module. `crash-CALL` makes the next such call end the
process as a fault in C does. `hang-CALL` makes it stay in C for an hour with the interpreter's lock
held. CALL is `import`, `list` or `submit`; a submission fails only after the job has been queued.
While a file `busy` exists, the import waits, as on a busy host. The module has only the parts of
pyslurm that metasched uses.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from metasched.adapters.slurm.access import SlurmOptions
from metasched.adapters.slurm.commands import SlurmCommands
from metasched.adapters.slurm.listing import (
    QueueLine,
    parse_duration,
    parse_epoch_time,
    parse_exit_status,
)

_HERE = Path(__file__).parent
_CONF = os.environ["SLURM_CONF"]
_COMMANDS = SlurmCommands(SlurmOptions(config=_CONF), "stand-in")

__version__ = "{}.{}.0".format(*_COMMANDS.release_version())


class RPCError(Exception):
    """An answer of the controller; `errno` as in slurm_errno.h."""

    errno = 2000


def _fail(call: str) -> None:
    crash, hang = _HERE / f"crash-{call}", _HERE / f"hang-{call}"
    if crash.exists():
        crash.unlink()
        os.kill(os.getpid(), signal.SIGSEGV)
    if hang.exists():
        hang.unlink()
        ctypes.PyDLL(None).sleep(3600)  # a PyDLL keeps the interpreter's lock


_fail("import")
while (_HERE / "busy").exists():
    time.sleep(0.05)


class JobSubmitDescription:
    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def submit(self) -> int:
        requests = self._fields
        arguments = ["sbatch", "--parsable", "--export=NONE", f"--comment={requests['comment']}"]
        arguments += [
            f"--output={requests['standard_output']}",
            f"--chdir={requests['working_directory']}",
        ]
        arguments += [f"--ntasks={requests['ntasks']}", f"--time={requests['time_limit']}"]
        completed = subprocess.run(
            arguments,
            env={"SLURM_CONF": _CONF, "PATH": os.environ["PATH"]},
            input=Path(requests["script"]).read_text(),
            capture_output=True,
            text=True,
        )
        if completed.returncode != 0:
            raise RPCError(completed.stderr.strip().rpartition(": ")[2])
        _fail("submit")
        return int(completed.stdout)


class Jobs:
    @staticmethod
    def load() -> dict[int, SimpleNamespace]:
        _fail("list")
        return {int(line.id): _listed(line) for line in _COMMANDS.jobs().lines}


class Job:
    def __init__(self, native: int) -> None:
        self._native = str(native)

    @staticmethod
    def load(native: int) -> SimpleNamespace:
        return Jobs.load()[native]

    def hold(self) -> None:
        _COMMANDS.hold([self._native])

    def release(self) -> None:
        _COMMANDS.release([self._native])

    def cancel(self) -> None:
        _COMMANDS.cancel([self._native])


def _time(text: str) -> int | None:
    moment = parse_epoch_time(text)
    return None if moment is None else int(moment)


def _listed(line: QueueLine) -> SimpleNamespace:
    code, signal_ = parse_exit_status(line.status)
    limit = parse_duration(line.limit)
    return SimpleNamespace(
        id=int(line.id),
        array_id=None,
        user_id=int(line.user),
        state=line.state,
        partition=line.partition,
        cpus=int(line.cpus),
        time_limit=None if limit is None else int(limit / 60),
        submit_time=_time(line.submitted),
        eligible_time=_time(line.eligible),
        start_time=_time(line.start),
        end_time=_time(line.end),
        requeue_count=int(line.restarts),
        exit_code=code or 0,
        exit_code_signal=signal_ or 0,
        priority=int(line.priority),
        allocated_nodes=line.nodes or None,
        state_reason=line.reason,
        comment=line.tag,
        name="",
    )
