"""Job arrays: ranges such as `1-1000%50` or `1,3,5-9:2`, and the variables of each task. Pure."""

# `metasched submit` and the drop-in commands import this module: Python 3.9, and no slow imports
# (typing, re) at the top.
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from metasched.errors import ParseError, quote_for_error

MAX_TASKS = 1_000_000  # of an array, whatever a site allows
MAX_INDEX = 2**31 - 1
_SYNTAX_HINT = "write it as 1-100, 1,3,5-9:2 or 1-1000%50"


@dataclass(frozen=True)
class JobArray:
    """The tasks of a job array."""

    indices: tuple[int, ...]  # ascending
    step: int = 1  # distance of neighbouring indices, if constant
    limit: int | None = None  # tasks that may run at a time; None: unlimited

    def variables(self, job: int, index: int) -> dict[str, str]:
        """Return the environment variables of task `index`, in the spelling of each manager."""
        first, last, step = str(self.indices[0]), str(self.indices[-1]), str(self.step)
        task_id, count = str(index), str(len(self.indices))
        return {
            "METASCHED_ARRAY_JOB_ID": str(job),
            "METASCHED_ARRAY_TASK_ID": task_id,
            "METASCHED_ARRAY_TASK_COUNT": count,
            "METASCHED_ARRAY_TASK_MIN": first,
            "METASCHED_ARRAY_TASK_MAX": last,
            "METASCHED_ARRAY_TASK_STEP": step,
            "SLURM_ARRAY_JOB_ID": str(job),
            "SLURM_ARRAY_TASK_ID": task_id,
            "SLURM_ARRAY_TASK_COUNT": count,
            "SLURM_ARRAY_TASK_MIN": first,
            "SLURM_ARRAY_TASK_MAX": last,
            "SLURM_ARRAY_TASK_STEP": step,
            "SGE_TASK_ID": task_id,
            "SGE_TASK_FIRST": first,
            "SGE_TASK_LAST": last,
            "SGE_TASK_STEPSIZE": step,
            "PBS_ARRAY_INDEX": task_id,
            "PBS_ARRAYID": task_id,
        }


@lru_cache(maxsize=16)  # repeated calls: the tasks of a job start singly
def parse_array(text: str) -> JobArray:
    """Parse a range of tasks. Raises ParseError for a bad range or more than MAX_TASKS tasks."""
    ranges, percent, limit_text = text.strip().partition("%")
    limit = _parse_number(limit_text, text) if percent else None
    if limit == 0:
        raise ParseError(f"limit of 0 tasks in {quote_for_error(text)}", "write %1 or more")
    indices = _parse_indices(ranges, text)
    step = (indices[-1] - indices[0]) // max(len(indices) - 1, 1) or 1
    even = indices == tuple(range(indices[0], indices[-1] + 1, step))
    return JobArray(indices, step if even else 1, limit)


def _parse_indices(ranges: str, text: str) -> tuple[int, ...]:
    parts = [_parse_range(part, text) for part in ranges.split(",")]
    if sum(map(len, parts)) > MAX_TASKS:
        raise ParseError(f"more than {MAX_TASKS} tasks in {quote_for_error(text)}", "ask for fewer")
    if len(parts) == 1:
        return tuple(parts[0])
    return tuple(sorted({index for part in parts for index in part}))


def _parse_range(part: str, text: str) -> range:
    """Parse `7`, `1-9` or `1-9:2`."""
    first, dash, range_end = part.strip().partition("-")
    last, colon, step = range_end.partition(":")
    begin = _parse_number(first, text)
    if not dash:
        return range(begin, begin + 1)
    end, stride = _parse_number(last, text), _parse_number(step, text) if colon else 1
    if end < begin:
        raise ParseError(f"{quote_for_error(part)} ends before it begins", _SYNTAX_HINT)
    if stride == 0:
        raise ParseError(f"step of 0 in {quote_for_error(part)}", _SYNTAX_HINT)
    return range(begin, end + 1, stride)


def _parse_number(digits: str, text: str) -> int:
    if not (
        digits.isascii() and digits.isdecimal() and len(digits) <= 10 and int(digits) <= MAX_INDEX
    ):
        raise ParseError(f"{quote_for_error(text)} is no range of tasks", _SYNTAX_HINT)
    return int(digits)


class FoldedIndices:
    """Ascending indices, folded as they are added; `str` gives a short range: `1-3,7,9-13:2`."""

    def __init__(self) -> None:
        self.count = 0
        self._runs: list[range] = []

    def add(self, indices: range) -> None:
        """Add indices above all others; `indices` is not empty."""
        if len(indices) == 2 and indices.step > 1:  # written singly: each may belong to a run
            self.add(indices[:1])
            indices = indices[1:]
        self.count += len(indices)
        last = self._runs.pop() if self._runs else range(0)
        if len(last) == 2 and last.step > 1 and not _continues(last, indices):
            # written singly: the second may start a run
            self._runs.append(last[:1])
            last = last[1:]
        if last and _continues(last, indices):
            self._runs.append(range(last[0], indices[-1] + 1, indices[0] - last[-1]))
        else:
            self._runs += (last, indices) if last else (indices,)

    def __str__(self) -> str:
        return ",".join(map(format_run, self._runs))


def _continues(run: range, indices: range) -> bool:
    """Return whether indices are a run together with a run before them."""
    step = indices[0] - run[-1]
    return all(len(part) == 1 or part.step == step for part in (run, indices))


def format_run(run: range) -> str:
    """Format a run of indices as a range: `1-9:2`."""
    if len(run) == 1 or (len(run) == 2 and run.step > 1):
        return ",".join(map(str, run))
    return f"{run[0]}-{run[-1]}{f':{run.step}' if run.step > 1 else ''}"


def format_indices(indices: Iterable[int]) -> str:
    """Format ascending indices as a short range: `1-3,7,9-13:2`."""
    folded = FoldedIndices()
    for index in indices:
        folded.add(range(index, index + 1))
    return str(folded)


def listed_indices(task: int, folded: str | None) -> range:
    """Return the indices for which a row of a listing stands: `task`, or those of `folded`.

    Raises ParseError unless `format_run` wrote `folded`.
    """
    return range(task, task + 1) if folded is None else _parse_range(folded, folded)


def parse_task_selector(selector: str) -> tuple[int, tuple[int, ...] | None]:
    """Parse `17` (indices None: all tasks), `17_3` or `17_[3-9,12]` into job and indices.

    Raises ParseError for anything else.
    """
    job, separator, indices_text = selector.partition("_")
    bracketed = indices_text[:1] == "[" and indices_text[-1:] == "]"
    if job.isascii() and job.isdecimal() and len(job) < 19:
        if not separator:
            return int(job), None
        try:
            if bracketed:
                return int(job), _parse_indices(indices_text[1:-1], selector)
            return int(job), (_parse_number(indices_text, selector),)
        except ParseError:
            pass
    raise ParseError(
        f"{quote_for_error(selector)} is no job", "write 17, 17_3 for a task, 17_[3-9] for some"
    )


def task_number(job_id: int, array: JobArray | None, index: int) -> int:
    """Return the number that only this task has, among all jobs and tasks."""
    return job_id + (0 if array is None else bisect_left(array.indices, index))
