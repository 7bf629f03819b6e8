"""The sentence of a task that waits for licences whose shortage has gone."""

from __future__ import annotations

import pytest

from metasched.api.explanations import _describe_state
from metasched.core.placement import WAITED_FOR_LICENCES


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
