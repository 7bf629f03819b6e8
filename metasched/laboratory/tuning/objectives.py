"""Objectives of tuning: figures of a schedule to lower, each a mean over jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from metasched.errors import UserError, quote_for_error
from metasched.laboratory.simulate import metrics
from metasched.laboratory.simulate.engine import Schedule, ScheduledJob


def _missed(scheduled: ScheduledJob) -> float | None:
    return None if scheduled.job.deadline is None else float(metrics.tardiness(scheduled) > 0)


def _tardiness(scheduled: ScheduledJob) -> float | None:
    return None if scheduled.job.deadline is None else metrics.tardiness(scheduled)


# The value of a job, None if it does not count, by the name of the mean in `metrics.summary`.
# Only such means have an interval by resampling jobs: a makespan or a longest wait has none.
OBJECTIVES: Final[Mapping[str, Callable[[ScheduledJob], float | None]]] = {
    "mean_wait": lambda scheduled: scheduled.wait,
    "mean_flow": lambda scheduled: scheduled.flow,
    "mean_slowdown": metrics.slowdown,
    "mean_bounded_slowdown": metrics.bounded_slowdown,
    "missed_deadlines": _missed,
    "mean_tardiness": _tardiness,
}
OF_DEADLINES: Final = ("missed_deadlines", "mean_tardiness")  # 0 without deadlines
MAX_OBJECTIVES: Final = 4  # with more, most policies are a trade-off


def parse_objectives(text: str) -> tuple[str, ...]:
    """Read names with commas between. UserError for an unknown or repeated name."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in OBJECTIVES:
            close = get_close_matches(name, OBJECTIVES, n=1)
            remedy = f"write {close[0]}" if close else f"available are {', '.join(OBJECTIVES)}"
            raise UserError(f"unknown objective {quote_for_error(name)}, --objective; {remedy}")
    if len(set(names)) < len(names):
        raise UserError(f"an objective is named twice, --objective {text}; name each once")
    if len(names) > MAX_OBJECTIVES:
        raise UserError(
            f"{len(names)} objectives, --objective; name at most {MAX_OBJECTIVES} of them"
        )
    return names


def job_values(schedule: Schedule, objective: str) -> list[float | None]:
    """Return the value of each job in the order of the schedule."""
    return list(map(OBJECTIVES[objective], schedule.jobs))


def mean_values(schedule: Schedule, objectives: Sequence[str]) -> tuple[float, ...]:
    """Return the means of a schedule; 0 where no job counts."""
    return tuple(
        metrics.mean(value for value in job_values(schedule, name) if value is not None)
        for name in objectives
    )


def dominates(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether no value of the first is higher, and at least one is lower."""
    pairs = list(zip(first, second, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
