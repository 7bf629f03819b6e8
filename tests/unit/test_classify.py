"""Classification: the worked values of Pasquali 2008, §3.1.1, and the settings of a site."""

from __future__ import annotations

import math
from typing import Any

import pytest

from metasched.model.job import Job
from metasched.policies.classify import (
    Classifier,
    Deadline,
    HeuristicContribution,
    Licence,
    User,
    cannot_meet_deadline,
)
from metasched.policies.heuristic import Heuristic


def job(margin: float | None = None, estimated: float = 1e6, **fields: Any) -> Job:
    """Build a job with `margin` seconds of slack; its estimate keeps r below 1."""
    deadline = None if margin is None else 100 + estimated + margin
    return Job(id=1, submitted=100, estimated=estimated, deadline=deadline, **fields)


def near(margin: float) -> Job:
    """Build a job whose r lies in [1/2, 1), so that only the interval decides."""
    return job(margin, estimated=margin * 1.5)


def heuristic_after(*margins: float, **options: Any) -> Deadline:
    heuristic = Deadline(**options)
    for margin in margins:
        heuristic.remember(near(margin) if margin > 0 else job(margin))
    return heuristic


def licences(count: int) -> dict[str, int]:
    return {f"l{i}": 1 for i in range(count)}


def test_intervals_of_the_worked_example() -> None:
    expected = [0, 2, 6, 14, 30, 62, 126, 254, 510, 1022, 2046]
    assert Deadline().bounds(1023) == expected


@pytest.mark.parametrize(
    ("margin", "urgency"),
    [
        (1, 10),
        (2, 9),
        (5.9, 9),
        (6, 8),
        (1021, 2),
        (1022, 1),
        (2045, 1),
        (2046, 1),
        (9999, 1),
    ],
)
def test_interval_decides(margin: float, urgency: int) -> None:
    assert heuristic_after(1023).contribution(near(margin)) == urgency


@pytest.mark.parametrize(
    ("ratio", "urgency"),
    [
        (0.5, 4),
        (0.99, 4),
        (0.49, 5),
        (0.25, 5),
        (0.2, 6),
        (1 / 512, 10),
        (2**-20, 10),
        (1, 3),
        (1.9, 3),
        (2, 2),
        (4, 0),
        (100, 0),
    ],
)
def test_ratio_of_margin_to_estimate_moves_it(ratio: float, urgency: int) -> None:
    # 128 lies in [126, 254), interval 6: urgency 4 before the ratio; all values are exact
    assert heuristic_after(1023).contribution(job(128, estimated=128 / ratio)) == urgency


def test_no_deadline_is_least_urgent_and_a_lost_one_most() -> None:
    heuristic = heuristic_after(1023)
    assert heuristic.contribution(job(None)) == 1
    assert heuristic.contribution(job(0)) == 10
    assert heuristic.contribution(job(-5)) == 10


def test_first_job_is_measured_by_itself() -> None:
    assert Deadline().contribution(near(1023)) == 1


def test_window_forgets_the_oldest_and_skips_negative_margins() -> None:
    heuristic = heuristic_after(9e9, 1023, -7, 1023, window=2)
    heuristic.remember(job(None))
    assert heuristic.contribution(near(5.9)) == 9
    assert heuristic.contribution(near(6)) == 8


def test_asking_changes_nothing() -> None:
    heuristic = heuristic_after(1023)
    assert [heuristic.contribution(near(6)) for _ in range(3)] == [8, 8, 8]
    classifier = Classifier(heuristics=[heuristic])
    assert classifier.peek(near(6)) == classifier.peek(near(6)) == 8
    assert classifier.contributions(near(6)) == [HeuristicContribution("deadline", 8, 1)]


def test_priority_remembers_once() -> None:
    classifier = Classifier(heuristics=[Deadline()])
    assert classifier.priority(near(1023)) == 1
    assert classifier.priority(near(6)) == 8
    # the mean is now (1023 + 6) / 2, so S_2 is 6 * 514.5 / 1023 = 3.02
    assert classifier.peek(near(3.1)) == 8
    assert classifier.peek(near(3.0)) == 9


def test_restored_window_classifies_alike() -> None:
    stream = [near(margin) for margin in (50, 900, 3, 1200, 77)]
    lived, restored = Classifier(), Classifier()
    for each in stream:
        lived.priority(each)
        restored.remember(each)
    assert [lived.peek(near(m)) for m in range(1, 2000, 7)] == [
        restored.peek(near(m)) for m in range(1, 2000, 7)
    ]


