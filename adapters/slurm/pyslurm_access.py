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

from metasched.adapters.base import Submission
from metasched.adapters.commands import memory_file
from metasched.adapters.errors import Unreachable
from metasched.adapters.slurm import submission as batch
from metasched.adapters.slurm.access import SlurmOptions
from metasched.adapters.slurm.commands import SlurmCommands
from metasched.adapters.slurm.listing import QueueLine, format_mark, is_active

_MAX_SINGLE_LOADS = 16  # so many jobs are asked for one by one; for more all are listed


class PyslurmAccess(SlurmCommands):
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
        self._squeue_lines: dict[tuple[str, ...], QueueLine | None] = {}
        self.name = f"pyslurm {pyslurm.__version__}"

    def submit(self, submission: Submission, index: int) -> str:
        if _needs_sbatch(submission):
            return super().submit(submission, index)
        with memory_file(submission.payload.script.encode("utf-8", "surrogateescape")) as script_fd:
            try:
                attributes = self._description(submission, index, f"/proc/self/fd/{script_fd}")
                return str(self._pyslurm.JobSubmitDescription(**attributes).submit())
            except self._pyslurm.RPCError as error:
                stderr = f"sbatch: error: Batch job submission failed: {error}"
                refused = batch.parse_refusal(stderr) if _is_controller_error(error) else None
                raise (refused or Unreachable(f"pyslurm: {error}")) from None
            except ValueError:  # before anything was sent: sbatch takes it or says why not
                pass
        return super().submit(submission, index)

    def _description(self, submission: Submission, index: int, script: str) -> dict[str, Any]:
        """The attributes of a JobSubmitDescription for one task; None: not asked for."""
        job, payload = submission.job, submission.payload
        label, name = format_mark(submission.tag, index), batch.job_name(job.name)
        by_comment = self._settings.tag_field == "comment"
        return {
            "name": name or submission.tag if by_comment else label,
            "comment": label if by_comment else name,
            "script": script,
            "script_args": [script, *payload.arguments] if payload.arguments else None,
            # as sbatch adds them
            "environment": {
                "SLURM_CPUS_PER_TASK": str(job.cpus_per_task),
                "SLURM_SUBMIT_HOST": socket.gethostname().partition(".")[0],
                **batch.task_environment(submission, index, self._cluster),
            },
            "working_directory": payload.directory,
            "standard_in": "/dev/null",
            "standard_output": batch.output_path(payload.output, index),
            "standard_error": None
            if payload.error is None
            else batch.output_path(payload.error, index),
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
            "time_limit": batch.time_limit_minutes(job),
            "account": job.account,
            "partitions": job.partition,
            "qos": job.qos,
            "constraints": job.constraint,
        }

    def jobs(
        self, *, ids: Sequence[str] = (), user: int | None = None, split_arrays: bool = False
    ) -> list[QueueLine]:
        if 0 < len(ids) <= _MAX_SINGLE_LOADS and all(native_id.isdecimal() for native_id in ids):
            loaded = [job for native_id in ids for job in self._load_job(native_id)]
        else:
            loaded = self._load_all()
        own_uid = os.geteuid()
        lines = [
            self._queue_line(job, own_uid) for job in loaded if user is None or job.user_id == user
        ]
        return self._correct_lines(lines)

    def _load_all(self) -> list[Any]:
        os.environ["SLURM_BITSTR_LEN"] = "0"  # the tasks of an array in full
        try:
            return list(self._pyslurm.Jobs.load().values())
        except self._pyslurm.RPCError as error:
            raise Unreachable(f"pyslurm: {error}") from None
        finally:
            del os.environ["SLURM_BITSTR_LEN"]

    def _load_job(self, native_id: str) -> list[Any]:
        try:
            return [self._pyslurm.Job.load(int(native_id))]
        except self._pyslurm.RPCError as error:
            if _is_controller_error(error):
                return []
            raise Unreachable(f"pyslurm: {error}") from None

    def _queue_line(self, job: Any, own_uid: int) -> QueueLine:
        """A job as squeue would print it; the tag of our own account's only."""
        tag = None
        if job.user_id == own_uid:
            try:
                tag = job.comment if self._settings.tag_field == "comment" else job.name
            except UnicodeDecodeError:  # whatever it says, we did not write it
                tag = None
        return QueueLine(
            id=_native_id(job),
            user=str(job.user_id),
            state=job.state,
            partition=job.partition or "",
            cpus=str(job.cpus),
            limit=_time_limit(job.time_limit),
            submitted=_text_or_na(job.submit_time),
            eligible=_text_or_na(job.eligible_time),
            start=_text_or_na(job.start_time),
            end=_text_or_na(job.end_time),
            restarts=str(job.requeue_count),
            status=f"{job.exit_code}:{job.exit_code_signal}",
            priority=_text_or_na(job.priority),
            nodes=_text_or_na(job.allocated_nodes),
            reason=_text_or_na(job.state_reason),
            tag=tag or "",
        )

    def _correct_lines(self, lines: list[QueueLine]) -> list[QueueLine]:
        """The lines, those of our failed jobs by squeue: pyslurm takes 128 off larger exit codes.

        And it cannot tell task 0 from tasks that were cancelled together. What has ended changes
        no more, so that each is asked for until squeue, too, tells its end: to squeue a failed job
        is COMPLETING until its nodes are free again.
        """
        doubtful = {_end_key(line) for line in lines if line.tag and _has_failed(line)}
        self._squeue_lines = {
            end_key: line for end_key, line in self._squeue_lines.items() if end_key in doubtful
        }
        squeue_lines = dict(self._squeue_lines)
        if unverified := doubtful - self._squeue_lines.keys():
            squeue_lines |= dict.fromkeys(unverified)  # what squeue does not know it does not list
            squeue_lines |= {
                _end_key(line): line
                for line in super().jobs(ids=[end_key[0] for end_key in unverified])
            }
            self._squeue_lines = {
                end_key: line
                for end_key, line in squeue_lines.items()
                if not (line and is_active(line))
            }
        corrected = (
            squeue_lines[_end_key(line)] if _end_key(line) in doubtful else line for line in lines
        )
        return [line for line in corrected if line]

    def hold(self, ids: Collection[str]) -> str:
        job_ids, task_ids = _split_ids(ids)
        errors = [error for job_id in job_ids if (error := self._change(job_id, "hold"))]
        if task_ids and (error := super().hold(task_ids)):
            errors.append(error)
        return "; ".join(dict.fromkeys(errors))

    def release(self, ids: Collection[str]) -> None:
        job_ids, task_ids = _split_ids(ids)
        for job_id in job_ids:
            self._change(job_id, "release")
        super().release(task_ids)

    def _change(self, job_id: str, method: str) -> str:
        """Hold or release a job; what the controller said against it."""
        try:
            getattr(self._pyslurm.Job(int(job_id)), method)()
        except self._pyslurm.RPCError as error:
            if not _is_controller_error(error):
                raise Unreachable(f"pyslurm: {error}") from None
            return str(error)
        return ""

    def cancel(self, ids: Collection[str]) -> None:
        """pyslurm may tell the error of an earlier call: what it complains of goes to scancel."""
        job_ids, remaining = _split_ids(ids)
        for position, job_id in enumerate(job_ids):
            try:
                self._pyslurm.Job(int(job_id)).cancel()
            except self._pyslurm.RPCError:
                remaining += job_ids[position:]
                break
        super().cancel(remaining)


