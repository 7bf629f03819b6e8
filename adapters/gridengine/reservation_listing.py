"""What Grid Engine says of advance reservations, read into the model: pure text in."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from xml.etree import ElementTree

from metasched.adapters.gridengine import listing as text
from metasched.carts.relocation import PoolMap, SlotUse
from metasched.model.reservation import reservation_id
from metasched.model.survey import ManagerReservation, ProcessorPool, ReservationSpec

_SINGLE_HOST_RULE = "$pe_slots"
_FOREVER = 100 * 365 * 86400.0  # seconds
SlotInterval = tuple[float, float, int]  # start, end, processors


@dataclass(frozen=True)
class AdvanceReservation:
    """One advance reservation of the cell; `slots` are those of each queue instance (`q@host`).

    `user` is whose it is, `owner` who has made it, `each` what every slot has of consumables, or
    all slots together where jobs have (`text.Complex`).
    """

    id: str
    name: str
    owner: str
    state: str
    start: float
    end: float
    slots: Mapping[str, int]
    user: str = ""
    per_slot: Mapping[str, float] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether all of its queues can run jobs, as far as the qmaster knows."""
        return not set(self.state) & set("WE")

    @property
    def size(self) -> int:
        return sum(self.slots.values())

    def amount_of(self, resource: text.ComplexAttribute) -> float:
        """How much of a consumable its jobs may have together."""
        amount = self.per_slot.get(resource.name, resource.default_amount)
        return amount if resource.consumable == "JOB" else amount * self.size

    @property
    def is_over(self) -> bool:
        return bool(set(self.state) & set("dx"))

    def remaining_seconds(self, now: float) -> int:
        """For how many seconds a job may ask that is queued now; the qmaster refuses longer ones.

        It counts from when it has the job, which may be a second later.
        """
        queue_delay = 1.0 if now > self.start - 1 else 0.0
        return math.floor(self.end - max(now, self.start) - queue_delay)

    @property
    def locations(self) -> tuple[str, ...]:
        """Its hosts, or its queue instances if one of these cannot run jobs."""
        return tuple(sorted(set(map(_host_of, self.slots)) if self.usable else self.slots))


def parse_reservation_ids(xml: str) -> list[str]:
    """The ids in `qrstat -xml -u '*'`."""
    return [
        _child_text(element, "id") for element in text.xml_root(xml, "qrstat").iter("ar_summary")
    ]


def parse_reservations(xml: str) -> list[AdvanceReservation]:
    """Each advance reservation of `qrstat -xml -ar`; those that ended meanwhile are left out."""
    parsed = []
    for element in text.xml_root(xml, "qrstat").iter("ar_summary"):
        start, end = (
            text.parse_time(_child_text(element, f"{side}_time")) for side in ("start", "end")
        )
        if start is None or end is None:
            raise ValueError(f"no window in advance reservation {_child_text(element, 'id')!r}")
        slots: Counter[str] = Counter()
        for granted in element.iter("granted_slots"):
            slots[granted.get("queue_instance", "")] += int(granted.get("slots", "0"))
        id, name, owner, state = (
            _child_text(element, field_name) for field_name in ("id", "name", "owner", "state")
        )
        users = [child.get("user", "") for child in element.iter("acl")]
        user = users[0] if len(users) == 1 else ""
        requested = {
            child.get("name", ""): child.get("type", "") for child in element.iter("resource")
        }
        parsed.append(
            AdvanceReservation(
                id, name, owner, state, start, end, slots, user, text.parse_amounts(requested)
            )
        )
    return [element for element in parsed if not element.is_over]


def parse_reserved_jobs(xml: str) -> dict[str, str]:
    """The advance reservation of each job of `qstat -xml -j` that has one, by the job's id."""
    if "<unknown_jobs" in xml[:200]:  # all have ended meanwhile
        return {}
    reservation_of_job = {}
    for job in text.xml_root(xml, "detailed_job_info").iter("element"):
        id, reservation_id = job.findtext("JB_job_number"), job.findtext("JB_ar")
        if (
            id is not None
            and reservation_id is not None
            and reservation_id.strip() not in ("", "0")
        ):
            reservation_of_job[id.strip()] = reservation_id.strip()
    return reservation_of_job


