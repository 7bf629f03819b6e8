"""Reservations of Slurm, their cores, and lists of hosts, parsed and evaluated. Pure."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from metasched.adapters.slurm import listing
from metasched.adapters.slurm.records import EMPTY_VALUES, parse_int, split_records
from metasched.model.host_lists import expand_hosts
from metasched.model.reservation import reservation_id
from metasched.model.survey import ManagerReservation, ProcessorPool

RESERVED_JOB_FIELDS = ("jobarrayid", "state", "reservation")
ENDLESS = 2.0**53  # epoch seconds: the end of a reservation whose times cannot be read
CORES_FIELDS = ("nodelist", "cpusstate", "sockets", "cores")


@dataclass(frozen=True)
class SlurmReservation:
    """One reservation of the cluster, as listed by scontrol."""

    name: str
    start: float  # epoch seconds
    end: float  # epoch seconds
    nodes: tuple[str, ...]
    cores: int  # on all nodes together
    cores_by_node: Mapping[str, int]  # empty for whole nodes, and in the first seconds
    users: str = ""
    accounts: tuple[str, ...] = ()  # jobs of these may run in it; empty: see `users`
    all_cores: bool = False  # of its nodes, since the number of cores cannot be read

    def cores_on_nodes(self, cores: Mapping[str, NodeCores]) -> Mapping[str, int] | None:
        """Return the reserved cores of each node; None if Slurm does not list them yet."""
        if self.all_cores:
            return {node: cores[node].count for node in self.nodes if node in cores}
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
    """The cores of a node."""

    count: int
    cpus: int  # processors of all cores together

    @property
    def threads_per_core(self) -> int:
        """Processors of each core."""
        return max(1, self.cpus // max(1, self.count))


def parse_reservations(answer: str) -> list[SlurmReservation]:
    """Parse the output of `scontrol --oneliner show reservation`.

    A foreign reservation that cannot be read is taken to hold its nodes without end. If its nodes
    cannot be read either, it is left out, and Slurm decides about its nodes. Raises
    ValueError for a reservation of metasched, which must not be taken as absent.
    """
    parsed = []
    for line in answer.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if "ReservationName" not in fields:
            continue
        try:
            parsed.append(_parse_reservation(line, fields))
        except ValueError:
            name = fields["ReservationName"]
            if _OWN_NAME.fullmatch(base_name(name)):
                raise
            with contextlib.suppress(ValueError):
                nodes = expand_hosts(fields.get("Nodes", ""))
                parsed.append(SlurmReservation(name, 0.0, ENDLESS, nodes, 0, {}, all_cores=True))
    return parsed


def _parse_reservation(line: str, fields: Mapping[str, str]) -> SlurmReservation:
    if not {"StartTime", "EndTime", "Nodes", "CoreCnt"} <= fields.keys():
        raise ValueError(f"no times, nodes or cores in {line[:100]!r}")
    start, end = float(parse_int(fields["StartTime"])), float(parse_int(fields["EndTime"]))
    core_specs = re.findall(r"NodeName=(\S+) CoreIDs=([\d,-]+)", line)
    cores_by_node = {node: listing.task_count(f"_[{ids}]") for node, ids in core_specs}
    nodes, cores = expand_hosts(fields["Nodes"]), parse_int(fields["CoreCnt"])
    name, users = fields["ReservationName"], fields.get("Users", "")
    listed = fields.get("Accounts", "")
    accounts = () if listed in EMPTY_VALUES else tuple(listed.split(","))
    return SlurmReservation(name, start, end, nodes, cores, cores_by_node, users, accounts)


def parse_reserved_jobs(answer: str, delimiter: str) -> list[ReservedJob]:
    """Parse the output of squeue with RESERVED_JOB_FIELDS; return the jobs in a reservation.

    Lines that cannot be read are left out: such a job counts as outside of reservations.
    """
    lines, _ = split_records(answer, delimiter, len(RESERVED_JOB_FIELDS))
    jobs = (ReservedJob(*line) for line in lines)
    return [job for job in jobs if job.reservation not in EMPTY_VALUES]


def parse_cores(answer: str, delimiter: str) -> dict[str, NodeCores]:
    """Parse the output of sinfo with CORES_FIELDS; return the cores of each node.

    Nodes whose line cannot be read are left out, and no reservation gets them.
    """
    cores = {}
    for node, cpus, sockets, cores_per_socket in split_records(
        answer, delimiter, len(CORES_FIELDS)
    ).records:
        with contextlib.suppress(ValueError):
            cores[node] = NodeCores(
                parse_int(sockets) * parse_int(cores_per_socket), parse_int(cpus.rpartition("/")[2])
            )
    return cores


def build_pool(
    up_nodes: Collection[str],
    cores: Mapping[str, NodeCores],
    jobs: Iterable[listing.QueueLine],
    reservations: Iterable[SlurmReservation],
    reserved_ids: Collection[str],
    taken_at: float,
) -> ProcessorPool:
    """Build the pool of the cores of `up_nodes`, with the time spans of their uses.

    `reserved_ids` are jobs in reservations: the reservation counts their cores.
    """
    threads = min(cores[node].threads_per_core for node in up_nodes)
    uses = []
    for job in jobs:
        if job.id in reserved_ids or not listing.is_active(job):
            continue
        if not set(expand_hosts(job.nodes)).isdisjoint(up_nodes):
            begin = listing.parse_epoch_time(job.start) or taken_at
            end = listing.parse_epoch_time(job.end) or begin + listing.NO_LIMIT
            uses.append((begin, end, -(-parse_int(job.cpus) // threads)))
    for reservation in reservations:
        if pool_nodes := [node for node in reservation.nodes if node in up_nodes]:
            core_count = reservation.cores
            if (cores_by_node := reservation.cores_on_nodes(cores)) is not None:
                core_count = sum(cores_by_node.get(node, 0) for node in pool_nodes)
            uses.append((reservation.start, reservation.end, core_count))
    size = sum(cores[node].count for node in up_nodes)
    return ProcessorPool(tuple(up_nodes), size, tuple(sorted(uses)), threads)


def nodes_outside_reservations(
    node_lines: Sequence[listing.SinfoRecord],
    cores: Mapping[str, NodeCores],
    jobs: Iterable[listing.QueueLine],
    reservations: Iterable[SlurmReservation],
    reservation_by_job: Mapping[str, str],
    taken_at: float,
) -> list[listing.SinfoRecord]:
    """Return the nodes without the processors that are reserved now and idle.

    Jobs outside reservations can use the rest. `reservation_by_job` names the reservation of each
    job that runs in a reservation.
    """
    current = [r for r in reservations if r.start <= taken_at < r.end]
    idle: Counter[str] = Counter()  # idle processors that are reserved
    closed = set()
    for reservation in current:
        for node in cores.keys() & set(reservation.nodes):
            core_count = (reservation.cores_on_nodes(cores) or {}).get(node, cores[node].count)
            idle[node] += core_count * cores[node].threads_per_core
            if core_count >= cores[node].count:
                closed.add(node)
    active_names = {reservation.name for reservation in current}
    for job in jobs:
        if listing.is_active(job) and reservation_by_job.get(job.id) in active_names:
            job_nodes = expand_hosts(job.nodes)
            for node in job_nodes:
                # squeue does not show the job's processors on each of several nodes: at least 1
                idle[node] -= parse_int(job.cpus) if len(job_nodes) == 1 else 1
    return [
        _without_reserved(line, max(0, idle[line.name])) if line.name not in closed else line
        for line in node_lines
    ]


def _without_reserved(line: listing.SinfoRecord, reserved: int) -> listing.SinfoRecord:
    allocated, idle, other, total = map(int, line.cpus.split("/"))
    withheld = min(idle, reserved)
    states = [flag for flag in line.state.split("+") if flag.lower() != "reserved"]
    return line._replace(
        state="+".join(states) or "idle",
        cpus=f"{allocated}/{idle - withheld}/{other + withheld}/{total}",
    )


def upcoming_windows(
    usable: Mapping[str, int],
    cores: Mapping[str, NodeCores],
    jobs: Sequence[listing.QueueLine],
    reservations: Sequence[SlurmReservation],
    taken_at: float,
) -> tuple[tuple[float, int], ...]:
    """Return (start, processors left to jobs that start now and still run then) of reservations.

    `usable` are the processors of each usable node. Jobs that run in another reservation may be
    counted twice, which leaves too few processors, never too many.
    """
    windows = []
    for start in sorted({r.start for r in reservations if r.start > taken_at}):
        reserved: Counter[str] = Counter()
        for reservation in reservations:
            if reservation.start <= start < reservation.end:
                cores_by_node = reservation.cores_on_nodes(cores) or {}
                for node in reservation.nodes:
                    reserved[node] += (
                        cores_by_node[node] * cores[node].threads_per_core
                        if node in cores_by_node and node in cores
                        else usable.get(node, 0)
                    )
        remaining = sum(max(0, cpus - reserved[node]) for node, cpus in usable.items())
        for job in jobs:
            if listing.is_active(job) and (listing.parse_epoch_time(job.end) or math.inf) > start:
                job_nodes = expand_hosts(job.nodes)
                if any(node in usable and reserved[node] < usable[node] for node in job_nodes):
                    remaining -= parse_int(job.cpus)
        windows.append((start, max(0, remaining)))
    return tuple(windows)


def own_reservations(
    reservations: Iterable[SlurmReservation], instance: str
) -> tuple[ManagerReservation, ...]:
    """Return the reservations of this instance.

    Of a reservation that is being replaced, return the newer version, with the cores of both.
    """
    by_name: dict[str, ManagerReservation] = {}
    for reservation in reservations:
        name = base_name(reservation.name)
        if reservation_id(name, instance) is not None:
            size = reservation.cores
            if name in by_name:
                size += by_name[name].size or 0
            by_name[name] = ManagerReservation(
                name, reservation.start, reservation.end, reservation.nodes, size
            )
    return tuple(by_name.values())


def base_name(name: str) -> str:
    """Return the name of a reservation before it was replaced under its alternate name."""
    return name.removesuffix(_ALTERNATE_SUFFIX)


def alternate_name(name: str) -> str:
    """Return the name for the replacement of a reservation."""
    return base_name(name) if name.endswith(_ALTERNATE_SUFFIX) else name + _ALTERNATE_SUFFIX


_ALTERNATE_SUFFIX = "-again"
_OWN_NAME = re.compile(r"ms-.+-r\d+", re.ASCII)  # of any instance
