"""What users may change of a job after its submission, and what a change takes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from metasched.model.job import Job
from metasched.units import MAX_NUMBER

MAX_EPOCH = 1e11  # epoch seconds: the year 5138
METASCHED_FIELDS = frozenset({"deadline", "owner_priority", "name"})  # no manager needs to know


def _check_line(text: str) -> str:
    if not text.isprintable() or not 0 < len(text) <= 255:
        raise ValueError("it is no line of 1 to 255 characters")
    return text


Line = Annotated[str, AfterValidator(_check_line)]
EpochSeconds = Annotated[float, Field(ge=0, lt=MAX_EPOCH, allow_inf_nan=False)]


class JobChanges(BaseModel):
    """What is to be different; what is not given stays, None takes it away.

    `time_limit` in seconds, `deadline` and `begin` in epoch seconds; `priority` None: as
    classified.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    time_limit: Annotated[float, Field(gt=0, le=MAX_NUMBER)] | None = None
    deadline: EpochSeconds | None = None
    begin: EpochSeconds | None = None
    urgency: Annotated[int, Field(ge=0, le=3)] = 0
    priority: Annotated[int, Field(ge=1, le=100)] | None = None
    name: Line = ""
    clusters: tuple[Line, ...] = ()
    account: Line | None = None
    partition: Line | None = None
    qos: Line | None = None
    constraint: Line | None = None

    def apply_to(self, job: Job, default_time: float) -> Job:
        """The job as it is to be; `default_time` in seconds, for one without a limit.

        ValueError if it makes no sense.
        """
        values: dict[str, Any] = {name: getattr(self, name) for name in self.model_fields_set}
        values.pop("priority", None)
        if "urgency" in values:
            values["owner_priority"] = values.pop("urgency")
        if "time_limit" in values:
            values["estimated"] = self.time_limit or default_time
        return replace(job, **values)


def changed_fields(before: Job, after: Job) -> frozenset[str]:
    """The names of the fields in which two jobs differ."""
    names = {field.name for field in fields(Job)} - {"estimated"}
    return frozenset(name for name in names if getattr(before, name) != getattr(after, name))


def describe_changes(before: Job, after: Job) -> str:
    """The changes in words, for the story."""
    return ", ".join(
        f"{name.replace('_', ' ')} {_format_value(getattr(before, name))} -> {_format_value(getattr(after, name))}"
        for name in sorted(changed_fields(before, after))
    )


def _format_value(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "any"
    if isinstance(value, float):
        return f"{value:.15g}"
    return "none" if value is None else str(value)


def needs_new_dispatch(before: Job, after: Job, now: float) -> bool:
    """Whether a manager that has the job already must get it again.

    Other clusters to choose from, and a begin time that has come, take nothing by themselves.
    """
    changed = changed_fields(before, after) - METASCHED_FIELDS - {"clusters"}
    return bool(changed - {"begin"}) or ("begin" in changed and (after.begin or 0.0) > now)
