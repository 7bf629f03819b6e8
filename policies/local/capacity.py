"""Free capacity of a cluster during a pass, and the reservation for a blocked head. Pure."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop
from itertools import chain
from operator import attrgetter

from metasched.policies.local.availability import AvailabilityProfile
from metasched.policies.local.queueing import (
    NEVER,
    NO_MACHINE,
    FreeResources,
    JobStart,
    RunningJob,
    WaitingJob,
)

OVERRUN_SECONDS = 1.0  # from now to the assumed end of a job past its estimate
_END_AND_CPUS = attrgetter("end", "cpus")


def earliest_fit(
    need: int, free: int, releases: Iterable[tuple[float, int]], now: float
) -> tuple[float, int]:
    """Return (shadow time, extra): when `need` processors are free, and how many more then.

    `releases` holds (end, processors) of running jobs, in any order. All that end at the shadow
    time are counted. A job past its end is taken to end in `OVERRUN_SECONDS`. Returns (inf, 0) if
    `need` never fits, (now, remaining processors) if it fits now. O(n log n) in `releases`. EASY's
    reservation for the head of the queue: Lifka 1995; Mu'alem and Feitelson 2001, §3.
    """
    if need <= free:
        return now, free - need
    overrun_end = now + OVERRUN_SECONDS
    shadow = NEVER
    ordered = sorted(releases)
    if ordered and ordered[0][0] <= now:
        ordered = sorted([(end if end > now else overrun_end, amount) for end, amount in ordered])
    for end, amount in ordered:
        if end > shadow:
            break
        free += amount
        if free >= need:
            shadow = end
    return (shadow, free - need) if shadow < NEVER else (shadow, 0)


class Capacity:
    """Free resources during a pass, where processors are counted."""

    def __init__(self, now: float, running: Collection[RunningJob], free: FreeResources) -> None:
        self.now, self.running, self.cpus = now, running, free.cpus
        self.resources, self.rho = dict(free.resources), free.rho
        self.started: list[RunningJob] = []  # in this pass
        self.starts: list[JobStart] = []  # the result of this pass
        self.reservation: HeadReservation | None = None  # made in this pass

    @property
    def full(self) -> bool:
        return self.cpus <= 0

    @property
    def largest(self) -> int:
        """Processors free for a job: a job that needs more cannot start."""
        return self.cpus

    def find_machine(self, job: WaitingJob) -> int:
        """Return a machine on which the job can start now, or NO_MACHINE."""
        if job.cpus > self.cpus or (job.resources and not self._has_resources(job)):
            return NO_MACHINE
        return 0

    def start(self, job: WaitingJob, machine: int) -> None:
        """Start the job and take its resources."""
        self.cpus -= job.cpus
        self._record_start(job, job.cpus, machine, job.estimated)

    def reserve(self, head: WaitingJob) -> HeadReservation:
        """Reserve the earliest start for a job that does not fit now; return the reservation."""
        self.reservation = HeadReservation(head, self)
        return self.reservation

    def release(self, ended: RunningJob) -> None:
        """Return the resources of a job that has ended or is to be suspended."""
        self.cpus += ended.cpus
        for name, amount in ended.resources.items():
            if name in self.resources:
                self.resources[name] += amount

    def hold(self, released: RunningJob) -> None:
        """Take the resources of a job again, after `release`."""
        self.cpus -= released.cpus
        for name, amount in released.resources.items():
            if name in self.resources:
                self.resources[name] -= amount

    def snapshot(self) -> object:
        """Return all free resources, for comparison."""
        return self.cpus, self.resources

    def all_running(self) -> Iterator[RunningJob]:
        """Iterate over all running jobs, with those started in this pass."""
        return chain(self.running, self.started)

    def _has_resources(self, job: WaitingJob) -> bool:
        resources = self.resources
        return all(amount <= resources.get(name, amount) for name, amount in job.resources.items())

    def _record_start(self, job: WaitingJob, cpus: int, machine: int, seconds: float) -> None:
        for name, amount in job.resources.items():
            if name in self.resources:
                self.resources[name] -= amount
        self.started.append(
            RunningJob(job.id, cpus, self.now + seconds, job.resources, machine, job.user)
        )
        self.starts.append(JobStart(job.id, machine))


class FreeOnMachines(Capacity):
    """Free resources on machines: a job starts on the most powerful machine that can take it."""

    def __init__(self, now: float, running: Collection[RunningJob], free: FreeResources) -> None:
        super().__init__(now, running, free)
        assert free.machines is not None
        self.machines, self.shared = list(free.machines), free.shared
        self.open_machines = [machine for machine, cpus in enumerate(self.machines) if cpus > 0]

    @property
    def full(self) -> bool:
        return not self.open_machines

    @property
    def largest(self) -> int:
        return max([self.machines[machine] for machine in self.open_machines], default=0)

    def find_machine(self, job: WaitingJob) -> int:
        return next(self.find_machines(job), NO_MACHINE)

    def find_machines(self, job: WaitingJob) -> Iterator[int]:
        """Yield every machine on which the job can start now, the most powerful first."""
        if job.resources and not self._has_resources(job):
            return
        cpus, allowed, free_cpus = job.cpus, job.machines, self.machines
        for machine in self.open_machines:
            if free_cpus[machine] >= cpus and machine in allowed:
                yield machine

    def start(self, job: WaitingJob, machine: int) -> None:
        used_cpus = job.cpus if self.shared else self.machines[machine]
        self.machines[machine] -= used_cpus
        if self.machines[machine] <= 0:
            self.open_machines.remove(machine)
        self._record_start(job, used_cpus, machine, job.machines[machine])

    def release(self, ended: RunningJob) -> None:
        super().release(ended)
        if self.machines[ended.machine] <= 0:
            insort(self.open_machines, ended.machine)
        self.machines[ended.machine] += ended.cpus

    def hold(self, released: RunningJob) -> None:
        super().hold(released)
        self.machines[released.machine] -= released.cpus
        if self.machines[released.machine] <= 0:
            self.open_machines.remove(released.machine)

    def snapshot(self) -> object:
        return self.machines, self.resources

    def reserve(self, head: WaitingJob) -> HeadReservation:
        self.reservation = MachineHeadReservation(head, self)
        return self.reservation


class CapacityBesideWindows(Capacity):
    """Free resources beside reserved windows: by its estimate no job runs into a window.

    Finding and starting a job are O(v) in the v steps of the free processors over time.
    """

    def __init__(self, now: float, running: Collection[RunningJob], free: FreeResources) -> None:
        super().__init__(now, running, free)
        changes = [(expected_end(r, now), r.cpus) for r in running]
        for window in free.windows:
            if window.end > now:
                changes += ((max(window.start, now), -window.cpus), (window.end, window.cpus))
        self.profile = AvailabilityProfile(now, free.cpus, changes)
        # below 0: jobs have outlasted their estimates, or the cluster has shrunk
        self.cpus = max(self.profile.free[0], 0)

    def find_machine(self, job: WaitingJob) -> int:
        if super().find_machine(job) == NO_MACHINE or not can_run_now(self.profile, job):
            return NO_MACHINE
        return 0

    def start(self, job: WaitingJob, machine: int) -> None:
        super().start(job, machine)
        self.profile.hold(self.now, self.now + job.estimated, job.cpus)

    def snapshot(self) -> object:
        return *(self.cpus, self.resources), self.profile.times, self.profile.free

    def reserve(self, head: WaitingJob) -> HeadReservation:
        self.reservation = HeadBesideWindows(head, self)
        return self.reservation


def can_run_now(profile: AvailabilityProfile, job: WaitingJob) -> bool:
    """Return whether the processors of a job are free from now on for as long as its estimate."""
    now = profile.times[0]
    return profile.earliest_start(job.cpus, job.estimated, now, now) == now


def make_capacity(now: float, running: Collection[RunningJob], free: FreeResources) -> Capacity:
    """Create the capacity of a pass over a cluster of counted processors or of machines.

    Windows are kept where processors are counted.
    """
    if free.machines is not None:
        return FreeOnMachines(now, running, free)
    if free.windows and any(window.end > now for window in free.windows):
        return CapacityBesideWindows(now, running, free)
    return Capacity(now, running, free)


class HeadReservation:
    """EASY's reservation for the head of the queue: its start, and the resources left then.

    With several resources the start is the earliest time at which all needs of the head fit; only
    resources that the head needs can be short then. O(r log r) for r running jobs. Lifka 1995.
    """

    def __init__(self, head: WaitingJob, capacity: Capacity) -> None:
        self.head, self.capacity = head, capacity
        self.shadow_time, self.extra_cpus = earliest_fit(
            head.cpus, capacity.cpus, map(_END_AND_CPUS, capacity.all_running()), capacity.now
        )
        self.extra_resources: dict[str, int] = {}
        if not (head.resources and capacity.resources):
            return
        if not (scarce := self._scarce_needs()):
            return
        running = list(capacity.all_running())
        self.shadow_time = max(self.shadow_time, self._resources_ready(scarce, running))
        released = self._leave_resources(scarce, running)
        self.extra_cpus = capacity.cpus - head.cpus + sum(r.cpus for r in released)

    def _scarce_needs(self) -> dict[str, int]:
        """Return the counted resources that the head needs."""
        counted = self.capacity.resources
        return {name: need for name, need in self.head.resources.items() if name in counted}

    def _resources_ready(self, scarce: Mapping[str, int], running: Sequence[RunningJob]) -> float:
        """Return when these resources are free for the head, each for itself."""
        capacity, ready = self.capacity, self.capacity.now
        for name, need in scarce.items():
            releases = [(r.end, r.resources[name]) for r in running if name in r.resources]
            fit_time, _ = earliest_fit(need, capacity.resources[name], releases, capacity.now)
            ready = max(ready, fit_time)
        return ready

    def _leave_resources(
        self, scarce: Mapping[str, int], running: Sequence[RunningJob]
    ) -> list[RunningJob]:
        """Set the amounts that the head leaves at its start; return the jobs ended by then."""
        capacity = self.capacity
        released = [r for r in running if expected_end(r, capacity.now) <= self.shadow_time]
        self.extra_resources = {
            name: capacity.resources[name] - need + sum(r.resources.get(name, 0) for r in released)
            for name, need in scarce.items()
        }
        return released

    @property
    def max_overlapping_cpus(self) -> int:
        """Processors of the largest job that may end after the start of the head."""
        return self.extra_cpus

    def end_pass(self) -> None:
        """Record the running jobs at the end of the pass, for `still_valid` in a later pass.

        Jobs started since the reservation leave the head its resources, so it remains valid.
        """
        self._expected_running = list(self.capacity.all_running())

    def still_valid(self, capacity: Capacity) -> bool:
        """Return whether only the jobs expected to end by now have ended, without other changes.

        If so, continue with the new `capacity`, else the reservation is void. O(r), mostly in C.
        """
        now, previous = capacity.now, self.capacity
        if [r for r in self._expected_running if r.end > now] != list(capacity.running):
            return False
        for ended in [r for r in self._expected_running if r.end <= now]:
            if ended.end <= previous.now:  # already past its estimate: its end was not expected
                return False
            previous.release(ended)
        self.capacity = capacity
        return previous.snapshot() == capacity.snapshot()

    def admit(self, job: WaitingJob) -> bool:
        """Start the job if it fits now and does not delay the head."""
        capacity = self.capacity
        if job.cpus > capacity.cpus or (job.resources and capacity.find_machine(job) == NO_MACHINE):
            return False
        if capacity.now + job.estimated > self.shadow_time:
            if job.cpus > self.extra_cpus or not self._fits_extra(job):
                return False
            self.extra_cpus -= job.cpus
            self._use_extra(job)
        capacity.start(job, 0)
        return True

    def _fits_extra(self, job: WaitingJob) -> bool:
        extra = self.extra_resources
        if not extra:
            return True
        return all(amount <= extra.get(name, amount) for name, amount in job.resources.items())

    def _use_extra(self, job: WaitingJob) -> None:
        for name, amount in job.resources.items():
            if name in self.extra_resources:
                self.extra_resources[name] -= amount


class HeadBesideWindows(HeadReservation):
    """The reservation beside windows: the head runs in the first gap between them."""

    def __init__(self, head: WaitingJob, capacity: CapacityBesideWindows) -> None:
        self.head, self.capacity = head, capacity
        self.shadow_time, self.extra_resources = NEVER, {}
        self._profile = capacity.profile.copy()  # without the processors of the head
        running, scarce = list(capacity.all_running()), self._scarce_needs()
        ready = self._resources_ready(scarce, running)
        if ready < NEVER:
            self.shadow_time = self._profile.earliest_start(head.cpus, head.estimated, ready)
        if self.shadow_time < NEVER:
            self._profile.hold(self.shadow_time, self.shadow_time + head.estimated, head.cpus)
            self._leave_resources(scarce, running)
        self._count_extra()

    def _count_extra(self) -> None:
        """Set the processors of the largest job that may run for any time."""
        self.extra_cpus = max(min(self._profile.free), 0)

    @property
    def max_overlapping_cpus(self) -> int:
        return self.capacity.cpus

    def still_valid(self, capacity: Capacity) -> bool:
        return False

    def admit(self, job: WaitingJob) -> bool:
        capacity = self.capacity
        if capacity.find_machine(job) == NO_MACHINE or not can_run_now(self._profile, job):
            return False
        if capacity.now + job.estimated > self.shadow_time:
            if not self._fits_extra(job):
                return False
            self._use_extra(job)
        self._profile.hold(capacity.now, capacity.now + job.estimated, job.cpus)
        self._count_extra()
        capacity.start(job, 0)
        return True


class MachineHeadReservation(HeadReservation):
    """The reservation on machines: a machine for the head, the other machines unrestricted."""

    def __init__(self, head: WaitingJob, capacity: FreeOnMachines) -> None:
        self.head, self.capacity = head, capacity
        self.shadow_time, self.machine, self.extra_cpus = NEVER, NO_MACHINE, 0
        free_cpus, resources = list(capacity.machines), dict(capacity.resources)
        scarce = [(name, need) for name, need in head.resources.items() if name in resources]
        usable = {m for m in head.machines if free_cpus[m] >= head.cpus}
        now, overrun_end = capacity.now, capacity.now + OVERRUN_SECONDS
        running = enumerate(capacity.all_running())
        ends = [(r.end if r.end > now else overrun_end, index, r) for index, r in running]
        heapify(ends)  # a heap: usually the head fits after few ends
        while ends:
            end, _, r = heappop(ends)
            free_cpus[r.machine] += r.cpus
            if free_cpus[r.machine] >= head.cpus and r.machine in head.machines:
                usable.add(r.machine)
            for name, amount in r.resources.items():
                if name in resources:
                    resources[name] += amount
            if ends and ends[0][0] == end:
                continue
            if usable and all(resources[name] >= need for name, need in scarce):
                self.shadow_time, self.machine = end, min(usable)
                self.extra_cpus = free_cpus[self.machine] - head.cpus if capacity.shared else 0
                break
        self.extra_resources = {name: resources[name] - need for name, need in scarce}

    @property
    def _machine_capacity(self) -> FreeOnMachines:
        """The capacity of the current pass."""
        assert isinstance(self.capacity, FreeOnMachines)
        return self.capacity

    @property
    def max_overlapping_cpus(self) -> int:
        free_cpus = self._machine_capacity.machines
        return max(
            [
                min(self.extra_cpus, free_cpus[m]) if m == self.machine else free_cpus[m]
                for m in self._machine_capacity.open_machines
            ],
            default=0,
        )

    def admit(self, job: WaitingJob) -> bool:
        capacity = self._machine_capacity
        for machine in capacity.find_machines(job):
            if capacity.now + job.machines[machine] > self.shadow_time:
                on_head_machine = machine == self.machine
                if (on_head_machine and job.cpus > self.extra_cpus) or not self._fits_extra(job):
                    continue
                self.extra_cpus -= job.cpus if on_head_machine else 0
                self._use_extra(job)
            capacity.start(job, machine)
            return True
        return False


def expected_end(job: RunningJob, now: float) -> float:
    """Return the end of a running job by its estimate, or `OVERRUN_SECONDS` from now."""
    return job.end if job.end > now else now + OVERRUN_SECONDS
