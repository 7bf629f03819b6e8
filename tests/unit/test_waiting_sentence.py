"""Sentences of tasks that wait: for licences, or for a second look at their cluster."""

from __future__ import annotations

import pytest

from metasched.api.explanations import _describe_doubt, _describe_state
from metasched.core.events import DispatchStarted, DispatchUncertain, JobSubmitted
from metasched.core.placement import WAITED_FOR_LICENCES
from metasched.model.job import State
from tests.unit.core_site import NOW, Site, job


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        (WAITED_FOR_LICENCES, "It waits for its licences."),
        ("licence matlab: 2 wanted", "It waits for its licences: licence matlab: 2 wanted."),
    ],
)
def test_the_cause_is_not_said_twice(cause: str, sentence: str) -> None:
    row = {"state": "queued", "reason": "licence_busy", "cluster": None}
    assert _describe_state(row, (), cause) == sentence


def test_a_dispatch_without_an_answer_says_what_is_awaited() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    task = site.core.tasks[1, 0]
    site.step(DispatchStarted(NOW, 1, 1))
    assert _describe_doubt(task, "") == ""  # its command is under way
    site.step(DispatchUncertain(NOW + 15, 1, 1, "Socket timed out"))
    [line] = site.out.changes
    assert "a second look decides" in _describe_doubt(task, line.cause)
    site.seen("left", None, site.row(State.PENDING), at=NOW + 20)
    assert _describe_doubt(task, line.cause) == ""
