"""Access to a Slurm cluster by pyslurm, if the worker's Python has that of the cluster's release.

pyslurm serves the operations whose cost grows with the number of jobs: submit, list, hold, cancel.
The commands serve nodes and the controller's times, in two calls for each poll: pyslurm (22.5)
reports neither the generic resources in use nor the controller's clock. They also serve requests
that pyslurm cannot express (`_needs_sbatch`) and values that it reports wrongly (`_correct_lines`).

pyslurm reads SLURM_CONF on import and ends the process if the file is invalid. Its calls hold the
interpreter's lock, and block for MessageTimeout if the controller does not answer.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from metasched.adapters.base import Submission
from metasched.adapters.slurm.access import SlurmOptions
from metasched.adapters.slurm.batch_script import task_script
from metasched.adapters.slurm.commands import SlurmCommands
from metasched.adapters.slurm.listing import QueueLine, QueueListing, format_mark, is_active
from metasched.adapters.slurm.submission import (
    is_transport_error,
    job_name,
    output_path,
    refusal_by_controller,
    task_environment,
    time_limit_minutes,
)
from metasched.model.adapter_errors import Unreachable
from metasched.model.tags import TAG_PREFIX
from metasched.processes.commands import memory_file

_MAX_SINGLE_LOADS = 16  # jobs that are queried singly; for more all jobs are listed


class PyslurmAccess(SlurmCommands):
    """pyslurm where possible, else the commands; created only after a successful trial import."""

    def __init__(self, options: SlurmOptions, cluster: str, owner: int | None) -> None:
        """`owner` is the user id whose jobs may have tags; None: all users' jobs, in site mode."""
        super().__init__(options, cluster)
        self._owner = owner
        os.environ["SLURM_CONF"] = options.config
        import pyslurm

        # jobs would inherit them
        for name in [name for name in os.environ if name.startswith("SLURM_")]:
            del os.environ[name]
        self._pyslurm: Any = pyslurm
        # squeue's lines of this account's failed jobs; None: squeue has no such job
        self._squeue_lines: dict[tuple[str, ...], QueueLine | None] = {}
        self.name = f"pyslurm {pyslurm.__version__}"

    def submit(self, submission: Submission, index: int) -> str:
        if _needs_sbatch(submission):
            return super().submit(submission, index)
        script = submission.payload.script.encode("utf-8", "surrogateescape")
        if submission.exports_job_id:
            script = task_script(submission, index, self._cluster, self._settings.bin_dir)
        with memory_file(script) as script_fd:
            try:
                attributes = self._description(submission, index, f"/proc/self/fd/{script_fd}")
                return str(self._pyslurm.JobSubmitDescription(**attributes).submit())
            except self._pyslurm.RPCError as error:
                if _is_controller_error(error):
                    raise refusal_by_controller(error.errno, [str(error)]) from None
                reason = f"pyslurm: {error}"
                said = "" if is_transport_error(error.errno) else reason
                raise Unreachable(reason, said) from None
            except ValueError:  # nothing was sent; sbatch accepts the job or reports the problem
                pass
        return super().submit(submission, index)

    def _description(self, submission: Submission, index: int, script: str) -> dict[str, Any]:
        """Return the attributes of a JobSubmitDescription for a task; None: not requested."""
        job, payload = submission.job, submission.payload
        label, name = format_mark(submission.tag, index), job_name(job.name)
        comment = job_name(job.comment) if job.comment else name
        by_comment = self._settings.tag_field == "comment"
        return {
            "name": name or submission.tag if by_comment else label,
            "comment": label if by_comment else comment,
            "script": script,
            "script_args": [script, *payload.arguments] if payload.arguments else None,
            # as sbatch adds them
            "environment": {
                "SLURM_CPUS_PER_TASK": str(job.cpus_per_task),
                "SLURM_SUBMIT_HOST": socket.gethostname().partition(".")[0],
                **task_environment(submission, index, self._cluster),
            },
            "working_directory": payload.directory,
            "standard_in": "/dev/null",
            "standard_output": output_path(payload.output, job, index),
            "standard_error": None
            if payload.error is None
            else output_path(payload.error, job, index),
            "log_files_open_mode": "truncate",
            "is_requeueable": job.requeue,
            "ntasks": job.tasks,
            "cpus_per_task": job.cpus_per_task,
            "ntasks_per_node": job.tasks_per_node,
            # by default pyslurm requests one node, and Slurm takes the maximum of a range
            "nodes": {"min": job.nodes or 1, "max": job.nodes or job.tasks},
            "use_min_nodes": job.nodes is None,
            "memory_per_node": job.memory,
            "memory_per_cpu": job.memory_per_cpu,
            "gres_per_node": dict(job.gres) or None,
            "resource_sharing": "no" if job.exclusive else None,
            "time_limit": time_limit_minutes(job),
            "account": job.account,
            "partitions": job.partition,
            "qos": job.qos,
            "constraints": job.constraint,
        }

    def jobs(
        self,
        *,
        ids: Sequence[str] = (),
        user: int | None = None,
        split_arrays: bool = False,
        known: Collection[str] = (),
    ) -> QueueListing:
        if 0 < len(ids) <= _MAX_SINGLE_LOADS and all(native_id.isdecimal() for native_id in ids):
            loaded = [job for native_id in ids for job in self._load_job(native_id)]
        else:
            loaded = self._load_all()
        lines = [self._queue_line(job) for job in loaded if user is None or job.user_id == user]
        return self._correct_lines(lines, known)

    def _load_all(self) -> list[Any]:
        os.environ["SLURM_BITSTR_LEN"] = "0"  # array ranges in full
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

    def _queue_line(self, job: Any) -> QueueLine:
        """Return a job as squeue would print it, with a tag only if its owner's jobs may have tags.

        In site mode comments of other accounts that are no tags are left out: failed jobs of other
        accounts are not queried a second time.
        """
        tag = None
        if self._owner in (None, job.user_id):
            try:
                tag = job.comment if self._settings.tag_field == "comment" else job.name
            except UnicodeDecodeError:  # not written by metasched
                tag = None
        if self._owner is None and not (tag or "").startswith(TAG_PREFIX):
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

    def _correct_lines(self, lines: list[QueueLine], known: Collection[str] = ()) -> QueueListing:
        """Replace the lines of failed jobs with a tag, and of failed `known` jobs, by squeue's.

        pyslurm subtracts 128 from larger exit codes, and confuses task 0 with tasks that were
        cancelled together. A line is queried until squeue, too, lists the job as ended, and stored
        then: squeue lists a failed job as COMPLETING until its nodes are free.
        """
        doubtful = {
            _end_key(line) for line in lines if (line.tag or line.id in known) and _has_failed(line)
        }
        self._squeue_lines = {
            end_key: line for end_key, line in self._squeue_lines.items() if end_key in doubtful
        }
        squeue_lines, unreadable = dict(self._squeue_lines), ""
        if unverified := doubtful - self._squeue_lines.keys():
            squeue_lines |= dict.fromkeys(unverified)  # squeue omits unknown jobs
            answer = super().jobs(ids=[end_key[0] for end_key in unverified])
            squeue_lines |= {_end_key(line): line for line in answer.lines}
            unreadable = answer.unreadable
            self._squeue_lines = {
                end_key: line
                for end_key, line in squeue_lines.items()
                if not (line and is_active(line)) and (line or not unreadable)
            }
        corrected = (
            squeue_lines[_end_key(line)] if _end_key(line) in doubtful else line for line in lines
        )
        return QueueListing([line for line in corrected if line], unreadable)

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
        """Hold or release a job; return the controller's error message."""
        try:
            getattr(self._pyslurm.Job(int(job_id)), method)()
        except self._pyslurm.RPCError as error:
            if not _is_controller_error(error):
                raise Unreachable(f"pyslurm: {error}") from None
            return str(error)
        return ""

    def cancel(self, ids: Collection[str]) -> None:
        """Cancel jobs; after an error, by scancel: pyslurm may report that of an earlier call."""
        job_ids, remaining = _split_ids(ids)
        for position, job_id in enumerate(job_ids):
            try:
                self._pyslurm.Job(int(job_id)).cancel()
            except self._pyslurm.RPCError:
                remaining += job_ids[position:]
                break
        super().cancel(remaining)


