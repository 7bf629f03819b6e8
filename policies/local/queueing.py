"""Which waiting jobs of one cluster start now, and on which of its machines. Pure.

A caller (the `local` adapter, the simulator) gives the queue in its own order, what runs and what
is free; a policy answers with what to start. One protocol serves a cluster whose processors are
counted (its free processors are one number, a job takes some of them anywhere) and one of
machines (a job runs on one of them, at that machine's speed). What else is short (memory, GPUs,
licences) is counted for the whole cluster.

Here are the queues in one order and their backfilling: strict, first fit, sorted, EASY. Plans for
the whole queue are in `planning`, priorities that change as jobs wait in `flexible`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

OVERRUN = 1.0  # seconds from now until a job past its estimate is taken to end
NOWHERE = -1
NEVER = math.inf
_RELEASE = attrgetter("end", "cpus")
NOTHING: Mapping[Any, Any] = MappingProxyType({})


# What a policy is told, anew at each pass: named tuples are as fixed as frozen classes, whose
# fields are set one by one, and made in about a third of the time.


class Waiting(NamedTuple):
    """A job that waits: processors, estimated seconds, and how much it needs of what else is
    counted (`counts`: "memory" in MiB, "gpu", a licence).

    `machines` maps those that may run it, by their place in `Free.machines`, to the seconds it
    takes there; it is left empty where processors are counted. `licences` are those that it has
    leased of the whole site, which are not counted here. `since` is the moment from which
    its waiting counts, `deadline` one in the same clock; `priority` the meta-scheduler's.
    """

    id: int
    cpus: int
    estimated: float
    counts: Mapping[str, int] = NOTHING
    machines: Mapping[int, float] = NOTHING
    since: float = 0.0
    deadline: float | None = None
    priority: int = 1
    user: str = ""
    licences: tuple[str, ...] = ()


class Running(NamedTuple):
    """A job that runs: `end` is its start + its estimate, in the seconds of the caller's clock.

    `cpus` is what it holds: all of its machine where machines are not shared.
    """

    id: int
    cpus: int
    end: float
    counts: Mapping[str, int] = NOTHING
    machine: int = 0
    user: str = ""


class Free(NamedTuple):
    """What no job holds. A resource that `counts` does not name is unlimited.

    `machines` are the free processors of each, the most powerful machine first; None where
    processors are counted. `shared` says whether a machine may run several jobs at a time. `rho`
    tells of licences of the whole site how much waits for a copy (`Licences.rho`).
    """

    cpus: int
    counts: Mapping[str, int] = NOTHING
    machines: Sequence[int] | None = None
    shared: bool = True
    rho: Mapping[str, float] = NOTHING


class Start(NamedTuple):
    """A job to start now; `machine` is 0 where processors are counted."""

    id: int
    machine: int = 0


class Policy(Protocol):
    """The one question that is asked of a local policy; an object serves one cluster.

    It is asked after every arrival and ending, or only every `period` seconds if that is not 0.
    `steady`: what it did not start it starts no sooner than something ends, or is past its
    estimate: until then it may be asked of the head of the queue and of what has come since.
    """

    @property
    def period(self) -> float: ...

    @property
    def steady(self) -> bool: ...

    def starts(
        self, now: float, queue: Collection[Waiting], running: Collection[Running], free: Free
    ) -> list[Start]:
        """The jobs of `queue` to start at `now`, together never more than `free`."""
        ...


def earliest_fit(
    need: int, free: int, releases: Iterable[tuple[float, int]], now: float
) -> tuple[float, int]:
    """(shadow time, extra): when `need` processors are free, and how many more are free then.

    `releases` holds (end, processors) of what runs, in any order; all that end at the shadow time
    are counted, and what should have ended by `now` is taken to end in `OVERRUN` seconds.
    (inf, 0) if it never fits; (now, what is left over) if it fits now. O(n log n) in `releases`.
    EASY's reservation for the head of the queue: Lifka 1995; Mu'alem and Feitelson 2001, §3.
    """
    if need <= free:
        return now, free - need
    late = now + OVERRUN
    shadow = NEVER
    order = sorted(releases)
    if order and order[0][0] <= now:
        order = sorted([(end if end > now else late, amount) for end, amount in order])
    for end, amount in order:
        if end > shadow:
            break
        free += amount
        if free >= need:
            shadow = end
    return (shadow, free - need) if shadow < NEVER else (shadow, 0)


# What is free, as one pass hands it out.


class Room:
    """What is still free while one pass hands it out, where processors are counted.

    `begun` is what this pass has started.
    """

    def __init__(self, now: float, running: Collection[Running], free: Free) -> None:
        self.now, self.running, self.cpus = now, running, free.cpus
        self.counts, self.rho = dict(free.counts), free.rho
        self.begun: list[Running] = []
        self.starts: list[Start] = []

    @property
    def full(self) -> bool:
        return self.cpus <= 0

    @property
    def largest(self) -> int:
        """Processors that are free for one job: none that needs more starts."""
        return self.cpus

    def place(self, job: Waiting) -> int:
        """Where the job can start now (a machine), or NOWHERE."""
        if job.cpus > self.cpus or (job.counts and not self._counted(job)):
            return NOWHERE
        return 0

    def start(self, job: Waiting, machine: int) -> None:
        """Hand what the job needs to it."""
        self.cpus -= job.cpus
        self._begin(job, job.cpus, machine, job.estimated)

    def reserve(self, head: Waiting) -> Reservation:
        """The earliest start of a job that does not fit now."""
        return Reservation(head, self)

    def take_back(self, ended: Running) -> None:
        """What it held is free again."""
        self.cpus += ended.cpus
        for name, amount in ended.counts.items():
            if name in self.counts:
                self.counts[name] += amount

    def left(self) -> object:
        """All that is free, to be compared."""
        return self.cpus, self.counts

    def held(self) -> Iterator[Running]:
        """All that runs, with what this pass has started."""
        return chain(self.running, self.begun)

    def _counted(self, job: Waiting) -> bool:
        counts = self.counts
        return all(amount <= counts.get(name, amount) for name, amount in job.counts.items())

    def _begin(self, job: Waiting, cpus: int, machine: int, seconds: float) -> None:
        for name, amount in job.counts.items():
            if name in self.counts:
                self.counts[name] -= amount
        self.begun.append(Running(job.id, cpus, self.now + seconds, job.counts, machine, job.user))
        self.starts.append(Start(job.id, machine))


class MachineRoom(Room):
    """What is still free on machines: a job starts on the most powerful one that can take it."""

    def __init__(self, now: float, running: Collection[Running], free: Free) -> None:
        super().__init__(now, running, free)
        assert free.machines is not None
        self.machines, self.shared = list(free.machines), free.shared
        self.open = [m for m, cpus in enumerate(self.machines) if cpus > 0]

    @property
    def full(self) -> bool:
        return not self.open

    @property
    def largest(self) -> int:
        return max([self.machines[machine] for machine in self.open], default=0)

    def place(self, job: Waiting) -> int:
        return next(self.places(job), NOWHERE)

    def places(self, job: Waiting) -> Iterator[int]:
        """Every machine on which the job can start now, the most powerful first."""
        if job.counts and not self._counted(job):
            return
        need, able, machines = job.cpus, job.machines, self.machines
        for machine in self.open:
            if machines[machine] >= need and machine in able:
                yield machine

    def start(self, job: Waiting, machine: int) -> None:
        taken = job.cpus if self.shared else self.machines[machine]
        self.machines[machine] -= taken
        if self.machines[machine] <= 0:
            self.open.remove(machine)
        self._begin(job, taken, machine, job.machines[machine])

    def take_back(self, ended: Running) -> None:
        super().take_back(ended)
        self.machines[ended.machine] += ended.cpus

    def left(self) -> object:
        return self.machines, self.counts

    def reserve(self, head: Waiting) -> Reservation:
        return MachineReservation(head, self)


def room(now: float, running: Collection[Running], free: Free) -> Room:
    """The room of one pass over a cluster of counted processors or of machines."""
    kind = Room if free.machines is None else MachineRoom
    return kind(now, running, free)


class Reservation:
    """EASY's promise to the head of the queue: when it starts, and what is left over then.

    With several resources the time is the earliest at which all of the head's needs fit, and only
    resources that the head needs can be short then. O(r log r) for r running jobs. Lifka 1995.
    """

    def __init__(self, head: Waiting, room: Room) -> None:
        self.head, self.room = head, room
        self.shadow, self.cpus = earliest_fit(
            head.cpus, room.cpus, map(_RELEASE, room.held()), room.now
        )
        self.counts: dict[str, int] = {}
        if not (head.counts and room.counts):
            return
        scarce = {name: need for name, need in head.counts.items() if name in room.counts}
        if not scarce:
            return
        held = list(room.held())
        for name, need in scarce.items():
            releases = [(r.end, r.counts[name]) for r in held if name in r.counts]
            fit, _ = earliest_fit(need, room.counts[name], releases, room.now)
            self.shadow = max(self.shadow, fit)
        back = [r for r in held if _ends(r, room.now) <= self.shadow]
        self.cpus = room.cpus - head.cpus + sum(r.cpus for r in back)
        self.counts = {
            name: room.counts[name] - need + sum(r.counts.get(name, 0) for r in back)
            for name, need in scarce.items()
        }

    @property
    def widest(self) -> int:
        """Processors of the largest job that may end later than the head begins."""
        return self.cpus

    def settle(self) -> None:
        """The pass is over: remember what runs, to see in a later one whether all went as planned.

        Then the promise still holds as it is: what was started since leaves the head its due.
        """
        self._held = list(self.room.held())

    def holds_in(self, room: Room) -> bool:
        """Whether just that has ended which was to end by now, and nothing else has changed.

        Then this is the promise in the new room, else it is void. O(r), in C for the most part.
        """
        now, before = room.now, self.room
        if [r for r in self._held if r.end > now] != list(room.running):
            return False
        for ended in [r for r in self._held if r.end <= now]:
            if ended.end <= before.now:  # it was late already, so no end was promised
                return False
            before.take_back(ended)
        self.room = room
        return before.left() == room.left()

    def admit(self, job: Waiting) -> bool:
        """Start the job if it fits now and does not delay the head."""
        room = self.room
        if job.cpus > room.cpus or (job.counts and room.place(job) == NOWHERE):
            return False
        if room.now + job.estimated > self.shadow:
            if job.cpus > self.cpus or not self._spared(job):
                return False
            self.cpus -= job.cpus
            self._use(job)
        room.start(job, 0)
        return True

    def _spared(self, job: Waiting) -> bool:
        counts = self.counts
        if not counts:
            return True
        return all(amount <= counts.get(n, amount) for n, amount in job.counts.items())

    def _use(self, job: Waiting) -> None:
        for name, amount in job.counts.items():
            if name in self.counts:
                self.counts[name] -= amount


class MachineReservation(Reservation):
    """The same on machines: the head is promised one machine, other ones are not its concern."""

    def __init__(self, head: Waiting, room: MachineRoom) -> None:
        self.head, self.room = head, room
        self.shadow, self.machine, self.cpus = NEVER, NOWHERE, 0
        free, counts = list(room.machines), dict(room.counts)
        scarce = [(name, need) for name, need in head.counts.items() if name in counts]
        able = {m for m in head.machines if free[m] >= head.cpus}
        now, late = room.now, room.now + OVERRUN
        held = room.held()
        ends = [(r.end if r.end > now else late, place, r) for place, r in enumerate(held)]
        heapify(ends)  # most often the head fits soon
        while ends:
            end, _, r = heappop(ends)
            free[r.machine] += r.cpus
            if free[r.machine] >= head.cpus and r.machine in head.machines:
                able.add(r.machine)
            for name, amount in r.counts.items():
                if name in counts:
                    counts[name] += amount
            if ends and ends[0][0] == end:
                continue
            if able and all(counts[name] >= need for name, need in scarce):
                self.shadow, self.machine = end, min(able)
                self.cpus = free[self.machine] - head.cpus if room.shared else 0
                break
        self.counts = {name: counts[name] - need for name, need in scarce}

    @property
    def _machines(self) -> MachineRoom:
        """Its room, which is another one in each pass in which the promise holds."""
        assert isinstance(self.room, MachineRoom)
        return self.room

    @property
    def widest(self) -> int:
        machines = self._machines.machines
        return max(
            [
                min(self.cpus, machines[m]) if m == self.machine else machines[m]
                for m in self._machines.open
            ],
            default=0,
        )

    def admit(self, job: Waiting) -> bool:
        room = self._machines
        for machine in room.places(job):
            if room.now + job.machines[machine] > self.shadow:
                theirs = machine == self.machine
                if (theirs and job.cpus > self.cpus) or not self._spared(job):
                    continue
                self.cpus -= job.cpus if theirs else 0
                self._use(job)
            room.start(job, machine)
            return True
        return False


def _ends(job: Running, now: float) -> float:
    return job.end if job.end > now else now + OVERRUN


# How far down the queue a pass looks.


def strict(queue: Iterable[Waiting], room: Room) -> Waiting | None:
    """Start the jobs at the head of the queue while they fit; the first that does not, if any."""
    for job in queue:
        machine = room.place(job)
        if machine == NOWHERE:
            return job
        room.start(job, machine)
    return None


def first_fit(queue: Iterable[Waiting], room: Room) -> None:
    """Start every job that fits; nothing is kept for those that do not."""
    for job in queue:
        if room.full:
            return
        machine = room.place(job)
        if machine != NOWHERE:
            room.start(job, machine)


def backfill(queue: Iterable[Waiting], room: Room) -> Waiting | None:
    """Start what fits at the head, then what does not delay the first that did not fit: that one.

    A later job starts if it fits now and either ends by the head's shadow time or needs no more
    than is left over at that time, which it then uses up. Lifka 1995; algorithm of one pass:
    O(r log r + q) for r running and q waiting jobs.
    """
    rest = iter(queue)
    head = strict(rest, room)
    largest = room.largest  # most need more, in most passes all: then no promise is needed
    small = [job for job in rest if job.cpus <= largest]
    if head is not None and small:
        promise = room.reserve(head)
        for job in small:
            if job.cpus <= largest and promise.admit(job):
                largest = room.largest
    return head


# The policies.


class FCFS:
    """First come, first served: nothing overtakes a job that does not fit. O(started)."""

    name: ClassVar[str] = "fcfs"
    period: float = 0.0
    steady: ClassVar[bool] = True

    def starts(
        self, now: float, queue: Collection[Waiting], running: Collection[Running], free: Free
    ) -> list[Start]:
        space = room(now, running, free)
        strict(queue, space)
        return space.starts


class FirstFit:
    """Down the queue, whatever fits starts; a large job may wait for ever. O(q).

    The local "FCFS" of Kurowski et al. 2011, §4.4.3.
    """

    name: ClassVar[str] = "first-fit"
    period: float = 0.0
    steady: ClassVar[bool] = True

    def starts(
        self, now: float, queue: Collection[Waiting], running: Collection[Running], free: Free
    ) -> list[Start]:
        space = room(now, running, free)
        first_fit(self.ordered(queue), space)
        return space.starts

    def ordered(self, queue: Collection[Waiting]) -> Collection[Waiting]:
        return queue


class LSF(FirstFit):
    """Largest size first, looked at every `period` seconds (0: at each arrival and ending).

    Kurowski et al. 2011, §4.4.3. ValueError if `period` is negative or no number.
    """

    name: ClassVar[str] = "lsf"

    def __init__(self, period: float = 0.0) -> None:
        if not (math.isfinite(period) and period >= 0):
            raise ValueError(f"period is {period}; it must be 0 or more seconds")
        self.period = period

    def ordered(self, queue: Collection[Waiting]) -> Collection[Waiting]:
        return sorted(queue, key=lambda job: -job.cpus)


class SJF(FirstFit):
    """Shortest estimate first."""

    name: ClassVar[str] = "sjf"

    def ordered(self, queue: Collection[Waiting]) -> Collection[Waiting]:
        return sorted(queue, key=lambda job: job.estimated)


class EDF(FirstFit):
    """Earliest deadline first, jobs without one last. Pasquali 2008, §4.2."""

    name: ClassVar[str] = "edf"

    def ordered(self, queue: Collection[Waiting]) -> Collection[Waiting]:
        return sorted(queue, key=lambda job: NEVER if job.deadline is None else job.deadline)


class EASY:
    """FCFS with backfilling: a later job may start if it does not delay the blocked head."""

    name: ClassVar[str] = "easy"
    period: float = 0.0
    steady: ClassVar[bool] = True

    def starts(
        self, now: float, queue: Collection[Waiting], running: Collection[Running], free: Free
    ) -> list[Start]:
        space = room(now, running, free)
        backfill(self.ordered(now, queue), space)
        return space.starts

    def ordered(self, now: float, queue: Collection[Waiting]) -> Collection[Waiting]:
        return queue


class Priority(EASY):
    """EASY on the queue ordered by the meta-scheduler's fixed priority, higher first.

    The case MS of Pasquali 2008, §4.3.
    """

    name: ClassVar[str] = "priority"
    steady: ClassVar[bool] = False

    def ordered(self, now: float, queue: Collection[Waiting]) -> Collection[Waiting]:
        return sorted(queue, key=lambda job: -job.priority)


class FairShare(EASY):
    """EASY on the queue ordered by what its user has consumed of late, the least first.

    Consumption is processor seconds, halved every `half_life` seconds (a week, as Slurm's
    PriorityDecayHalfLife has it by default). ValueError if that is not positive.
    """

    name: ClassVar[str] = "fair-share"
    steady: ClassVar[bool] = False

    def __init__(self, half_life: float = 7 * 86400.0) -> None:
        if not (math.isfinite(half_life) and half_life > 0):
            raise ValueError(f"half_life is {half_life}; it must be a positive number of seconds")
        self.half_life = half_life
        self._used: dict[str, float] = {}
        self._holding: list[Running] = []
        self._then = 0.0

    def starts(
        self, now: float, queue: Collection[Waiting], running: Collection[Running], free: Free
    ) -> list[Start]:
        self._consume(now)
        space = room(now, running, free)
        backfill(self.ordered(now, queue), space)
        self._holding = list(space.held())
        return space.starts

    def ordered(self, now: float, queue: Collection[Waiting]) -> Collection[Waiting]:
        used = self._used
        return sorted(queue, key=lambda job: used.get(job.user, 0.0))

    def _consume(self, now: float) -> None:
        """Count what ran since the last pass: every start and every end is followed by one."""
        elapsed, self._then = now - self._then, now
        decay = 0.5 ** (elapsed / self.half_life)
        used = {user: seconds * decay for user, seconds in self._used.items()}
        for job in self._holding:
            used[job.user] = used.get(job.user, 0.0) + job.cpus * elapsed
        self._used = used
