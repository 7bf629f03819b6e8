"""Simulated managers that name the processors of a window at its request: static binding.

Kurowski et al. 2011, section 4.1. The core counts processors, since metasched lets the nodes of a
reservation change until it begins. Here they cannot, so a window needs processors that are free
throughout, which only its manager knows: it proposes a window, and the core grants that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf, nextafter
from typing import ClassVar, Literal

from msgspec import structs

from metasched.carts.sets import CartsSets
from metasched.core.events import Outcome
from metasched.core.reservations.events import ReservationEvent, ReservationRequested
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import INSTANCE, THROUGH_METASCHED, Schedule, Simulation
from metasched.laboratory.simulate.manager import SimulatedManager
from metasched.laboratory.simulate.reservations import ReservationDesk, with_window
from metasched.laboratory.simulate.schemes import SubmissionScheme
from metasched.laboratory.simulate.workload import Workload
from metasched.model.reservation import Reservation
from metasched.model.reservation_request import Offer, ReservationRequest
from metasched.policies.local.orders import FirstFit
from metasched.policies.local.queueing import (
    FreeResources,
    JobStart,
    LocalPolicy,
    ReservedWindow,
    RunningJob,
    WaitingJob,
)
from metasched.policies.policy import Policy
from metasched.policies.reservation_choice import ClusterChooser, MinimumCompletionTime

# when processors are named: at the start of a task, or at the request of its window; "apart": batch
# jobs get the highest free processors, windows the lowest
ProcessorBinding = Literal["late", "early", "early, apart"]


def simulate_static_binding(
    workload: Workload,
    clusters: Sequence[SimulatedCluster],
    policy: Policy,
    scheme: SubmissionScheme = THROUGH_METASCHED,
    apart: bool = False,
) -> Schedule:
    """Simulate managers with static binding; batch jobs start first fit."""
    origin = workload.entries[0].job.submitted if workload.entries else 0.0

    def make_policy(cluster: SimulatedCluster) -> FirstFitOnProcessors:
        return FirstFitOnProcessors(CartsSets(cluster.cpus, origin), highest=apart)

    return _StaticBinding(workload, clusters, policy, make_policy, scheme=scheme).run()


class FirstFitOnProcessors(FirstFit):
    """First fit of jobs for which processors are free for as long as their limits."""

    incremental: ClassVar[bool] = False  # windows may be booked between passes

    def __init__(self, processors: CartsSets, highest: bool) -> None:
        self.processors, self._highest = processors, highest
        self._held: dict[int, tuple[float, frozenset[int]]] = {}  # limit and processors, by job

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        starts, idle = list[JobStart](), len(self.processors.free(now, nextafter(now, inf)))
        for job in queue:
            end = now + job.estimated
            if job.cpus <= idle and len(self.processors.free(now, end)) >= job.cpus:
                taken = self.processors.reserve(now, end, job.cpus, highest=self._highest)
                self._held[job.id] = end, taken
                idle -= job.cpus
                starts.append(JobStart(job.id))
        return starts

    def release(self, job_id: int, now: float) -> None:
        """Release the processors of a job that ends, up to its limit; not those of a window."""
        limit, taken = self._held.pop(job_id, (now, frozenset[int]()))
        if now < limit:
            self.processors.release(now, limit, taken)


class _StaticManager(SimulatedManager):
    """A manager that books the processors of a window when it is reserved."""

    def __init__(self, cluster: SimulatedCluster, policy: FirstFitOnProcessors) -> None:
        super().__init__(cluster, policy)
        self._on_processors = policy

    def propose(self, request: ReservationRequest, or_later: bool) -> Offer | None:
        """Return the first window as requested, or any later if that suits; None: there is none.

        Nothing is reserved.
        """
        find = self._on_processors.processors.earliest_start
        size, duration = request.min_size, request.min_duration
        start = find(size, duration, request.ready, None if or_later else request.deadline)
        return None if start is None else Offer(start, start + duration, size)

    def reserve(self, name: str, window: ReservedWindow, now: float) -> bool:
        if not super().reserve(name, window, now):
            return False
        self._on_processors.processors.reserve(window.start, window.end, window.cpus)
        return True

    def end_job(self, job_id: int) -> None:
        now = self._true_ends[job_id]
        super().end_job(job_id)
        self._on_processors.release(job_id, now)


class _ProposedWindows(ReservationDesk):
    """Asks the core for the earliest window that any manager proposes."""

    def __init__(
        self,
        chooser: ClusterChooser,
        managers: Mapping[str, SimulatedManager],
        instance: str,
        step: Callable[[ReservationEvent], Outcome],
        offers: Callable[[ReservationRequested], Mapping[str, Offer]],
        changed: Callable[[str, float], None],
    ) -> None:
        super().__init__(managers, instance, step, offers, changed)
        self._chooser = chooser

    def ask(self, event: ReservationRequested, or_later: bool) -> Reservation | None:
        proposals = {
            name: offer
            for name in event.clusters
            if isinstance(manager := self._managers[name], _StaticManager)
            and (offer := manager.propose(event.request, or_later)) is not None
        }
        if not proposals:
            return None
        name = self._chooser.choose(proposals, event.request.deadline)
        window = with_window(event, proposals[name].start, proposals[name].end)
        granted = super().ask(structs.replace(window, clusters=(name,)), or_later=False)
        assert granted is not None, "processors that are free by name are free by number"
        return granted


class _StaticBinding(Simulation):
    """A simulation of these managers."""

    def make_manager(self, cluster: SimulatedCluster, policy: LocalPolicy) -> SimulatedManager:
        assert isinstance(policy, FirstFitOnProcessors)
        return _StaticManager(cluster, policy)

    def make_desk(
        self, managers: Mapping[str, SimulatedManager], changed: Callable[[str, float], None]
    ) -> ReservationDesk:
        offers = self.core.reservations.offer_finder.offers
        chooser = MinimumCompletionTime(self._policy.seed)
        return _ProposedWindows(chooser, managers, INSTANCE, self._step_core, offers, changed)