def _needs_sbatch(submission: Submission) -> bool:
    """Whether an order says something that pyslurm would not carry, or not as it is.

    Native options are the words of sbatch, which takes licences and reservations, too. pyslurm ends
    the arguments at an empty one and any text at a NUL, and reads the script as lines that may end
    in a carriage return.
    """
    payload = submission.payload
    return (
        bool(submission.options or submission.job.licences or submission.reservation)
        or not all(payload.arguments)
        or "\r" in payload.script
        or any("\0" in text for text in (payload.script, payload.directory, *payload.arguments))
    )


def _is_controller_error(error: Any) -> bool:
    """Whether it is the controller's own word (slurm_errno.h), not one about the way to it."""
    return bool(2000 <= error.errno < 5000)


def _native_id(job: Any) -> str:
    if job.array_id is None:
        return str(job.id)
    if job.array_tasks_waiting is not None:
        return f"{job.array_id}_[{job.array_tasks_waiting}]"
    # task 0 is told as none, and so are all that waited and were cancelled at once: see `_exact`
    return f"{job.array_id}_{job.array_task_id or 0}"


def _text_or_na(value: object) -> str:
    return "N/A" if value is None else str(value)


def _time_limit(minutes: object) -> str:
    return "UNLIMITED" if minutes is None else f"{minutes}:00"


def _has_failed(line: QueueLine) -> bool:
    return line.state != "COMPLETED" and not is_active(line)


def _end_key(line: QueueLine) -> tuple[str, ...]:
    return line.id, line.submitted, line.end


def _split_ids(ids: Iterable[str]) -> tuple[list[str], list[str]]:
    """(ids of jobs, ids of tasks of native arrays, which pyslurm cannot name)."""
    job_ids: list[str] = []
    task_ids: list[str] = []
    for native_id in ids:
        (job_ids if native_id.isdecimal() else task_ids).append(native_id)
    return job_ids, task_ids
