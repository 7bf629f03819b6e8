"""The strategies that can optimise themselves: the Deadline heuristic, and weights of heuristics.

| parameter       | configuration      | source                      |
|-----------------|--------------------|-----------------------------|
| `base`          | base               | Pasquali 2008, §5.1.4 (ADH) |
| `base-span`     | base, span         | metasched                   |
| `weight-<name>` | weight of <name>   | metasched                   |
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from metasched.model.job import Job
from metasched.model.tuning import TuningState
from metasched.policies.classify import (
    DEADLINE,
    DEFAULT_BASE,
    DEFAULT_SPAN,
    Classifier,
    Deadline,
)
from metasched.policies.policy import WEIGHT_PREFIX, SelfOptimisation
from metasched.policies.self_optimising import (
    Configuration,
    Evaluator,
    Item,
    Prediction,
    SelfOptimiser,
    TunableStrategy,
    halving_target,
)

BASE_LIMITS = (0.25, 64.0)
SPAN_LIMITS = (1 / 16, 64.0)
WEIGHT_RANGE = 16.0  # a weight stays between the configured weight divided and multiplied by this
_BASES = sorted(  # eighths of octaves
    (2.0 ** (step / 8) for step in range(-16, 49)), key=lambda base: abs(base - DEFAULT_BASE)
)
_WEIGHT_FACTORS = sorted(  # quarters of octaves
    (2.0 ** (step / 4) for step in range(-16, 17)), key=lambda factor: max(factor, 1 / factor)
)


class DeadlineBase(TunableStrategy):
    """The intervals of the Deadline heuristic by `base`. An item is (margin,)."""

    parameter = "base"
    limits: tuple[tuple[float, float], ...] = (BASE_LIMITS,)
    item_size = 1

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    @property
    def configuration(self) -> Configuration:
        return (self._deadline.base,)

    def reconfigure(self, configuration: Configuration) -> None:
        (self._deadline.base,) = configuration

    def item(self, job: Job) -> Item | None:
        """Return the margin; a job without a deadline, or with a missed deadline, has none."""
        margin = job.margin
        return None if margin is None or margin <= 0 else (margin,)

    def classify(self, item: Item) -> int:
        """Return the class by the interval alone, without the ratio of margin to run time."""
        return self._deadline.interval_class(item[0])

    def candidates(self, items: Sequence[Item]) -> Iterator[Configuration]:
        return ((base,) for base in _BASES)

    def prediction(self, items: Sequence[Item]) -> Prediction:
        """Count by the present mean margin, which classifies the next job."""
        margins = sorted(margin for (margin,) in items)
        mean_margin = self._deadline.mean_margin(margins[-1])

        def predict(configuration: Configuration) -> list[int]:
            base, span = (*configuration, self._deadline.span)[:2]
            bounds = self._deadline.bounds(mean_margin, base, span)
            below = [0, *(bisect_left(margins, bound) for bound in bounds[1:-1]), len(margins)]
            return [high - low for low, high in pairwise(below)][::-1]

        return predict


class DeadlineBaseSpan(DeadlineBase):
    """The intervals by `base` and `span`, the multiple of the mean margin that they cover."""

    parameter = "base-span"
    limits = (BASE_LIMITS, SPAN_LIMITS)

    def __init__(self, deadline: Deadline, target: Sequence[float]) -> None:
        super().__init__(deadline)
        self._lowest_share = target[0] / sum(target)

    @property
    def configuration(self) -> Configuration:
        return self._deadline.base, self._deadline.span

    def reconfigure(self, configuration: Configuration) -> None:
        self._deadline.base, self._deadline.span = configuration

    def candidates(self, items: Sequence[Item]) -> Iterator[Configuration]:
        """Yield for each base the span that gives the lowest class its share of the items."""
        yield DEFAULT_BASE, DEFAULT_SPAN
        margins = sorted(margin for (margin,) in items)
        mean_margin = self._deadline.mean_margin(margins[-1])
        rank = min(int(len(margins) * (1 - self._lowest_share)), len(margins) - 1)
        for base in _BASES:
            lowest_bound = self._deadline.bounds(mean_margin, base, 1.0)[-2]
            if lowest_bound > 0:
                yield base, margins[rank] / lowest_bound


class HeuristicWeight(TunableStrategy):
    """The priorities by the weight of a heuristic. An item is the contributions to a job."""

    def __init__(self, classifier: Classifier, name: str) -> None:
        self._classifier, self._name = classifier, name
        self._configured = configured = classifier.weights[name]
        self.parameter = WEIGHT_PREFIX + name
        self.item_size = len(classifier.heuristics)
        self.limits = ((configured / WEIGHT_RANGE, configured * WEIGHT_RANGE),)

    @property
    def configuration(self) -> Configuration:
        return (self._classifier.weights[self._name],)

    def reconfigure(self, configuration: Configuration) -> None:
        (weight,) = configuration
        self._classifier.set_weight(self._name, weight)

    def item(self, job: Job) -> Item | None:
        parts = self._classifier.contributions(job)
        if len(parts) < self.item_size:  # a heuristic of the site has no value for it
            return None
        return tuple(part.contribution for part in parts)

    def classify(self, item: Item) -> int:
        return self._classifier.combine(item)

    def candidates(self, items: Sequence[Item]) -> Iterator[Configuration]:
        return ((self._configured * factor,) for factor in _WEIGHT_FACTORS)

    def prediction(self, items: Sequence[Item]) -> Prediction:
        numbers = Counter(items)  # equal contributions are combined once

        def predict(configuration: Configuration) -> list[int]:
            (weight,) = configuration
            weights = {**self._classifier.weights, self._name: weight}
            counts = [0] * self._classifier.max_priority
            for item, number in numbers.items():
                counts[self._classifier.combine(item, weights) - 1] += number
            return counts

        return predict


def make_optimisers(
    classifier: Classifier,
    settings: Mapping[str, SelfOptimisation],
    states: Mapping[str, TuningState],
) -> list[SelfOptimiser]:
    """Make the optimisers of a classifier by parameter, with their stored states.

    ValueError if a parameter cannot be tuned or a target does not fit the priorities.
    """
    if {DeadlineBase.parameter, DeadlineBaseSpan.parameter} <= settings.keys():
        raise ValueError("base and base-span both change the base; keep one of them")
    optimisers = []
    for parameter, setting in settings.items():
        classes = classifier.max_priority
        target = setting.shares(classes) or halving_target(classes)
        strategy = _make_strategy(classifier, parameter, target)
        evaluator = Evaluator(target, setting.delta, setting.norm)
        optimiser = SelfOptimiser(strategy, evaluator, setting.history)
        if (state := states.get(parameter)) is not None:
            optimiser.restore(state)
        optimisers.append(optimiser)
    return optimisers


def _make_strategy(
    classifier: Classifier, parameter: str, target: Sequence[float]
) -> TunableStrategy:
    deadline = classifier.heuristics.get(DEADLINE)
    if isinstance(deadline, Deadline):
        if parameter == DeadlineBase.parameter:
            return DeadlineBase(deadline)
        if parameter == DeadlineBaseSpan.parameter:
            return DeadlineBaseSpan(deadline, target)
    name = parameter.removeprefix(WEIGHT_PREFIX)
    if name == parameter or name not in classifier.heuristics:
        available = ", ".join(tunable_parameters(classifier))
        raise ValueError(f"{parameter} cannot optimise itself; available are {available}")
    if classifier.weights[name] == 0:
        raise ValueError(f"{parameter}: the weight of {name} is 0; give it a weight above 0")
    return HeuristicWeight(classifier, name)


def tunable_parameters(classifier: Classifier) -> list[str]:
    """Return the parameters of a classifier that can be tuned."""
    weights = [WEIGHT_PREFIX + name for name in classifier.heuristics]
    return [DeadlineBase.parameter, DeadlineBaseSpan.parameter, *weights]
