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
from metasched.carts.relocation import Places, Taken
from metasched.model.reservation import id_of
from metasched.model.survey import Held, Pool, Window

_ONE_HOST = "$pe_slots"
_EVER = 100 * 365 * 86400.0  # seconds
Use = tuple[float, float, int]  # start, end, processors


@dataclass(frozen=True)
class Kept:
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
    each: Mapping[str, float] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether all of its queues can run jobs, as far as the qmaster knows."""
        return not set(self.state) & set("WE")

    @property
    def size(self) -> int:
        return sum(self.slots.values())

    def has(self, resource: text.Complex) -> float:
        """How much of a consumable its jobs may have together."""
        each = self.each.get(resource.name, resource.unasked)
        return each if resource.consumable == "JOB" else each * self.size

    @property
    def over(self) -> bool:
        return bool(set(self.state) & set("dx"))

    def left(self, now: float) -> int:
        """For how many seconds a job may ask that is queued now; the qmaster refuses longer ones.

        It counts from when it has the job, which may be a second later.
        """
        later = 1.0 if now > self.start - 1 else 0.0
        return math.floor(self.end - max(now, self.start) - later)

    @property
    def places(self) -> tuple[str, ...]:
        """Its hosts, or its queue instances if one of these cannot run jobs."""
        return tuple(sorted(set(map(_host, self.slots)) if self.usable else self.slots))


def reservation_ids(xml: str) -> list[str]:
    """The ids in `qrstat -xml -u '*'`."""
    return [_word(one, "id") for one in text.root(xml, "qrstat").iter("ar_summary")]


def reservations(xml: str) -> list[Kept]:
    """Each advance reservation of `qrstat -xml -ar`; those that ended meanwhile are left out."""
    found = []
    for one in text.root(xml, "qrstat").iter("ar_summary"):
        start, end = (text.when(_word(one, f"{side}_time")) for side in ("start", "end"))
        if start is None or end is None:
            raise ValueError(f"no window in advance reservation {_word(one, 'id')!r}")
        slots: Counter[str] = Counter()
        for granted in one.iter("granted_slots"):
            slots[granted.get("queue_instance", "")] += int(granted.get("slots", "0"))
        id, name, owner, state = (_word(one, word) for word in ("id", "name", "owner", "state"))
        users = [said.get("user", "") for said in one.iter("acl")]
        user = users[0] if len(users) == 1 else ""
        asked = {said.get("name", ""): said.get("type", "") for said in one.iter("resource")}
        found.append(Kept(id, name, owner, state, start, end, slots, user, text.amounts(asked)))
    return [one for one in found if not one.over]


def reserved_jobs(xml: str) -> dict[str, str]:
    """The advance reservation of each job of `qstat -xml -j` that has one, by the job's id."""
    if "<unknown_jobs" in xml[:200]:  # all have ended meanwhile
        return {}
    found = {}
    for job in text.root(xml, "detailed_job_info").iter("element"):
        id, within = job.findtext("JB_job_number"), job.findtext("JB_ar")
        if id is not None and within is not None and within.strip() not in ("", "0"):
            found[id.strip()] = within.strip()
    return found


def spreads(environment: str) -> bool:
    """Whether a parallel environment, by `qconf -sp`, gives one job slots of several hosts."""
    return text.settings(environment).get("allocation_rule") != _ONE_HOST


@dataclass(frozen=True)
class Memory:
    """The consumable that counts memory for each slot, in bytes; no name: none does.

    `totals` are those of the hosts that count it: others give any amount. What asks for none has
    `default`, each slot of a reservation as each of a job. `most` is the least limit of a queue, if
    it is one that queues have.
    """

    name: str = ""
    default: float = 0.0
    totals: Mapping[str, float] = field(default_factory=dict)
    most: float | None = None

    def of(self, job: text.Job) -> float:
        return job.slots * text.amounts(job.requests).get(self.name, self.default)

    def of_slot(self, one: Kept) -> float:
        return one.each.get(self.name, self.default)

    def share(self, hosts: Sequence[text.Host]) -> int:
        """MiB that each slot of a reservation gets: what it may have on any host with slots.

        No less than what a job has that asks for none, no more than its queue gives. It is the same
        when some of its queues are down, or what these hold could not be had anew in others. Where
        no host counts it, it is what the largest has, since without some a job of one slot waits
        for ever; 0 if no queue gives any, either.
        """
        shares = [
            self.totals[host.name] / text.slots(host, down=True)
            for host in hosts
            if host.name in self.totals and text.slots(host)
        ]
        if not shares and self.most is None:
            return 0
        share = min(shares, default=max((host.memory or 0 for host in hosts), default=0) * 2.0**20)
        if self.most is not None:
            share = min(share, self.most)
        return max(int(share / 2**20), math.ceil(self.default / 2**20))


