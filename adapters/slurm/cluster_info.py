"""What Slurm says of a whole cluster: partitions, nodes, running and pending work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from metasched.adapters.slurm.listing import (
    _CANNOT_START,
    _HOLDS_PROCESSORS,
    _STATES,
    NO_LIMIT,
    NOTHING,
    UNUSABLE,
    NodeLine,
    QueueLine,
    duration,
    gres,
    tasks_in,
    when,
)
from metasched.model.cluster import Facts, Nodes, Partition
from metasched.model.job import State


def facts(
    jobs: Sequence[QueueLine], places: Sequence[NodeLine], taken: float, ours: set[str]
) -> Facts:
    """Everyone's demand and what there is to meet it; `ours` are the ids of our jobs."""
    partitions = _partitions(places)
    tiers = {line.partition.rstrip("*"): int(line.tier) for line in places}
    usable = usable_cpus(places)
    running, waiting = [], []
    owed, pending = 0.0, 0
    for job in jobs:
        state = _STATES.get(job.state, State.UNKNOWN)
        if state in _HOLDS_PROCESSORS or job.state == "CONFIGURING":
            # nothing that moves with the clock: a listing without news must look like the last
            end = when(job.end) or (when(job.start) or 0.0) + NO_LIMIT
            running.append((end, _count(job)))
        elif state is State.PENDING and _could_start(job, taken):
            tasks, limit = tasks_in(job.id), _limit(job, partitions)
            pending += tasks
            if job.id not in ours:
                owed += tasks * _count(job) * limit
            tier = max((tiers.get(name, 0) for name in job.partition.split(",")), default=0)
            first = int(re.split(r"\D", job.id, maxsplit=1)[0])
            waiting.append(((-tier, -int(job.priority), first), (_count(job), limit)))
    return Facts(
        cpus=sum(total for _, total in usable.values()),
        used=sum(used for used, _ in usable.values()),
        partitions=tuple(partitions.values()),
        running=tuple(sorted(running)),
        owed=owed,
        pending=pending,
        head=min(waiting)[1] if waiting else None,
    )


def _count(job: QueueLine) -> int:
    return int(job.cpus.partition("-")[0])  # a range while pending: at least so many


def _could_start(job: QueueLine, taken: float) -> bool:
    eligible = when(job.eligible)
    return (
        int(job.priority) > 0
        and not _CANNOT_START.match(job.reason)
        and (eligible is None or eligible <= taken)
    )


def _limit(job: QueueLine, partitions: Mapping[str, Partition]) -> float:
    if job.limit.upper() == "UNLIMITED":
        return NO_LIMIT
    partition = partitions.get(job.partition.partition(",")[0])
    fallback = (partition.default_time or partition.max_time) if partition else None
    return duration(job.limit) or fallback or NO_LIMIT


def _partitions(places: Sequence[NodeLine]) -> dict[str, Partition]:
    found: dict[str, Partition] = {}
    members: dict[str, list[NodeLine]] = {}
    for line in places:
        members.setdefault(line.partition, []).append(line)
    for shown, lines in members.items():
        one, most = lines[0], lines[0].sizes.rpartition("-")[2]
        found[shown.rstrip("*")] = Partition(
            name=shown.rstrip("*"),
            nodes=_alike(lines),
            default=shown.endswith("*"),
            up=one.available == "up",
            max_time=duration(one.limit),
            default_time=duration(one.default_limit),
            max_nodes=int(most) if most.isdecimal() else None,
        )
    return found


def _alike(lines: Iterable[NodeLine]) -> tuple[Nodes, ...]:
    """Nodes grouped by what they have and what is free."""
    kinds = Counter((_usable(line), line.cpus, *line[4:9]) for line in lines)
    groups = []
    for (up, cpus, memory, used_memory, has, used, features), count in kinds.items():
        _, idle, _, total = map(int, cpus.split("/"))
        held = gres(used)
        groups.append(
            Nodes(
                count=count,
                cpus=total,
                free_cpus=idle if up else 0,
                memory=int(memory),
                free_memory=max(0, int(memory) - int(used_memory)) if up else 0,
                gres=gres(has),
                free_gres={n: c - held.get(n, 0) if up else 0 for n, c in gres(has).items()},
                features=() if features in NOTHING else tuple(features.split(",")),
                up=up,
            )
        )
    return tuple(groups)


def usable_cpus(places: Iterable[NodeLine]) -> dict[str, tuple[int, int]]:
    """Processors of each node that can be used: those in use, and all."""
    return {line.name: _cpus(line) for line in places if _usable(line)}


def _usable(line: NodeLine) -> bool:
    return UNUSABLE.isdisjoint(line.state.lower().split("+"))


def _cpus(line: NodeLine) -> tuple[int, int]:
    allocated, _, _, total = map(int, line.cpus.split("/"))
    return allocated, total
