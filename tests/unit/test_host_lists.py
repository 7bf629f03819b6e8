"""Lists of hosts as Slurm writes them."""

from __future__ import annotations

import tracemalloc

import pytest

from metasched.model.host_lists import (
    MAX_NAME,
    compress_hosts,
    count_hosts,
    count_nodes,
    expand_hosts,
    find_host,
    first_host,
)

HOSTILE = [
    "a[0-999999999]",
    "a[1-1000]b[1-1000]c[1-1000]",
    "a[1-100000],b",
    f"a[{'1-99999,' * 100_000}1]",
    "a" * 500_000,
    "[0]" * 200_000,
    "[1-9]" * 200_000,
    f"{'[0]' * 200_000}[1-99999]",
    f"a[{'9' * 200_000}]",
    f"a[1-{'9' * 200}]",
    "[" * 200_000,
    "a[" + "1" * 500_000,
    "a," * 200_000,
    f"[1,{'0' * 254}1]" * 16,
    f"{'a' * 250}[1,{'0' * 200}1]",
    f"{'a' * 252}[9-1000]",
]


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("(null)", ()),
        ("n1", ("n1",)),
        ("n1,m2", ("n1", "m2")),
        ("n[1-3,7]", ("n1", "n2", "n3", "n7")),
        ("n[08-10]", ("n08", "n09", "n10")),
        ("r[1-2]n[1-2]x,a", ("r1n1x", "r1n2x", "r2n1x", "r2n2x", "a")),
        ("n[1-2][07,9].site", ("n107.site", "n19.site", "n207.site", "n29.site")),
        ("n[98-101]", ("n98", "n99", "n100", "n101")),
        ("n[1,1],n1", ("n1", "n1", "n1")),  # a job has no node twice, but a list may
        (",n1,, n2\n", ("n1", "n2")),
        (f"n[{'0' * 30}1]", (f"n{'0' * 30}1",)),
    ],
)
def test_hosts(expression: str, names: tuple[str, ...]) -> None:
    assert expand_hosts(expression) == names
    assert count_hosts(expression) == count_nodes(expression) == len(names)
    assert first_host(expression) == "".join(names[:1])


@pytest.mark.parametrize(
    "expression",
    ["n[1-", "n[x]", "n]", "n[]", "n[1,]", "n[3-1]", "n[1--2]", "n[[1]]", "n[1 2]", "n[٣]"],
)
def test_what_is_no_list_of_hosts(expression: str) -> None:
    for read in (expand_hosts, count_hosts):
        with pytest.raises(ValueError, match="no list of hosts"):
            read(f"m,{expression}")
    assert (count_nodes(expression), first_host(expression)) == (1, "")


@pytest.mark.parametrize("expression", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_list_takes_little_and_gives_a_short_error(expression: str) -> None:
    tracemalloc.start()
    try:
        for read in (expand_hosts, count_hosts):
            with pytest.raises(ValueError, match=r"^\S.*\S$") as caught:
                read(expression)
            assert len(str(caught.value)) < 200
        assert tracemalloc.get_traced_memory()[1] < 200 * len(expression) + 2_000_000
    finally:
        tracemalloc.stop()


def test_a_name_has_a_limit() -> None:
    assert expand_hosts("n" * MAX_NAME) == ("n" * MAX_NAME,)
    for expression in ("n" * (MAX_NAME + 1), f"{'n' * (MAX_NAME - 1)}[01]"):
        with pytest.raises(ValueError, match="name of more than 255 characters"):
            expand_hosts(expression)


@pytest.mark.parametrize(
    ("names", "expression"),
    [
        ((), ""),
        (("n1",), "n1"),
        (("n2", "n1", "n3", "n7", "m"), "m,n[1-3,7]"),
        (("n08", "n09", "n10", "n1"), "n1,n[08-10]"),
        (("r1n1", "r2n1", "a.b"), "a.b,r1n1,r2n1"),
        (("bad[1]", "x,y", "x y", "", "n" * 300, "n" * 300 + "1"), ""),
    ],
)
def test_names_become_a_list(names: tuple[str, ...], expression: str) -> None:
    assert compress_hosts(names) == expression
    good = {n for n in names if n and len(n) <= MAX_NAME and not set(n) & set("[], ")}
    assert set(expand_hosts(expression)) == good


def test_a_list_has_a_limit() -> None:
    for expression in ("n[1-9]", "n[1-3]m[1-3]", "a,b,c,d,e,f", "n[1,2,3,4,5,6]"):
        for read in (expand_hosts, count_hosts):
            with pytest.raises(ValueError, match="more than 5 hosts"):
                read(expression, 5)
    assert len(expand_hosts("a[1-2]b[1-2],c", 5)) == 5


@pytest.mark.parametrize(
    ("name", "found"),
    [("n1", "n1"), ("n1.site", "n1"), ("n2", "n2.site"), ("n2.other", None), ("n3", None)],
)
def test_a_host_is_found_with_or_without_its_domain(name: str, found: str | None) -> None:
    assert find_host(name, {"n1", "n2.site"}) == found
