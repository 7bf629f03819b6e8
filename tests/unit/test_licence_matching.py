"""Only the use by jobs of metasched is subtracted from a server's licence count."""

from __future__ import annotations

import pytest

from metasched.daemon.licence_monitor import observation_time
from metasched.licence_servers.base import Feature, LicenceServerError, LicenceUse, UsageReport
from metasched.licence_servers.command import CommandOptions, parse_report
from metasched.licence_servers.matching import LeasedTokens, count_outside, job_hosts

N1 = frozenset({"n1"})


def held(count: int = 1, hosts: frozenset[str] | None = N1, since: float = 1000.0) -> LeasedTokens:
    return LeasedTokens("ada", hosts, since, count)


@pytest.mark.parametrize(
    ("uses", "leased", "expected"),
    [
        ([LicenceUse("ada", "n1", 2, 1005.0)], [held(2)], 0),
        ([LicenceUse("ada", "N1.site.example", 2, 1005.0)], [held(2)], 0),
        ([LicenceUse("ada", "n1", 2, None)], [held(2)], 0),
        ([LicenceUse("ada", "", 2, 1005.0)], [held(2)], 0),
        ([LicenceUse("ada", "n1", 2, 960.0)], [held(2)], 0),  # servers report whole minutes
        ([LicenceUse("ada", "rack2x1", 2, 1005.0)], [held(2, job_hosts("rack[1-2]x[1-2]"))], 0),
        ([LicenceUse("ada", "rack2x3", 2, 1005.0)], [held(2, job_hosts("rack[1-2]x[1-2]"))], 2),
        ([LicenceUse("ada", "n1", 2, 800.0)], [held(2)], 2),  # checked out before the job started
        ([LicenceUse("bob", "n1", 2, 1005.0)], [held(2)], 2),
        ([LicenceUse("ada", "ws7", 2, 1005.0)], [held(2)], 2),  # at a workstation
        ([LicenceUse("ada", "ws7", 2, 1005.0)], [held(2, None)], 0),
        ([LicenceUse("ada", "n1", 3, 1005.0)], [held(2)], 1),  # more than it leased
        ([LicenceUse("ada", "n1", 1, 1005.0)], [held(2)], 0),  # the rest is not checked out yet
        ([LicenceUse("ada", "n1", 1, 1005.0), LicenceUse("ada", "n1", 1, 1006.0)], [held(2)], 0),
        ([LicenceUse("ada", "n1", 1, 1005.0)], [held(1), held(1)], 0),
        # the attempt with the fewest matches is matched first, whatever the order
        (
            [LicenceUse("ada", "n1", 1, 1005.0), LicenceUse("ada", "n2", 1, 1005.0)],
            [held(1, frozenset({"n1", "n2"})), held(1)],
            0,
        ),
        ([], [held(2)], 0),
    ],
)
def test_uses_of_jobs_are_not_outside(
    uses: list[LicenceUse], leased: list[LeasedTokens], expected: int
) -> None:
    used = sum(use.count for use in uses)
    assert count_outside(Feature("x", 9, used, tuple(uses)), leased) == expected
    assert (
        count_outside(Feature("x", 9, used + 4, tuple(uses)), leased) == expected + 4
    )  # uses without a user: reserved or shared


def test_without_users_leases_are_assumed_to_be_counted() -> None:
    assert count_outside(Feature("x", 9, 5), [held(2), held(1)]) == 2
    assert count_outside(Feature("x", 9, 5, ()), [held(2), held(1)]) == 5
    assert count_outside(Feature("x", 9, 1), [held(2)]) == 0


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("n1", {"n1"}),
        ("N1.site.example", {"n1"}),
        ("n[1-3,07],m2", {"n1", "n2", "n3", "n07", "m2"}),
        ("n[09-11]-ib.site", {"n09-ib", "n10-ib", "n11-ib"}),
        ("10.0.0.7", {"10.0.0.7"}),
        ("Rack[1-2]x[1-2].site", {"rack1x1", "rack1x2", "rack2x1", "rack2x2"}),
        ("", None),
        ("(null)", None),
        ("n[1-x]", None),
        ("n[0-999999999]", None),
        ("n[", None),
    ],
)
def test_host_lists_are_expanded(nodes: str, hosts: set[str] | None) -> None:
    assert job_hosts(nodes) == hosts


@pytest.mark.parametrize(
    ("stated", "observed"),
    [(None, 1000.0), (1030.0, 1000.0), (945.0, 1000.0), (935.0, 935.0), (-1e9, -1e9)],
)
def test_an_answer_may_state_an_earlier_time(stated: float | None, observed: float) -> None:
    assert observation_time(UsageReport((), observed=stated), 1000.0) == observed


def test_an_answer_from_the_future_is_an_error() -> None:
    with pytest.raises(LicenceServerError, match="86400 s in the future"):
        observation_time(UsageReport((), observed=87400.0), 1000.0)


def test_output_of_a_command() -> None:
    report = parse_report(
        '{"observed": 1000.5, "licences": [{"name": "a", "total": 4, "used": 3, "reserved": 1,'
        ' "queued": 2, "uses": [{"user": "ada", "host": "n1", "count": 2, "since": 900}]},'
        ' {"name": "b", "total": null, "used": 0}]}'
    )
    assert report.observed == 1000.5
    assert report.features == (
        Feature("a", 4, 3, (LicenceUse("ada", "n1", 2, 900.0),), 1, 2),
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
            "reported twice",
        ),
        ('{"licences": [], "observed": 1e999}', "out of range|time"),
        ('{"licences": ' + "[" * 5000, "."),
    ],
)
def test_invalid_json_is_an_error(answer: str, says: str) -> None:
    with pytest.raises(LicenceServerError, match=says) as caught:
        parse_report(answer)
    assert "\n" not in str(caught.value)


def test_a_command_needs_an_absolute_path() -> None:
    for command in ((), ("lics",)):
        with pytest.raises(ValueError, match="absolute path"):
            CommandOptions(command)
