"""Searches that improve a plan by moving one job at a time: Tabu Search and RCBO. Pure.

Each iteration chooses a source machine and a job there. It removes the job, moves the later jobs
of the machine up, and tries the job on all machines in turn. The first place that betters the plan
is taken; else the plan stays. The job is remembered, so that it is not tried again soon. Only the
two machines of a move are evaluated: jobs elsewhere stay.

A search can be stopped after any iteration and resumed. Nothing is drawn at random. A job whose
move was rejected is not evaluated again before the plan changes; the iteration counts.

Ours, where the sources are silent: a moved job may also go behind a machine's last job.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Sequence
from typing import Literal

from metasched.policies.local.insertion import weight
from metasched.policies.local.plan import ClusterPlan, PlannedRun, PlanQuality, run_time
from metasched.policies.local.queueing import NEVER

# What Tabu Search does when no machine with late jobs is left: stop (Pasquali 2008), or forget
# which machines it has used and go on (Du 2010, Table 2-13).
StopRule = Literal["late", "rounds"]
STOP_RULES: tuple[StopRule, ...] = ("late", "rounds")


class BoundedMemory:
    """The last `size` things remembered; the oldest is forgotten first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._items: dict[int, None] = {}  # in the order of arrival

    def add(self, item: int) -> int | None:
        """Remember the item; return the item that is forgotten for it, if any."""
        self._items.pop(item, None)
        self._items[item] = None
        if len(self._items) <= self.size:
            return None
        oldest = next(iter(self._items))
        del self._items[oldest]
        return oldest

    def discard(self, item: int) -> None:
        self._items.pop(item, None)

    def __contains__(self, item: int) -> bool:
        return item in self._items

    def __len__(self) -> int:
        return len(self._items)


class PlanSearch(ABC):
    """A search of at most so many iterations; `moves` counts the accepted moves."""

    def __init__(self, plan: ClusterPlan, memory: int) -> None:
        self.plan, self.iterations, self.moves, self.finished = plan, 0, 0, False
        self._remembered = BoundedMemory(memory)  # jobs
        self._rejected = set[int]()  # jobs whose moves do not better the plan as it is
        self._targets: Sequence[int] = self.order_targets()

    def run(self, iterations: int) -> None:
        """Make so many more iterations, those without a move included.

        The search is finished when no move of any job betters the plan.
        """
        for _ in range(iterations):
            if self.finished:
                return
            if len(self._rejected) == len(self.plan.runs):
                self.finished = True
                return
            self.iterations += 1
            self.iterate()

    @abstractmethod
    def iterate(self) -> None: ...
    @abstractmethod
    def order_targets(self) -> Sequence[int]:
        """Return the machines in the order of the tries of a job."""

    @abstractmethod
    def weight(self, old: PlanQuality, new: PlanQuality) -> float:
        """Return by how much a plan is better; a move with a positive weight is accepted."""

    def _last_unremembered(self, machine: int) -> PlannedRun | None:
        """Return the last run of the machine whose job is not remembered."""
        runs = reversed(self.plan.machines[machine].runs)
        return next((run for run in runs if run.job.id not in self._remembered), None)

    def _try_move(self, run: PlannedRun) -> None:
        """Move the run to the first machine where that betters the plan, if any; remember it."""
        self._remembered.add(run.job.id)
        if run.job.id in self._rejected:
            return
        plan, old = self.plan, self.plan.quality()
        saved = plan.save(run.machine)
        plan.remove(run)
        plan.compress(run.machine, run.start)
        base, job, now = plan.quality(), run.job, plan.now
        latest_end = self._latest_end(old, base, job.deadline)
        if latest_end > now:
            allowed = job.machines
            for machine in self._targets:
                if allowed and machine not in allowed:
                    continue
                seconds = run_time(job, machine)
                start = plan.earliest_start(job, machine, latest_end - seconds)
                if start == NEVER:
                    continue
                if (
                    self._gain(
                        old, base, start + seconds - now, self._is_late(run, start + seconds)
                    )
                    > 0
                ):
                    plan.place(job, machine, start)
                    self.moves += 1
                    self._rejected.clear()
                    return
        plan.restore(saved)
        self._rejected.add(run.job.id)

    @staticmethod
    def _is_late(run: PlannedRun, end: float) -> bool:
        return run.job.deadline is not None and end > run.job.deadline

    def _gain(self, old: PlanQuality, base: PlanQuality, end: float, late: bool) -> float:
        """Return the weight of the plan `base` with a job that ends `end` seconds from now."""
        new = PlanQuality(max(base.makespan, end), base.in_time + (not late), base.late + late)
        return self.weight(old, new)

    def _latest_end(self, old: PlanQuality, base: PlanQuality, deadline: float | None) -> float:
        """Return the latest end of the moved job that can better the plan; 0 if there is none.

        The weight falls with the end: by the makespan, and once at the deadline.
        """
        now, longest = self.plan.now, max(1.0, old.makespan)
        latest = 0.0
        for late in (False, True):
            if late and deadline is None:
                continue
            # the gain at a makespan that stays, hence how much longer the plan may become
            gain = self._gain(old._replace(makespan=base.makespan), base, 0.0, late)
            limit = old.makespan + gain * longest
            if base.makespan >= limit:
                continue
            end = now + limit
            latest = max(latest, end if late or deadline is None else min(end, deadline))
        return latest


