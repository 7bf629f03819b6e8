"""Classification: priorities fall as margins grow, and stay in their range for any jobs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metasched.model.job import Job
from metasched.policies.classify import Classifier, Deadline, Licence, User

seconds = st.floats(min_value=1e-3, max_value=1e9)
margins = st.floats(min_value=-1e9, max_value=1e9)
weights = st.fixed_dictionaries(
    {
        "deadline": st.floats(0.01, 10),
        "licence": st.floats(0, 10),
        "user": st.floats(0, 10),
    }
)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    estimated = draw(seconds)
    margin = draw(st.none() | margins)
    return Job(
        id=1,
        submitted=0,
        estimated=estimated,
        deadline=None if margin is None else estimated + margin,
        licences={f"l{i}": 1 for i in range(draw(st.integers(0, 25)))},
        user_class=draw(st.sampled_from(["gold", "silver", "regular", "guest"])),
        owner_priority=draw(st.integers(0, 3)),
    )


def classifier(highest: int, window: int, weights: dict[str, float]) -> Classifier:
    return Classifier(highest, [Deadline(window=window), Licence(), User()], weights)


@given(st.lists(jobs(), max_size=30), st.integers(1, 20), st.integers(1, 8), weights)
def test_always_within_range(
    stream: list[Job], highest: int, window: int, weights: dict[str, float]
) -> None:
    meta = classifier(highest, window, weights)
    for job in stream:
        deadline, licence, _ = meta.contributions(job)
        assert 0 <= deadline.contribution <= highest
        assert 1 <= licence.contribution <= highest
        foreseen = meta.peek(job)
        assert meta.priority(job) == foreseen
        assert 1 <= foreseen <= highest


@given(st.lists(jobs(), max_size=10), seconds, margins, margins, weights)
def test_monotone_in_the_margin_within_one_window(
    earlier: list[Job],
    estimated: float,
    first_margin: float,
    second_margin: float,
    weights: dict[str, float],
) -> None:
    meta = classifier(10, 5, weights)
    # a first job is measured by its own margin; two jobs share a mean only after an earlier job
    for job in (Job(id=0, submitted=0, estimated=1, deadline=1001), *earlier):
        meta.remember(job)
    tight, loose = (
        Job(id=1, submitted=0, estimated=estimated, deadline=estimated + margin)
        for margin in sorted((first_margin, second_margin))
    )
    assert meta.peek(tight) >= meta.peek(loose)


@given(st.lists(jobs(), max_size=30), st.integers(1, 8))
def test_a_restart_with_the_last_window_goes_on_alike(stream: list[Job], window: int) -> None:
    lived = classifier(10, window, {})
    for job in stream:
        lived.priority(job)
    restored = classifier(10, window, {})
    counted = [job for job in stream if job.margin is not None and job.margin >= 0]
    for job in counted[-window:]:
        restored.remember(job)
    assert [lived.peek(job) for job in stream] == [restored.peek(job) for job in stream]
