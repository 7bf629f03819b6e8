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
