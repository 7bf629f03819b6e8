"""Advance reservations and the occupancy of slots, from the answers of Grid Engine. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from xml.etree import ElementTree

from metasched.adapters.gridengine import listing
from metasched.carts.relocation import PoolMap, SlotUse
from metasched.model.reservation import reservation_id
from metasched.model.survey import ManagerReservation, ProcessorPool, ReservationSpec

_SINGLE_HOST_RULE = "$pe_slots"
_FOREVER = 100 * 365 * 86400.0  # seconds
SlotInterval = tuple[float, float, int]  # start, end, processors


@dataclass(frozen=True)
class AdvanceReservation:
    """An advance reservation of the cell."""

    id: str
    name: str
    owner: str  # account that created it
    state: str  # letters of qrstat
    start: float  # epoch seconds
    end: float  # epoch seconds
    slots: Mapping[str, int]  # by queue instance (`queue@host`)
    user: str = ""  # account that may use it
    # consumables by name: of each slot, or of all slots if the consumable is counted per job
    per_slot: Mapping[str, float] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether all of its queues can run jobs, as far as the qmaster knows."""
        return not set(self.state) & set("WE")

    @property
    def size(self) -> int:
        """Slots of all queue instances together."""
        return sum(self.slots.values())

    def amount_of(self, resource: listing.ComplexAttribute) -> float:
        """Return the amount of a consumable available to all of its jobs together."""
        amount = self.per_slot.get(resource.name, resource.default_amount)
        return amount if resource.consumable == "JOB" else amount * self.size

    @property
    def is_over(self) -> bool:
        """Whether it has ended or been deleted."""
        return bool(set(self.state) & set("dx"))

    def remaining_seconds(self, now: float) -> int:
        """Return the longest time limit of a job submitted now; the qmaster rejects others.

        The qmaster counts from when it receives the job, up to a second later.
        """
        queue_delay = 1.0 if now > self.start - 1 else 0.0
        return math.floor(self.end - max(now, self.start) - queue_delay)

    @property
    def locations(self) -> tuple[str, ...]:
        """Its hosts, or its queue instances if some cannot run jobs."""
        return tuple(sorted(set(map(_host_of, self.slots)) if self.usable else self.slots))


def parse_reservation_ids(xml: str) -> list[str]:
    """Parse the ids in `qrstat -xml -u '*'`."""
    root = listing.xml_root(xml, "qrstat")
    return [_child_text(element, "id") for element in root.iter("ar_summary")]


def parse_reservations(xml: str) -> list[AdvanceReservation]:
    """Parse `qrstat -xml -ar`; reservations that have ended are left out."""
    parsed = []
    for element in listing.xml_root(xml, "qrstat").iter("ar_summary"):
        start = listing.parse_epoch_time(_child_text(element, "start_time"))
        end = listing.parse_epoch_time(_child_text(element, "end_time"))
        if start is None or end is None:
            raise ValueError(f"no window in advance reservation {_child_text(element, 'id')!r}")
        slots: Counter[str] = Counter()
        for granted in element.iter("granted_slots"):
            slots[granted.get("queue_instance", "")] += int(granted.get("slots", "0"))
        users = [child.get("user", "") for child in element.iter("acl")]
        resources = element.iter("resource")
        requested = {child.get("name", ""): child.get("type", "") for child in resources}
        reservation = AdvanceReservation(
            id=_child_text(element, "id"),
            name=_child_text(element, "name"),
            owner=_child_text(element, "owner"),
            state=_child_text(element, "state"),
            start=start,
            end=end,
            slots=slots,
            user=users[0] if len(users) == 1 else "",
            per_slot=listing.parse_amounts(requested),
        )
        if not reservation.is_over:
            parsed.append(reservation)
    return parsed


def parse_reserved_jobs(xml: str) -> dict[str, str]:
    """Parse `qstat -xml -j`: the advance reservations of jobs that have any, by job id."""
    if "<unknown_jobs" in xml[:200]:  # all of them have ended
        return {}
    reservation_of_job = {}
    for job in listing.xml_root(xml, "detailed_job_info").iter("element"):
        job_id, ar_id = job.findtext("JB_job_number"), job.findtext("JB_ar")
        if job_id is not None and ar_id is not None and ar_id.strip() not in ("", "0"):
            reservation_of_job[job_id.strip()] = ar_id.strip()
    return reservation_of_job


