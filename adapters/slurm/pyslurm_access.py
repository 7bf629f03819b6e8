"""A Slurm cluster by pyslurm, in a worker whose Python has the pyslurm of the cluster's release.

What grows with the number of jobs goes by pyslurm: to submit, to list, to hold and to cancel.
Nodes and the controller's times stay with the commands, two a poll: pyslurm (22.5) tells neither
what of the generic resources is in use nor the controller's clock. So does whatever pyslurm
cannot say (see `_beyond`) and what it tells wrongly (see `_exact`).

pyslurm reads SLURM_CONF when it is imported and ends the process if that is no good; its calls
hold the interpreter's lock, and wait as long as MessageTimeout for a controller that is gone.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from metasched.adapters.base import Order
from metasched.adapters.commands import memory_file
from metasched.adapters.errors import Unreachable
from metasched.adapters.slurm import submission as batch
from metasched.adapters.slurm.access import SlurmOptions
from metasched.adapters.slurm.commands import Commands
from metasched.adapters.slurm.listing import QueueLine, lives, mark

_FEW = 16  # so many jobs are asked for one by one; for more all are listed


class Pyslurm(Commands):
    """pyslurm where it serves, else the commands; made where its import has been tried."""

    def __init__(self, options: SlurmOptions, cluster: str) -> None:
        super().__init__(options, cluster)
        os.environ["SLURM_CONF"] = options.config
        import pyslurm

        # it would hand them on to the jobs
        for name in [name for name in os.environ if name.startswith("SLURM_")]:
            del os.environ[name]
        self._pyslurm: Any = pyslurm
        # our failed jobs, by squeue; None: it has no such record
        self._known: dict[tuple[str, ...], QueueLine | None] = {}
        self.name = f"pyslurm {pyslurm.__version__}"

    def submit(self, order: Order, index: int) -> str:
        if _beyond(order):
            return super().submit(order, index)
        with memory_file(order.payload.script.encode("utf-8", "surrogateescape")) as script:
            try:
                wishes = self._wishes(order, index, f"/proc/self/fd/{script}")
                return str(self._pyslurm.JobSubmitDescription(**wishes).submit())
            except self._pyslurm.RPCError as error:
                said = f"sbatch: error: Batch job submission failed: {error}"
                refused = batch.refusal(said) if _answered(error) else None
                raise (refused or Unreachable(f"pyslurm: {error}")) from None
            except ValueError:  # before anything was sent: sbatch takes it or says why not
                pass
        return super().submit(order, index)

    def _wishes(self, order: Order, index: int, script: str) -> dict[str, Any]:
        """The attributes of a JobSubmitDescription for one task; None: not asked for."""
        job, payload = order.job, order.payload
        label, name = mark(order.tag, index), batch.name(job.name)
        by_comment = self._settings.tag_field == "comment"
        return {
            "name": name or order.tag if by_comment else label,
            "comment": label if by_comment else name,
            "script": script,
            "script_args": [script, *payload.arguments] if payload.arguments else None,
            # as sbatch adds them
            "environment": {
                "SLURM_CPUS_PER_TASK": str(job.cpus_per_task),
                "SLURM_SUBMIT_HOST": socket.gethostname().partition(".")[0],
                **batch.variables(order, index, self._cluster),
            },
            "working_directory": payload.directory,
            "standard_in": "/dev/null",
            "standard_output": batch.path(payload.output, index),
            "standard_error": None if payload.error is None else batch.path(payload.error, index),
            "log_files_open_mode": "truncate",
            "is_requeueable": job.requeue,
            "ntasks": job.tasks,
            "cpus_per_task": job.cpus_per_task,
            # without a word of it pyslurm asks for one node, and of a range Slurm takes the most
            "nodes": {"min": job.nodes or 1, "max": job.nodes or job.tasks},
            "use_min_nodes": job.nodes is None,
            "memory_per_node": job.memory,
            "memory_per_cpu": job.memory_per_cpu,
            "gres_per_node": dict(job.gres) or None,
            "resource_sharing": "no" if job.exclusive else None,
            "time_limit": batch.minutes(job),
            "account": job.account,
            "partitions": job.partition,
            "qos": job.qos,
            "constraints": job.constraint,
        }

    def jobs(
        self, *, ids: Sequence[str] = (), user: int | None = None, apart: bool = False
    ) -> list[QueueLine]:
        if 0 < len(ids) <= _FEW and all(native.isdecimal() for native in ids):
            found = [job for native in ids for job in self._load(native)]
        else:
            found = self._all()
        mine = os.geteuid()
        lines = [self._line(job, mine) for job in found if user is None or job.user_id == user]
        return self._exact(lines)

    def _all(self) -> list[Any]:
        os.environ["SLURM_BITSTR_LEN"] = "0"  # the tasks of an array in full
        try:
            return list(self._pyslurm.Jobs.load().values())
        except self._pyslurm.RPCError as error:
            raise Unreachable(f"pyslurm: {error}") from None
        finally:
            del os.environ["SLURM_BITSTR_LEN"]

    def _load(self, native: str) -> list[Any]:
        try:
            return [self._pyslurm.Job.load(int(native))]
        except self._pyslurm.RPCError as error:
            if _answered(error):
                return []
            raise Unreachable(f"pyslurm: {error}") from None

    def _line(self, job: Any, mine: int) -> QueueLine:
        """A job as squeue would print it; the tag of our own account's only."""
        tag = None
        if job.user_id == mine:
            try:
                tag = job.comment if self._settings.tag_field == "comment" else job.name
            except UnicodeDecodeError:  # whatever it says, we did not write it
                tag = None
        return QueueLine(
            id=_native(job),
            user=str(job.user_id),
            state=job.state,
            partition=job.partition or "",
            cpus=str(job.cpus),
            limit=_limit(job.time_limit),
            submitted=_text(job.submit_time),
            eligible=_text(job.eligible_time),
            start=_text(job.start_time),
            end=_text(job.end_time),
            restarts=str(job.requeue_count),
            status=f"{job.exit_code}:{job.exit_code_signal}",
            priority=_text(job.priority),
            nodes=_text(job.allocated_nodes),
            reason=_text(job.state_reason),
            tag=tag or "",
        )

    def _exact(self, lines: list[QueueLine]) -> list[QueueLine]:
        """The lines, those of our failed jobs by squeue: pyslurm takes 128 off larger exit codes.

        And it cannot tell task 0 from tasks that were cancelled together. What has ended changes
        no more, so that each is asked for until squeue, too, tells its end: to squeue a failed job
        is COMPLETING until its nodes are free again.
        """
        doubtful = {_end(line) for line in lines if line.tag and _failed(line)}
        self._known = {end: line for end, line in self._known.items() if end in doubtful}
        told = dict(self._known)
        if asked := doubtful - self._known.keys():
            told |= dict.fromkeys(asked)  # what squeue does not know it does not list
            told |= {_end(line): line for line in super().jobs(ids=[end[0] for end in asked])}
            self._known = {end: line for end, line in told.items() if not (line and lives(line))}
        exact = (told[_end(line)] if _end(line) in doubtful else line for line in lines)
        return [line for line in exact if line]

    def hold(self, ids: Collection[str]) -> str:
        plain, tasks = _sorted(ids)
        complaints = [said for native in plain if (said := self._change(native, "hold"))]
        if tasks and (said := super().hold(tasks)):
            complaints.append(said)
        return "; ".join(dict.fromkeys(complaints))

    def release(self, ids: Collection[str]) -> None:
        plain, tasks = _sorted(ids)
        for native in plain:
            self._change(native, "release")
        super().release(tasks)

    def _change(self, native: str, what: str) -> str:
        """Hold or release a job; what the controller said against it."""
        try:
            getattr(self._pyslurm.Job(int(native)), what)()
        except self._pyslurm.RPCError as error:
            if not _answered(error):
                raise Unreachable(f"pyslurm: {error}") from None
            return str(error)
        return ""

    def cancel(self, ids: Collection[str]) -> None:
        """pyslurm may tell the error of an earlier call: what it complains of goes to scancel."""
        plain, left = _sorted(ids)
        for number, native in enumerate(plain):
            try:
                self._pyslurm.Job(int(native)).cancel()
            except self._pyslurm.RPCError:
                left += plain[number:]
                break
        super().cancel(left)