def spans_hosts(parallel_environment: str) -> bool:
    """Whether a parallel environment, by `qconf -sp`, gives one job slots of several hosts."""
    return text.parse_settings(parallel_environment).get("allocation_rule") != _SINGLE_HOST_RULE


@dataclass(frozen=True)
class MemoryConsumable:
    """The consumable that counts memory for each slot, in bytes; no name: none does.

    `totals` are those of the hosts that count it: others give any amount. What asks for none has
    `default`, each slot of a reservation as each of a job. `most` is the least limit of a queue, if
    it is one that queues have.
    """

    name: str = ""
    default: float = 0.0
    totals: Mapping[str, float] = field(default_factory=dict)
    queue_limit: float | None = None

    def of_job(self, job: text.QstatJob) -> float:
        return job.slots * text.parse_amounts(job.requests).get(self.name, self.default)

    def of_slot(self, reservation: AdvanceReservation) -> float:
        return reservation.per_slot.get(self.name, self.default)

    def share_per_slot(self, hosts: Sequence[text.ExecutionHost]) -> int:
        """MiB that each slot of a reservation gets: what it may have on any host with slots.

        No less than what a job has that asks for none, no more than its queue gives. It is the same
        when some of its queues are down, or what these hold could not be had anew in others. Where
        no host counts it, it is what the largest has, since without some a job of one slot waits
        for ever; 0 if no queue gives any, either.
        """
        shares = [
            self.totals[host.name] / text.usable_slots(host, include_down=True)
            for host in hosts
            if host.name in self.totals and text.usable_slots(host)
        ]
        if not shares and self.queue_limit is None:
            return 0
        share = min(shares, default=max((host.memory or 0 for host in hosts), default=0) * 2.0**20)
        if self.queue_limit is not None:
            share = min(share, self.queue_limit)
        return max(int(share / 2**20), math.ceil(self.default / 2**20))


@dataclass(frozen=True)
class SchedulingRules:
    """What the qmaster takes a job to have, and for how long: `offset` seconds beyond its limit.

    Measured: the shorter of h_rt and s_rt that it asks for, else of its queue, counts, and that of
    no other resource; without any it has its slots for ever, whatever `default_duration` says.
    `tokens` are the consumables of the whole cell.
    """

    memory: MemoryConsumable = MemoryConsumable()
    consumables: Mapping[str, text.ComplexAttribute] = field(default_factory=dict)
    limits: Mapping[str, text.QueueLimits] = field(default_factory=dict)
    duration_offset: float = 60.0

    def job_duration(self, job: text.QstatJob) -> float:
        queue = self.limits.get(job.queue.partition("@")[0], text.QueueLimits(None))
        requested_limits = (
            text.parse_seconds(job.requests.get(name, "")) for name in ("h_rt", "s_rt")
        )
        for limits in (requested_limits, (queue.hard_time, queue.soft_time)):
            if finite := [limit for limit in limits if limit is not None]:
                return min(finite) + self.duration_offset
        return _FOREVER

    def resource_requests(
        self, spec: ReservationSpec, hosts: Sequence[text.ExecutionHost]
    ) -> list[str]:
        """What a new reservation asks for beside its slots: the values of -l."""
        values = []
        if share := self.memory.share_per_slot(hosts):
            values.append(f"{self.memory.name}={share}M")
        for name, count in spec.licences.items():
            if name in self.consumables:
                values.append(f"{name}={self.consumables[name].request_value(count, spec.size)}")
        return values


@dataclass(frozen=True)
class CellListing:
    """What a cell told at `taken`: jobs, hosts, and how its qmaster counts."""

    jobs: Sequence[text.QstatJob]
    hosts: Sequence[text.ExecutionHost]
    listed_at: float
    rules: SchedulingRules


@dataclass(frozen=True)
class _QueueUse:
    """What has slots of a queue instance, and so many bytes; `kept` is the id of a reservation."""

    queue: str
    start: float
    end: float
    slots: int
    memory: float
    reservation_id: str = ""

    @property
    def host(self) -> str:
        return _host_of(self.queue)


