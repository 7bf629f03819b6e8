"""Whether metasched's ids differ from the ids of all clusters, as the drop-in commands need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

RECOMMENDED_FIRST_ID = 100_000_001  # above MaxJobId of Slurm, unless a cluster is in a federation


def first_id_problem(first_id: int, clusters: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the problem with a daemon's `first_id` and its remedy; empty texts if it is valid.

    `clusters` are the rows of `clusters --json`. The highest id of a cluster that has never
    answered is unknown, and not judged.
    """
    highest = {row["cluster"]: row.get("max_native_id") or 0 for row in clusters}
    enough = max([RECOMMENDED_FIRST_ID, *(id + 1 for id in highest.values())])
    remedy = f"set first_id = {enough} in its configuration and restart it"
    if first_id <= 1:
        return "the daemon has no first_id, its ids may be those of a cluster's jobs", remedy
    for name, native_id in highest.items():
        if native_id >= first_id:
            return f"cluster {name} has ids up to {native_id}, first_id is {first_id}", remedy
    return "", ""
