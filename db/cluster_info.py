"""Facts of clusters as they are stored: what has changed, or what outlasts a restart.

A cluster with thousands of jobs has long facts of which a poll changes a few entries.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from msgspec import structs

from metasched.model.cluster import ClusterInfo


def changed_fields(before: ClusterInfo, after: ClusterInfo) -> dict[str, Any]:
    """What must be known beside `before` to tell `now`; `applied` is the inverse."""
    changes: dict[str, Any] = {}
    for field in structs.fields(ClusterInfo):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new:
            continue
        if field.name == "running_jobs" and tuple(sorted(new)) == new:
            counts_before, counts_after = Counter(old), Counter(new)
            changes["gone"], changes["came"] = (
                list((counts_before - counts_after).elements()),
                list((counts_after - counts_before).elements()),
            )
        elif field.name == "partitions" and [partition.name for partition in old] == [
            partition.name for partition in new
        ]:
            changes["altered"] = [
                partition
                for partition, unchanged in zip(new, old, strict=True)
                if partition != unchanged
            ]
        else:
            changes[field.encode_name] = new
    encoded: dict[str, Any] = msgspec.to_builtins(changes)
    return encoded


def apply_changes(before: ClusterInfo, changes: dict[str, Any]) -> ClusterInfo:
    """The facts that `changed` told of."""
    changes = dict(changes)
    values: dict[str, Any] = msgspec.to_builtins(before)
    if "gone" in changes:
        running = Counter(before.running_jobs)
        running.subtract([(end, cpus) for end, cpus in changes.pop("gone")])
        running.update([(end, cpus) for end, cpus in changes.pop("came")])
        values["running"] = sorted(running.elements())
    if "altered" in changes:
        altered = {partition["name"]: partition for partition in changes.pop("altered")}
        values["partitions"] = [
            altered.get(partition["name"], partition) for partition in values["partitions"]
        ]
    return msgspec.convert(values | changes, ClusterInfo)
