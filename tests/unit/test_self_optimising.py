"""Self-optimisation: the streams of Pasquali 2008, Tables 10 to 12, and what is no evidence."""

import math
from collections.abc import Iterable
from random import Random

import pytest

from metasched.model.job import Job
from metasched.model.tuning import TuningState
from metasched.policies.classify import Classifier, Deadline, User
from metasched.policies.policy import SelfOptimisation
from metasched.policies.self_optimising import (
    Evaluator,
    SelfOptimiser,
    Suggestion,
    halving_target,
)
from metasched.policies.tuned_strategies import DeadlineBase, make_optimisers

CLASSES = 5
TABLE_10 = [(2000, 0, 200)]  # jobs, least and greatest margin
TABLE_11 = [(400, 2000, 4000), (550, 0, 200), (350, 2000, 4000), (700, 100, 200)]
TABLE_12 = [(500, 3000, 4000), (500, 100, 200), (500, 500, 700), (500, 100, 200)]


def with_margin(margin: float, estimated: float = 1000.0) -> Job:
    return Job(id=1, submitted=0.0, estimated=estimated, deadline=margin + estimated)


def self_optimising(parameter: str, **settings: object) -> Classifier:
    classifier = Classifier(CLASSES, [Deadline()])
    setting = SelfOptimisation(**settings)  # type: ignore[arg-type]
    classifier.optimisers = make_optimisers(classifier, {parameter: setting}, {})
    return classifier


def classes_of(
    classifier: Classifier, parts: Iterable[tuple[int, float, float]], seed: int
) -> tuple[list[list[int]], int]:
    """Return the classes of each part of a stream, and the number of changes."""
    rng, changes, classes = Random(seed), 0, list[list[int]]()
    [optimiser] = classifier.optimisers
    for number, low, high in parts:
        classes.append([])
        for _ in range(number):
            job = with_margin(rng.uniform(low, high))
            changes += len(classifier.remember(job))
            classes[-1].append(optimiser.repository.entries[-1][1])
    return classes, changes


def distance(classes: list[int]) -> float:
    counts = [classes.count(item_class) for item_class in range(1, CLASSES + 1)]
    return Evaluator(halving_target(CLASSES), 0.25).distance(counts)


@pytest.mark.parametrize("parameter", ["base", "base-span"])
@pytest.mark.parametrize("seed", range(10))
def test_uniform_margins_need_no_change(parameter: str, seed: int) -> None:
    [classes], changes = classes_of(self_optimising(parameter), TABLE_10, seed)
    assert changes == 0
    assert distance(classes) < 0.05


@pytest.mark.parametrize("parts", [TABLE_11, TABLE_12], ids=["table 11", "table 12"])
@pytest.mark.parametrize("seed", range(5))
def test_distribution_returns_to_the_target_after_each_change(
    parts: list[tuple[int, float, float]], seed: int
) -> None:
    classifier = self_optimising("base-span")
    classes, changes = classes_of(classifier, parts, seed)
    delta = classifier.optimisers[0].evaluator.delta
    assert changes > 0
    assert [distance(part[-100:]) <= delta for part in classes] == [True] * len(parts)


@pytest.mark.parametrize("parts", [TABLE_11, TABLE_12], ids=["table 11", "table 12"])
def test_base_alone_keeps_nearer_to_the_target_when_margins_fall(
    parts: list[tuple[int, float, float]],
) -> None:
    fixed = self_optimising("base", delta=1.4)  # as good as never
    adaptive = self_optimising("base")
    before, unchanged = classes_of(fixed, parts, seed=1)
    after, changes = classes_of(adaptive, parts, seed=1)
    assert unchanged == 0 < changes
    # margins fall into the second part: the mean margin is that of the first
    assert distance(after[1][:100]) < 0.7 * distance(before[1][:100])


def test_no_base_reaches_the_target_where_margins_lie_within_a_factor_of_two() -> None:
    strategy = DeadlineBase(deadline := Deadline())
    deadline.max_priority = CLASSES
    deadline.remember(with_margin(3000.0))  # the mean margin
    margins = [2000 + 2 * step for step in range(1001)]
    evaluator = Evaluator(halving_target(CLASSES), 0.2)
    items = [(float(margin),) for margin in margins]
    predict = strategy.prediction(items)
    distances = [evaluator.distance(predict(item)) for item in strategy.candidates(items)]
    assert 0.2 < min(distances) < 0.25


