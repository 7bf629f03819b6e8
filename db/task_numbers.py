"""Tasks of arrays by their own numbers: an array has as many ids as tasks (`Job.task_number`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, func, select

from metasched.db.job_pages import TaskSelector
from metasched.db.schema import job
from metasched.model.arrays import parse_array

MAX_NUMBERS = 10_000  # that a request may name; further numbers are those of no task
_PORTION = 10_000  # ids in a statement


def replace_numbers(
    connection: Connection,
    selectors: Sequence[TaskSelector],
    first_id: int,
    visible_to: str | None,
) -> list[TaskSelector]:
    """Return the selectors with tasks in the place of their numbers.

    Arrays with ids below `first_id` may be of a release that gave an array a single id.
    With `visible_to`, tasks of other users have no numbers.
    """
    numbers = sorted({id for id, index in selectors if index is None and id >= first_id})
    stored: set[int] = set()
    for first in range(0, len(numbers), _PORTION):
        query = select(job.c.id).where(job.c.id.in_(numbers[first : first + _PORTION]))
        stored.update(connection.execute(query).scalars())
    unknown = [number for number in numbers if number not in stored][:MAX_NUMBERS]
    tasks = dict(_tasks_of(connection, unknown, first_id, visible_to))
    return [tasks.get(id, (id, index)) if index is None else (id, index) for id, index in selectors]


def _tasks_of(
    connection: Connection, numbers: Sequence[int], first_id: int, visible_to: str | None
) -> Iterator[tuple[int, TaskSelector]]:
    """Yield numbers, which ascend and are no ids of jobs, with the tasks that have them."""
    columns = (job.c.id, job.c.array, job.c.user)
    first, following = 0, 0.0  # ids of the job before the number, and of the next job
    indices: tuple[int, ...] = ()  # of the job before it, if its tasks have numbers
    for number in numbers:
        if number >= following:
            before = select(*columns).where(job.c.id < number, job.c.id >= first_id)
            row = connection.execute(before.order_by(job.c.id.desc()).limit(1)).one_or_none()
            after = select(func.min(job.c.id)).where(job.c.id > number)
            following = connection.execute(after).scalar_one() or math.inf
            indices = ()
            if row is not None and row.array is not None and visible_to in (None, row.user):
                first, indices = row.id, parse_array(row.array).indices
        if number - first < len(indices):
            yield number, (first, indices[number - first])
