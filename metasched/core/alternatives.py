"""Tasks with alternative licences: a stand-in for each alternative waits in their place. Pure.

A stand-in is a copy of its task that requests one alternative only. It waits where any task with
this request waits: for its licences, at a limit, for a cluster. The first stand-in that can be
dispatched decides which licences the task gets; then the other stand-ins leave. So the task
goes on at the events at which a task with such a request would. No part stores which
alternatives were tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from metasched.core.tasks import Task, TaskId
from metasched.model.job import Job
from metasched.policies.eligible import Ineligibility

STRIDE: Final = 1 << 40  # between the indices of a task's stand-ins; above all indices of tasks


def is_stand_in(task: Task) -> bool:
    """Return whether a task is the stand-in of another."""
    return task.index >= STRIDE


def owner_id(task_id: TaskId) -> TaskId:
    """Return the id of the task that a stand-in belongs to; of any other task its own id."""
    job, index = task_id
    return job, index % STRIDE


def stand_in_id(task: Task, choice: int) -> TaskId:
    """Return the id of the stand-in for one of the alternative licences of a task."""
    job, index = task.task_id
    return job, index + (choice + 1) * STRIDE


def request_ids(task: Task) -> list[TaskId]:
    """Return the ids under which a task queues for licences: those of its stand-ins, or its own."""
    if not task.job.licence_choices or is_stand_in(task):
        return [task.task_id]
    return [stand_in_id(task, choice) for choice in range(len(task.job.licence_choices))]


@dataclass(eq=False, slots=True)
class _Entry:
    """A task that waits for a cluster only."""

    task: Task
    stand_ins: tuple[Task, ...]  # by alternative
    obstacles: list[Ineligibility | None]  # of each, when it was examined last; None: it was not


class Alternatives:
    """The stand-ins of all tasks that wait for a cluster only."""

    def __init__(self) -> None:
        self._entries: dict[TaskId, _Entry] = {}  # by id of the task
        self._variants: tuple[Job, ...] = ()  # of the job seen last, which tasks of an array share

    def __contains__(self, task_id: TaskId) -> bool:
        """Return whether a task has stand-ins."""
        return task_id in self._entries

    def open(self, task: Task) -> tuple[Task, ...]:
        """Return the stand-ins of a task; make them if it has none."""
        entry = self._entries.get(task.task_id)
        if entry is None:
            stand_ins = self._make_stand_ins(task)
            obstacles: list[Ineligibility | None] = [None] * len(stand_ins)
            entry = self._entries[task.task_id] = _Entry(task, stand_ins, obstacles)
        return entry.stand_ins

    def close(self, task_id: TaskId) -> tuple[Task, ...]:
        """Forget and return the stand-ins of a task, if it has any."""
        entry = self._entries.pop(task_id, None)
        return () if entry is None else entry.stand_ins

    def stand_ins_of(self, task: Task) -> tuple[Task, ...]:
        """Return the stand-ins of a task with alternatives; copies if it does not wait here."""
        entry = self._entries.get(task.task_id)
        return self._make_stand_ins(task) if entry is None else entry.stand_ins

    def find(self, task_id: TaskId) -> Task | None:
        """Return the stand-in with this id, or None."""
        entry = self._entries.get(owner_id(task_id))
        return None if entry is None else entry.stand_ins[task_id[1] // STRIDE - 1]

    def owner_of(self, stand_in: Task) -> Task:
        """Return the task that a stand-in belongs to."""
        return self._entries[owner_id(stand_in.task_id)].task

    def is_current(self, task: Task) -> bool:
        """Return whether a task is no stand-in, or a stand-in that still waits."""
        return not is_stand_in(task) or self.find(task.task_id) is task

    def record_obstacle(
        self, stand_in: Task, obstacle: Ineligibility
    ) -> tuple[Task, Sequence[Ineligibility]] | None:
        """Record why a stand-in cannot be dispatched.

        Return its task and the obstacles of all alternatives; None if some was not examined yet.
        """
        entry = self._entries[owner_id(stand_in.task_id)]
        entry.obstacles[stand_in.index // STRIDE - 1] = obstacle
        stand_in.reason, stand_in.target = obstacle.reason, None
        examined = [obstacle for obstacle in entry.obstacles if obstacle is not None]
        return (entry.task, examined) if len(examined) == len(entry.obstacles) else None

    def _make_stand_ins(self, task: Task) -> tuple[Task, ...]:
        job = task.job
        if not any(variant is job for variant in self._variants):
            choices = range(len(job.licence_choices))
            self._variants = tuple(job.with_licences(choice) for choice in choices)
        return tuple(
            Task(
                variant,
                stand_in_id(task, choice)[1],
                task.priority,
                task.queue_key,
                target=task.target,
                rejected_by=task.rejected_by,
                refusal=task.refusal,
                past_attempts=task.past_attempts,
            )
            for choice, variant in enumerate(self._variants)
        )
