"""Job arrays: task ranges, their notation, and output paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.errors import ParseError
from metasched.model.arrays import (
    MAX_INDEX,
    MAX_TASKS,
    FoldedIndices,
    JobArray,
    format_indices,
    parse_array,
    parse_task_selector,
)
from metasched.model.output_paths import (
    check_pattern,
    expand_job_fields,
    expand_task_fields,
    first_node,
    has_task_number,
    split_at_node,
    varies_by_task,
)


@pytest.mark.parametrize(
    ("text", "array"),
    [
        ("1-5", JobArray((1, 2, 3, 4, 5))),
        ("0", JobArray((0,))),
        ("1-10:4", JobArray((1, 5, 9), step=4)),
        ("1,3,5-9:2", JobArray((1, 3, 5, 7, 9), step=2)),
        ("5,1-3,2", JobArray((1, 2, 3, 5))),
        ("7-7", JobArray((7,))),
        ("1-4%2", JobArray((1, 2, 3, 4), limit=2)),
        (" 3,9%1 ", JobArray((3, 9), step=6, limit=1)),
        (f"{MAX_INDEX}", JobArray((MAX_INDEX,))),
    ],
)
def test_ranges(text: str, array: JobArray) -> None:
    assert parse_array(text) == array


@pytest.mark.parametrize(
    "text",
    [
        *["", "a", "1-", "-1", "1--2", "5-1", "1-5:0", "1-5:", "1-5%", "1-5%0", "1,,2", "1-5%-1"],
        *["1:2", "1.5", "١", "1-9999999999", f"0-{MAX_TASKS}", "1-2%3%4", "[1-3]", "9" * 5000],
    ],
)
def test_ranges_that_are_none(text: str) -> None:
    with pytest.raises(ParseError):
        parse_array(text)


@given(st.sets(st.integers(0, 60), min_size=1))
def test_folding_is_undone_by_reading(indices: set[int]) -> None:
    assert parse_array(format_indices(sorted(indices))).indices == tuple(sorted(indices))


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([], ""),
        ([4], "4"),
        ([1, 2], "1-2"),
        ([1, 3], "1,3"),
        ([1, 3, 5], "1-5:2"),
        ([1, 2, 3, 7, 9, 11, 13], "1-3,7-13:2"),
        ([1, 3, 4, 5], "1,3-5"),
    ],
)
def test_folded_as_short_as_can_be(indices: list[int], text: str) -> None:
    assert format_indices(indices) == text


@given(st.sets(st.integers(0, 60), min_size=1), st.data())
def test_runs_are_folded_as_single_indices(indices: set[int], data: st.DataObject) -> None:
    ascending, folded = sorted(indices), FoldedIndices()
    while ascending:
        step = ascending[1] - ascending[0] if len(ascending) > 1 else 1
        run = range(ascending[0], ascending[-1] + 1, step)
        most = next((n for n, index in enumerate(run) if ascending[n : n + 1] != [index]), len(run))
        length = data.draw(st.integers(1, most))
        folded.add(run[:length])
        ascending = ascending[length:]
    assert folded.count == len(indices)
    assert parse_array(str(folded)).indices == tuple(sorted(indices))


def test_words_for_jobs_and_tasks() -> None:
    assert parse_task_selector("17") == (17, None)
    assert parse_task_selector("17_3") == (17, (3,))
    assert parse_task_selector("17_[3-5,9]") == (17, (3, 4, 5, 9))
    for text in ("", "x", "17_", "_3", "17_[3", "17_[]", "17_3-5", "17_[5-3]", "١", "17_[a]"):
        with pytest.raises(ParseError, match="is no job"):
            parse_task_selector(text)


def test_a_job_fills_in_what_it_knows_and_leaves_the_rest_to_its_tasks() -> None:
    pattern = "log/%x-%u-%4A-%5J-%3a-%N-%2t%n%s-%%"
    path = expand_job_fields(pattern, 17, True, "a/b %a", "ada", "/home/50%")
    assert path == "/home/50%%/log/a_b %%a-ada-0017-%5j-%3a-%N-000batch-%%"
    assert varies_by_task(path)
    before, after = "/home/50%/log/a_b %a-ada-0017-00019-005-", "-000batch-%"
    assert expand_task_fields(path, 5, 19, "n1") == f"{before}n1{after}"
    assert split_at_node(path, 5, 19) == [before, after]
    assert has_task_number(path)
    only_index = expand_job_fields("%A_%a-%%j", 17, True, "", "", "/d")
    assert (varies_by_task(only_index), has_task_number(only_index)) == (True, False)
    single = expand_job_fields("%4j.out", 17, False, "", "", "/d")
    assert (single, varies_by_task(single)) == ("/d/0017.out", False)


@pytest.mark.parametrize("pattern", ["%z", "50%", "%4", "%4x", "%123a", "dir/", "%"])
def test_patterns_that_mean_nothing(pattern: str) -> None:
    with pytest.raises(ParseError):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("", ""),
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[3-5,9]", "n3"),
        ("n[03-05]x", "n03x"),
        ("rack[1-2]x[3-4].site", "rack1x3"),
        ("n[", ""),
        ("a.b.c", "a"),
    ],
)
def test_the_first_node(nodes: str, first: str) -> None:
    assert first_node(nodes) == first