def _needs_sbatch(submission: Submission) -> bool:
    """Return whether pyslurm could not submit this, or not unchanged.

    Native options are options of sbatch; it takes licences and reservations, too. pyslurm ends
    arguments at an empty argument and any text at a NUL. It removes carriage returns at the ends
    of the script's lines.
    """
    payload = submission.payload
    return (
        bool(submission.options or submission.job.licences or submission.reservation)
        or submission.job.manager_options is not None
        or not all(payload.arguments)
        or "\r" in payload.script
        or any("\0" in text for text in (payload.script, payload.directory, *payload.arguments))
    )


def _is_controller_error(error: Any) -> bool:
    """Return whether the controller reported the error (slurm_errno.h), not the connection."""
    return bool(2000 <= error.errno < 3000)


def _native_id(job: Any) -> str:
    if job.array_id is None:
        return str(job.id)
    if job.array_tasks_waiting is not None:
        return f"{job.array_id}_[{job.array_tasks_waiting}]"
    # None for task 0, and for pending tasks that were cancelled together: see `_correct_lines`
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
    """Return (job ids, task ids of Slurm's arrays); pyslurm cannot address the latter."""
    job_ids: list[str] = []
    task_ids: list[str] = []
    for native_id in ids:
        (job_ids if native_id.isdecimal() else task_ids).append(native_id)
    return job_ids, task_ids