@dataclass(frozen=True)
class Occupancy(CellListing):
    """Who has the slots of a cell; `jobs` are everybody's.

    `within` names the advance reservations of those that are in one: their slots are counted with
    these.
    """

    reservations: Sequence[AdvanceReservation] = ()
    reservation_of_job: Mapping[str, str] = field(default_factory=dict)

    @property
    def _sizes(self) -> dict[str, int]:
        return {host.name: text.usable_slots(host) for host in self.hosts}

    @property
    def _uses(self) -> Iterator[_QueueUse]:
        """What runs in no reservation, and reservations in each of their queue instances."""
        memory = self.rules.memory
        for job in self.jobs:
            if not job.is_waiting and job.id not in self.reservation_of_job:
                started = self.listed_at if job.started is None else job.started
                end = max(started + self.rules.job_duration(job), self.listed_at + 1)
                yield _QueueUse(job.queue, started, end, job.slots, memory.of_job(job))
        for reservation in self.reservations:
            for queue, slots in reservation.slots.items():
                reserved_memory = slots * memory.of_slot(reservation)
                yield _QueueUse(
                    queue,
                    reservation.start,
                    reservation.end,
                    slots,
                    reserved_memory,
                    reservation.id,
                )

    def pools(self, spread: bool) -> tuple[ProcessorPool, ...]:
        """What is there, and taken when: one pool of all hosts that are up, or one for each."""
        sizes, memory_bound = self._sizes, self._slots_without_memory(())
        uses: dict[str, list[SlotInterval]] = {}
        for use in self._uses:
            uses.setdefault(use.host, []).append((use.start, use.end, use.slots))
        groups = [[name for name, size in sizes.items() if size]]
        if not spread:
            groups = [[name] for name in groups[0]]
        return tuple(
            ProcessorPool(
                tuple(names),
                sum(sizes[name] for name in names),
                tuple(
                    sorted(
                        use
                        for host_name in names
                        for use in [*uses.get(host_name, ()), *memory_bound.get(host_name, ())]
                    )
                ),
            )
            for names in groups
            if names
        )

    def _slots_without_memory(self, excluded: Collection[str]) -> dict[str, list[SlotInterval]]:
        """The slots of each host that are free and have no memory left; `but` are not counted."""
        share, totals = (
            self.rules.memory.share_per_slot(self.hosts) * 2**20,
            self.rules.memory.totals,
        )
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
        """The queue instances that are up, and which reservations may be moved, by their ids.

        Those of a host that has fewer slots than they have together are one place, by the host's
        name.
        """
        pool_of_queue: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for host in self.hosts:
            up = {f"{queue.name}@{host.name}": queue.slots for queue in host.queues if queue.up}
            host_slots = text.usable_slots(host)
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

    def hosts_without_reserved(self) -> list[text.ExecutionHost]:
        """The hosts, without what is reserved that nobody but jobs to come in there can have."""
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
        """By when what begins now must have ended for windows, and how many slots they leave it."""
        size = sum(self._sizes.values())
        uses = [(use.start, use.end, use.slots) for use in self._uses]
        windows = []
        for start in sorted(
            {
                reservation.start
                for reservation in self.reservations
                if reservation.start > self.listed_at
            }
        ):
            busy = sum(count for begin, end, count in uses if begin <= start < end)
            windows.append((start - self.rules.duration_offset, max(0, size - busy)))
        return tuple(windows)


def own_reservations(
    reservations: Iterable[AdvanceReservation], owner: str, instance: str
) -> tuple[ManagerReservation, ...]:
    """Those of this instance, made by this account.

    Of one that is being replaced, the newer, with the slots of both: it is seen to be unfinished.
    """
    by_name: dict[str, ManagerReservation] = {}
    for reservation in reservations:
        if reservation.owner == owner and reservation_id(reservation.name, instance) is not None:
            earlier_size = by_name[reservation.name].size or 0 if reservation.name in by_name else 0
            by_name[reservation.name] = ManagerReservation(
                reservation.name,
                reservation.start,
                reservation.end,
                reservation.locations,
                earlier_size + reservation.size,
            )
    return tuple(by_name.values())


def id_lists(ids: Sequence[str], limit: int) -> list[str]:
    """The ids as comma-separated lists of at most so many."""
    return [",".join(ids[first : first + limit]) for first in range(0, len(ids), limit)]


def granted_id(answer: str) -> str | None:
    """The id in the answer of `qrsub`, None if it granted nothing."""
    match = re.search(r"advance reservation (\d+) has been granted", answer)
    return match[1] if match else None


def _host_of(instance: str) -> str:
    return instance.rpartition("@")[2]


def _child_text(element: ElementTree.Element, name: str) -> str:
    return (element.findtext(name) or "").strip()
