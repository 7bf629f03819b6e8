"""Tags are free text of a job: any account can write any text there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.adapters.gridengine.listing import job_name, parse_job_name
from metasched.adapters.slurm.listing import format_mark, parse_mark
from metasched.model.arrays import MAX_INDEX
from metasched.model.tags import MAX_ID_DIGITS, parse_tag, tag_of

INSTANCE = "0a1b2c3d"
INSTANCES = frozenset({INSTANCE})
IDS = st.integers(0, 10**MAX_ID_DIGITS - 1)
# characters that occur in tags or resemble them, besides any others
NEARLY = st.text(
    st.sampled_from("ms-0129\u0663\uff11\u00b2 +_.\n\0/a") | st.characters(), max_size=40
)


@given(IDS, IDS)
def test_every_tag_is_recognised(job: int, dispatch_id: int) -> None:
    assert parse_tag(tag_of(INSTANCE, job, dispatch_id), INSTANCES) == (job, dispatch_id)


@given(NEARLY | NEARLY.map(lambda text: f"ms-{INSTANCE}-{text}"))
def test_no_other_text_is_a_tag(text: str) -> None:
    numbers = parse_tag(text, INSTANCES)
    assert numbers is None or tag_of(INSTANCE, *numbers) == text


@pytest.mark.parametrize(
    "numbers",
    [
        "9" * 24 + "-1",
        "1-" + "9" * 24,
        "9" * 10_000 + "-1",  # int() refuses that many digits
        "01-1",
        "1-01",
        "+1-1",
        "1-1-1",
        "\u0661-1",  # a digit of another script
        "1_0-1",
        " 1-1",
        "1-1\n",
        "-1",
        "1-",
    ],
)
def test_text_that_looks_like_a_tag_is_none(numbers: str) -> None:
    assert parse_tag(f"ms-{INSTANCE}-{numbers}", INSTANCES) is None


@given(IDS, st.integers(0, MAX_INDEX))
def test_every_mark_of_a_task_is_recognised(job: int, index: int) -> None:
    tag = tag_of(INSTANCE, job, 1)
    assert parse_mark(format_mark(tag, index), "7") == {(tag, index): "7"}
    assert parse_job_name(job_name(tag, index), INSTANCES) == (tag, index)


@given(NEARLY | st.sampled_from(["9" * 24, "9" * 10_000, "007", "0", "-1", "", "\u0661"]))
def test_no_other_text_is_an_index(text: str) -> None:
    tag = tag_of(INSTANCE, 1, 1)
    for (_, index), _ in parse_mark(f"{tag}/{text}", "7").items():
        assert format_mark(tag, index) == f"{tag}/{text}"
    if (task := parse_job_name(f"{tag}.{text}", INSTANCES)) is not None:
        assert job_name(*task) == f"{tag}.{text}"


@pytest.mark.parametrize("tasks", ["[0-99999999]", "[9-1]", "[x]", "[1-2:0]", "[]", "9" * 5000])
def test_an_array_that_metasched_cannot_have_made_has_no_tasks(tasks: str) -> None:
    assert parse_mark(f"{tag_of(INSTANCE, 1, 1)}/a", f"7_{tasks}") == {}
