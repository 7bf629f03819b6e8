"""Facts of clusters as they are stored: what has changed, or what outlasts a restart.

A cluster with thousands of jobs has long facts of which a poll changes a few entries.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from msgspec import structs

from metasched.model.cluster import Facts


def changed(before: Facts, now: Facts) -> dict[str, Any]:
    """What must be known beside `before` to tell `now`; `applied` is the inverse."""
    told: dict[str, Any] = {}
    for field in structs.fields(Facts):
        old, new = getattr(before, field.name), getattr(now, field.name)
        if old == new:
            continue
        if field.name == "running" and tuple(sorted(new)) == new:
            was, is_ = Counter(old), Counter(new)
            told["gone"], told["came"] = list((was - is_).elements()), list((is_ - was).elements())
        elif field.name == "partitions" and [p.name for p in old] == [p.name for p in new]:
            told["altered"] = [p for p, same in zip(new, old, strict=True) if p != same]
        else:
            told[field.name] = new
    builtins: dict[str, Any] = msgspec.to_builtins(told)
    return builtins


def applied(before: Facts, told: dict[str, Any]) -> Facts:
    """The facts that `changed` told of."""
    told = dict(told)
    values: dict[str, Any] = msgspec.to_builtins(before)
    if "gone" in told:
        running = Counter(before.running)
        running.subtract([(end, cpus) for end, cpus in told.pop("gone")])
        running.update([(end, cpus) for end, cpus in told.pop("came")])
        values["running"] = sorted(running.elements())
    if "altered" in told:
        altered = {p["name"]: p for p in told.pop("altered")}
        values["partitions"] = [altered.get(p["name"], p) for p in values["partitions"]]
    return msgspec.convert(values | told, Facts)
