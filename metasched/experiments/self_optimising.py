"""Experiments: streams of margins of Pasquali 2008, §5.1.5, classified in five priorities.

No job is simulated: the heuristic alone decides, without the ratio of margin to run time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from metasched.experiments.harness import Curves, Experiment
from metasched.model.job import Job
from metasched.policies.classify import Classifier, Deadline
from metasched.policies.policy import SelfOptimisation
from metasched.policies.self_optimising import Evaluator, halving_target
from metasched.policies.tuned_strategies import DeadlineBase, make_optimisers

CLASSES = 5  # of the thesis, which counts them from 0
TARGET = halving_target(CLASSES)
SETTINGS = SelfOptimisation()
_EDGE = 100  # jobs at both ends of a part, for the figures of its beginning and its end
_SOURCE = "Pasquali 2008, Tables 10 to 12"
_HEURISTICS = {"deadline": "", "adh": "base", "base-span": "base-span"}  # tuned parameter


class StreamPart(NamedTuple):
    """Jobs whose margins are drawn from a range, in seconds."""

    jobs: int
    low: float
    high: float


STREAMS = {
    "table 10": (StreamPart(2000, 0, 200),),
    "table 11": (
        StreamPart(400, 2000, 4000),
        StreamPart(550, 0, 200),
        StreamPart(350, 2000, 4000),
        StreamPart(700, 100, 200),
    ),
    "table 12": (
        StreamPart(500, 3000, 4000),
        StreamPart(500, 100, 200),
        StreamPart(500, 500, 700),
        StreamPart(500, 100, 200),
    ),
}


class ClassifiedJob(NamedTuple):
    """The class of a job, 1 to `CLASSES`, and what it was decided by."""

    item_class: int
    base: float  # in force
    changed: bool  # whether the job caused a change
    outside: bool  # whether the last classes were outside the polytope then


@dataclass(frozen=True)
class StreamCase:
    """A stream, or a part of it, classified by a heuristic."""

    row: str
    column: str  # key of `_HEURISTICS`
    stream: str  # key of `STREAMS`
    first: int = 0  # position of the first job that counts
    last: int | None = None  # position after the last
    published: Mapping[str, float] = field(default_factory=dict)

    def scenario(self, seed: int) -> list[float]:
        """Draw the margins of the stream."""
        rng = Random(seed)
        return [
            rng.uniform(part.low, part.high)
            for part in STREAMS[self.stream]
            for _ in range(part.jobs)
        ]

    def run(self, seed: int) -> Sequence[ClassifiedJob]:
        """Classify the stream; return the jobs that count."""
        classifier = Classifier(CLASSES, [deadline := Deadline()])
        if parameter := _HEURISTICS[self.column]:
            classifier.optimisers = make_optimisers(classifier, {parameter: SETTINGS}, {})
        strategy, evaluator = DeadlineBase(deadline), Evaluator(TARGET, SETTINGS.delta)
        classified: list[ClassifiedJob] = []
        for position, margin in enumerate(self.scenario(seed)):
            job = Job(id=position + 1, submitted=0.0, estimated=1.0, deadline=margin + 1.0)
            item_class, base = strategy.classify((margin,)), deadline.base
            recent = [done.item_class for done in classified[-SETTINGS.history :]]
            outside = (
                len(recent) == SETTINGS.history
                and evaluator.distance(_numbers(recent)) > SETTINGS.delta
            )
            changed = bool(classifier.remember(job))
            classified.append(ClassifiedJob(item_class, base, changed, outside))
        return classified[self.first : self.last]


def _numbers(classes: Sequence[int]) -> list[int]:
    return [classes.count(item_class) for item_class in range(1, CLASSES + 1)]


def _distance(jobs: Sequence[ClassifiedJob]) -> float:
    """Return the Euclidean distance of the shares of the classes from the target."""
    return Evaluator(TARGET, SETTINGS.delta).distance(_numbers([job.item_class for job in jobs]))


def _changes(jobs: Sequence[ClassifiedJob]) -> float:
    return sum(job.changed for job in jobs)


def _mean_base(jobs: Sequence[ClassifiedJob]) -> float:
    return sum(job.base for job in jobs) / len(jobs)


def _percent_of(item_class: int) -> Callable[[Sequence[ClassifiedJob]], float]:
    """Make a figure: percent of the jobs in a class."""

    def percent(jobs: Sequence[ClassifiedJob]) -> float:
        return 100 * sum(job.item_class == item_class for job in jobs) / len(jobs)

    return percent


def _curves(seed: int) -> Iterator[Curves]:
    """Yield the mean margin and the base at each job of the streams that change."""
    for stream in ("table 11", "table 12"):
        case = StreamCase(stream, "deadline", stream)
        margins, window = case.scenario(seed), deque[float](maxlen=_EDGE)
        means = []
        for margin in margins:
            window.append(margin)
            means.append(sum(window) / len(window))
        bases = {
            column: [job.base for job in replace(case, column=column).run(seed)]
            for column in _HEURISTICS
        }
        panels = {"margin, s": {f"mean of the last {_EDGE} jobs": means}, "base": bases}
        yield Curves(stream, "job", panels)


def _streams() -> list[StreamCase]:
    optimum = {f"priority_{k - 1}": 100 * share for k, share in enumerate(TARGET, start=1)}
    return [
        StreamCase(
            stream,
            column,
            stream,
            published={**optimum, "changes": 0.0} if stream == "table 10" else {},
        )
        for stream in STREAMS
        for column in _HEURISTICS
    ]


def _parts() -> list[StreamCase]:
    cases = []
    for stream in ("table 11", "table 12"):
        first = 0
        for part in STREAMS[stream]:
            last = first + part.jobs
            row = f"{stream}, jobs {first + 1}-{last}: {part.low:g}-{part.high:g} s"
            cases += [StreamCase(row, column, stream, first, last) for column in _HEURISTICS]
            first = last
    return cases


CLASSIFIED = (
    Experiment(
        name="self-optimising",
        about="Shares of five priorities, with and without self-optimisation",
        source=f"{_SOURCE}, Figures 34, 36 and 38",
        runs=20,
        baseline="deadline",
        figures={
            "distance": _distance,
            "changes": _changes,
            **{f"priority_{k - 1}": _percent_of(k) for k in range(1, CLASSES + 1)},
        },
        cases=_streams,
    ),
    Experiment(
        name="self-optimising-parts",
        about="Distance from the target after each change of the margins, and the base",
        source=f"{_SOURCE}, Figures 35 and 37",
        runs=20,
        baseline="deadline",
        figures={
            "distance_first_100": lambda jobs: _distance(jobs[:_EDGE]),
            "distance_last_100": lambda jobs: _distance(jobs[-_EDGE:]),
            "jobs_outside": lambda jobs: sum(job.outside for job in jobs),
            "base_first_100": lambda jobs: _mean_base(jobs[:_EDGE]),
            "base_last_100": lambda jobs: _mean_base(jobs[-_EDGE:]),
            "changes": _changes,
        },
        cases=_parts,
        curves=_curves,
    ),
)
