"""Incremental storage of ClusterInfo: a listing event stores the difference from the last listing.

A cluster with thousands of jobs has large information; a poll changes a few entries.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from msgspec import structs

from metasched.model.cluster import ClusterInfo


def changed_fields(before: ClusterInfo, after: ClusterInfo) -> dict[str, Any]:
    """Return the difference that turns `before` into `after`, as JSON values.

    Keys are names of fields. `gone` and `came` list changed running jobs, `altered` changed
    partitions. `apply_changes` is the inverse.
    """
    changes: dict[str, Any] = {}
    for field in structs.fields(ClusterInfo):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new:
            continue
        if field.name == "running_jobs" and tuple(sorted(new)) == new:
            counts_before, counts_after = Counter(old), Counter(new)
            changes["gone"] = list((counts_before - counts_after).elements())
            changes["came"] = list((counts_after - counts_before).elements())
        elif field.name == "partitions" and [p.name for p in old] == [p.name for p in new]:
            changes["altered"] = [p for previous, p in zip(old, new, strict=True) if p != previous]
        else:
            changes[field.name] = new
    encoded: dict[str, Any] = msgspec.to_builtins(changes)
    return encoded


def apply_changes(before: ClusterInfo, changes: dict[str, Any]) -> ClusterInfo:
    """Apply a difference made by `changed_fields` to `before`."""
    changes = dict(changes)
    values: dict[str, Any] = msgspec.to_builtins(before)
    if "gone" in changes:
        running = Counter(before.running_jobs)
        running.subtract([(end, cpus) for end, cpus in changes.pop("gone")])
        running.update([(end, cpus) for end, cpus in changes.pop("came")])
        values["running_jobs"] = sorted(running.elements())
    if "altered" in changes:
        altered = {partition["name"]: partition for partition in changes.pop("altered")}
        values["partitions"] = [altered.get(p["name"], p) for p in values["partitions"]]
    return msgspec.convert(values | changes, ClusterInfo)
