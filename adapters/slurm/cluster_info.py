"""Partitions, free nodes, running and pending jobs of a Slurm cluster, from its listing. Pure."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from metasched.adapters.slurm.listing import (
    HOLDS_PROCESSORS,
    NO_LIMIT,
    UNUSABLE_FLAGS,
    QueueLine,
    SinfoRecord,
    parse_duration,
    parse_epoch_time,
    parse_gres,
    parse_state,
    task_count,
)
from metasched.adapters.slurm.records import EMPTY_VALUES, parse_int
from metasched.model.cluster import ClusterInfo, NamedNodes, NodeCapacity, Partition
from metasched.model.host_lists import compressed_hosts
from metasched.model.job import State
from metasched.model.listing import MAX_LISTED_JOBS, ListedQueue, PendingJob, StartedJob

# Reasons of pending jobs that do not compete for processors. They include limits of accounts and
# of QOS (Assoc..., QOS...): Slurm passes such jobs over.
_CANNOT_START = re.compile(
    r"JobHeld|Dependency|BeginTime|Partition(Config|Down|Inactive|NodeLimit|TimeLimit)"
    r"|BadConstraints|InactiveLimit|Invalid(Account|QOS)|AccountNotAllowed|QOSNotAllowed"
    r"|Assoc|QOS|JobArrayTaskLimit|ReservationDeleted|Reservation$|launch_failed|job_requeued"
)


def build_cluster_info(
    jobs: Sequence[QueueLine], node_lines: Sequence[SinfoRecord], taken_at: float, own_ids: set[str]
) -> ClusterInfo:
    """Summarise the load of all users and the free nodes; `own_ids` are jobs of this instance."""
    partitions = _partitions(node_lines)
    tiers = _priority_tiers(node_lines)
    usable = usable_cpus(node_lines)
    running, waiting = [], []
    owed, pending = 0.0, 0
    for job in jobs:
        state = parse_state(job.state)
        if _holds_processors(job):
            running.append((_end(job), _min_cpus(job)))
        elif state is State.PENDING and _could_start(job, taken_at):
            tasks, limit = task_count(job.id), _time_limit(job, partitions)
            pending += tasks
            if job.id not in own_ids:
                owed += tasks * _min_cpus(job) * limit
            waiting.append((_rank(job, tiers), (_min_cpus(job), limit)))
    return ClusterInfo(
        cpus=sum(total for _, total in usable.values()),
        used_cpus=sum(used for used, _ in usable.values()),
        partitions=tuple(partitions.values()),
        running_jobs=tuple(sorted(running)),
        owed_by_others=owed,
        pending_jobs=pending,
        queue_head=min(waiting)[1] if waiting else None,
    )


def build_queue(
    jobs: Sequence[QueueLine],
    node_lines: Sequence[SinfoRecord],
    partitions: Iterable[Partition],
    taken_at: float,
    own_ids: set[str],
) -> ListedQueue:
    """Return the first pending jobs in Slurm's order of scheduling.

    `partitions` and `own_ids` are those of `build_cluster_info`. O(p log MAX_LISTED_JOBS).
    """
    tiers, by_name = _priority_tiers(node_lines), {part.name: part for part in partitions}
    pending = (
        job
        for job in jobs
        if parse_state(job.state) is State.PENDING
        and not _holds_processors(job)
        and _could_start(job, taken_at)
    )
    first = heapq.nsmallest(MAX_LISTED_JOBS + 1, pending, key=lambda job: _rank(job, tiers))
    return ListedQueue(
        tuple(
            PendingJob(
                native_id=_first_id(job) if job.id in own_ids else "",
                cpus=max(_min_cpus(job), 1),
                limit=max(_time_limit(job, by_name), 1.0),
                tasks=task_count(job.id),
                owner=job.user,
            )
            for job in first[:MAX_LISTED_JOBS]
        ),
        complete=len(first) <= MAX_LISTED_JOBS,
        running=tuple(
            StartedJob(end, _min_cpus(job), max(_time_limit(job, by_name), 1.0), job.user)
            for end, _, job in heapq.nsmallest(
                MAX_LISTED_JOBS,
                ((_end(job), job.id, job) for job in jobs if _holds_processors(job)),
            )
        ),
    )


def _holds_processors(job: QueueLine) -> bool:
    return parse_state(job.state) in HOLDS_PROCESSORS or job.state == "CONFIGURING"


def _end(job: QueueLine) -> float:
    """Return the end of a running job by its limit.

    It is independent of the clock: unchanged jobs must give an unchanged ClusterInfo.
    """
    return parse_epoch_time(job.end) or (parse_epoch_time(job.start) or 0.0) + NO_LIMIT


def _priority_tiers(node_lines: Iterable[SinfoRecord]) -> dict[str, int]:
    return {line.partition.rstrip("*"): parse_int(line.priority_tier) for line in node_lines}


def _rank(job: QueueLine, tiers: Mapping[str, int]) -> tuple[int, int, int]:
    """Return the place of a pending job in Slurm's order, the lowest first."""
    tier = max((tiers.get(name, 0) for name in job.partition.split(",")), default=0)
    return -tier, -parse_int(job.priority), parse_int(_first_id(job))


