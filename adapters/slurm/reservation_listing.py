"""What Slurm says of reservations, of the cores in them, and its lists of hosts: pure text in."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from metasched.adapters.slurm import listing as text
from metasched.model.reservation import reservation_id
from metasched.model.survey import ManagerReservation, ProcessorPool

RESERVED_JOB_FIELDS = ("jobarrayid", "state", "reservation")
CORES_FIELDS = ("nodelist", "cpusstate", "sockets", "cores")


@dataclass(frozen=True)
class SlurmReservation:
    """One reservation of the cluster for its `users`, of so many `cores`.

    `parts` are those of each node; empty where these are whole nodes, and in the first seconds.
    """

    name: str
    start: float
    end: float
    nodes: tuple[str, ...]
    cores: int
    cores_by_node: Mapping[str, int]
    users: str = ""

    def cores_on_nodes(self, cores: Mapping[str, NodeCores]) -> Mapping[str, int] | None:
        """Its cores on each node; None: not told as yet."""
        if self.cores_by_node:
            return self.cores_by_node
        if len(self.nodes) == 1:
            return {self.nodes[0]: self.cores}
        totals = {node: cores[node].count for node in self.nodes if node in cores}
        return totals if sum(totals.values()) == self.cores else None


class ReservedJob(NamedTuple):
    """A job in a reservation, as printed."""

    id: str
    state: str
    reservation: str


@dataclass(frozen=True)
class NodeCores:
    """So many on one node, which have so many processors together."""

    count: int
    cpus: int

    @property
    def threads_per_core(self) -> int:
        """Processors of each."""
        return max(1, self.cpus // max(1, self.count))


def parse_reservations(answer: str) -> list[SlurmReservation]:
    """The reservations of `scontrol --oneliner show reservation`. ValueError if one is not read."""
    parsed = []
    for line in answer.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if "ReservationName" not in fields:
            continue
        if not {"StartTime", "EndTime", "Nodes", "CoreCnt"} <= fields.keys():
            raise ValueError(f"no window in {line[:100]!r}")
        start, end = float(fields["StartTime"]), float(fields["EndTime"])
        core_specs = re.findall(r"NodeName=(\S+) CoreIDs=([\d,-]+)", line)
        cores_by_node = {node: text.task_count(f"_[{ids}]") for node, ids in core_specs}
        nodes, cores = expand_hosts(fields["Nodes"]), int(fields["CoreCnt"])
        name, users = fields["ReservationName"], fields.get("Users", "")
        parsed.append(SlurmReservation(name, start, end, nodes, cores, cores_by_node, users))
    return parsed


def parse_reserved_jobs(answer: str, delimiter: str) -> list[ReservedJob]:
    """The jobs of squeue with WITHIN_FIELDS that are in a reservation."""
    width = len(RESERVED_JOB_FIELDS)
    listed_jobs = (ReservedJob(*line) for line in text.split_records(answer, delimiter, width))
    return [job for job in listed_jobs if job.reservation not in text.EMPTY_VALUES]


def parse_cores(answer: str, delimiter: str) -> dict[str, NodeCores]:
    """The nodes of sinfo with CORES_FIELDS."""
    lines = text.split_records(answer, delimiter, len(CORES_FIELDS))
    return {
        node: NodeCores(int(sockets) * int(cores_per_socket), int(cpus.rpartition("/")[2]))
        for node, cpus, sockets, cores_per_socket in lines
    }


def build_pool(
    up_nodes: Collection[str],
    cores: Mapping[str, NodeCores],
    jobs: Iterable[text.QueueLine],
    reservations: Iterable[SlurmReservation],
    reserved_ids: Collection[str],
    taken_at: float,
) -> ProcessorPool:
    """The cores of the nodes that are `up`, and when some are taken.

    `within` are the ids of jobs in reservations, whose cores are counted with these.
    """
    threads = min(cores[node].threads_per_core for node in up_nodes)
    uses = []
    for job in jobs:
        if (
            text.is_active(job)
            and job.id not in reserved_ids
            and not set(expand_hosts(job.nodes)).isdisjoint(up_nodes)
        ):
            begin = text.parse_time(job.start) or taken_at
            end = text.parse_time(job.end) or begin + text.NO_LIMIT
            uses.append((begin, end, -(-int(job.cpus) // threads)))
    for reservation in reservations:
        if pool_nodes := [node for node in reservation.nodes if node in up_nodes]:
            cores_by_node = reservation.cores_on_nodes(cores)
            core_count = (
                reservation.cores
                if cores_by_node is None
                else sum(cores_by_node.get(node, 0) for node in pool_nodes)
            )
            uses.append((reservation.start, reservation.end, core_count))
    size = sum(cores[node].count for node in up_nodes)
    return ProcessorPool(tuple(up_nodes), size, tuple(sorted(uses)), threads)


def available_nodes(
    node_lines: Sequence[text.NodeLine],
    cores: Mapping[str, NodeCores],
    jobs: Iterable[text.QueueLine],
    reservations: Iterable[SlurmReservation],
    reservation_by_job: Mapping[str, str],
    taken_at: float,
) -> list[text.NodeLine]:
    """The nodes as jobs in no reservation can have them: what is left of those reserved in part.

    `within` names the reservations of jobs.
    """
    current = [
        reservation
        for reservation in reservations
        if reservation.start <= taken_at < reservation.end
    ]
    idle: Counter[str] = Counter()  # processors that only jobs to come in reservations can have
    closed = set()
    for reservation in current:
        for node in cores.keys() & set(reservation.nodes):
            core_count = (reservation.cores_on_nodes(cores) or {}).get(node, cores[node].count)
            idle[node] += core_count * cores[node].threads_per_core
            if core_count >= cores[node].count:
                closed.add(node)
    active_names = {reservation.name for reservation in current}
    for job in jobs:
        if text.is_active(job) and reservation_by_job.get(job.id) in active_names:
            job_nodes = expand_hosts(job.nodes)
            for (
                node
            ) in job_nodes:  # how many on each of several nodes it has is not told: one at least
                idle[node] -= int(job.cpus) if len(job_nodes) == 1 else 1
    return [
        _without_reserved(line, max(0, idle[line.name])) if line.name not in closed else line
        for line in node_lines
    ]


def _without_reserved(line: text.NodeLine, reserved: int) -> text.NodeLine:
    allocated, idle, other, total = map(int, line.cpus.split("/"))
    withheld = min(idle, reserved)
    states = [flag for flag in line.state.split("+") if flag.lower() != "reserved"]
    return line._replace(
        state="+".join(states) or "idle",
        cpus=f"{allocated}/{idle - withheld}/{other + withheld}/{total}",
    )


def upcoming(
    usable: Mapping[str, int],
    cores: Mapping[str, NodeCores],
    jobs: Sequence[text.QueueLine],
    reservations: Sequence[SlurmReservation],
    taken_at: float,
) -> tuple[tuple[float, int], ...]:
    """When windows begin, and how many processors they leave to what begins now and runs then.

    `usable` are the processors of each node that can be used. What runs in another window may be
    counted twice: less is left then.
    """
    windows = []
    for start in sorted(
        {reservation.start for reservation in reservations if reservation.start > taken_at}
    ):
        reserved: Counter[str] = Counter()
        for reservation in reservations:
            if reservation.start <= start < reservation.end:
                cores_by_node = reservation.cores_on_nodes(cores) or {}
                for node in reservation.nodes:
                    reserved[node] += (
                        cores_by_node[node] * cores[node].threads_per_core
                        if node in cores_by_node
                        else usable.get(node, 0)
                    )
        remaining = sum(max(0, cpus - reserved[node]) for node, cpus in usable.items())
        for job in jobs:
            if text.is_active(job) and (text.parse_time(job.end) or math.inf) > start:
                job_nodes = expand_hosts(job.nodes)
                if any(node in usable and reserved[node] < usable[node] for node in job_nodes):
                    remaining -= int(job.cpus)
        windows.append((start, max(0, remaining)))
    return tuple(windows)


def own_reservations(
    reservations: Iterable[SlurmReservation], instance: str
) -> tuple[ManagerReservation, ...]:
    """Those of this instance; of one that is being replaced, the newer, with the cores of both."""
    by_name: dict[str, ManagerReservation] = {}
    for reservation in reservations:
        name = base_name(reservation.name)
        if reservation_id(name, instance) is not None:
            replaced_cores = by_name[name].size or 0 if name in by_name else 0
            by_name[name] = ManagerReservation(
                name,
                reservation.start,
                reservation.end,
                reservation.nodes,
                replaced_cores + reservation.cores,
            )
    return tuple(by_name.values())


def base_name(name: str) -> str:
    """The name of a reservation, before it was replaced by one of another name."""
    return name.removesuffix(_ALTERNATE_SUFFIX)


def alternate_name(name: str) -> str:
    """What replaces a reservation is called."""
    return base_name(name) if name.endswith(_ALTERNATE_SUFFIX) else name + _ALTERNATE_SUFFIX


_ALTERNATE_SUFFIX = "-again"


def expand_hosts(host_list: str) -> tuple[str, ...]:
    """The names in `n1,rack[1-2,07]x[1-2]`. ValueError if it is no such list."""
    if host_list in text.EMPTY_VALUES:
        return ()
    if re.fullmatch(r"([^\[\],]|\[[\d,-]+\])+(,([^\[\],]|\[[\d,-]+\])+)*", host_list) is None:
        raise ValueError(f"{host_list[:80]!r} is no list of hosts")
    return tuple(
        name
        for item in re.findall(r"(?:[^\[\],]|\[[^\]]*\])+", host_list)
        for name in _expand_item(item)
    )


def _expand_item(item: str) -> Iterator[str]:
    before, bracket, rest = item.partition("[")
    if not bracket:
        yield item
        return
    inside, _, after = rest.partition("]")
    for item_range in inside.split(","):
        first, _, last = item_range.partition("-")
        for number in range(int(first), int(last or first) + 1):
            for tail in _expand_item(after):
                yield f"{before}{number:0{len(first)}}{tail}"