@pytest.mark.parametrize(
    ("requested", "urgency"),
    [(0, 1), (1, 1), (2, 2), (5, 3), (18, 10), (19, 10), (20, 10), (25, 10)],
)
def test_licences_of_twenty(requested: int, urgency: int) -> None:
    assert Licence(total=20).contribution(job(licences=licences(requested))) == urgency


def test_licences_are_counted_by_kind_not_by_copies() -> None:
    assert Licence(total=20).contribution(job(licences={"matlab": 9})) == 1


@pytest.mark.parametrize(("total", "requested", "urgency"), [(3, 1, 4), (3, 3, 10), (0, 0, 1)])
def test_licences_of_small_sites(total: int, requested: int, urgency: int) -> None:
    assert Licence(total=total).contribution(job(licences=licences(requested))) == urgency


@pytest.mark.parametrize(
    ("user_class", "owner_priority", "urgency"),
    [("gold", 3, 10), ("gold", 0, 7), ("silver", 1, 5), ("regular", 0, 1), ("guest", 2, 3)],
)
def test_user_classes(user_class: str, owner_priority: int, urgency: float) -> None:
    classified = job(user_class=user_class, owner_priority=owner_priority)
    assert User().contribution(classified) == urgency


def test_mean_rounds_half_up() -> None:
    # no deadline gives 1 and gold 7: the mean is 4; with owner priority 1 it is 4.5
    classifier = Classifier(heuristics=[Deadline(), User()])
    assert classifier.priority(job(user_class="gold")) == 4
    assert classifier.priority(job(user_class="gold", owner_priority=1)) == 5


@pytest.mark.parametrize(
    ("weight", "user_class", "owner_priority", "expected"),
    [(0.3, "silver", 2, 4), (0.7, "regular", 1, 2)],
)
def test_weights_that_floats_cannot_hold_still_round_half_up(
    weight: float, user_class: str, owner_priority: int, expected: int
) -> None:
    # the means are 3.5 and 1.5, but 3.4999999999999996 and 1.4999999999999998 in floats
    classifier = Classifier(weights={"deadline": weight, "licence": weight, "user": 2 * weight})
    classified = job(user_class=user_class, owner_priority=owner_priority)
    assert classifier.priority(classified) == expected


def test_weights_decide_what_counts() -> None:
    gold = job(user_class="gold")
    assert Classifier(weights={"deadline": 0, "licence": 0}).priority(gold) == 7
    assert Classifier(weights={"user": 4}).priority(gold) == 5
    classifier, expected = Classifier(), [("deadline", 1, 1), ("licence", 1, 1), ("user", 7, 1)]
    assert classifier.contributions(gold) == expected
    classifier.contributions(gold).clear()  # a caller may change the returned list
    assert classifier.contributions(gold) == expected


def test_another_highest_priority_reaches_the_heuristics() -> None:
    classifier = Classifier(max_priority=4)
    assert classifier.priority(job(-1, licences=licences(20), user_class="gold")) == 4
    assert [
        part.contribution for part in classifier.contributions(job(-1, licences=licences(20)))
    ] == [
        4,
        4,
        1,
    ]


class Impatient(Heuristic):
    """A site's own heuristic with values far outside the range, to test the bounds."""

    name = "impatient"

    def contribution(self, job: Job) -> float:
        return math.copysign(1000, -job.estimated + 50)


def test_a_site_adds_its_own_heuristic_and_priorities_stay_in_range() -> None:
    classifier = Classifier(heuristics=[Impatient()])
    assert classifier.priority(job(estimated=1)) == 10
    assert classifier.priority(job(estimated=100)) == 1


def test_a_deadline_that_cannot_be_met_is_known() -> None:
    assert cannot_meet_deadline(job(0))
    assert cannot_meet_deadline(job(-1))
    assert not cannot_meet_deadline(job(1))
    assert not cannot_meet_deadline(job(None))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Deadline(window=0), "window is 0"),
        (lambda: Deadline(base=0), "base is 0"),
        (lambda: Deadline(base=math.nan), "base is nan"),
        (lambda: Licence(total=-1), "total is -1"),
        (lambda: User(classes={"gold": -1}), "user class gold is -1"),
        (lambda: User(classes={"gold": math.inf}), "user class gold is inf"),
        (lambda: Classifier(max_priority=0), "max_priority is 0"),
        (lambda: Classifier(heuristics=[]), "no heuristic"),
        (lambda: Classifier(heuristics=[User(), User()]), "same name"),
        (lambda: Classifier(weights={"dedline": 1}), "no such heuristic"),
        (lambda: Classifier(weights={"user": -1}), "weight of user is -1"),
        (lambda: Classifier(weights={"deadline": 0, "licence": 0, "user": 0}), "above 0"),
    ],
)
def test_senseless_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
