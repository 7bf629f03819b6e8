"""Tags: the names of dispatches in their managers. Pure."""

from __future__ import annotations


def tag_of(instance: str, job: int, dispatch_id: int) -> str:
    """Return the unique name of a dispatch: `ms-<instance>-<job>-<dispatch id>`."""
    return f"ms-{instance}-{job}-{dispatch_id}"


def parse_tag(tag: str, instance: str) -> tuple[int, int] | None:
    """Return (job, dispatch id) if the tag is of this instance, else None."""
    match tag.split("-"):
        case ["ms", name, job, dispatch_id] if name == instance:
            if job.isdecimal() and dispatch_id.isdecimal():
                return int(job), int(dispatch_id)
    return None