def _beyond(order: Order) -> bool:
    """Whether an order says something that pyslurm would not carry, or not as it is.

    Native options are the words of sbatch, which takes licences and reservations, too. pyslurm ends
    the arguments at an empty one and any text at a NUL, and reads the script as lines that may end
    in a carriage return.
    """
    payload = order.payload
    return (
        bool(order.options or order.job.licences or order.reservation)
        or not all(payload.arguments)
        or "\r" in payload.script
        or any("\0" in text for text in (payload.script, payload.directory, *payload.arguments))
    )


def _answered(error: Any) -> bool:
    """Whether it is the controller's own word (slurm_errno.h), not one about the way to it."""
    return bool(2000 <= error.errno < 5000)


def _native(job: Any) -> str:
    if job.array_id is None:
        return str(job.id)
    if job.array_tasks_waiting is not None:
        return f"{job.array_id}_[{job.array_tasks_waiting}]"
    # task 0 is told as none, and so are all that waited and were cancelled at once: see `_exact`
    return f"{job.array_id}_{job.array_task_id or 0}"


def _text(value: object) -> str:
    return "N/A" if value is None else str(value)


def _limit(minutes: object) -> str:
    return "UNLIMITED" if minutes is None else f"{minutes}:00"


def _failed(line: QueueLine) -> bool:
    return line.state != "COMPLETED" and not lives(line)


def _end(line: QueueLine) -> tuple[str, ...]:
    return line.id, line.submitted, line.end


def _sorted(ids: Iterable[str]) -> tuple[list[str], list[str]]:
    """(ids of jobs, ids of tasks of native arrays, which pyslurm cannot name)."""
    plain: list[str] = []
    tasks: list[str] = []
    for native in ids:
        (plain if native.isdecimal() else tasks).append(native)
    return plain, tasks
