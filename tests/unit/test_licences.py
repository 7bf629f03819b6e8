"""Licence tokens: valid requests, free counts, and the order of leases."""

from __future__ import annotations

import heapq
import random

import pytest

from metasched.core.licences.queue import LicenceQueue
from metasched.model.licence import MAX_TOKENS, Lease, LicenceCount, LicencePool


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": ""}, "is no name"),
        ({"name": "mat lab"}, "is no name"),
        ({"name": "-L"}, "is no name"),
        ({"name": "matlab\n"}, "is no name"),
        ({"name": "m" * 64}, "is no name"),
        ({"total": -1}, "total of licence matlab is -1"),
        ({"total": MAX_TOKENS + 1}, "it must be 0..1000000000"),
        ({"total": None}, "neither a total nor a server"),
        ({"headroom": -1}, "headroom of licence matlab is -1"),
        ({"linger": -0.5}, "linger of licence matlab is -0.5"),
        ({"linger": float("inf")}, "linger of licence matlab is inf"),
        ({"stale_after": float("nan")}, "stale_after of licence matlab is nan"),
    ],
)
def test_pools_that_make_no_sense(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LicencePool(**{"name": "matlab", "total": 4} | wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("total", "outside", "observed", "message"),
    [
        (-1, 0, 1.0, "counted total of licence matlab is -1"),
        (None, -1, 1.0, "outside use of licence matlab is -1"),
        (4, MAX_TOKENS + 1, 1.0, "it must be 0..1000000000"),
        (4, 0, float("nan"), "observed at nan"),
    ],
)
def test_counts_that_make_no_sense(
    total: int | None, outside: int, observed: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LicenceCount("matlab", total, outside, observed)


NOW = 1000.0


def pools(*configured: LicencePool) -> LicenceQueue:
    line = LicenceQueue()
    line.configure(configured, patience=600.0)
    return line


def free(line: LicenceQueue, name: str = "matlab", now: float = NOW) -> int | None:
    return line.status(name, now).free


def test_what_is_free_of_a_licence() -> None:
    line = pools(LicencePool(name="matlab", total=9, headroom=2, server="s", stale_after=60.0))
    assert free(line) is None
    assert line.status("matlab", NOW).unknown_reason == "its server s has not answered yet"
    assert line.record_count(LicenceCount("matlab", None, 3, NOW), NOW)
    line.take(Lease(1, 0, 1, {"matlab": 1}, NOW), NOW + 60)
    assert free(line) == 9 - 3 - 2 - 1
    assert line.record_count(LicenceCount("matlab", 5, 0, NOW + 1), NOW + 1)
    assert free(line, now=NOW + 1) == 5 - 2 - 1  # the server's total is below the configured total
    assert line.record_count(LicenceCount("matlab", 20, 0, NOW + 2), NOW + 2)
    assert free(line, now=NOW + 2) == 9 - 2 - 1  # the configured total is the maximum
    assert free(line, now=NOW + 62) is not None
    assert free(line, now=NOW + 63) is None
    assert (
        line.status("matlab", NOW + 63).unknown_reason == "its server s has not answered for 61 s"
    )


def test_counts_that_count_for_nothing() -> None:
    line = pools(LicencePool(name="m", total=4, server="s"), LicencePool(name="own", total=4))
    assert not line.record_count(LicenceCount("m", 4, 0, NOW + 1), NOW)  # from the future
    assert not line.record_count(LicenceCount("other", 4, 0, NOW), NOW)
    assert not line.record_count(LicenceCount("own", 4, 4, NOW), NOW)
    assert (free(line, "m"), free(line, "own")) == (None, 4)
    assert line.record_count(LicenceCount("m", 4, 1, NOW), NOW)
    assert not line.record_count(LicenceCount("m", 4, 4, NOW - 1), NOW)  # older than the last count
    assert free(line, "m") == 3


def test_what_was_used_lingers_until_its_time_or_its_server_has_been_asked() -> None:
    line = pools(
        LicencePool(name="a", total=2, linger=30.0),
        LicencePool(name="s", total=2, linger=30.0, server="s"),
    )
    line.record_count(LicenceCount("s", 2, 0, NOW), NOW)
    line.take(Lease(1, 0, 1, {"a": 1, "s": 1}, NOW), NOW + 60)
    lingers = line.return_lease((1, 0), NOW + 10, was_used=True)
    assert lingers == {"a": NOW + 40, "s": NOW + 40}
    assert (free(line, "a", NOW + 10), free(line, "s", NOW + 10)) == (1, 1)
    line.record_count(LicenceCount("s", 2, 1, NOW + 9), NOW + 11)  # asked before the return
    assert line.status("s", NOW + 11).lingering == 1
    line.record_count(LicenceCount("s", 2, 0, NOW + 12), NOW + 12)
    assert free(line, "s", NOW + 12) == 2
    line.join((2, 0), 0.0, {"a": 2}, 60.0)
    assert line.next_ready(NOW + 12) is None
    assert line.next_change == NOW + 40
    line.expire_lingering(NOW + 40)
    assert line.next_ready(NOW + 40) == (2, 0)


def test_what_has_not_begun_does_not_linger() -> None:
    line = pools(LicencePool(name="a", total=2, linger=30.0))
    line.take(Lease(1, 0, 1, {"a": 2}, NOW), NOW + 60)
    assert line.return_lease((1, 0), NOW, was_used=False) == {}
    assert free(line, "a") == 2


def test_rho_counts_who_waits_per_copy_and_not_how_many_they_want() -> None:
    line = pools(LicencePool(name="a", total=2), LicencePool(name="none", total=0))
    for job, count in ((1, 2), (2, 2), (3, 1)):
        line.join((job, 0), float(job), {"a": count}, 60.0)
    assert (line.status("a", NOW).waiting_tokens, line.status("a", NOW).rho) == (5, 1.5)
    line.leave((1, 0))
    assert (line.status("a", NOW).waiting_tokens, line.rho) == (3, {"a": 1.0})
    assert line.status("none", NOW).rho is None


@pytest.mark.parametrize(
    ("wants", "message"),
    [
        ({"matlab": 7}, None),
        ({"ansys": 99}, None),  # its server has not reported a total yet
        ({"matlab": 8}, "8 of licence matlab, there are 9, 2 of them kept free; ask for at most 7"),
        ({"none": 1}, "1 of licence none, there are 0; wait until there are more"),
        ({"matlb": 1}, "no licence 'matlb' is known; did you mean matlab?"),
        ({"zzz": 1}, "no licence 'zzz' is known; known are: matlab, ansys, none"),
        ({"ansys": MAX_TOKENS + 1}, f"the maximum is {MAX_TOKENS}; ask for fewer"),
    ],
)
def test_requests_that_can_never_be_met(wants: dict[str, int], message: str | None) -> None:
    line = pools(
        LicencePool(name="matlab", total=9, headroom=2),
        LicencePool(name="ansys", server="s"),
        LicencePool(name="none", total=0),
    )
    output = line.refusal(wants)
    assert output == message if output is None or message is None else message in output


def test_all_or_none_and_no_deadlock() -> None:
    """Two tasks need the same two licences, named in opposite order."""
    line = pools(LicencePool(name="a", total=1), LicencePool(name="b", total=1))
    line.join((1, 0), 1.0, {"a": 1, "b": 1}, 60.0)
    line.join((2, 0), 2.0, {"b": 1, "a": 1}, 60.0)
    assert line.next_ready(NOW) == (1, 0)
    line.take(Lease(1, 0, 1, {"a": 1, "b": 1}, NOW), NOW + 60)
    assert line.next_ready(NOW) is None
    assert (free(line, "a"), free(line, "b")) == (0, 0)
    line.return_lease((1, 0), NOW, was_used=True)
    assert line.next_ready(NOW) == (2, 0)


def test_tokens_let_no_task_go_that_has_left_the_queue() -> None:
    line = pools(LicencePool(name="a", total=1))
    line.take(Lease(1, 0, 1, {"a": 1}, NOW), NOW + 60)
    line.join((2, 0), 1.0, {"a": 1}, 60.0)
    assert line.next_ready(NOW) is None
    assert line.would_unblock({"a": 1}, NOW)
    line.leave((2, 0))
    assert not line.would_unblock({"a": 1}, NOW)


def test_a_task_may_join_again_with_another_time_limit() -> None:
    """The task keeps its position, but joins another group of tasks."""
    line = pools(LicencePool(name="a", total=1))
    line.take(Lease(1, 0, 1, {"a": 1}, NOW), NOW + 60)
    line.join((2, 0), 1.0, {"a": 1}, 60.0)
    line.join((3, 0), 2.0, {"a": 1}, 60.0)
    assert line.next_ready(NOW) is None
    line.leave((2, 0))
    line.join((2, 0), 1.0, {"a": 1}, 600.0)
    line.return_lease((1, 0), NOW, was_used=False)
    assert line.next_ready(NOW) == (2, 0)


def test_small_wants_fill_what_large_ones_leave() -> None:
    """24 tasks need 1, 2 or 3 of 4 tokens for about ten seconds each; few tokens are idle."""
    wants = random.Random(5).sample([1, 2, 3] * 8, 24)
    line = pools(LicencePool(name="a", total=4))
    happens = [(NOW + job / 2, (job, 0)) for job in range(24)]
    now, idle = NOW, 0.0
    while happens:
        last, (now, task_id) = now, heapq.heappop(happens)
        idle += (free(line) or 0) * (now - last) if line.has_waiting else 0.0
        if task_id in line.leases:
            line.return_lease(task_id, now, was_used=True)
        else:
            line.join(task_id, now, {"a": wants[task_id[0]]}, 60.0)
        while (goes := line.next_ready(now)) is not None:
            line.take(Lease(*goes, 1, {"a": wants[goes[0]]}, now), now + 60)
            heapq.heappush(happens, (now + 10 + goes[0] / 24, goes))
    assert idle < 0.06 * 4 * (now - NOW)


def test_who_comes_much_later_goes_later_however_much_it_wants() -> None:
    line = pools(LicencePool(name="a", total=4))
    for job, (key, count) in enumerate([(0.0, 2), (599.0, 3), (601.0, 4)]):
        line.join((job, 0), key, {"a": count}, 60.0)
    order = []
    while (task_id := line.next_ready(NOW)) is not None:
        order.append(task_id[0])
        line.take(Lease(*task_id, 1, {}, NOW), NOW + 60)
    assert order == [1, 0, 2]


def test_a_total_below_what_is_leased_lets_nothing_new_go_until_it_fits() -> None:
    line = pools(LicencePool(name="a", total=4))
    for job in range(4):
        line.take(Lease(job, 0, 1, {"a": 1}, NOW), NOW + 60)
    line.set_operator_total("a", 2)
    line.join((9, 0), 0.0, {"a": 1}, 60.0)
    assert free(line, "a") == -2
    for job, goes in ((0, None), (1, None), (2, (9, 0))):
        line.return_lease((job, 0), NOW, was_used=True)
        assert line.next_ready(NOW) == goes


def test_a_lease_that_ends_later_than_was_thought_lets_others_go_before_the_first_in_line() -> None:
    """The job of lease 1 started late: a short job fits before its new end."""
    line = pools(LicencePool(name="a", total=4))
    line.take(Lease(1, 0, 1, {"a": 3}, NOW), NOW + 60)
    line.join((2, 0), 0.0, {"a": 4}, 60.0)
    line.join((3, 0), 1.0, {"a": 1}, 60.0)
    assert line.next_ready(NOW + 10) is None
    line.expect_end((1, 0), NOW + 60)
    assert line.next_ready(NOW + 10) is None
    line.expect_end((1, 0), NOW + 100)
    assert line.next_ready(NOW + 10) == (3, 0)


def test_others_go_once_a_licence_of_the_first_task_is_no_longer_counted() -> None:
    """The first task waits for two licences; the server of one has become silent."""
    line = pools(
        LicencePool(name="a", total=2), LicencePool(name="s", server="s", stale_after=60.0)
    )
    line.record_count(LicenceCount("s", 1, 0, NOW), NOW)
    line.take(Lease(1, 0, 1, {"a": 1, "s": 1}, NOW), NOW + 100)
    line.join((2, 0), 0.0, {"a": 2, "s": 1}, 60.0)
    line.join((3, 0), 1.0, {"a": 1}, 512.0)
    assert line.next_ready(NOW) is None
    due = line.next_change
    assert due is not None
    assert NOW + 60 < due < NOW + 61
    assert line.next_ready(NOW + 60) is None
    assert line.next_ready(due) == (3, 0)