@dataclass(frozen=True)
class Rules:
    """What the qmaster takes a job to have, and for how long: `offset` seconds beyond its limit.

    Measured: the shorter of h_rt and s_rt that it asks for, else of its queue, counts, and that of
    no other resource; without any it has its slots for ever, whatever `default_duration` says.
    `tokens` are the consumables of the whole cell.
    """

    memory: Memory = Memory()
    tokens: Mapping[str, text.Complex] = field(default_factory=dict)
    limits: Mapping[str, text.Limits] = field(default_factory=dict)
    offset: float = 60.0

    def lasts(self, job: text.Job) -> float:
        queue = self.limits.get(job.queue.partition("@")[0], text.Limits(None))
        asked = (text.seconds(job.requests.get(name, "")) for name in ("h_rt", "s_rt"))
        for limits in (asked, (queue.time, queue.soft)):
            if found := [limit for limit in limits if limit is not None]:
                return min(found) + self.offset
        return _EVER

    def asked(self, window: Window, hosts: Sequence[text.Host]) -> list[str]:
        """What a new reservation asks for beside its slots: the values of -l."""
        values = []
        if share := self.memory.share(hosts):
            values.append(f"{self.memory.name}={share}M")
        for name, many in window.licences.items():
            if name in self.tokens:
                values.append(f"{name}={self.tokens[name].each(many, window.size)}")
        return values


@dataclass(frozen=True)
class Listed:
    """What a cell told at `taken`: jobs, hosts, and how its qmaster counts."""

    jobs: Sequence[text.Job]
    hosts: Sequence[text.Host]
    taken: float
    rules: Rules


@dataclass(frozen=True)
class _Use:
    """What has slots of a queue instance, and so many bytes; `kept` is the id of a reservation."""

    queue: str
    start: float
    end: float
    slots: int
    memory: float
    kept: str = ""

    @property
    def host(self) -> str:
        return _host(self.queue)