def test_prediction_counts_as_the_heuristic_classifies() -> None:
    rng = Random(1)
    classifier = self_optimising("base-span")
    for _ in range(200):
        classifier.remember(with_margin(rng.uniform(0, 5000)))
    [optimiser] = classifier.optimisers
    strategy = optimiser.strategy
    items = [(rng.uniform(0.1, 20000),) for _ in range(300)]
    for configuration in [(2.0, 2.0), (0.25, 0.5), (64.0, 7.0), (1.0, 1.0)]:
        predicted = strategy.prediction(items)(configuration)
        strategy.reconfigure(configuration)
        classes = [strategy.classify(item) for item in items]
        assert list(predicted) == [classes.count(n) for n in range(1, CLASSES + 1)]


def test_halving_target() -> None:
    assert halving_target(5) == (16 / 31, 8 / 31, 4 / 31, 2 / 31, 1 / 31)


def test_norms_of_a_distance() -> None:
    """Shares 1/2, 1/2, 0 beside 4/7, 2/7, 1/7: the differences are 1/14, 3/14 and 2/14."""
    target = halving_target(3)
    assert Evaluator(target, 0.25, "l1").distance([1, 1, 0]) == pytest.approx(6 / 14)
    assert Evaluator(target, 0.25, "l2").distance([1, 1, 0]) == pytest.approx(math.sqrt(14) / 14)


def test_l1_calls_for_a_change_where_l2_does_not() -> None:
    """The margins of Table 10 give the target, but a hundred jobs are often 0.2 from it by L1."""
    changes = [
        classes_of(self_optimising("base", delta=0.2, norm=norm), TABLE_10, seed=1)[1]
        for norm in ("l1", "l2")
    ]
    assert changes[0] > 0 == changes[1]


def test_short_history_is_no_evidence() -> None:
    classifier = self_optimising("base", history=50)
    for number in range(49):
        assert classifier.remember(with_margin(199.0 if number % 2 else 1.0)) == []
    [change] = classifier.remember(with_margin(199.0))
    assert change.before == (2.0,)
    assert change.distance is not None
    assert change.expected is not None
    assert change.expected < change.distance > 0.25


def test_jobs_without_a_margin_are_no_evidence() -> None:
    classifier = self_optimising("base", history=10)
    for _ in range(50):
        classifier.remember(Job(id=1, submitted=0.0, estimated=1.0))
        classifier.remember(with_margin(-5.0))
        classifier.remember(with_margin(0.0))
    assert not classifier.optimisers[0].repository.entries


def test_weight_follows_a_target() -> None:
    """Gold users with owner priority 3 get 10; the target wants fewer of such priorities."""
    classifier = Classifier(10)
    target = (0, 0, 0, 10, 0, 0, 0, 0, 0, 0)
    setting = SelfOptimisation(history=20, delta=0.1, target=target)
    classifier.optimisers = make_optimisers(classifier, {"weight-user": setting}, {})
    gold = Job(id=1, submitted=0.0, estimated=10.0, user_class="gold")
    assert classifier.peek(gold) == 3
    changes = [change for _ in range(40) for change in classifier.remember(gold)]
    assert len(changes) == 1
    assert classifier.peek(gold) == 4
    assert classifier.weights["user"] > 1


def test_state_is_restored() -> None:
    rng = Random(3)
    lived = self_optimising("base-span")
    jobs = [with_margin(rng.uniform(2000, 4000)) for _ in range(300)]
    for job in jobs:
        lived.remember(job)
    assert lived.optimisers[0].strategy.configuration != (2.0, 2.0)
    restored = Classifier(CLASSES, [Deadline()])
    for job in jobs[-100:]:
        restored.remember(job)
    state = lived.optimisers[0].state
    restored.optimisers = make_optimisers(
        restored, {"base-span": SelfOptimisation()}, {"base-span": state}
    )
    assert restored.optimisers[0].state == state
    for _ in range(200):
        job = with_margin(rng.uniform(0, 200))
        assert restored.peek(job) == lived.peek(job)
        assert restored.remember(job) == lived.remember(job)