def spans_hosts(parallel_environment: str) -> bool:
    """Return whether a parallel environment (`qconf -sp`) spreads a job over several hosts."""
    return listing.parse_settings(parallel_environment).get("allocation_rule") != _SINGLE_HOST_RULE


@dataclass(frozen=True)
class MemoryConsumable:
    """The consumable that counts memory per slot, in bytes."""

    name: str = ""  # empty: no consumable counts memory
    default: float = 0.0  # per slot, of jobs and reservations that request none
    totals: Mapping[str, float] = field(default_factory=dict)  # by host; others do not count it
    queue_limit: float | None = None  # lowest limit per slot of any queue; None: no limits

    def of_job(self, job: listing.QstatJob) -> float:
        """Return the memory of all slots of a job."""
        return job.slots * listing.parse_amounts(job.requests).get(self.name, self.default)

    def of_slot(self, reservation: AdvanceReservation) -> float:
        """Return the memory of a reserved slot."""
        return reservation.per_slot.get(self.name, self.default)

    def share_per_slot(self, hosts: Sequence[listing.ExecutionHost]) -> int:
        """Return the memory in MiB that each slot of a reservation requests.

        This is the lowest share of a slot on any host, at least `default` and at most the limit
        of its queue. Queues that are down count too: otherwise a reservation made while they are
        up could not be moved. Where no host counts memory, the share is the memory of the largest
        host: without any, a job with a single slot would wait forever. 0 if no queue limits
        memory either.
        """
        shares = [
            self.totals[host.name] / listing.usable_slots(host, include_down=True)
            for host in hosts
            if host.name in self.totals and listing.usable_slots(host)
        ]
        if not shares and self.queue_limit is None:
            return 0
        share = min(shares, default=max((host.memory or 0 for host in hosts), default=0) * 2.0**20)
        if self.queue_limit is not None:
            share = min(share, self.queue_limit)
        return max(int(share / 2**20), math.ceil(self.default / 2**20))


@dataclass(frozen=True)
class SchedulingRules:
    """The resources that the qmaster counts for a job, and for how long.

    Measured: the shorter of the job's h_rt and s_rt counts, else the shorter limit of its queue. No
    other resource limits the time. Without a limit a job has its slots forever, whatever
    `default_duration` is.
    """

    memory: MemoryConsumable = MemoryConsumable()
    # consumables of the whole cell
    consumables: Mapping[str, listing.ComplexAttribute] = field(default_factory=dict)
    limits: Mapping[str, listing.QueueLimits] = field(default_factory=dict)  # by queue
    duration_offset: float = 60.0  # seconds for which a job keeps its slots after its limit

    def job_duration(self, job: listing.QstatJob) -> float:
        """Return the seconds for which a job is counted, from its start."""
        queue = self.limits.get(job.queue.partition("@")[0], listing.QueueLimits(None))
        requested = (listing.parse_seconds(job.requests.get(n, "")) for n in ("h_rt", "s_rt"))
        for limits in (requested, (queue.hard_time, queue.soft_time)):
            if finite := [limit for limit in limits if limit is not None]:
                return min(finite) + self.duration_offset
        return _FOREVER

    def resource_requests(
        self, spec: ReservationSpec, hosts: Sequence[listing.ExecutionHost]
    ) -> list[str]:
        """Return the values of -l of a new reservation.

        Raises ValueError if licences cannot be divided equally among its slots.
        """
        values = []
        if share := self.memory.share_per_slot(hosts):
            values.append(f"{self.memory.name}={share}M")
        for name, count in spec.licences.items():
            if name in self.consumables:
                values.append(f"{name}={self.consumables[name].request_value(count, spec.size)}")
        return values


@dataclass(frozen=True)
class CellListing:
    """A listing of a cell."""

    jobs: Sequence[listing.QstatJob]
    hosts: Sequence[listing.ExecutionHost]
    listed_at: float  # epoch seconds
    rules: SchedulingRules


