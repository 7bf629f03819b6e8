"""Reserved windows of `local`: who may enter, what stays out, what a restart keeps."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from metasched.adapters.local import windows
from metasched.adapters.local.adapter import Local, LocalOptions
from metasched.model.adapter_errors import Refused
from metasched.model.job import State
from metasched.model.reservation import manager_name
from metasched.model.survey import ManagerReservation, ReservationSpec
from tests.harness import processes
from tests.real.test_local import INSTANCE, Site

NAME = manager_name(INSTANCE, 1)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.adapter.close()
    processes.kill(processes.of_cluster(site.folder))


def window(start: float, seconds: float, cpus: int) -> ReservationSpec:
    return ReservationSpec(NAME, "ada,bob", start, start + seconds, (), cpus)


def test_its_users_alone_run_in_a_window_and_all_others_around_it(site: Site) -> None:
    """Two of four processors are reserved; the job without a limit needs three, for ever."""
    start = time.time() + 4.0
    site.adapter.reserve(window(start, 4.0, 2))
    short = site.submit("true", cpus=4, time_limit=1.0)
    unlimited = site.submit("true", cpus=3)
    beside = site.submit("true", cpus=2, time_limit=600.0)
    for user in ("ada", "bob"):
        order = structs.replace(site.order("sleep 60", user=user), reservation=NAME)
        site.adapter.submit(order)
    inside = order
    with pytest.raises(Refused, match="is for ada, bob"):
        site.adapter.submit(structs.replace(site.order("true", user="eve"), reservation=NAME))
    unknown = structs.replace(site.order("true", user="ada"), reservation=manager_name(INSTANCE, 9))
    with pytest.raises(Refused, match="no reservation") as refusal:
        site.adapter.submit(unknown)
    assert (refusal.value.retryable, refusal.value.scope) == (True, "job")

    site.reopen()
    survey = site.adapter.survey()
    [pool] = survey.pools
    held = ManagerReservation(NAME, start, start + 4.0, pool.nodes, 2)
    assert (survey.reservations, survey.guard) == ((held,), 0.5)
    ended = {order.tag: site.wait_end(order) for order in (short, beside, inside, unlimited)}
    for order in (short, beside):
        started = ended[order.tag].started
        assert started is not None
        assert started < start
    [began, later] = [ended[order.tag].started for order in (inside, unlimited)]
    assert began is not None
    assert later is not None
    assert began >= start
    assert ended[inside.tag].state is State.TIMEOUT
    assert later >= start + 4.0
    assert site.adapter.survey().reservations == ()


def test_processors_of_an_open_window_are_not_free_for_others(site: Site) -> None:
    site.adapter.reserve(window(time.time() - 1.0, 600.0, 3))
    soon = manager_name(INSTANCE, 2)
    later = time.time() + 300.0
    site.adapter.reserve(ReservationSpec(soon, "ada", later, later + 60.0, (), 1))
    info = site.adapter.poll().info
    [nodes] = info.partitions[0].nodes
    assert (info.used_cpus, nodes.free_cpus) == (3, 1)
    assert info.upcoming_windows == ((later - 0.5, 0),)
    refused = ReservationSpec(manager_name(INSTANCE, 3), "ada", later, later + 1.0, (), 1)
    with pytest.raises(Refused, match="not free in the whole window"):
        site.adapter.reserve(refused)
    inside = structs.replace(site.order("sleep 60", user="ada", cpus=3), reservation=NAME)
    site.adapter.submit(inside)
    outside = site.submit("true", time_limit=30.0)
    assert site.wait_end(outside).state is State.COMPLETED
    site.wait(lambda: site.row(inside).state is State.RUNNING)
    assert site.adapter.poll().info.used_cpus == 3
    with pytest.raises(Refused, match="jobs are in"):
        site.adapter.delete_reservation(NAME)


def test_a_job_without_a_limit_says_that_it_waits_for_the_end_of_reservations(site: Site) -> None:
    """However far ahead they are; `max_time` of the cluster is a limit."""
    site.adapter.reserve(window(time.time() + 300 * 86400.0, 60.0, 2))
    small = site.submit("sleep 60", cpus=2)
    site.wait(lambda: site.row(small).state is State.RUNNING)
    large, behind = site.submit("true", cpus=3), site.submit("true")
    assert site.row(large).manager_reason == "no time limit, and reservations come"
    assert site.row(behind).manager_reason == "Priority"  # it would delay the one before
    site.reopen(max_time=86400.0)
    assert site.wait_end(site.submit("true", cpus=2)).state is State.COMPLETED


def test_a_cluster_keeps_a_bounded_number_of_windows(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "MAX_WINDOWS", 2)
    begin = time.time() + 600.0
    first, second, third = (
        ReservationSpec(manager_name(INSTANCE, n), "ada", begin, begin + 60.0, (), 1)
        for n in (1, 2, 3)
    )
    site.adapter.reserve(first)
    site.adapter.reserve(second)
    with pytest.raises(Refused, match="2 reservations, the most that it keeps"):
        site.adapter.reserve(third)
    site.adapter.reserve(first)  # again, after a crash
    site.adapter.delete_reservation(second.name)
    site.adapter.reserve(third)


def test_a_window_that_was_lost_is_kept_again_although_its_jobs_run(site: Site) -> None:
    spec = window(time.time(), 600.0, 3)
    site.adapter.reserve(spec)
    inside = structs.replace(site.order("sleep 60", user="ada", cpus=3), reservation=NAME)
    site.adapter.submit(inside)
    site.wait(lambda: site.row(inside).state is State.RUNNING)
    site.adapter.close()
    with closing(sqlite3.connect(site.folder / "queue.db")) as database, database:
        database.execute("DELETE FROM windows")
    site.reopen()
    assert site.adapter.survey().reservations == ()
    site.adapter.reserve(spec)
    [held] = site.adapter.survey().reservations
    assert held.name == NAME


def test_a_job_that_needs_more_than_its_window_has_is_refused(site: Site) -> None:
    """It would wait until the window is over: `--exclusive` takes the whole cluster."""
    site.adapter.reserve(window(time.time(), 600.0, 2))
    order = structs.replace(site.order("true", user="ada", exclusive=True), reservation=NAME)
    with pytest.raises(Refused, match=f"4 processors needed; reservation {NAME} has 2") as refusal:
        site.adapter.submit(order)
    assert (refusal.value.retryable, refusal.value.scope) == (False, "job")


def test_a_policy_that_keeps_no_windows_takes_none_and_decides_nothing_beside_them(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    assert not Local.capabilities_for(LocalOptions(cpus=4, policy="cs-greedy-np")).reservations
    start = time.time() + 3.0
    site.adapter.reserve(window(start, 2.0, 4))
    site.reopen(policy="cs-greedy-np")
    order = site.submit("true", time_limit=600.0)
    started = site.wait_end(order).started
    assert started is not None
    assert started >= start + 2.0
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "policy cs-greedy-np is excluded, FCFS decides: it keeps no reserved windows, and there "
        "are some"
    ]
