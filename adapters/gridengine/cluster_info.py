"""What Grid Engine says of a whole cell: queues, slots, running and pending work."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from metasched.adapters.gridengine.listing import (
    EVERYWHERE,
    Host,
    Job,
    Limits,
    Queue,
    seconds,
)
from metasched.model.cluster import Facts, Nodes, Partition


def facts(
    listed: Sequence[Job],
    places: Sequence[Host],
    limits: Mapping[str, Limits],
    totals: Mapping[str, Mapping[str, float]],
    memory: str | None,
    ours: set[str],
    taken: float,
    default_time: float,
    awaiting: Collection[str] = (),
) -> Facts:
    """Everyone's demand and what there is to meet it.

    `totals` are those of each host: what is left and what runs are told by two commands, between
    which jobs begin and end, and the former is rounded, so that they do not add up. `ours` are the
    ids of our jobs, `awaiting` those of jobs that wait in a reservation, in nobody's way; `memory`
    is the consumable that counts it, `default_time` what a job without h_rt is taken to need.
    """

    def limit(job: Job) -> float:
        return seconds(job.requests.get("h_rt", "")) or default_time

    running, waiting = [], []
    owed = 0.0
    for job in listed:
        if not job.waits:
            end = (taken if job.started is None else job.started) + limit(job)
            running.append((max(end, taken), job.slots))
        elif job.queued and job.id not in awaiting:
            waiting.append(job)
            if job.id not in ours:
                owed += job.count * job.slots * limit(job)
    kinds = [_Place(host, totals.get(host.name, {}), memory) for host in places]
    usable = [place for place in kinds if place.up]
    return Facts(
        cpus=sum(place.cpus for place in usable),
        used=sum(place.used for place in usable),
        partitions=_partitions(kinds, limits),
        running=tuple(sorted(running)),
        owed=owed,
        pending=sum(job.count for job in waiting),
        head=(waiting[0].slots, limit(waiting[0])) if waiting else None,
    )


class _Place:
    """A host with what is left of it, and what it has in all."""

    def __init__(self, host: Host, totals: Mapping[str, float], memory: str | None) -> None:
        self.host, self._totals, self._memory = host, totals, memory
        self.used = sum(queue.used for queue in host.queues)
        self.up = any(queue.up for queue in host.queues)
        most = sum(queue.slots for queue in host.queues)
        self.cpus = most
        self.left = most - self.used
        if "slots" in host.free:
            self.left = min(self.left, int(host.free["slots"]))
            self.cpus = min(most, int(host.free["slots"]) + self.used)

    def nodes(self, among: Iterable[Queue]) -> Nodes:
        """This host as these queues give it out."""
        queues = list(among)
        up = any(queue.up for queue in queues)
        free = {n: int(v) for n, v in self.host.free.items() if n not in ("slots", self._memory)}
        left = min(self.left, sum(queue.slots - queue.used for queue in queues if queue.up))
        memory = self._memory or ""
        counted = memory in self.host.free
        free_memory = int(self.host.free[memory] / 2**20) if counted else None
        all_memory = int(self._totals.get(memory, 0.0) / 2**20)
        has = {name: max(left, int(self._totals.get(name, 0))) for name, left in free.items()}
        return Nodes(
            count=1,
            cpus=min(self.cpus, sum(queue.slots for queue in queues)),
            free_cpus=max(0, left) if up else 0,
            memory=None if free_memory is None else max(free_memory, all_memory),
            free_memory=None if free_memory is None else (free_memory if up else 0),
            gres=has,
            free_gres={name: left if up else 0 for name, left in free.items()},
            up=up,
        )


def _partitions(places: Sequence[_Place], limits: Mapping[str, Limits]) -> tuple[Partition, ...]:
    names = list(limits)
    found = []
    for name in names:
        nodes = [
            place.nodes(queue for queue in place.host.queues if queue.name == name)
            for place in places
            if any(queue.name == name for queue in place.host.queues)
        ]
        found.append(_partition(name, nodes, limits[name].time, default=len(names) == 1))
    if len(names) > 1:
        every = [place.nodes(place.host.queues) for place in places if place.host.queues]
        times = [limit.time for limit in limits.values()]
        longest = None if None in times else max(time for time in times if time is not None)
        found.insert(0, _partition(EVERYWHERE, every, longest, default=True))
    return tuple(found)


def _partition(
    name: str, nodes: Sequence[Nodes], longest: float | None, default: bool
) -> Partition:
    kinds: list[tuple[Nodes, int]] = []
    for node in nodes:
        for position, (kind, count) in enumerate(kinds):
            if kind == node:
                kinds[position] = (kind, count + 1)
                break
        else:
            kinds.append((node, 1))
    return Partition(
        name=name,
        nodes=tuple(_times(kind, count) for kind, count in kinds),
        default=default,
        up=any(node.up for node in nodes),
        max_time=longest,
        max_nodes=1,
    )


def _times(kind: Nodes, count: int) -> Nodes:
    return Nodes(**{**vars(kind), "count": count})
