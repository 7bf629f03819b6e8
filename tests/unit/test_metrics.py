"""Metrics: what is counted as it happens, and what a scrape reads of the scheduler's state."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec import structs

from metasched.core.events import JobSubmitted, UserRequested
from metasched.daemon.metrics import Metrics
from metasched.daemon.state_metrics import PORTION, TaskCounts, reason_label
from metasched.model.job import Reason, State
from tests.unit.core_site import NOW, Site, job


def value(metrics: Metrics, name: str, labels: Mapping[str, str] | None = None) -> float:
    return metrics.registry.get_sample_value(f"metasched_{name}", dict(labels or {})) or 0.0


def counted(site: Site) -> TaskCounts:
    counts = TaskCounts()
    for _ in counts.count(site.core.state):
        pass
    return counts


def test_a_start_and_an_end_are_counted_once() -> None:
    site, metrics = Site(), Metrics(wall_clock=lambda: NOW + 100)
    site.step(JobSubmitted(NOW, job(user_class="gold")))
    site.sent()
    for at, row in (
        (5, site.row(State.RUNNING, started=NOW + 4)),
        (6, site.row(State.RUNNING, started=NOW + 4)),
        (9, site.row(State.COMPLETED, started=NOW + 4, ended=NOW + 8, exit_code=0)),
    ):
        site.seen("left", None, row, at=NOW + at)
        metrics.observe(site.out)
    gold = {"cluster": "left", "class": "gold"}
    assert value(metrics, "tasks_started_total", gold) == 1
    assert value(metrics, "wait_seconds_sum", {"class": "gold"}) == 4
    ended = {"cluster": "left", "state": "completed"}
    assert value(metrics, "attempts_ended_total", ended) == 1
    assert value(metrics, "transitions_total", {"event": "start"}) == 1


def test_a_task_that_is_first_listed_when_it_has_ended_has_started() -> None:
    site, metrics = Site(), Metrics(wall_clock=lambda: NOW + 100)
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    row = site.row(State.FAILED, started=NOW + 7, ended=NOW + 8, exit_code=1)
    site.seen("left", None, row, at=NOW + 9)
    metrics.observe(site.out)
    assert value(metrics, "wait_seconds_sum", {"class": "regular"}) == 7
    assert value(metrics, "attempts_ended_total", {"cluster": "left", "state": "failed"}) == 1


def test_a_task_that_is_cancelled_unstarted_has_not_started() -> None:
    site, metrics = Site(), Metrics()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.seen("left", None, site.row(State.CANCELLED, ended=NOW + 8), at=NOW + 9)
    metrics.observe(site.out)
    assert value(metrics, "wait_seconds_count", {"class": "regular"}) == 0
    assert value(metrics, "attempts_ended_total", {"cluster": "left", "state": "cancelled"}) == 1


def test_a_start_in_the_future_of_a_wrong_clock_adds_no_wait() -> None:
    site, metrics = Site(), Metrics(wall_clock=lambda: NOW + 10)
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.seen("left", None, site.row(State.RUNNING, started=NOW + 1e6), at=NOW + 9)
    metrics.observe(site.out)
    assert value(metrics, "wait_seconds_sum", {"class": "regular"}) <= 10


def test_cancelled_runs_of_an_array_count_each_task() -> None:
    site, metrics = Site(remainder_minimum=10), Metrics()
    site.step(JobSubmitted(NOW, job(array="1-50", held=True)))
    site.step(UserRequested(NOW, "cancel", 1))
    metrics.observe(site.out)
    assert value(metrics, "transitions_total", {"event": "cancel"}) == 50


def test_open_tasks_are_counted_by_state_class_and_reason() -> None:
    site = Site(remainder_minimum=10)
    site.step(JobSubmitted(NOW - 60, job(1, cpus=8, user_class="gold")))
    site.sent(1)
    site.step(JobSubmitted(NOW, job(2, held=True)))
    site.step(JobSubmitted(NOW, job(3, array="1-70", held=True)))
    counts = counted(site)
    assert counts.tasks["held", "regular", "held"] == 71
    assert counts.tasks["pending", "gold", ""] == 1
    assert counts.tasks.total() == 72
    assert counts.oldest["regular"] == NOW


def test_the_oldest_waiting_task_counts_whatever_the_order_of_the_tasks() -> None:
    """Of a class, over several portions; what runs does not wait."""
    site = Site()
    ages = [7 * id % 1_009 for id in range(1, PORTION + 9)]
    for id, age in enumerate(ages, start=1):
        user_class = "gold" if id % 2 else "regular"
        waiting = job(id, held=True, user_class=user_class)
        site.step(JobSubmitted(NOW, structs.replace(waiting, submitted=NOW - age)))
    running = job(len(ages) + 1, user_class="gold")
    site.step(JobSubmitted(NOW, structs.replace(running, submitted=NOW - 5_000)))
    site.sent(running.id)
    assert counted(site).oldest["gold"] == NOW - 5_000
    site.seen("left", None, site.row(State.RUNNING, running.id, started=NOW), at=NOW + 1)
    assert counted(site).oldest == {
        "gold": NOW - max(ages[::2]),
        "regular": NOW - max(ages[1::2]),
    }


def test_a_scrape_yields_between_portions() -> None:
    site = Site()
    for id in range(1, PORTION + 2):
        site.step(JobSubmitted(NOW, job(id, held=True)))
    assert len(list(TaskCounts().count(site.core.state))) == 2


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        ("", ""),
        (Reason.LICENCE_BUSY, "licence_busy"),
        ("manager:Priority", "manager"),
        ('manager:x"} 1\nforged 2', "manager"),
        ("anything else", "other"),
    ],
)
def test_labels_are_bounded_whatever_a_manager_says(reason: str, label: str) -> None:
    assert reason_label(reason) == label
