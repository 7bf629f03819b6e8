"""The decisions in outcomes of the core, as lines that are the same for every build and run.

A line has states, codes and figures, but no texts: `TEXTS` may change without a new decision.
Figures are rounded to 1e-6. Fields at their defaults are left out, so that a new field changes no
line until it is used. Repeated values make no line: storing a task again decides nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

import msgspec

from metasched.core.array_remainder import Remainder
from metasched.core.events import Outcome
from metasched.core.strikes import Strike
from metasched.core.tasks import Attempt, Task, TaskChange
from metasched.model.licence import LicenceCount, LicenceStatus, ReturnedLease
from metasched.model.reservation import Reservation

DECIMALS: Final = 6

# Sentences for people, words of managers, and times of polls, which decide nothing.
# `Task.reason` is no text: it is a code by which programs and users know why a task waits.
TEXTS: Final[Mapping[type, frozenset[str]]] = {
    Attempt: frozenset({"manager_reason", "sentence"}),
    Strike: frozenset({"sentence"}),
    Task: frozenset({"refusal"}),
    TaskChange: frozenset({"cause"}),
    ReturnedLease: frozenset({"reason"}),
    LicenceStatus: frozenset({"unknown_reason", "observed"}),
    LicenceCount: frozenset({"observed"}),
    Reservation: frozenset({"cause"}),
}
# Requests as users made them, and names that are part of the line's subject
INPUTS: Final[Mapping[type, frozenset[str]]] = {
    Task: frozenset({"job", "index", "task_id"}),
    Remainder: frozenset({"job"}),
}


class DecisionLines:
    """Describes the outcomes of a core, in the order of its steps."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}  # description by subject

    def of(self, outcome: Outcome) -> list[str]:
        """Return the lines of an outcome, before the core makes another step."""
        return [
            *(f"action {described(action)}" for action in outcome.actions),
            *_transitions(outcome.changes),
            *self._changed("task", outcome.tasks),
            *(f"left its remainder: {described(key)}" for key in sorted(outcome.split_tasks)),
            *self._changed("remainder of job", outcome.remainders),
            *(f"cancelled of job {job}: {described(run)}" for job, run in outcome.cancelled_runs),
            *(
                f"ended attempt of task {described(task.task_id)}: {described(attempt)}"
                for task, attempt in outcome.closed_attempts
            ),
            *self._changed("past attempt", outcome.past_attempts),
            *self._changed("strikes", outcome.strikes),
            *(f"refusing: {name}" for name, words in outcome.refusing.items() if words),
            *(f"lease {described(change)}" for change in outcome.leases),
            *self._changed("licence", outcome.licence_statuses),
            *self._changed("reservation", outcome.reservations),
            *(f"reservation action {described(each)}" for each in outcome.reservation_actions),
            *(f"use of a limit {described(use)}" for use in sorted(outcome.limit_uses or ())),
            *_listed("limit", outcome.limit_changes),
            *self._changed("share", outcome.share_uses),
            *(f"use by others {described(use)}" for use in outcome.foreign_uses),
            *self._changed(
                "calendar entry",
                {
                    id: entry and (entry.next_run, entry.running, entry.last_runs)
                    for id, entry in outcome.calendar.items()
                },
            ),
            *self._changed("tuning of", {each.parameter: each for each in outcome.tuning or ()}),
            *(f"tuning {described(change)}" for change in outcome.tuning_changes),
            *([f"priority {outcome.priority}"] if outcome.priority else ()),
            *(f"priority of {described(part)}" for part in outcome.priority_parts),
        ]

    def _changed(self, label: str, by_key: Mapping[Any, Any]) -> Iterator[str]:
        """Yield a line for each value that is not as it was described last."""
        for line in _listed(label, by_key):
            subject, _, description = line.partition(": ")
            if self._last.get(subject) != description:
                self._last[subject] = description
                yield line


def _listed(label: str, by_key: Mapping[Any, Any]) -> Iterator[str]:
    for key in sorted(by_key):
        yield f"{label} {described(key)}: {described(by_key[key])}"


def _transitions(changes: Iterable[TaskChange]) -> Iterator[str]:
    """Yield changes of states; other lines of stories are texts."""
    for change in changes:
        if change.before is not change.after:
            yield f"transition {described(change)}"


def described(value: Any) -> str:
    """Return a value as a text that does not depend on the order of sets and mappings."""
    kind = type(value)
    if kind is float:
        return _number(value)
    if kind is int or kind is bool or value is None:
        return str(value)
    if kind is str:
        return value if value.isidentifier() else repr(value)
    if isinstance(value, Enum):
        return described(value.value)
    if (defaults := _FIELDS[kind]) is not None:
        parts = [
            f" {name}={text}"
            for name, default, default_text in defaults
            if (each := getattr(value, name)) is not default
            and each != default
            and (text := described(each)) != default_text  # a float that is rounded to it
        ]
        return kind.__name__ + "".join(parts)
    if isinstance(value, dict | MappingProxyType):
        items = sorted((described(key), described(each)) for key, each in value.items())
        return "{" + ", ".join(f"{key}: {each}" for key, each in items) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(described, value))) + "}"
    return "(" + ", ".join(map(described, value)) + ")"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    rounded = round(value, DECIMALS)
    return str(int(rounded) if rounded.is_integer() else rounded)


_REQUIRED: Final = object()  # no value equals it


class _FieldsByClass(dict[type, list[tuple[str, Any, str]] | None]):
    """The fields to describe of each class, with their defaults; None: it has no fields."""

    def __missing__(self, kind: type) -> list[tuple[str, Any, str]] | None:
        fields = _fields_of(kind)
        if fields is None:
            self[kind] = None
            return None
        omitted = TEXTS.get(kind, frozenset()) | INPUTS.get(kind, frozenset())
        described_fields = self[kind] = [
            (name, default, described(default) if isinstance(default, int | float) else "")
            for name, default in fields
            if name not in omitted
        ]
        return described_fields


def _fields_of(kind: type) -> list[tuple[str, Any]] | None:
    """Return the fields of a class with their defaults; None: it has no fields."""
    if issubclass(kind, msgspec.Struct):
        return [
            (f.name, f.default if f.default_factory is msgspec.NODEFAULT else f.default_factory())
            for f in msgspec.structs.fields(kind)
        ]
    if dataclasses.is_dataclass(kind):
        return [
            (f.name, f.default if f.default_factory is dataclasses.MISSING else f.default_factory())
            for f in dataclasses.fields(kind)
        ]
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        named: Any = kind
        return [(name, named._field_defaults.get(name, _REQUIRED)) for name in named._fields]
    return None


_FIELDS: Final = _FieldsByClass()
