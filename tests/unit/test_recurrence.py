"""Rules of the calendar: what is read, and their times when the clock is changed."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from metasched.errors import ParseError
from metasched.times.recurrence import MAX_RULE_LENGTH, find_zone, parse_recurrence

if TYPE_CHECKING:
    from collections.abc import Iterator

BERLIN = "Europe/Berlin"


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def times(rule: str, start: str, count: int, zone: str = BERLIN) -> list[str]:
    """Return the first times after a start, in the zone."""
    recurrence = parse_recurrence(rule, zone)

    def all_times() -> Iterator[float]:
        next_time = recurrence.next_after(moment(start))
        while next_time is not None:
            yield next_time
            next_time = recurrence.next_after(next_time)

    moments = (datetime.fromtimestamp(each, find_zone(zone)) for each in islice(all_times(), count))
    return [each.isoformat(timespec="minutes") for each in moments]


def test_a_rule_keeps_its_local_time_when_the_clock_is_changed() -> None:
    assert times("mon-fri 08:00", "2027-03-25T12:00+01:00", 3) == [
        "2027-03-26T08:00+01:00",
        "2027-03-29T08:00+02:00",
        "2027-03-30T08:00+02:00",
    ]
    assert times("08:00", "2027-10-30T12:00+02:00", 1) == ["2027-10-31T08:00+01:00"]


def test_a_time_that_is_skipped_comes_as_much_later_once() -> None:
    assert times("daily 02:30", "2027-03-27T12:00+01:00", 2) == [
        "2027-03-28T03:30+02:00",
        "2027-03-29T02:30+02:00",
    ]


def test_a_time_that_comes_twice_runs_once() -> None:
    assert times("daily 02:30", "2027-10-30T12:00+02:00", 2) == [
        "2027-10-31T02:30+02:00",
        "2027-11-01T02:30+01:00",
    ]


def test_a_rule_for_every_hour_runs_in_both_hours() -> None:
    assert times("30 * * * *", "2027-10-31T02:00+02:00", 3) == [
        "2027-10-31T02:30+02:00",
        "2027-10-31T02:30+01:00",
        "2027-10-31T03:30+01:00",
    ]
    assert times("30 * * * *", "2027-03-28T01:00+01:00", 2) == [
        "2027-03-28T01:30+01:00",
        "2027-03-28T03:30+02:00",
    ]


@pytest.mark.parametrize(
    ("rule", "first"),
    [
        ("0 8 * * 1-5", "2030-01-02T08:00+00:00"),  # a Wednesday; cron counts from Sunday
        ("0 8 * * 0", "2030-01-06T08:00+00:00"),
        ("0 8 * * 7", "2030-01-06T08:00+00:00"),
        ("0 8 * * sat-mon", "2030-01-05T08:00+00:00"),
        ("Sunday,mon 8:00", "2030-01-06T08:00+00:00"),
        ("15 6 1 2,8 *", "2030-02-01T06:15+00:00"),
        ("*/20 22 * * *", "2030-01-02T22:00+00:00"),
        ("0 0 29 2 *", "2032-02-29T00:00+00:00"),
    ],
)
def test_forms_of_rules(rule: str, first: str) -> None:
    assert times(rule, "2030-01-02T00:00+00:00", 1, "UTC") == [first]


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "sometimes",
        "mon-fri",
        "mon-fri 8",
        "mon-fri 24:00",
        "mon-fry 08:00",
        "mon- 08:00",
        "* * * * * *",  # of seconds
        "0 0 8 * * mon",
        "61 * * * *",
        "0 8 * * 8",
        "0 8 * 13 *",
        "0 8 */0 * *",
        "0 8 ١ * *",
        "@daily",
        "0 8 1 * mon",
        "0 8 * * mon-fri; rm -rf /",
        "every second",
    ],
)
def test_what_is_no_rule_is_refused_in_a_line(rule: str) -> None:
    with pytest.raises(ParseError) as refused:
        parse_recurrence(rule, "UTC")
    assert "\n" not in str(refused.value)
    assert "; " in str(refused.value)


def test_a_rule_of_a_megabyte_costs_nothing() -> None:
    begun = time.process_time()
    with pytest.raises(ParseError, match=f"at most {MAX_RULE_LENGTH} are read") as refused:
        parse_recurrence("0," * 500_000 + "0 * * * *", "UTC")
    assert len(str(refused.value)) < 300
    assert time.process_time() - begun < 0.5


def test_a_rule_that_never_comes_has_no_time() -> None:
    rule = parse_recurrence("0 0 30 2 *", BERLIN)
    assert rule.next_after(moment("2030-01-01T00:00+00:00")) is None


@pytest.mark.parametrize(
    "zone", ["Europe/Atlantis", "", "../../etc/passwd", "/etc/localtime", "Europe", "a" * 10**6]
)
def test_a_zone_that_does_not_exist(zone: str) -> None:
    with pytest.raises(ParseError, match="is no time zone") as refused:
        parse_recurrence("08:00", zone)
    assert len(str(refused.value)) < 200


def test_the_last_time_up_to_a_moment_and_how_many_there_were() -> None:
    rule = parse_recurrence("daily 02:30", BERLIN)
    first, now = moment("2027-03-01T02:30+01:00"), moment("2027-03-31T01:00+02:00")
    last = rule.last_until(first, now)
    assert datetime.fromtimestamp(last, UTC).isoformat() == "2027-03-30T00:30:00+00:00"
    assert rule.count(first, last, 1000) == 30
    assert rule.count(first, last, 7) == 7
    assert rule.last_until(first, first) == first
    assert rule.last_until(first, first + 3600) == first
