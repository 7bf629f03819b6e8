"""Self-optimisation: a classification keeps the distribution of its classes near a target.

Pasquali 2008, §5.1: a pattern of four roles. The `TunableStrategy` classifies. The `DataRepository`
keeps recent items with their classes. The `Evaluator` suggests another configuration while the
observed distribution is outside the polytope. The `Reconfigurator` puts it into force.
`SelfOptimiser` connects them. Classes are 1..n, higher first. Nothing here reads a clock or draws.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from metasched.model.job import Job
from metasched.model.tuning import TuningChange, TuningState

LEAST_GAIN = 0.01  # of distance; a configuration that promises less is not worth a change

Item = tuple[float, ...]  # the properties of a job that a strategy classifies by
Configuration = tuple[float, ...]  # values of the tuned parameters
# numbers of items by class, if they were classified by a configuration
Prediction = Callable[[Configuration], Sequence[int]]


def halving_target(classes: int) -> tuple[float, ...]:
    """Return the shares of classes 1..n, each half of the share below; Pasquali 2008, (3.2)."""
    total = 2**classes - 1
    return tuple(2 ** (classes - k) / total for k in range(1, classes + 1))


class TunableStrategy(ABC):
    """A classification with a configuration: the role Strategy."""

    parameter: str  # key of `[self_optimising]`
    limits: tuple[tuple[float, float], ...]  # least and greatest of each value
    item_size: int  # number of properties of an item

    @property
    @abstractmethod
    def configuration(self) -> Configuration:
        """The configuration in force."""

    @abstractmethod
    def reconfigure(self, configuration: Configuration) -> None:
        """Put a configuration within `limits` into force."""

    @abstractmethod
    def item(self, job: Job) -> Item | None:
        """Return what decides the class of a job now; None: the job is no evidence."""

    @abstractmethod
    def classify(self, item: Item) -> int:
        """Return the class of an item by the configuration in force."""

    @abstractmethod
    def candidates(self, items: Sequence[Item]) -> Iterable[Configuration]:
        """Yield a bounded number of configurations, those near the default first."""

    @abstractmethod
    def prediction(self, items: Sequence[Item]) -> Prediction:
        """Return a function from a configuration to the numbers of these items by class."""

    def allows(self, configuration: Configuration) -> bool:
        """Return whether each value of a configuration is within its limits."""
        return len(configuration) == len(self.limits) and all(
            low <= value <= high
            for value, (low, high) in zip(configuration, self.limits, strict=True)
        )


class DataRepository:
    """The last `size` items with their classes, oldest first."""

    def __init__(self, size: int) -> None:
        self.entries: deque[tuple[Item, int]] = deque(maxlen=size)

    @property
    def is_full(self) -> bool:
        return len(self.entries) == self.entries.maxlen

    def add(self, item: Item, item_class: int) -> None:
        """Add an item; the oldest is forgotten."""
        self.entries.append((item, item_class))


class Suggestion(NamedTuple):
    """A configuration that brings the distribution nearer to the target."""

    configuration: Configuration
    distance: float  # observed, outside the polytope
    expected: float


class Evaluator:
    """Compares the observed distribution with the target.

    `target` has the shares of classes 1..n. The polytope is the set of all distributions whose
    distance from it is at most `delta`, by a norm: `l1` and `l2` of Pasquali 2008, §5.1.
    """

    def __init__(
        self, target: Sequence[float], delta: float, norm: Literal["l1", "l2"] = "l2"
    ) -> None:
        self.target, self.delta, self.norm = tuple(target), delta, norm

    def distance(self, counts: Sequence[int]) -> float:
        """Return the distance of the shares from the target."""
        total = sum(counts)
        shares = [count / total for count in counts]
        if self.norm == "l1":
            return math.fsum(
                abs(share - target) for share, target in zip(shares, self.target, strict=True)
            )
        return math.dist(shares, self.target)

    def observed_distance(self, repository: DataRepository) -> float:
        """Return the distance of the classes that were given."""
        counts = [0] * len(self.target)
        for _, item_class in repository.entries:
            counts[item_class - 1] += 1
        return self.distance(counts)

    def suggest(self, strategy: TunableStrategy, repository: DataRepository) -> Suggestion | None:
        """Return the best candidate; None without evidence against the configuration in force.

        Evidence is a full repository with a distribution outside the polytope. The history is
        classified again by each candidate, so an item counts by its properties, not by a
        configuration of the past. O(candidates x classes x log(history)) for deadlines.
        """
        if not repository.is_full:
            return None
        observed = self.observed_distance(repository)
        if observed <= self.delta:
            return None
        items = [item for item, _ in repository.entries]
        predict = strategy.prediction(items)
        best, least = None, self.distance(predict(strategy.configuration)) - LEAST_GAIN
        for candidate in strategy.candidates(items):
            if strategy.allows(candidate):
                expected = self.distance(predict(candidate))
                if expected < least:
                    best, least = candidate, expected
        return None if best is None else Suggestion(best, observed, least)


class Reconfigurator:
    """Puts a suggested configuration into force."""

    def apply(self, strategy: TunableStrategy, suggestion: Suggestion) -> TuningChange:
        """Reconfigure the strategy; return the change."""
        before = strategy.configuration
        strategy.reconfigure(suggestion.configuration)
        return TuningChange(
            strategy.parameter,
            before,
            suggestion.configuration,
            suggestion.distance,
            suggestion.expected,
        )


class SelfOptimiser:
    """A strategy that watches itself. `record` a job, then `evaluate` before the next."""

    def __init__(self, strategy: TunableStrategy, evaluator: Evaluator, history: int) -> None:
        self.strategy, self.evaluator = strategy, evaluator
        self.repository = DataRepository(history)
        self._reconfigurator = Reconfigurator()

    def record(self, job: Job) -> None:
        """Remember the job with its class; call it before anything learns from the job."""
        item = self.strategy.item(job)
        if item is not None:
            self.repository.add(item, self.strategy.classify(item))

    def evaluate(self) -> TuningChange | None:
        """Change the configuration if the evidence asks for it."""
        suggestion = self.evaluator.suggest(self.strategy, self.repository)
        if suggestion is None:
            return None
        return self._reconfigurator.apply(self.strategy, suggestion)

    @property
    def state(self) -> TuningState:
        """The state to store."""
        return TuningState(
            self.strategy.parameter,
            tuple(self.strategy.configuration),
            tuple(self.repository.entries),
        )

    def restore(self, state: TuningState) -> None:
        """Take over a stored state, unless it does not fit: by classes, values or properties."""
        classes = range(1, len(self.evaluator.target) + 1)
        if not self.strategy.allows(state.configuration):
            return
        for item, item_class in state.history:
            if item_class not in classes or len(item) != self.strategy.item_size:
                return
        self.strategy.reconfigure(state.configuration)
        for item, item_class in state.history:
            self.repository.add(item, item_class)
