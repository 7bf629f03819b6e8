"""The names under which managers know what was sent to them. Pure."""

from __future__ import annotations


def tag_of(instance: str, job: int, dispatch_id: int) -> str:
    """The unique name of one sending in a manager: `ms-<instance>-<job>-<sending>`."""
    return f"ms-{instance}-{job}-{dispatch_id}"


def parse_tag(tag: str, instance: str) -> tuple[int, int] | None:
    """(job, sending) if the tag is one of this instance's, else None."""
    match tag.split("-"):
        case ["ms", name, job, dispatch_id] if name == instance:
            if job.isdecimal() and dispatch_id.isdecimal():
                return int(job), int(dispatch_id)
    return None
