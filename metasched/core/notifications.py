"""Changes of a step of the core that are reported to owners of jobs and to webhooks. Pure.

`job_changes` is a function of the outcome of a step. Whether an array as a whole has begun or ended
is known to the database: `db.outbox` writes the notices in the transaction of the change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec import structs

from metasched.core.events import Outcome
from metasched.core.tasks import Attempt, Task, TaskId
from metasched.core.transitions import FINAL, STARTED, TaskEvent
from metasched.model.audit import one_line
from metasched.model.job import Job, State
from metasched.model.mail import MailRequest
from metasched.model.mail_types import ARRAY_TASKS, END, FAIL, TIME_LIMIT
from metasched.model.notice import JOB_BEGAN, JOB_ENDED, JOB_REQUEUED, LIMIT_KINDS, Notice

GOOD_ENDS: Final = frozenset({State.COMPLETED, State.CANCELLED})
MAX_PATH_LENGTH: Final = 4096  # characters
MAX_WEBHOOK_PATH: Final = 255  # bytes; of many jobs in a request, so that it is not refused
_REQUEUES: Final = frozenset({TaskEvent.REQUEUE, TaskEvent.RESTART, TaskEvent.UNBEGUN})
_BY_WEIGHT: Final = (State.FAILED, State.TIMEOUT, State.REJECTED, State.CANCELLED)


class Beginning(NamedTuple):
    """An attempt that runs."""

    task: Task
    attempt: Attempt
    was_unknown: bool  # so it may have run before, too


class End(NamedTuple):
    """A task that has ended, with the attempt that ended in this step."""

    task: Task
    attempt: Attempt | None


@dataclass(slots=True)
class JobProgress:
    """What happened to the tasks of a job in a step."""

    job: Job
    begun: list[Beginning] = field(default_factory=list)
    ended: list[End] = field(default_factory=list)
    requeued: list[Task] = field(default_factory=list)


def job_changes(outcome: Outcome, *, all_ends: bool) -> dict[int, JobProgress]:
    """Return the changes of a step by job, for jobs whose owners want mail.

    `all_ends`: also the ends of all other jobs, for webhooks. Tasks that were cancelled in a
    remainder of an array are not in it: see `Outcome.cancelled_runs`.
    """
    changes_by_job: dict[int, JobProgress] = {}
    ends: dict[TaskId, Task] = {}
    for change in outcome.changes:
        before, after = change.before, change.after
        if before is None or before is after:
            continue
        task = outcome.tasks.get((change.job, change.index))
        if task is None or (task.job.mail is None and not all_ends):
            continue
        if after in FINAL:
            ends[task.task_id] = task
        elif change.event in _REQUEUES:
            _changes_of(changes_by_job, task.job).requeued.append(task)
        elif after is State.RUNNING and before not in STARTED and task.state is State.RUNNING:
            beginning = Beginning(task, task.live_attempt, before is State.UNKNOWN)
            _changes_of(changes_by_job, task.job).begun.append(beginning)
    if ends:
        last = {task.task_id: attempt for task, attempt in outcome.closed_attempts}
        for task_id, task in ends.items():
            if task.state in FINAL:  # else it was requeued in the same step
                _changes_of(changes_by_job, task.job).ended.append(End(task, last.get(task_id)))
    return changes_by_job


def _changes_of(changes_by_job: dict[int, JobProgress], job: Job) -> JobProgress:
    changes = changes_by_job.get(job.id)
    if changes is None:
        changes = changes_by_job[job.id] = JobProgress(job)
    return changes


def reports_tasks(job: Job) -> bool:
    """Return whether mails are about single tasks, not about the array as a whole."""
    return job.array is None or (job.mail is not None and ARRAY_TASKS in job.mail.types)


def reports_end(mail: MailRequest, state: State) -> bool:
    """Return whether an end is mailed, as in Slurm: END is for every end, FAIL for failures."""
    if END in mail.types:
        return True
    is_wanted = state is State.TIMEOUT and TIME_LIMIT in mail.types
    return is_wanted or (FAIL in mail.types and state not in GOOD_ENDS)


def begin_notice(beginning: Beginning, time: float) -> Notice:
    """Return the notice about a job or task that runs."""
    task, attempt = beginning.task, beginning.attempt
    notice = _notice(JOB_BEGAN, task.job, time, task)
    return structs.replace(
        notice, cluster=attempt.cluster, state=State.RUNNING.value, started=attempt.started
    )


def limit_notice(task: Task, percent: int, time: float) -> Notice:
    """Return the notice about a running job or task that has used a share of its time limit.

    Of an array it is about the array as a whole, unless its owner wants mails about single tasks.
    """
    attempt = task.live_attempt
    about = task if reports_tasks(task.job) else None
    return structs.replace(
        _notice(LIMIT_KINDS[percent], task.job, time, about),
        cluster=attempt.cluster,
        state=State.RUNNING.value,
        started=attempt.started,
    )


def requeue_notice(task: Task, time: float) -> Notice:
    """Return the notice about a job or task that is queued again."""
    return structs.replace(_notice(JOB_REQUEUED, task.job, time, task), state=task.state.value)


def end_notice(end: End, time: float) -> Notice:
    """Return the notice about a job or task that has ended."""
    task, attempt = end
    notice = structs.replace(
        _notice(JOB_ENDED, task.job, time, task),
        state=task.state.value,
        reason=one_line(task.reason),
        ended=task.ended,
        output=_output(task.job),
    )
    if attempt is None:
        return notice
    # the state of the attempt of a failed task is more precise
    state = attempt.state if task.state is State.FAILED else task.state
    return structs.replace(
        notice,
        state=state.value,
        cluster=attempt.cluster,
        started=attempt.started,
        ended=task.ended if attempt.ended is None else attempt.ended,
        exit_code=attempt.exit_code,
        signal=attempt.signal,
    )


def array_begin_notice(beginning: Beginning, time: float) -> Notice:
    """Return the notice about an array whose first task runs."""
    return structs.replace(begin_notice(beginning, time), task=None)


def array_end_notice(job: Job, counts: Mapping[str, int], time: float) -> Notice:
    """Return the notice about an array whose tasks have all ended; their number by state."""
    return structs.replace(
        _notice(JOB_ENDED, job, time, None),
        state=array_state(counts).value,
        ended=time,
        counts=dict(counts),
        output=_output(job),
    )


def for_webhook(notice: Notice) -> Notice:
    """Return a notice without output paths if a path is long: cut, it would name another file."""
    if any(len(path.encode()) > MAX_WEBHOOK_PATH for path in notice.output):
        return structs.replace(notice, output=())
    return notice


def array_state(counts: Mapping[str, int]) -> State:
    """Return the state of an array whose tasks have all ended, from their number by state."""
    states = {State(name) for name, count in counts.items() if count}
    return next((state for state in _BY_WEIGHT if state in states), State.COMPLETED)


def _notice(kind: str, job: Job, time: float, task: Task | None) -> Notice:
    return Notice(
        kind=kind,
        time=time,
        user=job.user,
        job=job.id,
        task=None if task is None or job.array is None else task.index,
        array=None if job.array is None else one_line(job.array),  # it may name each index
        name=one_line(job.name),
        submitted=job.submitted,
    )


def _output(job: Job) -> tuple[str, ...]:
    return tuple(one_line(path, MAX_PATH_LENGTH) for path in job.writes)
