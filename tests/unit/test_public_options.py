"""Native options that a listing shows other accounts."""

from __future__ import annotations

import shlex
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.api.answers import _PUBLIC_OPTION, public_options


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "--tmp=5G --mincpus=3  --exclusive=user\n--reboot",
            "--tmp=5G --mincpus=3 --exclusive=user --reboot",
        ),
        ("--tmp=x1 --tmp=5Gx --tmp=٥ --exclusive=all --mail-user=5", ""),
        ("--comment='my PIN: --tmp=1234 x' --tmp=5", "--tmp=5"),
        ('--comment="a \\" --tmp=1234 b" --contiguous', "--contiguous"),
        ("--comment=a\\ --tmp=1234 --comment=b\xa0--tmp=6", ""),
        ("--comment='a\n--tmp=1234\n'", ""),
    ],
)
def test_options_of_others_are_those_that_slurm_shows(text: str, shown: str) -> None:
    expected = {"a": shown.strip()} if shown else {}
    assert public_options({"a": text}) == expected


@given(st.text("'\"\\ \n-=5x", max_size=8).map(lambda text: f"{text}--tmp=5{text[::-1]}"))
def test_no_part_of_a_word_is_shown_as_an_option(text: str) -> None:
    try:
        words = shlex.split(text)
    except ValueError:  # a submission is refused then
        return
    shown = public_options({"a": text}).get("a", "").split()
    assert set(shown) <= set(filter(_PUBLIC_OPTION.fullmatch, words))


@pytest.mark.parametrize("text", ["\"'", '"\\', "'a ", '\\"'])
def test_long_options_are_read_in_linear_time(text: str) -> None:
    begin = time.process_time()
    public_options({"a": text * 250_000})
    assert time.process_time() - begin < 15  # a quadratic reader takes hours
