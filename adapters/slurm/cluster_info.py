"""What Slurm says of a whole cluster: partitions, nodes, running and pending work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from metasched.adapters.slurm.listing import (
    _CANNOT_START,
    _HOLDS_PROCESSORS,
    _STATES,
    EMPTY_VALUES,
    NO_LIMIT,
    UNUSABLE_FLAGS,
    NodeLine,
    QueueLine,
    parse_duration,
    parse_gres,
    parse_time,
    task_count,
)
from metasched.model.cluster import ClusterInfo, NodeCapacity, Partition
from metasched.model.job import State


def cluster_info(
    jobs: Sequence[QueueLine], node_lines: Sequence[NodeLine], taken_at: float, own_ids: set[str]
) -> ClusterInfo:
    """Everyone's demand and what there is to meet it; `ours` are the ids of our jobs."""
    partitions = _partitions(node_lines)
    tiers = {line.partition.rstrip("*"): int(line.priority_tier) for line in node_lines}
    usable = usable_cpus(node_lines)
    running, waiting = [], []
    owed, pending = 0.0, 0
    for job in jobs:
        state = _STATES.get(job.state, State.UNKNOWN)
        if state in _HOLDS_PROCESSORS or job.state == "CONFIGURING":
            # nothing that moves with the clock: a listing without news must look like the last
            end = parse_time(job.end) or (parse_time(job.start) or 0.0) + NO_LIMIT
            running.append((end, _min_cpus(job)))
        elif state is State.PENDING and _could_start(job, taken_at):
            tasks, limit = task_count(job.id), _time_limit(job, partitions)
            pending += tasks
            if job.id not in own_ids:
                owed += tasks * _min_cpus(job) * limit
            tier = max((tiers.get(name, 0) for name in job.partition.split(",")), default=0)
            first_id = int(re.split(r"\D", job.id, maxsplit=1)[0])
            waiting.append(((-tier, -int(job.priority), first_id), (_min_cpus(job), limit)))
    return ClusterInfo(
        cpus=sum(total for _, total in usable.values()),
        used_cpus=sum(used for used, _ in usable.values()),
        partitions=tuple(partitions.values()),
        running_jobs=tuple(sorted(running)),
        owed_by_others=owed,
        pending_jobs=pending,
        queue_head=min(waiting)[1] if waiting else None,
    )


def _min_cpus(job: QueueLine) -> int:
    return int(job.cpus.partition("-")[0])  # a range while pending: at least so many


def _could_start(job: QueueLine, taken_at: float) -> bool:
    eligible = parse_time(job.eligible)
    return (
        int(job.priority) > 0
        and not _CANNOT_START.match(job.reason)
        and (eligible is None or eligible <= taken_at)
    )


def _time_limit(job: QueueLine, partitions: Mapping[str, Partition]) -> float:
    if job.limit.upper() == "UNLIMITED":
        return NO_LIMIT
    partition = partitions.get(job.partition.partition(",")[0])
    fallback = (partition.default_time or partition.max_time) if partition else None
    return parse_duration(job.limit) or fallback or NO_LIMIT


def _partitions(node_lines: Sequence[NodeLine]) -> dict[str, Partition]:
    partitions: dict[str, Partition] = {}
    lines_by_partition: dict[str, list[NodeLine]] = {}
    for line in node_lines:
        lines_by_partition.setdefault(line.partition, []).append(line)
    for label, lines in lines_by_partition.items():
        first, max_nodes = lines[0], lines[0].job_sizes.rpartition("-")[2]
        partitions[label.rstrip("*")] = Partition(
            name=label.rstrip("*"),
            nodes=_group_nodes(lines),
            default=label.endswith("*"),
            up=first.available == "up",
            max_time=parse_duration(first.limit),
            default_time=parse_duration(first.default_limit),
            max_nodes=int(max_nodes) if max_nodes.isdecimal() else None,
        )
    return partitions


def _group_nodes(lines: Iterable[NodeLine]) -> tuple[NodeCapacity, ...]:
    """Nodes grouped by what they have and what is free."""
    node_kinds = Counter((_is_usable(line), line.cpus, *line[4:9]) for line in lines)
    groups = []
    for (
        up,
        cpus,
        memory,
        used_memory,
        gres_text,
        used_gres,
        features,
    ), count in node_kinds.items():
        _, idle, _, total = map(int, cpus.split("/"))
        used_counts = parse_gres(used_gres)
        groups.append(
            NodeCapacity(
                count=count,
                cpus=total,
                free_cpus=idle if up else 0,
                memory=int(memory),
                free_memory=max(0, int(memory) - int(used_memory)) if up else 0,
                gres=parse_gres(gres_text),
                free_gres={
                    name: total_count - used_counts.get(name, 0) if up else 0
                    for name, total_count in parse_gres(gres_text).items()
                },
                features=() if features in EMPTY_VALUES else tuple(features.split(",")),
                up=up,
            )
        )
    return tuple(groups)


def usable_cpus(node_lines: Iterable[NodeLine]) -> dict[str, tuple[int, int]]:
    """Processors of each node that can be used: those in use, and all."""
    return {line.name: _cpu_counts(line) for line in node_lines if _is_usable(line)}


def _is_usable(line: NodeLine) -> bool:
    return UNUSABLE_FLAGS.isdisjoint(line.state.lower().split("+"))


def _cpu_counts(line: NodeLine) -> tuple[int, int]:
    allocated, _, _, total = map(int, line.cpus.split("/"))
    return allocated, total
