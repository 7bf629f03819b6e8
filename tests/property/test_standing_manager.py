"""A manager that stands still around submissions, behind the real worker and the real core."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.adapters.answered_calls import AnsweredCalls
from tests.harness.examples import examples
from tests.harness.standing_manager import trial


@examples(60)
@given(st.integers(0, 2**32))
def test_no_task_is_lost_or_doubled(number: int) -> None:
    verdict = trial(str(number))
    assert not verdict.doubled
    assert not verdict.lost


def test_doubt_is_drawn_and_time_alone_would_double(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = [trial(str(number)) for number in range(20)]
    assert all(
        sum(getattr(verdict, name) for verdict in verdicts) for name in ("uncertain", "repeated")
    )
    monkeypatch.setattr(
        AnsweredCalls, "arrived_until", lambda calls, listed: listed - calls._settle
    )
    assert any(trial(str(number)).doubled for number in range(20))
