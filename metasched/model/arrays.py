"""Job arrays: ranges such as `1-1000%50` or `1,3,5-9:2`, and the variables of each task. Pure."""

# Imported by every `metasched submit`: nothing slow (typing, re) at the top.

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from metasched.errors import Unreadable, shown

MOST_TASKS = 1_000_000  # of one array, whatever a site allows
HIGHEST = 2**31 - 1  # index
_FORMS = "write it as 1-100, 1,3,5-9:2 or 1-1000%50"


@dataclass(frozen=True)
class Array:
    """The tasks of an array, ascending; at most `limit` of them at a time (None: any number)."""

    indices: tuple[int, ...]
    step: int = 1  # the distance of neighbours where it is the same everywhere
    limit: int | None = None

    def variables(self, job: int, index: int) -> dict[str, str]:
        """What the task `index` finds in its environment, by the names of every manager."""
        first, last, step = str(self.indices[0]), str(self.indices[-1]), str(self.step)
        own, count = str(index), str(len(self.indices))
        return {
            "METASCHED_ARRAY_JOB_ID": str(job),
            "METASCHED_ARRAY_TASK_ID": own,
            "METASCHED_ARRAY_TASK_COUNT": count,
            "METASCHED_ARRAY_TASK_MIN": first,
            "METASCHED_ARRAY_TASK_MAX": last,
            "METASCHED_ARRAY_TASK_STEP": step,
            "SLURM_ARRAY_JOB_ID": str(job),
            "SLURM_ARRAY_TASK_ID": own,
            "SLURM_ARRAY_TASK_COUNT": count,
            "SLURM_ARRAY_TASK_MIN": first,
            "SLURM_ARRAY_TASK_MAX": last,
            "SLURM_ARRAY_TASK_STEP": step,
            "SGE_TASK_ID": own,
            "SGE_TASK_FIRST": first,
            "SGE_TASK_LAST": last,
            "SGE_TASK_STEPSIZE": step,
            "PBS_ARRAY_INDEX": own,
            "PBS_ARRAYID": own,
        }


@lru_cache(maxsize=16)  # of a job whose tasks start one by one
def parse_array(text: str) -> Array:
    """The array that a range means. Unreadable if it is none, or has more than MOST_TASKS."""
    ranges, percent, most = text.strip().partition("%")
    limit = _number(most, text) if percent else None
    if limit == 0:
        raise Unreadable(f"no task at a time in {shown(text)}", "write %1 or more")
    indices = _indices(ranges, text)
    step = (indices[-1] - indices[0]) // max(len(indices) - 1, 1) or 1
    even = indices == tuple(range(indices[0], indices[-1] + 1, step))
    return Array(indices, step if even else 1, limit)


def _indices(ranges: str, text: str) -> tuple[int, ...]:
    parts = [_range(part, text) for part in ranges.split(",")]
    if sum(map(len, parts)) > MOST_TASKS:
        raise Unreadable(f"more than {MOST_TASKS} tasks in {shown(text)}", "ask for fewer")
    if len(parts) == 1:
        return tuple(parts[0])
    return tuple(sorted({index for part in parts for index in part}))


def _range(part: str, text: str) -> range:
    """`7`, `1-9` or `1-9:2`."""
    first, dash, rest = part.strip().partition("-")
    last, colon, step = rest.partition(":")
    begin = _number(first, text)
    if not dash:
        return range(begin, begin + 1)
    end, by = _number(last, text), _number(step, text) if colon else 1
    if end < begin:
        raise Unreadable(f"{shown(part)} ends before it begins", _FORMS)
    if by == 0:
        raise Unreadable(f"a step of 0 in {shown(part)}", _FORMS)
    return range(begin, end + 1, by)


def _number(word: str, text: str) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) <= 10 and int(word) <= HIGHEST):
        raise Unreadable(f"{shown(text)} is no range of tasks", _FORMS)
    return int(word)


def folded(indices: Iterable[int]) -> str:
    """Ascending indices as short as they can be written: `1-3,7,9-13:2`."""
    some = list(indices)
    parts = []
    first = 0
    while first < len(some):
        last = first + 1
        step = some[last] - some[first] if last < len(some) else 1
        while last < len(some) and some[last] - some[last - 1] == step:
            last += 1
        if last - first == 2 and step > 1:  # two are no range, the second may begin one
            last -= 1
        if last - first == 1:
            parts.append(str(some[first]))
        else:
            parts.append(f"{some[first]}-{some[last - 1]}{f':{step}' if step > 1 else ''}")
        first = last
    return ",".join(parts)


def parse_tasks(word: str) -> tuple[int, tuple[int, ...] | None]:
    """The job and the indices that a user names: `17` (None: all), `17_3`, `17_[3-9,12]`.

    Unreadable if the word names nothing.
    """
    job, mark, tasks = word.partition("_")
    bracketed = tasks[:1] == "[" and tasks[-1:] == "]"
    if job.isascii() and job.isdecimal() and len(job) < 19:
        if not mark:
            return int(job), None
        try:
            return int(job), _indices(tasks[1:-1], word) if bracketed else (_number(tasks, word),)
        except Unreadable:
            pass
    raise Unreadable(f"{shown(word)} is no job", "write 17, 17_3 for a task, 17_[3-9] for some")
