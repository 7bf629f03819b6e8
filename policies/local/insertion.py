"""EG-EDF: insertion of an arriving job into a plan, by earliest gap, else by deadline. Pure.

The rule of Klusáček and Rudová, by Pasquali 2008, §5.2.1, and Du 2010, §2.3.3. Each machine on
which the job fits into a gap is a candidate. If no machine has a gap, each machine is a candidate
with the job before its first job of a later deadline. The jobs from there on are placed again.

Ours, where the sources are silent: a gap is room for the job that moves no planned job, and that
either begins now or ends before the machine's last job does. Makespans count from now, in-time jobs
are queued jobs, and both denominators are at least 1. Equal weights: the earliest end wins.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

from metasched.policies.local.plan import ClusterPlan, PlanQuality, run_time, suitable_machines
from metasched.policies.local.queueing import NEVER, WaitingJob

# How candidates are compared: each with the plan without the job (Pasquali 2008), or each with the
# best so far, in the order of the machines (Du 2010, Tables 2-11 and 2-12).
Comparison = Literal["plan", "pairs"]
COMPARISONS: tuple[Comparison, ...] = ("plan", "pairs")


class _Candidate(NamedTuple):
    machine: int
    start: float
    end: float
    in_gap: bool
    quality: PlanQuality  # of the plan with the job there


class _Bound(NamedTuple):
    """A bound on the candidate of a machine."""

    end: float
    quality: PlanQuality


def weight(old: PlanQuality, new: PlanQuality) -> float:
    """Return by how much a plan is better: relative gains in makespan and in jobs in time.

    Pasquali 2008, §5.2.1; its denominator of the second term is misprinted.
    """
    makespan_gain = (old.makespan - new.makespan) / max(1.0, old.makespan)
    return makespan_gain + (new.in_time - old.in_time) / max(1, old.in_time)


def insert_job(plan: ClusterPlan, job: WaitingJob, comparison: Comparison) -> bool:
    """Add the job to the plan; False if no machine can ever run it.

    O(m v) for m machines with v steps each, or O(m n v) without a gap, for n jobs of later
    deadlines on each machine. Machines that a bound rules out take O(log v).
    """
    before = plan.quality()
    if comparison == "plan":
        gaps = (_gap(plan, job, machine, before) for machine in suitable_machines(job))
        best = max(
            (gap for gap in gaps if gap is not None),
            key=lambda c: (weight(before, c.quality), -c.end),
            default=None,
        )
        if best is None:
            best = _best_by_deadline(plan, job, before)
    else:
        best = _win_pairs(plan, job, before)
    if best is None:
        return False
    if best.in_gap:
        plan.place(job, best.machine, best.start)
    else:
        _insert_by_deadline(plan, job, best.machine)
    return True


def _win_pairs(plan: ClusterPlan, job: WaitingJob, before: PlanQuality) -> _Candidate | None:
    """Return the winner of the pairwise comparisons; after the first gap only gaps take part."""
    best, gap_found = None, False
    for machine in suitable_machines(job):
        candidate = _gap(plan, job, machine, before)
        if candidate:
            gap_found = True
        elif not gap_found:
            candidate = _by_deadline(plan, job, machine, before)
        if candidate and (best is None or weight(best.quality, candidate.quality) > 0):
            best = candidate
    return best


def _gap(
    plan: ClusterPlan, job: WaitingJob, machine: int, before: PlanQuality
) -> _Candidate | None:
    """Return the earliest gap of the machine, if it has any."""
    now, seconds = plan.now, run_time(job, machine)
    start = plan.earliest_start(job, machine, max(now, plan.machines[machine].end - seconds))
    if start == NEVER:
        return None
    end = start + seconds
    return _Candidate(machine, start, end, True, _with_job(before, job, end - now, now))


def _with_job(before: PlanQuality, job: WaitingJob, end: float, now: float) -> PlanQuality:
    """Return the quality with a further job, which ends `end` seconds from now and moves none."""
    late = job.deadline is not None and now + end > job.deadline
    return PlanQuality(max(before.makespan, end), before.in_time + (not late), before.late + late)


def _best_by_deadline(plan: ClusterPlan, job: WaitingJob, before: PlanQuality) -> _Candidate | None:
    """Return the best machine for the job in the order of deadlines there.

    Only machines whose bounds reach the best candidate are tried. Bounds and candidates lie in a
    heap by (-weight, end, order of machines): the first candidate that comes up is the best.
    """
    heap: list[tuple[float, float, int, int, _Candidate | None]] = []
    ends = plan.ends_of_others()
    for order, machine in enumerate(suitable_machines(job)):
        bound = _bound_by_deadline(plan, job, machine, before, ends[machine])
        if bound is not None:
            heap.append((-weight(before, bound.quality), bound.end, order, machine, None))
    heapify(heap)
    while heap:
        _, _, order, machine, candidate = heappop(heap)
        if candidate is not None:
            return candidate
        candidate = _by_deadline(plan, job, machine, before)
        if candidate is not None:
            entry = (-weight(before, candidate.quality), candidate.end, order, machine, candidate)
            heappush(heap, entry)
    return None


def _bound_by_deadline(
    plan: ClusterPlan, job: WaitingJob, machine: int, before: PlanQuality, others_end: float
) -> _Bound | None:
    """Return what no plan with the job on the machine, in the order of deadlines, can exceed.

    The job and the moved runs start no earlier than among the runs that stay.
    """
    schedule, now = plan.machines[machine], plan.now
    position = schedule.position_by_deadline(job.deadline)
    staying = schedule.profile_without(position)
    cpus, seconds = plan.cpus_on(job, machine), run_time(job, machine)
    start = staying.earliest_start(cpus, seconds, now)
    if job.cpus > schedule.cpus or start == NEVER:
        return None
    end = start + seconds
    in_time = before.in_time + (job.deadline is None or end <= job.deadline)
    for run in schedule.late_from(position):
        deadline = run.job.deadline
        if deadline is not None and now < deadline:
            rest = run_time(run.job, machine)
            in_time += staying.earliest_start(run.cpus, rest, now) + rest <= deadline
    makespan = max(others_end, end) - now
    return _Bound(end, PlanQuality(max(makespan, 0.0), in_time, 0))


def _by_deadline(
    plan: ClusterPlan, job: WaitingJob, machine: int, before: PlanQuality
) -> _Candidate | None:
    """Return the plan with the job in the order of deadlines of the machine."""
    schedule, now = plan.machines[machine], plan.now
    if schedule.position_by_deadline(job.deadline) == len(schedule.runs):
        start = plan.earliest_start(job, machine)  # moves no job: no trial needed
        if start == NEVER:
            return None
        end = start + run_time(job, machine)
        return _Candidate(machine, start, end, False, _with_job(before, job, end - now, now))
    saved, candidate = plan.save(machine), None
    if _insert_by_deadline(plan, job, machine):
        run = plan.runs[job.id]
        candidate = _Candidate(machine, run.start, run.end, False, plan.quality())
        del plan.runs[job.id]
    plan.restore(saved)
    return candidate


def _insert_by_deadline(plan: ClusterPlan, job: WaitingJob, machine: int) -> bool:
    """Place the job before the runs of later deadlines, and those again behind it."""
    moved = plan.remove_from(machine, plan.machines[machine].position_by_deadline(job.deadline))
    start = plan.earliest_start(job, machine)
    if start < NEVER:
        plan.place(job, machine, start)
    plan.place_again(moved)
    return start < NEVER