@dataclass(frozen=True)
class Occupancy(Listed):
    """Who has the slots of a cell; `jobs` are everybody's.

    `within` names the advance reservations of those that are in one: their slots are counted with
    these.
    """

    kept: Sequence[Kept] = ()
    within: Mapping[str, str] = field(default_factory=dict)

    @property
    def _sizes(self) -> dict[str, int]:
        return {host.name: text.slots(host) for host in self.hosts}

    @property
    def _uses(self) -> Iterator[_Use]:
        """What runs in no reservation, and reservations in each of their queue instances."""
        memory = self.rules.memory
        for job in self.jobs:
            if not job.waits and job.id not in self.within:
                begun = self.taken if job.started is None else job.started
                end = max(begun + self.rules.lasts(job), self.taken + 1)
                yield _Use(job.queue, begun, end, job.slots, memory.of(job))
        for one in self.kept:
            for queue, slots in one.slots.items():
                held = slots * memory.of_slot(one)
                yield _Use(queue, one.start, one.end, slots, held, one.id)

    def pools(self, spread: bool) -> tuple[Pool, ...]:
        """What is there, and taken when: one pool of all hosts that are up, or one for each."""
        sizes, short = self._sizes, self._short(())
        uses: dict[str, list[Use]] = {}
        for use in self._uses:
            uses.setdefault(use.host, []).append((use.start, use.end, use.slots))
        groups = [[name for name, size in sizes.items() if size]]
        if not spread:
            groups = [[name] for name in groups[0]]
        return tuple(
            Pool(
                tuple(names),
                sum(sizes[name] for name in names),
                tuple(sorted(use for n in names for use in [*uses.get(n, ()), *short.get(n, ())])),
            )
            for names in groups
            if names
        )

    def _short(self, but: Collection[str]) -> dict[str, list[Use]]:
        """The slots of each host that are free and have no memory left; `but` are not counted."""
        share, totals = self.rules.memory.share(self.hosts) * 2**20, self.rules.memory.totals
        if not share:
            return {}
        sizes = {host: size for host, size in self._sizes.items() if host in totals}
        always = ((self.taken, 0, 0.0), (self.taken + 2 * _EVER, 0, 0.0))
        changes: dict[str, list[tuple[float, int, float]]] = {host: [*always] for host in sizes}
        for use in self._uses:
            if use.host in sizes and use.kept not in but:
                changes[use.host].append((use.start, use.slots, use.memory))
                changes[use.host].append((use.end, -use.slots, -use.memory))
        short: dict[str, list[Use]] = {}
        for host, size in sizes.items():
            free, left = size, totals[host]
            for (start, slots, memory), (end, *_) in pairwise(sorted(changes[host])):
                free, left = free - slots, left - memory
                if start < end and (more := free - max(0, int(left // share))) > 0:
                    short.setdefault(host, []).append((start, end, more))
        return short

    def places(self, spread: bool, movable: Collection[str]) -> Places:
        """The queue instances that are up, and which reservations may be moved, by their ids.

        Those of a host that has fewer slots than they have together are one place, by the host's
        name.
        """
        place: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for host in self.hosts:
            up = {f"{queue.name}@{host.name}": queue.slots for queue in host.queues if queue.up}
            whole = text.slots(host)
            if whole < sum(up.values()):
                place |= dict.fromkeys(up, host.name)
                sizes[host.name] = whole
            else:
                place |= {instance: instance for instance in up}
                sizes |= up
        fixed = []
        moving: dict[int, Taken] = {}
        for use in self._uses:
            where = place.get(use.queue, use.queue)
            if use.kept in movable:
                slots = Counter({where: use.slots})
                if (other := moving.get(int(use.kept))) is not None:
                    slots.update(other.slots)
                moving[int(use.kept)] = Taken(use.start, use.end, slots)
            else:
                fixed.append(Taken(use.start, use.end, {where: use.slots}))
        for name, uses in self._short(movable).items():
            here = {where: size for where, size in sizes.items() if _host(where) == name}
            fixed += [
                Taken(start, end, {where: min(many, size) for where, size in here.items()})
                for start, end, many in uses
            ]
        return Places(sizes, fixed, moving, lambda name: "" if spread else _host(name))

    def kept_free(self) -> list[text.Host]:
        """The hosts, without what is reserved that nobody but jobs to come in there can have."""
        idle: Counter[str] = Counter()
        unused: defaultdict[str, float] = defaultdict(float)  # memory of each host
        for one in self.kept:
            if one.start <= self.taken:
                idle.update(one.slots)
                for instance, slots in one.slots.items():
                    unused[_host(instance)] += slots * self.rules.memory.of_slot(one)
        for job in self.jobs:
            if not job.waits and job.id in self.within:
                idle[job.queue] -= job.slots
                unused[job.host] -= self.rules.memory.of(job)
        found = []
        for host in self.hosts:
            queues = tuple(
                replace(queue, reserved=max(0, idle[f"{queue.name}@{host.name}"]))
                for queue in host.queues
            )
            free = {**host.free}
            if (name := self.rules.memory.name) in free:
                free[name] -= min(free[name], max(0.0, unused[host.name]))
            found.append(replace(host, queues=queues, free=free))
        return found

    def coming(self) -> tuple[tuple[float, int], ...]:
        """By when what begins now must have ended for windows, and how many slots they leave it."""
        size = sum(self._sizes.values())
        uses = [(use.start, use.end, use.slots) for use in self._uses]
        found = []
        for start in sorted({one.start for one in self.kept if one.start > self.taken}):
            busy = sum(many for begin, end, many in uses if begin <= start < end)
            found.append((start - self.rules.offset, max(0, size - busy)))
        return tuple(found)


def held(kept: Iterable[Kept], owner: str, instance: str) -> tuple[Held, ...]:
    """Those of this instance, made by this account.

    Of one that is being replaced, the newer, with the slots of both: it is seen to be unfinished.
    """
    ours: dict[str, Held] = {}
    for one in kept:
        if one.owner == owner and id_of(one.name, instance) is not None:
            older = ours[one.name].size or 0 if one.name in ours else 0
            ours[one.name] = Held(one.name, one.start, one.end, one.places, older + one.size)
    return tuple(ours.values())


def lists(ids: Sequence[str], most: int) -> list[str]:
    """The ids as comma-separated lists of at most so many."""
    return [",".join(ids[at : at + most]) for at in range(0, len(ids), most)]


def granted(answer: str) -> str | None:
    """The id in the answer of `qrsub`, None if it granted nothing."""
    found = re.search(r"advance reservation (\d+) has been granted", answer)
    return found[1] if found else None


def _host(instance: str) -> str:
    return instance.rpartition("@")[2]


def _word(one: ElementTree.Element, name: str) -> str:
    return (one.findtext(name) or "").strip()
