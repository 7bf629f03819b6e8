"""The names under which managers know what was sent to them. Pure."""

from __future__ import annotations


def tag_of(instance: str, job: int, sending: int) -> str:
    """The unique name of one sending in a manager: `ms-<instance>-<job>-<sending>`."""
    return f"ms-{instance}-{job}-{sending}"


def parse_tag(tag: str, instance: str) -> tuple[int, int] | None:
    """(job, sending) if the tag is one of this instance's, else None."""
    match tag.split("-"):
        case ["ms", name, job, sending] if name == instance:
            if job.isdecimal() and sending.isdecimal():
                return int(job), int(sending)
    return None
