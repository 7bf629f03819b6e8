"""Our own use is taken out of what a server tells, and nobody else's."""

from __future__ import annotations

import pytest

from metasched.daemon.licence_monitor import observed_at
from metasched.licence_servers.base import Feature, ProbeError, Report, Use
from metasched.licence_servers.command import CommandOptions, read
from metasched.licence_servers.matching import Held, hosts_of, outside

N1 = frozenset({"n1"})


def held(count: int = 1, hosts: frozenset[str] | None = N1, since: float = 1000.0) -> Held:
    return Held("ada", hosts, since, count)


@pytest.mark.parametrize(
    ("uses", "ours", "expected"),
    [
        ([Use("ada", "n1", 2, 1005.0)], [held(2)], 0),
        ([Use("ada", "N1.site.example", 2, 1005.0)], [held(2)], 0),
        ([Use("ada", "n1", 2, None)], [held(2)], 0),
        ([Use("ada", "", 2, 1005.0)], [held(2)], 0),
        ([Use("ada", "n1", 2, 960.0)], [held(2)], 0),  # servers tell whole minutes
        ([Use("ada", "n1", 2, 800.0)], [held(2)], 2),  # older than the job
        ([Use("bob", "n1", 2, 1005.0)], [held(2)], 2),
        ([Use("ada", "ws7", 2, 1005.0)], [held(2)], 2),  # at her desk
        ([Use("ada", "ws7", 2, 1005.0)], [held(2, None)], 0),
        ([Use("ada", "n1", 3, 1005.0)], [held(2)], 1),  # more than it leased
        ([Use("ada", "n1", 1, 1005.0)], [held(2)], 0),  # the rest is still to come
        ([Use("ada", "n1", 1, 1005.0), Use("ada", "n1", 1, 1006.0)], [held(2)], 0),
        ([Use("ada", "n1", 1, 1005.0)], [held(1), held(1)], 0),
        # who may have the fewest chooses first, whatever the order
        (
            [Use("ada", "n1", 1, 1005.0), Use("ada", "n2", 1, 1005.0)],
            [held(1, frozenset({"n1", "n2"})), held(1)],
            0,
        ),
        ([], [held(2)], 0),
    ],
)
def test_ours_is_not_outside(uses: list[Use], ours: list[Held], expected: int) -> None:
    used = sum(use.count for use in uses)
    assert outside(Feature("x", 9, used, tuple(uses)), ours) == expected
    assert outside(Feature("x", 9, used + 4, tuple(uses)), ours) == expected + 4  # reserved, shared


def test_where_nobody_is_named_ours_are_taken_to_be_in_the_figure() -> None:
    assert outside(Feature("x", 9, 5), [held(2), held(1)]) == 2
    assert outside(Feature("x", 9, 5, ()), [held(2), held(1)]) == 5
    assert outside(Feature("x", 9, 1), [held(2)]) == 0


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("n1", {"n1"}),
        ("N1.site.example", {"n1"}),
        ("n[1-3,07],m2", {"n1", "n2", "n3", "n07", "m2"}),
        ("n[09-11]-ib.site", {"n09-ib", "n10-ib", "n11-ib"}),
        ("10.0.0.7", {"10.0.0.7"}),
        ("", None),
        ("n[1-x]", None),
        ("n[0-999999999]", None),
        ("n[", None),
    ],
)
def test_hosts_of_a_managers_list(nodes: str, hosts: set[str] | None) -> None:
    assert hosts_of(nodes) == hosts


@pytest.mark.parametrize(
    ("told", "observed"),
    [(None, 1000.0), (1030.0, 1000.0), (945.0, 1000.0), (935.0, 935.0), (-1e9, -1e9)],
)
def test_an_answer_is_as_old_as_it_says(told: float | None, observed: float) -> None:
    assert observed_at(Report((), observed=told), 1000.0) == observed


def test_an_answer_from_the_future_is_none() -> None:
    with pytest.raises(ProbeError, match="86400 s in the future"):
        observed_at(Report((), observed=87400.0), 1000.0)


def test_what_a_command_prints() -> None:
    report = read(
        '{"observed": 1000.5, "licences": [{"name": "a", "total": 4, "used": 3, "reserved": 1,'
        ' "queued": 2, "uses": [{"user": "ada", "host": "n1", "count": 2, "since": 900}]},'
        ' {"name": "b", "total": null, "used": 0}]}'
    )
    assert report.observed == 1000.5
    assert report.features == (
        Feature("a", 4, 3, (Use("ada", "n1", 2, 900.0),), 1, 2),
        Feature("b", None, 0),
    )


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("", "malformed|truncated"),
        ("Lizenzen: 4", "malformed"),
        ('{"licences": [{"name": "a", "total": 4', "truncated"),
        ('{"licences": [{"name": "a", "used": 1}]}', r"`total` - at `\$.licences"),
        ('{"licences": [{"name": "a", "total": -1, "used": 1}]}', ">= 0"),
        ('{"licences": [{"name": "a", "total": "4", "used": 1}]}', "Expected `int"),
        ('{"licences": [{"name": "a", "total": 1e99, "used": 1}]}', "Expected `int"),
        ('{"licences": [{"name": "a", "total": 4, "used": 1, "sued": 2}]}', "`sued`"),
        (
            '{"licences": [{"name": "a", "total": 4, "used": 1, "uses": [{"user": "x", '
            '"count": 0}]}]}',
            ">= 1",
        ),
        (
            '{"licences": [{"name": "a", "total": 4, "used": 1}, '
            '{"name": "a", "total": 4, "used": 1}]}',
            "told twice",
        ),
        ('{"licences": [], "observed": 1e999}', "out of range|time"),
        ('{"licences": ' + "[" * 5000, "."),
    ],
)
def test_json_of_another_shape_counts_nothing(answer: str, says: str) -> None:
    with pytest.raises(ProbeError, match=says) as caught:
        read(answer)
    assert "\n" not in str(caught.value)


def test_a_command_is_named_by_its_whole_path() -> None:
    for command in ((), ("lics",)):
        with pytest.raises(ValueError, match="absolute path"):
            CommandOptions(command)
