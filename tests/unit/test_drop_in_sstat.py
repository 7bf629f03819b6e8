"""`sstat`: ids of metasched in the output of the real command, as 22.05 prints it."""

from __future__ import annotations

import pytest

from metasched.drop_in import sstat

OWN = {"14": "100000017_5", "15": "17"}
FIXED = [
    "JobID            MaxRSS               Nodelist ",
    "------------ ---------- -------------------- ",
]


@pytest.mark.parametrize(
    ("row", "own"),
    [
        ("14.batch           3.5M                   a1 ", "100000017_5.batch       3.5M"),
        ("15.0               15.0                   a1 ", "17.0               15.0"),
    ],
)
def test_columns_keep_their_widths(row: str, own: str) -> None:
    """Longer ids move the columns, as in the real command. A figure is no id."""
    [renamed] = sstat._own_columns(FIXED, [row], OWN)
    assert renamed == f"{own}                   a1 "


def test_ids_may_stand_on_the_right() -> None:
    """As of `-o jobid%20`."""
    heading = ["               JobID      Ave ", "-------------------- -------- "]
    rows = [f"{'14.batch':>20} {'1':>8} ", f"{'15.0':>20} {'2':>8} "]
    assert list(sstat._own_columns(heading, rows, OWN)) == [
        f"{'100000017_5.batch':>20} {'1':>8} ",
        f"{'17.0':>20} {'2':>8} ",
    ]


def test_several_columns_of_ids() -> None:
    heading = ["JobID    Ave   JobID    ", "-------- ----- -------- "]
    [renamed] = sstat._own_columns(heading, ["14.batch     1 14.batch "], OWN)
    assert renamed == "100000017_5.batch     1 100000017_5.batch "
    [renamed] = sstat._own_cells(["JobID|Ave|JobID"], ["14.0|14.0|14.0"], OWN)
    assert renamed == "100000017_5.0|14.0|100000017_5.0"


def test_steps_of_other_tasks_and_repeated_ones_are_left_out() -> None:
    rows = ["14.0|7", "13.0|8", "14.batch|9", "14.0|7"]
    assert list(sstat._own_cells(["JobID|X"], rows, OWN)) == [
        "100000017_5.0|7",
        "100000017_5.batch|9",
    ]
    assert list(sstat._own_cells(["X"], ["7", "7"], OWN)) == ["7", "7"]
    fixed = [f"{step:<13}" for step in ("14.0", "13.0", "14.0")]
    assert list(sstat._own_columns(FIXED, fixed, OWN)) == ["100000017_5.0 "]
