"""EG-EDF: insertion of an arriving job into a plan, by earliest gap, else by deadline. Pure.

The rule of Klusáček and Rudová, by Pasquali 2008, §5.2.1, and Du 2010, §2.3.3. Each machine on
which the job fits into a gap is a candidate. If no machine has a gap, each machine is a candidate
with the job before its first job of a later deadline. The jobs from there on are placed again.

Ours, where the sources are silent: a gap is room for the job that moves no planned job, and that
either begins now or ends before the machine's last job does. Makespans count from now, in-time jobs
are the queued ones, and both denominators are at least 1. Equal weights: the earliest end wins.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def weight(old: PlanQuality, new: PlanQuality) -> float:
    """Return by how much a plan is better: relative gains in makespan and in jobs in time.

    Pasquali 2008, §5.2.1; its denominator of the second term is misprinted.
    """
    makespan_gain = (old.makespan - new.makespan) / max(1.0, old.makespan)
    return makespan_gain + (new.in_time - old.in_time) / max(1, old.in_time)


def insert_job(plan: ClusterPlan, job: WaitingJob, comparison: Comparison) -> bool:
    """Add the job to the plan; False if no machine can ever run it.

    O(m v) for m machines with v steps each, or O(m n v) without a gap, for n jobs of later
    deadlines on each machine.
    """
    before = plan.quality()
    if comparison == "plan":
        gaps = list(_gaps(plan, job, before))
        candidates = gaps or list(_by_deadline(plan, job, before))
        best = max(candidates, key=lambda c: (weight(before, c.quality), -c.end), default=None)
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
    gaps = {gap.machine: gap for gap in _gaps(plan, job, before)}
    by_deadline = {candidate.machine: candidate for candidate in _by_deadline(plan, job, before)}
    best, gap_found = None, False
    for machine in suitable_machines(job):
        candidate = gaps.get(machine) or (None if gap_found else by_deadline.get(machine))
        gap_found = gap_found or machine in gaps
        if candidate and (best is None or weight(best.quality, candidate.quality) > 0):
            best = candidate
    return best


def _gaps(plan: ClusterPlan, job: WaitingJob, before: PlanQuality) -> Iterator[_Candidate]:
    """Yield the earliest gap of each machine that has one."""
    now = plan.now
    for machine in suitable_machines(job):
        seconds = run_time(job, machine)
        latest = max(now, plan.machines[machine].end - seconds)
        start = plan.earliest_start(job, machine, latest)
        if start < NEVER:
            yield _Candidate(
                machine,
                start,
                start + seconds,
                True,
                _with_job(before, job, start + seconds - now, now),
            )


def _with_job(before: PlanQuality, job: WaitingJob, end: float, now: float) -> PlanQuality:
    """Return the quality with one more job, which ends `end` seconds from now and moves none."""
    late = job.deadline is not None and now + end > job.deadline
    return PlanQuality(max(before.makespan, end), before.in_time + (not late), before.late + late)


def _by_deadline(plan: ClusterPlan, job: WaitingJob, before: PlanQuality) -> Iterator[_Candidate]:
    """Yield each suitable machine with the job in the order of deadlines there."""
    for machine in suitable_machines(job):
        if _position(plan, job, machine) == len(plan.machines[machine].runs):
            start = plan.earliest_start(job, machine)  # moves no job: no trial needed
            if start == NEVER:
                continue
            end = start + run_time(job, machine)
            yield _Candidate(
                machine, start, end, False, _with_job(before, job, end - plan.now, plan.now)
            )
            continue
        saved = plan.save(machine)
        if _insert_by_deadline(plan, job, machine):
            run = plan.runs[job.id]
            yield _Candidate(machine, run.start, run.end, False, plan.quality())
            del plan.runs[job.id]
        plan.restore(saved)


def _position(plan: ClusterPlan, job: WaitingJob, machine: int) -> int:
    """Return the position before the first run of the machine with a later deadline."""
    runs = plan.machines[machine].runs
    if job.deadline is None:
        return len(runs)
    deadline = job.deadline
    return next(
        (
            position
            for position, run in enumerate(runs)
            if run.job.deadline is None or run.job.deadline > deadline
        ),
        len(runs),
    )


def _insert_by_deadline(plan: ClusterPlan, job: WaitingJob, machine: int) -> bool:
    """Place the job before the runs of later deadlines, and those again behind it."""
    moved = plan.machines[machine].runs[_position(plan, job, machine) :]
    for run in moved:
        plan.remove(run)
    start = plan.earliest_start(job, machine)
    if start < NEVER:
        plan.place(job, machine, start)
    plan.place_again(moved)
    return start < NEVER
