"""Lists of hosts as Slurm writes them."""

from __future__ import annotations

import pytest

from metasched.model.host_lists import compress_hosts, expand_hosts, find_host


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("(null)", ()),
        ("n1", ("n1",)),
        ("n1,m2", ("n1", "m2")),
        ("n[1-3,7]", ("n1", "n2", "n3", "n7")),
        ("n[08-10]", ("n08", "n09", "n10")),
        ("r[1-2]n[1-2]x,a", ("r1n1x", "r1n2x", "r2n1x", "r2n2x", "a")),
    ],
)
def test_hosts(expression: str, names: tuple[str, ...]) -> None:
    assert expand_hosts(expression) == names


@pytest.mark.parametrize("expression", ["n[1-", "n1,,n2", "n[x]", "n]"])
def test_what_is_no_list_of_hosts(expression: str) -> None:
    with pytest.raises(ValueError, match="no list of hosts"):
        expand_hosts(expression)


@pytest.mark.parametrize(
    ("names", "expression"),
    [
        ((), ""),
        (("n1",), "n1"),
        (("n2", "n1", "n3", "n7", "m"), "m,n[1-3,7]"),
        (("n08", "n09", "n10", "n1"), "n1,n[08-10]"),
        (("r1n1", "r2n1", "a.b"), "a.b,r1n1,r2n1"),
        (("bad[1]", "x,y", ""), ""),
    ],
)
def test_names_become_a_list(names: tuple[str, ...], expression: str) -> None:
    assert compress_hosts(names) == expression
    good = {name for name in names if name and not set(name) & set("[],")}
    assert set(expand_hosts(expression)) == good


def test_a_list_has_a_limit() -> None:
    for expression in ("n[1-9]", "n[1-3]m[1-3]", "a,b,c,d,e,f", "n[1,2,3,4,5,6]"):
        with pytest.raises(ValueError, match="more than 5 hosts"):
            expand_hosts(expression, 5)


@pytest.mark.parametrize(
    ("name", "found"),
    [("n1", "n1"), ("n1.site", "n1"), ("n2", "n2.site"), ("n2.other", None), ("n3", None)],
)
def test_a_host_is_found_with_or_without_its_domain(name: str, found: str | None) -> None:
    assert find_host(name, {"n1", "n2.site"}) == found
