"""Self-optimisation: values stay within their limits, nothing changes without evidence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metasched.model.job import Job
from metasched.policies.classify import Classifier, Deadline, Licence, User
from metasched.policies.policy import SelfOptimisation
from metasched.policies.tuned_strategies import make_optimisers, tunable_parameters

PARAMETERS = tunable_parameters(Classifier())
margins = st.one_of(
    st.floats(min_value=-1e9, max_value=1e9),
    st.floats(min_value=1, max_value=100),
    st.floats(min_value=1000, max_value=1100),
)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    estimated = draw(st.floats(min_value=1e-3, max_value=1e9))
    margin = draw(st.none() | margins)
    return Job(
        id=1,
        submitted=0,
        estimated=estimated,
        deadline=None if margin is None else estimated + margin,
        licences={f"l{i}": 1 for i in range(draw(st.integers(0, 25)))},
        user_class=draw(st.sampled_from(["gold", "regular"])),
    )


@st.composite
def settings(draw: st.DrawFn, classes: int) -> SelfOptimisation:
    shares = st.lists(st.floats(0, 10), min_size=classes, max_size=classes).filter(any)
    return SelfOptimisation(
        history=draw(st.integers(10, 15)),
        delta=draw(st.floats(0.01, 1.4)),
        target=tuple(draw(st.just([]) | shares)),
    )


def classifier(classes: int, optimised: dict[str, SelfOptimisation]) -> Classifier:
    made = Classifier(classes, [Deadline(window=5), Licence(), User()])
    made.optimisers = make_optimisers(made, optimised, {})
    return made


@given(st.data(), st.integers(1, 12), st.lists(jobs(), max_size=60))
def test_changes_stay_within_limits_and_need_evidence(
    data: st.DataObject, classes: int, stream: list[Job]
) -> None:
    parameters = st.lists(st.sampled_from(PARAMETERS), unique=True, max_size=2)
    chosen = data.draw(parameters.filter(lambda drawn: not {"base", "base-span"} <= set(drawn)))
    optimised = {parameter: data.draw(settings(classes)) for parameter in chosen}
    tuned, plain = classifier(classes, optimised), classifier(classes, {})
    changed = False
    for job in stream:
        if not changed:  # until the first change it decides as without self-optimisation
            assert tuned.classify(job) == plain.classify(job)
        before = {o.strategy.parameter: o.strategy.configuration for o in tuned.optimisers}
        changes = {change.parameter: change for change in tuned.remember(job)}
        plain.remember(job)
        changed |= bool(changes)
        for optimiser in tuned.optimisers:
            strategy, parameter = optimiser.strategy, optimiser.strategy.parameter
            assert strategy.allows(strategy.configuration)
            if parameter not in changes:
                assert strategy.configuration == before[parameter]
                continue
            change = changes[parameter]
            assert optimiser.repository.is_full
            assert optimiser.evaluator.observed_distance(optimiser.repository) == change.distance
            assert change.distance > optimiser.evaluator.delta
            assert (change.before, change.after) == (before[parameter], strategy.configuration)
        assert 1 <= tuned.peek(job) <= classes


@given(st.data(), st.lists(jobs(), min_size=20, max_size=60))
def test_same_jobs_give_the_same_changes(data: st.DataObject, stream: list[Job]) -> None:
    """A classifier that is restored in the midst decides as the one that lives on."""
    parameter = data.draw(st.sampled_from(PARAMETERS))
    optimised = {parameter: data.draw(settings(10))}
    lived, cut = classifier(10, optimised), data.draw(st.integers(0, len(stream)))
    for job in stream[:cut]:
        lived.remember(job)
    restored = classifier(10, {})
    for job in stream[:cut]:
        restored.remember(job)
    states = {parameter: lived.optimisers[0].state}
    restored.optimisers = make_optimisers(restored, optimised, states)
    for job in stream[cut:]:
        assert restored.classify(job) == lived.classify(job)
        assert restored.remember(job) == lived.remember(job)
    assert restored.optimisers[0].state == lived.optimisers[0].state
