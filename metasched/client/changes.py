"""Changed tasks as in answers: a row for equal tasks of a job, or a row for each task."""

from __future__ import annotations

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metasched.client.job_answers import ChangedTask, FoldedChange


def unfold(changes: Sequence[FoldedChange]) -> list[ChangedTask]:
    """Return a row for each task, by job and index. ParseError: an invalid answer."""
    rows: list[ChangedTask] = []
    for change in changes:
        indices: Sequence[int | None] = (None,)
        if change["tasks"] is not None:
            from metasched.model.arrays import parse_array

            indices = parse_array(change["tasks"]).indices
        rows += [
            {
                "job": change["job"],
                "task": index,
                "was": change["was"],
                "state": change["state"],
                "note": change["note"],
            }
            for index in indices
        ]
    rows.sort(key=lambda row: (row["job"], row["task"] or 0))
    return rows


def fold(rows: Sequence[ChangedTask]) -> list[FoldedChange]:
    """Return a single row for equal tasks of a job; `rows` are by job and index."""
    from metasched.model.arrays import format_indices

    equal: dict[tuple[object, ...], list[ChangedTask]] = {}
    for row in rows:
        key = row["job"], row["was"], row["state"], row["note"]
        equal.setdefault(key, []).append(row)
    return [
        {
            "job": tasks[0]["job"],
            "tasks": format_indices(task for row in tasks if (task := row["task"]) is not None)
            or None,
            "count": len(tasks),
            "was": tasks[0]["was"],
            "state": tasks[0]["state"],
            "note": tasks[0]["note"],
        }
        for tasks in equal.values()
    ]
