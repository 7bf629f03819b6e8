"""Ids of jobs and tasks as users write them, and the tasks of an array on a line."""

from __future__ import annotations

import sys

from metasched.errors import ParseError, UserError

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

MAX_DIGITS = 19  # of the id of a job
MAX_TASKS_WIDTH = 30  # characters for a list of tasks on a terminal


def check_job_ids(references: Sequence[str]) -> list[str]:
    """Return the job ids unchanged. Raise UserError for an invalid id."""
    for reference in references:
        if reference.isascii() and reference.isdecimal() and len(reference) < MAX_DIGITS:
            continue  # a job: the parser would take longer to load than the rest of a command
        from metasched.model.arrays import parse_task_selector

        try:
            parse_task_selector(reference)
        except ParseError as error:
            raise UserError(f"{error.problem}, JOB; {error.fix}") from None
    return list(references)


def format_task_id(row: Mapping[str, Any]) -> str:
    """Return the id of a job or task as users write it: `17` or `17_3`."""
    return str(row["job"]) if row.get("task") is None else f"{row['job']}_{row['task']}"


def fold_array_rows(
    rows: Sequence[Mapping[str, Any]], group_key: Callable[[Mapping[str, Any]], object]
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Group the tasks of each array with equal `group_key`, as squeue does: `17_[3-9]`.

    A row may stand for several tasks. Yield the label and the rows of each group.
    """
    groups: dict[object, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["job"], row.get("task") is None, group_key(row)), []).append(row)
    for group in groups.values():
        if group[0].get("task") is None or (len(group) == 1 and group[0].get("folded") is None):
            yield format_task_id(group[0]), group
            continue
        from metasched.model.arrays import FoldedIndices

        tasks = FoldedIndices()
        for indices in sorted(map(row_indices, group), key=lambda indices: indices[0]):
            tasks.add(indices)
        yield format_tasks(group[0]["job"], str(tasks)), group


def row_indices(row: Mapping[str, Any]) -> range:
    """Return the indices of the tasks of an array for which a row stands."""
    from metasched.model.arrays import listed_indices

    return listed_indices(row["task"], row.get("folded"))


def format_tasks(job: int, tasks: str | None) -> str:
    """Return tasks of a job as users write them: `17`, `17_3` or `17_[3-9]`, on a terminal cut.

    `tasks` are indices, as `format_indices` writes them; None: the job is no array.
    """
    if tasks is None:
        return str(job)
    if tasks.isdecimal():
        return f"{job}_{tasks}"
    if sys.stdout.isatty() and "," in tasks[:MAX_TASKS_WIDTH] and len(tasks) > MAX_TASKS_WIDTH:
        tasks = tasks[:MAX_TASKS_WIDTH].rpartition(",")[0] + ",..."
    return f"{job}_[{tasks}]"
