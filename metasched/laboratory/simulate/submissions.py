"""Arrays of a workload as the daemon receives them: one submission, whose tasks are entries.

Decisions depend on that: all tasks of an array have its id, which decides draws between equal
clusters; it is classified once, its limit holds tasks back, and all tasks are placed in one step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import structs

from metasched.core.tasks import TaskId
from metasched.laboratory.simulate.workload import WorkloadEntry
from metasched.model.arrays import format_indices
from metasched.model.job import Job


class ArrayArrival(NamedTuple):
    """Tasks of an array that arrive together.

    If others arrive at other times, the array is submitted held, and each arrival is a release.
    """

    job: Job  # the whole array
    indices: tuple[int, ...]  # of these tasks, ascending
    submits: bool  # whether they are the first

    @property
    def has_limit(self) -> bool:
        """Whether some of its tasks wait until others have ended."""
        return self.job.parsed_array is not None and self.job.parsed_array.limit is not None


def task_id_of(entry: WorkloadEntry) -> TaskId:
    """Return the id by which the core knows the task of an entry."""
    return entry.task or (entry.job.id, 0)


def array_arrivals(entries: Iterable[WorkloadEntry]) -> dict[int, ArrayArrival]:
    """Return the arrivals of arrays, by the id of the first entry that belongs to each."""
    arrays: dict[int, list[WorkloadEntry]] = {}
    for entry in entries:
        if entry.job.array is not None:
            arrays.setdefault(task_id_of(entry)[0], []).append(entry)
    arrivals: dict[int, ArrayArrival] = {}
    for job_id, tasks in arrays.items():
        groups: dict[float, list[WorkloadEntry]] = {}  # by arrival, in its order
        for entry in tasks:
            groups.setdefault(entry.job.submitted, []).append(entry)
        job = _array_of(job_id, tasks, held=len(groups) > 1)
        for number, group in enumerate(groups.values()):
            arrivals[group[0].job.id] = ArrayArrival(job, _indices(group), number == 0)
    return arrivals


def _array_of(job_id: int, tasks: list[WorkloadEntry], *, held: bool) -> Job:
    """Return the array of these tasks, which need not be all that were submitted.

    It can go where any of its tasks can. Where managers gave them different numbers of processors,
    it asks for the most.
    """
    first = tasks[0].job
    assert first.parsed_array is not None, first
    limit = first.parsed_array.limit
    everywhere = any(not entry.job.clusters for entry in tasks)
    names = dict.fromkeys(name for entry in tasks for name in entry.job.clusters)
    return structs.replace(
        first,
        id=job_id,
        array=format_indices(_indices(tasks)) + ("" if limit is None else f"%{limit}"),
        held=held,
        cpus=max(entry.job.cpus for entry in tasks),
        clusters=() if everywhere else tuple(names),
    )


def _indices(tasks: Iterable[WorkloadEntry]) -> tuple[int, ...]:
    return tuple(sorted(task_id_of(entry)[1] for entry in tasks))