@dataclass(frozen=True)
class _QueueUse:
    """Slots and memory of a queue instance, taken by a job or a reservation."""

    queue: str  # queue instance
    start: float  # epoch seconds
    end: float  # epoch seconds
    slots: int
    memory: float  # bytes
    reservation_id: str = ""  # empty for a job

    @property
    def host(self) -> str:
        return _host_of(self.queue)


@dataclass(frozen=True)
class Occupancy(CellListing):
    """The occupancy of a cell's slots by the jobs of all users and by reservations.

    Slots of jobs in a reservation are counted with the reservation.
    """

    reservations: Sequence[AdvanceReservation] = ()
    reservation_of_job: Mapping[str, str] = field(default_factory=dict)  # by job id

    @property
    def _sizes(self) -> dict[str, int]:
        return {host.name: listing.usable_slots(host) for host in self.hosts}

    @property
    def _uses(self) -> Iterator[_QueueUse]:
        """Yield uses by jobs outside reservations, and by reservations in each queue instance."""
        memory = self.rules.memory
        for job in self.jobs:
            if not job.is_waiting and job.id not in self.reservation_of_job:
                started = self.listed_at if job.started is None else job.started
                end = max(started + self.rules.job_duration(job), self.listed_at + 1)
                yield _QueueUse(job.queue, started, end, job.slots, memory.of_job(job))
        for reservation in self.reservations:
            for queue, slots in reservation.slots.items():
                reserved = slots * memory.of_slot(reservation)
                start, end = reservation.start, reservation.end
                yield _QueueUse(queue, start, end, slots, reserved, reservation.id)

    def pools(self, spread: bool) -> tuple[ProcessorPool, ...]:
        """Return the uses of hosts that are up: in a common pool if jobs spread, else by host."""
        sizes = self._sizes
        uses: defaultdict[str, list[SlotInterval]] = defaultdict(list)
        for use in self._uses:
            uses[use.host].append((use.start, use.end, use.slots))
        for host, intervals in self._slots_without_memory(()).items():
            uses[host] += intervals
        groups = [[name for name, size in sizes.items() if size]]
        if not spread:
            groups = [[name] for name in groups[0]]
        return tuple(
            ProcessorPool(
                nodes=tuple(names),
                size=sum(sizes[name] for name in names),
                uses=tuple(sorted(use for name in names for use in uses[name])),
            )
            for names in groups
            if names
        )

    def _slots_without_memory(self, excluded: Collection[str]) -> dict[str, list[SlotInterval]]:
        """Return by host when how many free slots lack memory, without `excluded` reservations."""
        share = self.rules.memory.share_per_slot(self.hosts) * 2**20
        totals = self.rules.memory.totals
        if not share:
            return {}
        sizes = {host: size for host, size in self._sizes.items() if host in totals}
        boundaries = ((self.listed_at, 0, 0.0), (self.listed_at + 2 * _FOREVER, 0, 0.0))
        changes: dict[str, list[tuple[float, int, float]]] = {host: [*boundaries] for host in sizes}
        for use in self._uses:
            if use.host in sizes and use.reservation_id not in excluded:
                changes[use.host].append((use.start, use.slots, use.memory))
                changes[use.host].append((use.end, -use.slots, -use.memory))
        unusable: dict[str, list[SlotInterval]] = {}
        for host, size in sizes.items():
            free, free_memory = size, totals[host]
            for (start, slots, memory), (end, *_) in pairwise(sorted(changes[host])):
                free, free_memory = free - slots, free_memory - memory
                if start < end and (without_memory := free - max(0, int(free_memory // share))) > 0:
                    unusable.setdefault(host, []).append((start, end, without_memory))
        return unusable

    def pool_map(self, spread: bool, movable: Collection[str]) -> PoolMap:
        """Return the queue instances that are up with their uses; `movable` are reservation ids.

        The queue instances of a host that has fewer slots than they have together form a pool
        under the host's name.
        """
        pool_of_queue: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for host in self.hosts:
            up = {f"{queue.name}@{host.name}": queue.slots for queue in host.queues if queue.up}
            host_slots = listing.usable_slots(host)
            if host_slots < sum(up.values()):
                pool_of_queue |= dict.fromkeys(up, host.name)
                sizes[host.name] = host_slots
            else:
                pool_of_queue |= {instance: instance for instance in up}
                sizes |= up
        fixed = []
        movable_uses: dict[int, SlotUse] = {}
        for use in self._uses:
            pool = pool_of_queue.get(use.queue, use.queue)
            if use.reservation_id in movable:
                slots = Counter({pool: use.slots})
                if (other := movable_uses.get(int(use.reservation_id))) is not None:
                    slots.update(other.slots)
                movable_uses[int(use.reservation_id)] = SlotUse(use.start, use.end, slots)
            else:
                fixed.append(SlotUse(use.start, use.end, {pool: use.slots}))
        for name, uses in self._slots_without_memory(movable).items():
            host_pools = {pool: size for pool, size in sizes.items() if _host_of(pool) == name}
            fixed += [
                SlotUse(start, end, {pool: min(count, size) for pool, size in host_pools.items()})
                for start, end, count in uses
            ]
        return PoolMap(sizes, fixed, movable_uses, lambda name: "" if spread else _host_of(name))

    def hosts_without_reserved(self) -> list[listing.ExecutionHost]:
        """Return the hosts without slots and memory that reservations hold for later jobs."""
        idle: Counter[str] = Counter()
        unused: defaultdict[str, float] = defaultdict(float)  # memory of each host
        for reservation in self.reservations:
            if reservation.start <= self.listed_at:
                idle.update(reservation.slots)
                for instance, slots in reservation.slots.items():
                    unused[_host_of(instance)] += slots * self.rules.memory.of_slot(reservation)
        for job in self.jobs:
            if not job.is_waiting and job.id in self.reservation_of_job:
                idle[job.queue] -= job.slots
                unused[job.host] -= self.rules.memory.of_job(job)
        hosts = []
        for host in self.hosts:
            queues = tuple(
                replace(queue, reserved=max(0, idle[f"{queue.name}@{host.name}"]))
                for queue in host.queues
            )
            free = {**host.free}
            if (name := self.rules.memory.name) in free:
                free[name] -= min(free[name], max(0.0, unused[host.name]))
            hosts.append(replace(host, queues=queues, free=free))
        return hosts

    def upcoming_windows(self) -> tuple[tuple[float, int], ...]:
        """Return (latest end of a job started now, slots left to longer jobs) for each window."""
        size = sum(self._sizes.values())
        uses = [(use.start, use.end, use.slots) for use in self._uses]
        windows = []
        for start in sorted({r.start for r in self.reservations if r.start > self.listed_at}):
            busy = sum(count for begin, end, count in uses if begin <= start < end)
            windows.append((start - self.rules.duration_offset, max(0, size - busy)))
        return tuple(windows)


def own_reservations(
    reservations: Iterable[AdvanceReservation], owner: str, instance: str
) -> tuple[ManagerReservation, ...]:
    """Select the reservations of this instance that this account made.

    If a reservation is being replaced, two have its name. The newer is returned with the slots of
    both, which shows that the replacement is unfinished.
    """
    by_name: dict[str, ManagerReservation] = {}
    for ar in reservations:
        if ar.owner == owner and reservation_id(ar.name, instance) is not None:
            earlier_size = by_name[ar.name].size or 0 if ar.name in by_name else 0
            size = earlier_size + ar.size
            by_name[ar.name] = ManagerReservation(ar.name, ar.start, ar.end, ar.locations, size)
    return tuple(by_name.values())


def granted_id(answer: str) -> str | None:
    """Parse the id from the answer of `qrsub`; None if nothing was granted."""
    match = re.search(r"advance reservation (\d+) has been granted", answer)
    return match[1] if match else None


def _host_of(instance: str) -> str:
    return instance.rpartition("@")[2]


def _child_text(element: ElementTree.Element, name: str) -> str:
    return (element.findtext(name) or "").strip()
