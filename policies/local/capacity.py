"""Free capacity of one cluster, now and at the ends of running jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from heapq import heapify, heappop
from itertools import chain
from operator import attrgetter

from metasched.policies.local.queueing import NEVER, NOWHERE, Free, Running, Start, Waiting

OVERRUN = 1.0  # seconds from now until a job past its estimate is taken to end


_RELEASE = attrgetter("end", "cpus")


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
