"""The names under which managers know what was sent to them. Pure."""

from __future__ import annotations


def tag_of(instance: str, job: int, sending: int) -> str:
    """The unique name of one sending in a manager: `ms-<instance>-<job>-<sending>`."""
    return f"ms-{instance}-{job}-{sending}"


def parse_tag(tag: str, instance: str) -> tuple[int, int] | None:
    """(job, sending) if the tag is one of this instance's, else None."""
    parts = tag.split("-")
    if len(parts) != 4 or parts[0] != "ms" or parts[1] != instance:
        return None
    if not (parts[2].isdecimal() and parts[3].isdecimal()):
        return None
    return int(parts[2]), int(parts[3])
