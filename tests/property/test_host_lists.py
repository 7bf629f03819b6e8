"""Lists of hosts are read as python-hostlist reads them."""

from __future__ import annotations

import hostlist
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.model.host_lists import compress_hosts, count_hosts, expand_hosts, first_host

names = st.text("ab.-_", min_size=1, max_size=4)
numbers = st.integers(0, 120).flatmap(
    lambda n: st.integers(1, 4).map(lambda width: f"{n:0{width}}")
)
ranges = numbers | st.tuples(numbers, st.integers(0, 12)).map(
    lambda pair: f"{pair[0]}-{int(pair[0]) + pair[1]}"
)
brackets = st.lists(ranges, min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
items = st.lists(names | brackets | numbers, min_size=1, max_size=5).map("".join)
lists = st.lists(items | st.just(""), max_size=5).map(",".join)


def oracle(text: str) -> list[str]:
    result: list[str] = hostlist.expand_hostlist(text, allow_duplicates=True)
    return result


@given(lists)
def test_a_list_is_read_as_by_python_hostlist(text: str) -> None:
    try:
        expected = oracle(text)
    except hostlist.BadHostlist:  # an item is too long; the peer has no bound for a list
        expected = None
    if expected is None or len(expected) > 100_000:
        with pytest.raises(ValueError, match="more than 100000 hosts"):
            expand_hosts(text)
        return
    assert list(expand_hosts(text)) == expected
    assert count_hosts(text) == len(expected)
    assert first_host(text) == "".join(expected[:1])


@given(st.text("[]-,012a", max_size=12))
def test_what_python_hostlist_refuses_is_refused(text: str) -> None:
    try:
        expected = oracle(text)
    except hostlist.BadHostlist:
        for read in (expand_hosts, count_hosts):
            with pytest.raises(ValueError, match=r"."):
                read(text)
    else:
        assert list(expand_hosts(text)) == expected


@given(st.lists(st.from_regex(r"[ab.-]{0,2}[0-9]{0,3}[ab]?[0-9]{0,2}", fullmatch=True), max_size=9))
def test_compressed_names_are_read_again(hosts: list[str]) -> None:
    text = compress_hosts(hosts)
    assert sorted(expand_hosts(text)) == sorted(oracle(text)) == sorted({*hosts} - {""})
