"""Trials: simulations of a policy on the training part or on the held-out part.

Functions of this module run in processes of their own, which read the inputs once.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from time import process_time
from typing import NamedTuple

from metasched.errors import UserError
from metasched.laboratory.experiments.harness import without_collection
from metasched.laboratory.simulate.engine import Schedule
from metasched.laboratory.simulate.workload import Workload
from metasched.laboratory.tuning.inputs import InputSources, TuningInputs, read_inputs
from metasched.laboratory.tuning.objectives import dominates, job_values, mean_values
from metasched.policies.classify import Classifier
from metasched.policies.policy import Policy

EARLY_SHARE = 0.25  # of the training part, after which a trial may be pruned
MIN_COMPARED = 6  # trials that a trial is compared with before it is pruned


class TrialRun(NamedTuple):
    """The result of a trial."""

    values: tuple[float, ...] | None  # of the objectives; None: it was pruned
    early: tuple[float, ...] | None  # of the first jobs; None: that run failed
    job_count: int = 0  # that ran, of the training part
    simulated_jobs: int = 0
    cpu_seconds: float = 0.0
    error: str = ""  # why it was not simulated


class HeldOutRun(NamedTuple):
    """The held-out part under a policy, job by job."""

    submitted: dict[int, float]  # seconds from the trace's origin, by job id in the part
    values: dict[str, dict[int, float]]  # by objective, of the jobs that count for it


def end_on_interrupt() -> None:
    """Let Ctrl-C end this process without a traceback; the command reports it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_trial(
    sources: InputSources,
    policy: Policy,
    objectives: Sequence[str],
    earlier: Sequence[tuple[float, ...]],
) -> TrialRun:
    """Simulate the training part; `earlier` are the early values of the trials to compare with.

    A trial is pruned after its first jobs if at least half of those dominate it: with a single
    objective if it is worse than their median. No `earlier` trials: it is not pruned.
    """
    inputs, started = read_inputs(sources), process_time()
    try:
        Classifier(policy.max_priority, weights=policy.weights)
    except ValueError as error:  # all weights are 0: the daemon would refuse it, too
        return TrialRun(None, None, error=str(error))
    try:
        first = _simulate(inputs, inputs.early(EARLY_SHARE), policy)
        early, count = mean_values(first, objectives), len(first.jobs)
        better = sum(dominates(values, early) for values in earlier)
        if len(earlier) >= MIN_COMPARED and 2 * better >= len(earlier):
            return TrialRun(None, early, 0, count, process_time() - started)
        schedule = _simulate(inputs, inputs.training, policy)
    except UserError as error:
        return TrialRun(None, None, error=str(error))
    return TrialRun(
        mean_values(schedule, objectives),
        early,
        len(schedule.jobs),
        count + len(schedule.jobs),
        process_time() - started,
    )


def run_held_out(sources: InputSources, policy: Policy, objectives: Sequence[str]) -> HeldOutRun:
    """Simulate the held-out part. UserError if it is impossible."""
    inputs = read_inputs(sources)
    schedule = _simulate(inputs, inputs.held_out_part, policy)
    job_ids = [scheduled.job.id for scheduled in schedule.jobs]
    return HeldOutRun(
        {scheduled.job.id: scheduled.job.submitted for scheduled in schedule.jobs},
        {
            name: {
                job_id: value
                for job_id, value in zip(job_ids, job_values(schedule, name), strict=True)
                if value is not None
            }
            for name in objectives
        },
    )


def _simulate(inputs: TuningInputs, part: Workload, policy: Policy) -> Schedule:
    with without_collection():
        return inputs.simulate(part, policy)
