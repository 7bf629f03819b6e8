"""The outcome of a study: trade-offs, their test on the held-out part, and the chosen policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from metasched.config.policy_words import differences, values_of
from metasched.errors import UserError
from metasched.laboratory.simulate.metrics import mean
from metasched.laboratory.tuning.held_out import (
    PairedDifference,
    count_refused,
    is_gain,
    paired_difference,
)
from metasched.laboratory.tuning.inputs import InputSources
from metasched.laboratory.tuning.objectives import dominates
from metasched.laboratory.tuning.search_space import SearchSpace
from metasched.laboratory.tuning.study import Trial
from metasched.laboratory.tuning.trials import run_held_out
from metasched.policies.policy import Policy

MAX_TESTED = 20  # trade-offs that run on the held-out part, the chosen trade-off always


@dataclass(frozen=True)
class JudgedTrial:
    """A trial with its figures on jobs that no trial has seen."""

    trial: Trial
    policy: Policy
    held_out: Mapping[str, float]  # by objective
    difference: Mapping[str, PairedDifference | None]  # from the present policy, by objective
    refused: int = 0  # held-out jobs that run under the present policy only

    @property
    def gain(self) -> bool:
        """Whether it is better than the present policy beyond chance, in no objective worse.

        A policy could gain by letting limits refuse jobs, which no difference counts.
        """
        return not self.refused and is_gain(self.difference)


@dataclass(frozen=True)
class StudyResult:
    """The result of a study."""

    objectives: tuple[str, ...]
    trials: tuple[Trial, ...]
    present: JudgedTrial
    trade_offs: tuple[JudgedTrial, ...]  # that no trial dominates, the present policy left out
    chosen: JudgedTrial | None  # None: no trial is better than the present policy
    # whether the trained figures alone chose it; with `--pick` its held-out figures may have
    is_blind: bool = True

    @property
    def pruned(self) -> int:
        return sum(each.values is None and not each.error for each in self.trials)

    @property
    def failed(self) -> tuple[Trial, ...]:
        """Trials that could not be simulated."""
        return tuple(each for each in self.trials if each.error)


def find_front(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that none dominates, a single trial of those with equal values."""
    front: dict[tuple[float, ...], Trial] = {}
    complete = [(each, each.values) for each in trials if each.values is not None]
    for trial, values in complete:
        if not any(dominates(other, values) for _, other in complete):
            front.setdefault(values, trial)
    return sorted(front.values(), key=lambda each: each.values or ())


def choose(front: Sequence[Trial], present: Trial) -> Trial | None:
    """Return the trial that is better in every objective by the most; None if none is.

    The objective with the least gain of a trial, relative to the present policy, decides.
    """
    assert present.values is not None
    reference = present.values

    def largest_share(trial: Trial) -> float:
        assert trial.values is not None
        return max(
            value / before if before else 1.0
            for value, before in zip(trial.values, reference, strict=True)
        )

    better = [each for each in front if each.values and dominates(each.values, reference)]
    return min(better, key=lambda each: (largest_share(each), each.values), default=None)


def pick(trials: Sequence[Trial], number: int) -> Trial:
    """Return the trial of that number. UserError if it has no values."""
    trial = next((each for each in trials if each.number == number), None)
    if trial is None:
        raise UserError(f"no trial {number} in this study, --pick; see those that it prints")
    if trial.values is None:
        cause = trial.error or "it was pruned"
        raise UserError(f"trial {number} has no result ({cause}), --pick; take another")
    return trial


def judge(
    trials: Sequence[Trial],
    picked: int | None,
    sources: InputSources,
    space: SearchSpace,
    objectives: Sequence[str],
    executor: Executor,
    progress: Callable[[int], None] | None = None,
) -> StudyResult:
    """Run the present policy and the trade-offs on the held-out part."""
    present = trials[0]
    front = [each for each in find_front(trials) if each.values != present.values]
    best = choose(front, present)
    chosen = best if picked is None else pick(trials, picked)
    tested = _spread(front, MAX_TESTED)
    if chosen is not None and chosen not in tested:
        tested.append(chosen)
    policies = [space.policy(each.indexes) for each in (present, *tested)]
    futures = [executor.submit(run_held_out, sources, each, objectives) for each in policies]
    runs = []
    for future in futures:
        runs.append(future.result())
        if progress is not None:
            progress(1)
    judged = [
        JudgedTrial(
            trial,
            policy,
            {name: mean(run.values[name].values()) for name in objectives},
            {name: paired_difference(run, runs[0], name, sources.seed) for name in objectives},
            count_refused(run, runs[0]),
        )
        for trial, policy, run in zip((present, *tested), policies, runs, strict=True)
    ]
    return StudyResult(
        tuple(objectives),
        tuple(trials),
        judged[0],
        tuple(each for each in judged[1:] if each.trial in front),
        next((each for each in judged[1:] if each.trial is chosen), None),
        chosen is best,
    )


def _spread(front: Sequence[Trial], count: int) -> list[Trial]:
    """Return so many trials of the front, evenly over it."""
    if len(front) <= count:
        return list(front)
    return [front[index * (len(front) - 1) // (count - 1)] for index in range(count)]


def changed_keys(judged: JudgedTrial, present: Policy) -> dict[str, Any]:
    """Return the values of a trial that differ from the present policy, by key."""
    rows = differences(values_of(present), values_of(judged.policy))
    return {row.name: row.after for row in rows}


def outcome_json(outcome: StudyResult) -> dict[str, Any]:
    """Return the outcome for JSON; lower is better, a negative difference is a gain."""

    def row(judged: JudgedTrial) -> dict[str, Any]:
        return {
            "trial": judged.trial.number,
            "changes": changed_keys(judged, outcome.present.policy),
            "training": dict(zip(outcome.objectives, judged.trial.values or (), strict=True)),
            "held_out": dict(judged.held_out),
            "difference": {
                name: None if each is None else each._asdict()
                for name, each in judged.difference.items()
            },
            "refused": judged.refused,
            "gain": judged.gain,
        }

    return {
        "objectives": list(outcome.objectives),
        "trials": len(outcome.trials),
        "pruned": outcome.pruned,
        "failed": [{"trial": each.number, "error": each.error} for each in outcome.failed],
        "present": row(outcome.present),
        "trade_offs": [row(each) for each in outcome.trade_offs],
        "chosen": None if outcome.chosen is None else row(outcome.chosen),
        "chosen_blind": outcome.is_blind,
    }
