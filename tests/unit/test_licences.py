"""Licences as tokens: what makes sense, how many are free, who takes them."""

from __future__ import annotations

import pytest

from metasched.licences import MOST, LicenceCount, LicencePool


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": ""}, "is no name"),
        ({"name": "mat lab"}, "is no name"),
        ({"name": "-L"}, "is no name"),
        ({"name": "matlab\n"}, "is no name"),
        ({"name": "m" * 64}, "is no name"),
        ({"total": -1}, "total of licence matlab is -1"),
        ({"total": MOST + 1}, "it must be 0..1000000000"),
        ({"total": None}, "neither a total nor a server"),
        ({"headroom": -1}, "headroom of licence matlab is -1"),
        ({"linger": -0.5}, "linger of licence matlab is -0.5"),
        ({"linger": float("inf")}, "linger of licence matlab is inf"),
        ({"stale_after": float("nan")}, "stale_after of licence matlab is nan"),
    ],
)
def test_pools_that_make_no_sense(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LicencePool(**{"name": "matlab", "total": 4} | wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("total", "outside", "observed", "said"),
    [
        (-1, 0, 1.0, "counted total of licence matlab is -1"),
        (None, -1, 1.0, "outside use of licence matlab is -1"),
        (4, MOST + 1, 1.0, "it must be 0..1000000000"),
        (4, 0, float("nan"), "observed at nan"),
    ],
)
def test_counts_that_make_no_sense(
    total: int | None, outside: int, observed: float, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        LicenceCount("matlab", total, outside, observed)
