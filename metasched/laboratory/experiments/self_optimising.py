"""Experiments: streams of margins of Pasquali 2008, §5.1.5, classified in five priorities.

No job is simulated: the heuristic alone decides, without the ratio of margin to run time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import NamedTuple

from metasched.laboratory.experiments.harness import Curves, Experiment
from metasched.model.job import Job
from metasched.policies.classify import DEFAULT_BASE, DEFAULT_SPAN, Classifier, Deadline
from metasched.policies.policy import SelfOptimisation
from metasched.policies.self_optimising import (
    Configuration,
    Evaluator,
    Item,
    Prediction,
    SelfOptimiser,
    halving_target,
)
from metasched.policies.tuned_strategies import DeadlineBase, DeadlineBaseSpan

CLASSES = 5  # of the thesis, which counts them from 0
TARGET = halving_target(CLASSES)
SETTINGS = SelfOptimisation()
_EDGE = 100  # jobs at both ends of a part, for the figures of its beginning and its end
_SOURCE = "Pasquali 2008, Tables 10 to 12"
_FIXED, _SPREAD = "deadline", 1000  # column without self-optimisation; margins of a range


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
    """The class of a job, 1 to `CLASSES`, and the inputs of its decision."""

    item_class: int
    base: float  # in force
    changed: bool  # whether the job caused a change
    distance: float  # of the last classes from the target; 0 while the history is not full

    @property
    def outside(self) -> bool:
        """Whether the last classes were outside the polytope."""
        return self.distance > SETTINGS.delta


class PrintedBase(DeadlineBase):
    """ADH as (3.3) is printed: the base is in the denominator alone, so it changes the span."""

    parameter = "base-printed"

    def __init__(self, deadline: Deadline) -> None:
        super().__init__(deadline)
        self._base = DEFAULT_BASE

    @property
    def configuration(self) -> Configuration:
        return (self._base,)

    def reconfigure(self, configuration: Configuration) -> None:
        (self._base,) = configuration
        self._deadline.span = self._span(self._base)

    def prediction(self, items: Sequence[Item]) -> Prediction:
        predict = super().prediction(items)
        return lambda configuration: predict((DEFAULT_BASE, self._span(configuration[0])))

    def _span(self, base: float) -> float:
        classes = range(1, self._deadline.max_priority + 1)
        return DEFAULT_SPAN * sum(DEFAULT_BASE**k for k in classes) / sum(base**k for k in classes)


_L1 = "adh, L1"  # column with the other norm of the thesis
_STRATEGIES: Mapping[str, Callable[[Deadline], DeadlineBase]] = {  # by column
    _FIXED: DeadlineBase,
    "adh": DeadlineBase,
    _L1: DeadlineBase,
    "adh-printed": PrintedBase,
    "base-span": lambda deadline: DeadlineBaseSpan(deadline, TARGET),
}


def draw_margins(stream: str, seed: int) -> list[float]:
    """Draw the margins of a stream, a key of `STREAMS`, in seconds."""
    rng = Random(seed)
    return [rng.uniform(part.low, part.high) for part in STREAMS[stream] for _ in range(part.jobs)]


@lru_cache(maxsize=2 * len(_STRATEGIES))  # all parts of a stream need it
def classify_stream(stream: str, column: str, seed: int) -> Sequence[ClassifiedJob]:
    """Classify a stream by a heuristic, a key of `_STRATEGIES`."""
    classifier = Classifier(CLASSES, [deadline := Deadline()])
    strategy, evaluator = _STRATEGIES[column](deadline), Evaluator(TARGET, SETTINGS.delta)
    if column != _FIXED:
        own = Evaluator(TARGET, SETTINGS.delta, "l1") if column == _L1 else evaluator
        classifier.optimisers = [SelfOptimiser(strategy, own, SETTINGS.history)]
    classified: list[ClassifiedJob] = []
    for position, margin in enumerate(draw_margins(stream, seed)):
        job = Job(id=position + 1, submitted=0.0, estimated=1.0, deadline=margin + 1.0)
        item_class, base = strategy.classify((margin,)), strategy.configuration[0]
        recent = [done.item_class for done in classified[-SETTINGS.history :]]
        full = len(recent) == SETTINGS.history
        distance = evaluator.distance(_numbers(recent)) if full else 0.0
        changed = bool(classifier.remember(job))
        classified.append(ClassifiedJob(item_class, base, changed, distance))
    return classified


@dataclass(frozen=True)
class StreamCase:
    """A stream, classified by a heuristic."""

    row: str  # key of `STREAMS`
    column: str  # key of `_STRATEGIES`
    published: Mapping[str, float] = field(default_factory=dict)

    def scenario(self, seed: int) -> list[float]:
        return draw_margins(self.row, seed)

    def run(self, seed: int) -> Sequence[ClassifiedJob]:
        return classify_stream(self.row, self.column, seed)


class ClassifiedPart(NamedTuple):
    """The jobs of a part of a stream, and what its heuristic can reach there at best."""

    jobs: Sequence[ClassifiedJob]
    least_distance: float


@dataclass(frozen=True)
class PartCase:
    """A part of a stream, classified by a heuristic after the parts before it."""

    stream: str  # key of `STREAMS`
    column: str
    number: int  # of the part, from 0

    @property
    def row(self) -> str:
        part, first = STREAMS[self.stream][self.number], self._first
        jobs = f"jobs {first + 1}-{first + part.jobs}"
        return f"{self.stream}, {jobs}: {part.low:g}-{part.high:g} s"

    @property
    def published(self) -> Mapping[str, float]:
        return {}

    @property
    def _first(self) -> int:
        return sum(part.jobs for part in STREAMS[self.stream][: self.number])

    def scenario(self, seed: int) -> list[float]:
        return draw_margins(self.stream, seed)

    def run(self, seed: int) -> ClassifiedPart:
        part, jobs = (
            STREAMS[self.stream][self.number],
            classify_stream(self.stream, self.column, seed),
        )
        return ClassifiedPart(
            jobs[self._first : self._first + part.jobs],
            least_distance(part.low, part.high, self.column),
        )


def least_distance(low: float, high: float, column: str) -> float:
    """Return the least distance from the target that a heuristic can have.

    All margins are of this range, evenly spread, and the window has their mean. What tunes itself
    has the best of its candidates.
    """
    deadline = Deadline()
    deadline.max_priority = CLASSES
    strategy, evaluator = _STRATEGIES[column](deadline), Evaluator(TARGET, SETTINGS.delta)
    mean_margin = (low + high) / 2
    deadline.remember(Job(id=1, submitted=0.0, estimated=1.0, deadline=mean_margin + 1.0))
    items = [(low + (high - low) * (k + 0.5) / _SPREAD,) for k in range(_SPREAD)]
    predict = strategy.prediction(items)
    candidates = [strategy.configuration]
    if column != _FIXED:
        candidates += filter(strategy.allows, strategy.candidates(items))
    return min(evaluator.distance(predict(candidate)) for candidate in candidates)


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
    """Yield the mean margin, the base and the distance at each job of the streams that change."""
    for stream in ("table 11", "table 12"):
        window, means = deque[float](maxlen=_EDGE), []
        for margin in draw_margins(stream, seed):
            window.append(margin)
            means.append(sum(window) / len(window))
        classified = {column: classify_stream(stream, column, seed) for column in _STRATEGIES}
        start = SETTINGS.history  # of the distances
        distances: dict[str, Sequence[float]] = {
            column: [math.nan] * start + [job.distance for job in jobs[start:]]
            for column, jobs in classified.items()
        }
        panels: dict[str, Mapping[str, Sequence[float]]] = {
            "margin, s": {f"mean of the last {_EDGE} jobs": means},
            "base": {column: [job.base for job in jobs] for column, jobs in classified.items()},
            "distance from the target": {**distances, "delta": [SETTINGS.delta] * len(means)},
        }
        yield Curves(stream, "job", panels)


def _streams() -> list[StreamCase]:
    optimum = {f"priority_{k - 1}": 100 * share for k, share in enumerate(TARGET, start=1)}
    return [
        StreamCase(stream, column, {**optimum, "changes": 0.0} if stream == "table 10" else {})
        for stream in STREAMS
        for column in _STRATEGIES
    ]


def _parts() -> list[PartCase]:
    return [
        PartCase(stream, column, number)
        for stream in ("table 11", "table 12")
        for number in range(len(STREAMS[stream]))
        for column in _STRATEGIES
    ]


CLASSIFIED = (
    Experiment(
        name="self-optimising",
        about="Shares of five priorities, with and without self-optimisation",
        source=f"{_SOURCE}, Figures 34, 36 and 38",
        runs=20,
        baseline=_FIXED,
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
        baseline=_FIXED,
        figures={
            "distance_first_100": lambda part: _distance(part.jobs[:_EDGE]),
            "distance_last_100": lambda part: _distance(part.jobs[-_EDGE:]),
            "least_distance": lambda part: part.least_distance,
            "jobs_outside": lambda part: sum(job.outside for job in part.jobs),
            "outside_at_end, %": lambda part: 100.0 * part.jobs[-1].outside,
            "base_first_100": lambda part: _mean_base(part.jobs[:_EDGE]),
            "base_last_100": lambda part: _mean_base(part.jobs[-_EDGE:]),
            "changes": lambda part: _changes(part.jobs),
        },
        cases=_parts,
        curves=_curves,
    ),
)