@pytest.mark.parametrize(
    "state",
    [
        TuningState("base", (1000.0,)),
        TuningState("base", (math.nan,)),
        TuningState("base", (2.5, 2.5)),
        TuningState("base", (2.5,), (((10.0,), 6),)),
        TuningState("base", (2.5,), (((10.0, 10.0), 5),)),
    ],
)
def test_unfit_state_is_dropped(state: TuningState) -> None:
    classifier = Classifier(CLASSES, [Deadline()])
    classifier.optimisers = make_optimisers(
        classifier, {"base": SelfOptimisation()}, {"base": state}
    )
    assert classifier.optimisers[0].state == TuningState("base", (2.0,))


def test_span_stays_within_its_limits_beside_a_tiny_mean_margin() -> None:
    classifier = Classifier(CLASSES, [Deadline(window=1)])
    setting = SelfOptimisation(history=10)
    classifier.optimisers = make_optimisers(classifier, {"base-span": setting}, {})
    [optimiser] = classifier.optimisers
    for margin in [1e3, 2e3, 3e3, 4e3, 5e3, 6e3, 7e3, 8e3, 9e3, 1.0] * 5:
        classifier.remember(with_margin(margin))
        assert optimiser.strategy.allows(optimiser.strategy.configuration)


def test_bounds_hold_for_extreme_margins() -> None:
    classifier = Classifier(100, [Deadline(window=1)])
    setting = SelfOptimisation(history=10, delta=0.01)
    classifier.optimisers = make_optimisers(classifier, {"base-span": setting}, {})
    for margin in [1e-9, 1e15, 0.0, 5e-324, 1e300, 3.0] * 20:
        classifier.remember(with_margin(margin, estimated=1e-9))
        assert 1 <= classifier.peek(with_margin(17.0)) <= 100


def test_suggestion_is_applied_by_the_reconfigurator() -> None:
    deadline = Deadline()
    optimiser = SelfOptimiser(DeadlineBase(deadline), Evaluator(halving_target(10), 0.2), 10)
    change = optimiser._reconfigurator.apply(optimiser.strategy, Suggestion((3.0,), 0.5, 0.1))
    assert deadline.base == 3.0
    assert change.after == (3.0,)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"history": 9}, "history is 9"),
        ({"history": 1001}, "history is 1001"),
        ({"delta": 0.0}, "delta is 0"),
        ({"delta": math.nan}, "delta is nan"),
        ({"delta": 2.5}, "delta is 2.5; it must be above 0 and at most 2"),
        ({"norm": "l3"}, 'norm is "l3"; it must be "l1" or "l2"'),
        ({"target": (1.0, -1.0)}, "target has -1"),
        ({"target": (1.0, math.nan)}, "target has nan"),
        ({"target": (1.0, math.inf)}, "target has inf"),
        ({"target": (0.0, 0.0)}, "no share above 0"),
    ],
)
def test_settings_are_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        SelfOptimisation(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parameter", "weights", "target", "problem"),
    [
        ("weight-memory", {}, (), "weight-memory cannot optimise itself; available are base,"),
        ("user", {}, (), "user cannot optimise itself"),
        ("weight-user", {"user": 0.0}, (), "the weight of user is 0"),
        ("base", {}, (1.0, 2.0), "target has 2 shares, there are 10 priorities"),
    ],
)
def test_parameters_are_refused(
    parameter: str, weights: dict[str, float], target: tuple[float, ...], problem: str
) -> None:
    classifier = Classifier(weights=weights)
    with pytest.raises(ValueError, match=problem):
        make_optimisers(classifier, {parameter: SelfOptimisation(target=target)}, {})


def test_base_has_one_owner() -> None:
    settings = {"base": SelfOptimisation(), "base-span": SelfOptimisation()}
    with pytest.raises(ValueError, match="keep one of them"):
        make_optimisers(Classifier(), settings, {})


def test_base_needs_the_deadline_heuristic() -> None:
    with pytest.raises(ValueError, match="base cannot optimise itself"):
        make_optimisers(Classifier(heuristics=[User()]), {"base": SelfOptimisation()}, {})
