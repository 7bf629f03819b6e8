"""When a job would start that is submitted now; its deadline; what would start sooner."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from metasched.api.expected_starts import deadline_warning, smaller_requests, start_if_submitted
from metasched.api.submissions import _answer_row
from metasched.core.events import JobSubmitted
from metasched.daemon.forecaster import TaskEstimate
from metasched.forecast.estimates import StartEstimate
from metasched.model.job import Job, State
from metasched.model.licence import LicencePool
from tests.unit.core_site import NOW, Site, facts, job
from tests.unit.test_forecaster import forecaster_of


def service_of(site: Site) -> Any:
    """A service whose forecaster has looked at the site; known jobs run for 40% of their limits."""
    forecaster = forecaster_of(site)
    asyncio.run(forecaster.refresh(NOW))
    return SimpleNamespace(core=site.core, forecaster=forecaster)


def half_busy(**settings: Any) -> Site:
    """Job 1 has 4 of the 8 processors of left until 100, by its run time until 40; 2 needs 8."""
    site = Site(pull=False, **settings)
    for number, cpus in ((1, 4), (2, 8)):
        asked = job(number, cpus=cpus, user="ann", user_class="gold", clusters=("left",))
        site.step(JobSubmitted(NOW, asked))
        site.sent(number, native=str(number))
    rows = site.row(State.RUNNING, 1, started=NOW), site.row(State.PENDING, 2)
    site.seen("left", facts(8, 4, running_jobs=((NOW + 100, 4),), pending_jobs=1), *rows)
    return site


@pytest.fixture(autouse=True)
def at_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasched.api.expected_starts.time.time", lambda: NOW)


def median(service: Any, asked: Job, *clusters: str) -> float | None:
    start = start_if_submitted(service, asked, clusters)
    return None if start is None else start.median - NOW


def test_a_job_starts_behind_all_others() -> None:
    service = service_of(half_busy())
    # the pending job has all processors from 40 to 80
    assert median(service, job(9, cpus=2, time_limit=600.0), "left") == 80
    assert median(service, job(9, cpus=4, time_limit=600.0), "right") == 0
    assert median(service, job(9, cpus=4, time_limit=600.0), "left", "right") == 0
    assert median(service, job(9, cpus=3, time_limit=90.0), "left") == 80  # as 4 and 600 s


@pytest.mark.parametrize(
    "fields",
    [
        {"held": True},
        {"begin": NOW + 10},
        {"reservation": 1},
        {"licences": {"m": 1}},
        {"cpus": 9},
        {"time_limit": 30 * 86400.0},
    ],
)
def test_more_than_processors_decide(fields: dict[str, Any]) -> None:
    service = service_of(half_busy(pools=(LicencePool(name="m", total=2),)))
    asked = structs.replace(job(9, cpus=1, time_limit=600.0), **fields)
    assert median(service, asked, "left") is None
    assert median(service, job(9, cpus=1, time_limit=600.0), "left") == 80


def test_a_defect_keeps_no_job_from_the_database() -> None:
    """The core has accepted the job: an error would end the service."""
    service = service_of(half_busy())
    service.forecaster._probed = None
    task = service.core.tasks[2, 0]
    assert _answer_row(service, task.job, [], with_start=True)["expected_start"] is None


def test_nothing_is_told_where_nothing_is_known() -> None:
    service = service_of(half_busy())
    assert median(service, job(9, cpus=1)) is None  # no cluster can take it
    service.forecaster._learnt = 0
    assert median(service, job(9, cpus=1), "left") is None


def test_a_deadline_that_the_queues_leave_no_time_for_is_told() -> None:
    start = StartEstimate(NOW + 80, NOW + 90, NOW + 100)
    asked = job(9, time_limit=600.0, deadline=NOW + 680)
    assert deadline_warning(asked, start) is None
    assert deadline_warning(asked, None) is None
    assert deadline_warning(job(9, time_limit=600.0), start) is None
    warning = deadline_warning(structs.replace(asked, deadline=NOW + 679), start)
    assert warning is not None
    assert "start after 1970-01-12T13:48:00.000+00:00, and it may run for 10 min" in warning


def test_the_nearest_smaller_request_that_starts_sooner_is_told() -> None:
    """An estimate far off; with 8 processors nothing starts sooner than with 4."""
    site = half_busy()
    service = service_of(site)
    task = site.core.tasks[2, 0]
    far = TaskEstimate(StartEstimate(*[NOW + 5000.0] * 3), "left", NOW)
    text = smaller_requests(service, task, far)
    assert text == (
        " A new job would start sooner with 4 processors on left at 1970-01-12T13:48:00.000+00:00."
    )
    soon = TaskEstimate(StartEstimate(*[NOW + 120.0] * 3), "left", NOW)
    assert smaller_requests(service, task, soon) == ""  # 40 s are no reason
    assert smaller_requests(service, task, None) == ""
    task.job = structs.replace(task.job, time_limit=3000.0)
    assert "with a limit of 10 min on left at 1970" in smaller_requests(service, task, far)


def test_a_job_that_needs_tokens_is_told_of_another_licence_alone() -> None:
    """A smaller job would wait for the same tokens."""
    site = half_busy(pools=(LicencePool(name="m", total=2), LicencePool(name="n", total=2)))
    service, task = service_of(site), site.core.tasks[2, 0]
    task.job = structs.replace(task.job, cpus=2, time_limit=600.0, licences={"m": 1})
    far = TaskEstimate(StartEstimate(*[NOW + 5000.0] * 3), "left", NOW)
    text = smaller_requests(service, task, far)
    assert text == (
        " A new job would start sooner with a licence other than m that has free tokens on left at "
        "1970-01-12T13:48:00.000+00:00."
    )
    choices = ({"m": 1}, {"n": 1})
    task.job = structs.replace(task.job, licence_choices=choices)
    assert "other than m or n that" in smaller_requests(service, task, far)
    soon = TaskEstimate(StartEstimate(*[NOW + 120.0] * 3), "left", NOW)
    assert smaller_requests(service, task, soon) == ""
