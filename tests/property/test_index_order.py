"""Runs of tasks that overlap, put in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metasched.core.array_remainder import in_index_order

runs = st.tuples(
    st.integers(1, 3),
    st.builds(
        lambda first, step, size: range(first, first + step * size, step),
        st.integers(0, 12),
        st.integers(1, 4),
        st.integers(1, 6),
    ),
)


@given(st.lists(runs, max_size=6))
def test_each_task_comes_once_in_order_from_the_first_run_that_has_it(
    drawn: list[tuple[int, range]],
) -> None:
    expected: dict[tuple[int, int], int] = {}
    for position, (job, indices) in enumerate(drawn):
        for index in indices:
            expected.setdefault((job, index), position)
    scans = [
        ((drawn[position][0], index), position)
        for position, indices in in_index_order(drawn)
        for index in indices
    ]
    assert [task for task, _ in scans] == sorted(expected)
    assert dict(scans) == expected


def test_a_run_is_cut_only_where_another_lies_within() -> None:
    parts = list(in_index_order([(1, range(100)), (1, range(40, 41)), (2, range(5))]))
    assert parts == [
        (0, range(40)),
        (0, range(40, 41)),
        (0, range(41, 100)),
        (2, range(5)),
    ]