class TabuSearch(PlanSearch):
    """Takes the last job from the machine with the most late jobs; Pasquali 2008, §5.2.2.

    Targets: machines with more processors first, the faster of equals.
    """

    def __init__(self, plan: ClusterPlan, memory: int, stop: StopRule) -> None:
        super().__init__(plan, memory)
        self._stop, self._used_machines = stop, set[int]()
        # unused machines, the machine with the most late jobs last; only moves change it
        self._sources: list[int] = []
        self._sorted_at = -1  # number of moves then

    def order_targets(self) -> Sequence[int]:
        machines = self.plan.machines
        return sorted(range(len(machines)), key=lambda machine: -machines[machine].cpus)

    def weight(self, old: PlanQuality, new: PlanQuality) -> float:
        return weight(old, new)

    def iterate(self) -> None:
        machines, used = self.plan.machines, self._used_machines
        if self._sorted_at != self.moves:
            unused = [machine for machine in range(len(machines)) if machine not in used]
            self._sources = sorted(unused, key=lambda m: (machines[m].late_count, -m))
            self._sorted_at = self.moves
        source = self._sources[-1] if self._sources else None
        if self._stop == "late" and (source is None or not machines[source].late_count):
            self.finished = True
        elif source is None:
            used.clear()
            self._sorted_at = -1
        elif (run := self._last_unremembered(source)) is None:
            used.add(self._sources.pop())
        else:
            self._try_move(run)


class ResourceOptimisation(PlanSearch):
    """Takes the last job from the slowest machine: RCBO of Du 2010, §4.2.

    Targets: fast machines first. Machines whose jobs have all been tried are remembered, too.
    """

    def __init__(self, plan: ClusterPlan, memory: int) -> None:
        super().__init__(plan, memory)
        self._done_machines = BoundedMemory(memory)
        self._sources = list(self._targets)  # machines that are not done, the slowest last

    def order_targets(self) -> Sequence[int]:
        return range(len(self.plan.machines))

    def weight(self, old: PlanQuality, new: PlanQuality) -> float:
        makespan_gain = (old.makespan - new.makespan) / max(1.0, old.makespan)
        return makespan_gain + (old.late - new.late) / max(1, old.late)

    def iterate(self) -> None:
        if not self._sources:
            self._done_machines = BoundedMemory(self._done_machines.size)
            self._sources = list(self._targets)
            return
        source = self._sources[-1]
        run = self._last_unremembered(source)
        if run is not None:
            self._try_move(run)
            return
        for planned in self.plan.machines[source].runs:
            self._remembered.discard(planned.job.id)
        self._sources.pop()
        forgotten = self._done_machines.add(source)
        if forgotten is not None:
            insort(self._sources, forgotten)
