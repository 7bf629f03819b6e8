"""The attributes of a job that users can modify, and the effect of a modification."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import structs
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from metasched.model.job import Job
from metasched.model.request_bounds import MAX_NAME, MAX_NAMES
from metasched.model.units import MAX_NUMBER

MAX_EPOCH = 1e11  # epoch seconds: the year 5138
METASCHED_FIELDS = frozenset({"deadline", "owner_priority", "name"})  # managers need no update


def _check_line(text: str) -> str:
    if not text.isprintable() or not 0 < len(text) <= 255:
        raise ValueError("it is not a line of 1 to 255 characters")
    return text


Line = Annotated[str, Field(max_length=MAX_NAME), AfterValidator(_check_line)]
EpochSeconds = Annotated[float, Field(ge=0, lt=MAX_EPOCH, allow_inf_nan=False)]


class JobChanges(BaseModel):
    """New values of job attributes; an attribute that is not given stays, None removes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    time_limit: Annotated[float, Field(gt=0, le=MAX_NUMBER)] | None = None  # seconds
    deadline: EpochSeconds | None = None
    begin: EpochSeconds | None = None
    urgency: Annotated[int, Field(ge=0, le=3)] = 0
    priority: Annotated[int, Field(ge=1, le=100)] | None = None  # None: as classified
    name: Line = ""
    clusters: Annotated[tuple[Line, ...], Field(max_length=MAX_NAMES)] = ()  # empty: all
    account: Line | None = None
    partition: Line | None = None
    qos: Line | None = None
    constraint: Line | None = None

    def apply_to(self, job: Job, default_time: float) -> Job:
        """Return the modified job. `default_time` in seconds is for a job without a time limit.

        Raise ValueError if the result is invalid.
        """
        values: dict[str, Any] = {name: getattr(self, name) for name in self.model_fields_set}
        values.pop("priority", None)
        if "urgency" in values:
            values["owner_priority"] = values.pop("urgency")
        if "time_limit" in values:
            values["estimated"] = self.time_limit or default_time
            if job.manager_options is not None and job.manager_options.unlimited:
                values["manager_options"] = structs.replace(job.manager_options, unlimited=False)
        return structs.replace(job, **values)


def changed_fields(before: Job, after: Job) -> frozenset[str]:
    """Return the names of the fields that differ between two jobs."""
    names = set(Job.__struct_fields__) - {"estimated"}
    return frozenset(name for name in names if getattr(before, name) != getattr(after, name))


def describe_changes(before: Job, after: Job) -> str:
    """Describe the changes for the job's story."""
    changes = []
    for name in sorted(changed_fields(before, after)):
        old, new = (_format_value(getattr(job, name)) for job in (before, after))
        changes.append(f"{name.replace('_', ' ')} {old} -> {new}")
    return ", ".join(changes)


def _format_value(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "any"
    if isinstance(value, float):
        return f"{value:.15g}"
    return "none" if value is None else str(value)


def needs_new_dispatch(before: Job, after: Job, now: float) -> bool:
    """Return whether a dispatched job must be withdrawn and dispatched again.

    A new list of allowed clusters, or a begin time in the past, does not require it.
    """
    changed = changed_fields(before, after) - METASCHED_FIELDS - {"clusters"}
    return bool(changed - {"begin"}) or ("begin" in changed and (after.begin or 0.0) > now)