def _first_id(job: QueueLine) -> str:
    """Return the id of a job or array without tasks."""
    return re.split(r"\D", job.id, maxsplit=1)[0]


def _min_cpus(job: QueueLine) -> int:
    return parse_int(job.cpus.partition("-")[0])  # a range of a pending job: its minimum


def _could_start(job: QueueLine, taken_at: float) -> bool:
    eligible = parse_epoch_time(job.eligible)
    return (
        parse_int(job.priority) > 0
        and not _CANNOT_START.match(job.reason)
        and (eligible is None or eligible <= taken_at)
    )


def _time_limit(job: QueueLine, partitions: Mapping[str, Partition]) -> float:
    if job.limit.upper() == "UNLIMITED":
        return NO_LIMIT
    partition = partitions.get(job.partition.partition(",")[0])
    fallback = (partition.default_time or partition.max_time) if partition else None
    return parse_duration(job.limit) or fallback or NO_LIMIT


def _partitions(node_lines: Sequence[SinfoRecord]) -> dict[str, Partition]:
    """Return the partitions in the order of their names: sinfo orders them by states of nodes."""
    partitions: dict[str, Partition] = {}
    lines_by_partition: dict[str, list[SinfoRecord]] = {}
    for line in node_lines:
        lines_by_partition.setdefault(line.partition, []).append(line)
    for label, lines in sorted(lines_by_partition.items()):
        first, max_nodes = lines[0], lines[0].job_sizes.rpartition("-")[2]
        partitions[label.rstrip("*")] = Partition(
            name=label.rstrip("*"),
            nodes=_group_nodes(lines),
            default=label.endswith("*"),
            up=first.available == "up",
            max_time=parse_duration(first.limit),
            default_time=parse_duration(first.default_limit),
            max_nodes=parse_int(max_nodes) if max_nodes.isdecimal() else None,
            named_nodes=_name_nodes(lines),
        )
    return partitions


def _name_nodes(lines: Iterable[SinfoRecord]) -> tuple[NamedNodes, ...]:
    """Name nodes that are alike in capacity."""
    names: dict[tuple[bool, str, str, str, str], list[str]] = {}
    for line in lines:
        kind = _is_usable(line), line.cpus.rpartition("/")[2], line.memory, line.gres, line.features
        names.setdefault(kind, []).append(line.name)
    return tuple(
        NamedNodes(
            compressed_hosts(frozenset(alike)),
            NodeCapacity(
                count=0,
                cpus=parse_int(cpus),
                free_cpus=0,
                memory=parse_int(memory),
                gres=parse_gres(gres),
                features=_features(features),
                up=up,
            ),
        )
        for (up, cpus, memory, gres, features), alike in sorted(names.items())
    )


def _features(text: str) -> tuple[str, ...]:
    return () if text in EMPTY_VALUES else tuple(text.split(","))


def _group_nodes(lines: Iterable[SinfoRecord]) -> tuple[NodeCapacity, ...]:
    """Group nodes that are alike in capacity and in free resources."""
    kinds = Counter((_is_usable(line), line.cpus, *line[4:9]) for line in lines)
    groups = []
    for (up, cpus, memory, used_memory, gres, used_gres, features), count in kinds.items():
        _, idle, _, total = map(parse_int, cpus.split("/"))
        totals, used = parse_gres(gres), parse_gres(used_gres)
        groups.append(
            NodeCapacity(
                count=count,
                cpus=total,
                free_cpus=idle if up else 0,
                memory=parse_int(memory),
                free_memory=max(0, parse_int(memory) - parse_int(used_memory)) if up else 0,
                gres=totals,
                free_gres={n: count - used.get(n, 0) if up else 0 for n, count in totals.items()},
                features=_features(features),
                up=up,
            )
        )
    return tuple(groups)


def usable_cpus(node_lines: Iterable[SinfoRecord]) -> dict[str, tuple[int, int]]:
    """Return (processors in use, all processors) of each usable node."""
    return {line.name: _cpu_counts(line) for line in node_lines if _is_usable(line)}


def _is_usable(line: SinfoRecord) -> bool:
    return UNUSABLE_FLAGS.isdisjoint(line.state.lower().split("+"))


def _cpu_counts(line: SinfoRecord) -> tuple[int, int]:
    allocated, _, _, total = map(parse_int, line.cpus.split("/"))
    return allocated, total
