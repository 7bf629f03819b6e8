"""`load = "forecast"`: a job goes where it is expected to start first."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec import structs

from metasched.api.explanations import compared_load
from metasched.cli.explain import describe_policies
from metasched.core.events import (
    ClockSet,
    ClusterUnreachable,
    CoreEvent,
    Dispatch,
    JobSubmitted,
    StartsForecast,
)
from metasched.core.forecast_loads import MAX_AGE, MAX_INTERVAL, MIN_INTERVAL
from metasched.core.placement import BY_FORECAST, BY_LOAD, BY_OBSERVED_WORK
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import Simulation
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.job import Job
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy
from tests.unit.core_site import NOW, Site, facts, job
from tests.unit.test_forecaster import forecaster_of

Waits = dict[int, tuple[float | None, ...]]
LIMITS = (600.0, 3600.0)


def forecast(
    left: Waits,
    right: Waits,
    made: float = NOW,
    free: tuple[int, int] = (8, 4),
) -> StartsForecast:
    waits = {"left": left, "right": right}
    return StartsForecast(
        max(made, NOW), made, LIMITS, waits, dict(zip(("left", "right"), free, strict=True))
    )


def site(*told: StartsForecast) -> Site:
    """Left owes an hour of all its processors to others, right nothing."""
    made = Site(load="forecast", pull=False)
    made.seen("left", facts(8, 0, owed_by_others=8 * 3600.0))
    for event in told:
        made.step(event)
    return made


def placed(made: Site, id: int = 1, at: float = NOW, **fields: Any) -> str:
    """Return the cluster to which a job goes."""
    fields = {"cpus": 2, "time_limit": 600.0, **fields}
    actions = made.step(JobSubmitted(at, msgspec.structs.replace(job(id), **fields)))
    [cluster] = [action.cluster for action in actions if isinstance(action, Dispatch)]
    return cluster


EARLY_ON_LEFT = forecast(
    {2: (5.0, 7000.0), 8: (9.0, 7000.0)}, {2: (60.0, 60.0), 4: (60.0, 70.0)}, free=(0, 0)
)


def test_a_job_goes_where_it_is_expected_to_start_first() -> None:
    assert placed(site()) == "right"  # as observed: nothing is forecast yet
    assert placed(site(EARLY_ON_LEFT)) == "left"
    assert placed(site(EARLY_ON_LEFT), cpus=1) == "left"  # as the next larger one
    assert placed(site(EARLY_ON_LEFT), time_limit=601.0) == "right"  # as the next longer one
    assert placed(site(EARLY_ON_LEFT), cpus=8) == "left"  # right has too few processors


@pytest.mark.parametrize(
    ("told", "fields"),
    [
        ([], {}),
        ([EARLY_ON_LEFT], {"time_limit": 3601.0}),  # longer than all that were tried
        ([forecast({2: (None, None)}, {2: (60.0, 60.0)})], {}),
        ([forecast({1: (1.0, 1.0)}, {2: (60.0, 60.0)})], {}),  # none is as large
        ([EARLY_ON_LEFT], {"at": NOW + MAX_AGE + 1}),
    ],
)
def test_observed_work_decides_where_no_wait_is_known(
    told: list[StartsForecast], fields: dict[str, Any]
) -> None:
    assert placed(site(*told), **fields) == "right"


def test_the_story_says_whether_the_forecast_decided() -> None:
    def cause(made: Site, **fields: Any) -> str:
        placed(made, **fields)
        [change] = [change for change in made.out.changes if change.event == "send"]
        return change.cause

    assert cause(site(EARLY_ON_LEFT)) == BY_FORECAST
    assert cause(site()) == BY_OBSERVED_WORK
    assert cause(site(EARLY_ON_LEFT), time_limit=3601.0) == BY_OBSERVED_WORK
    assert cause(site(EARLY_ON_LEFT), cpus=8) == BY_LOAD  # there is nothing to compare
    assert cause(Site(load="observed")) == BY_LOAD
    versions = {"priority": 3, "placement": 3}
    plain = "Policy version 3 decided priority and placement."
    assert describe_policies({**versions, "load": None}) == plain
    assert describe_policies({**versions, "load": compared_load(BY_FORECAST)}) == (
        f"{plain} The forecast decided between the clusters."
    )
    assert "Observed work" in describe_policies({"load": compared_load(BY_OBSERVED_WORK)})


@pytest.mark.parametrize("event", [ClockSet(NOW + 3600, 3600.0), None])
def test_a_step_of_the_clock_or_a_start_ends_a_forecast(event: CoreEvent | None) -> None:
    made = site(EARLY_ON_LEFT)
    made.step(event or made.started(NOW + 1))
    for name, cpus, owed in (("left", 8, 8 * 3600.0), ("right", 4, 0.0)):
        made.seen(name, facts(cpus, 0, owed_by_others=owed), at=made.core.state.now)
    assert placed(made, at=made.core.state.now) == "right"


def test_what_was_sent_since_counts() -> None:
    """Each job of 2 processors adds 150 s to the wait on left, and 300 s on right."""
    made = site(EARLY_ON_LEFT)
    assert [placed(made, id) for id in range(1, 5)] == ["left", "right", "left", "left"]
    waits = made.core.assess_clusters(made.core.tasks[4, 0])
    assert [verdict.load for verdict in waits] == [5.0 + 3 * 150.0, 60.0 + 300.0]
    made.step(msgspec.structs.replace(EARLY_ON_LEFT, time=NOW + 1, made=NOW + 1))
    waits = made.core.assess_clusters(made.core.tasks[4, 0])
    assert [verdict.load for verdict in waits] == [5.0, 60.0]  # they are in its snapshot


def test_jobs_that_fit_at_once_wait_nowhere() -> None:
    """As long as free processors are left, what was sent delays nobody."""
    idle: Waits = {2: (0.0, 0.0), 8: (0.0, 0.0)}
    made = site(forecast(idle, {2: (0.0, 0.0), 4: (0.0, 0.0)}, free=(4, 2)))
    assert [placed(made, id) for id in range(1, 4)] == ["left", "left", "right"]
    waits = made.core.assess_clusters(made.core.tasks[3, 0])
    assert [verdict.load for verdict in waits] == [2 * 150.0, 300.0]


def test_a_cluster_that_is_away_needs_no_forecast() -> None:
    only_left = forecast({2: (5.0, 5.0)}, {}, free=(0, 0))
    assert placed(site(only_left)) == "right"
    made = site(only_left)
    made.step(ClusterUnreachable(NOW, "right", "no answer"))
    assert placed(made, 1) == "left"


class Told:
    """A forecaster whose forecasts go to the core of a site."""

    def __init__(self, made: Site) -> None:
        self.site, self.events = made, list[StartsForecast]()
        self._forecaster = forecaster_of(made)
        self._forecaster._notify = self._notify

    async def _notify(self, event: StartsForecast) -> None:
        self.site.step(event)
        self.events.append(event)

    def at(self, *times: float) -> list[float]:
        """Refresh at these times; return from when on the core was told another forecast."""
        known = len(self.events)
        for now in times:
            asyncio.run(self._forecaster.refresh(now))
        return [event.made - NOW for event in self.events[known:]]


def forecast_site() -> Site:
    return Site(load="forecast", pull=False)


def test_the_same_forecast_is_told_again_only_after_a_while() -> None:
    forecasting = Told(forecast_site())
    assert forecasting.at(NOW, NOW + 1, NOW + MIN_INTERVAL, NOW + MAX_INTERVAL) == [0, MAX_INTERVAL]
    [first, _] = forecasting.events
    assert first.waits["right"] == dict.fromkeys((1, 2, 4), (0.0,) * 4)
    assert first.free_cpus == {"left": 8, "right": 4}
    assert msgspec.json.decode(msgspec.json.encode(first), type=StartsForecast) == first


def test_each_is_stored_so_even_new_forecasts_are_told_only_at_intervals() -> None:
    """An idle site is forecast every 2 s, and its jobs start and end all the time."""
    forecasting = Told(forecast_site())
    for second in range(0, 60, 2):
        forecasting.site.seen("left", facts(8, second % 8))
        forecasting.at(NOW + second)
    assert [event.made - NOW for event in forecasting.events] == [0, MIN_INTERVAL, 2 * MIN_INTERVAL]


def test_the_same_waits_are_news_after_dispatches() -> None:
    """Jobs that were sent have started and ended: by the former forecast they still count."""
    made = site(EARLY_ON_LEFT)
    later = [
        structs.replace(EARLY_ON_LEFT, time=NOW + seconds, made=NOW + seconds)
        for seconds in (MIN_INTERVAL, 2 * MIN_INTERVAL)
    ]
    assert not made.core.is_news(later[0])
    assert placed(made) == "left"
    assert made.core.is_news(later[0])
    made.step(later[0])
    assert not made.core.is_news(later[1])


@pytest.mark.parametrize("step", [-3600.0, 60.0])
def test_a_forecast_that_a_step_of_the_clock_has_ended_is_told_anew(step: float) -> None:
    forecasting = Told(forecast_site())
    forecasting.at(NOW)
    forecasting.site.step(ClockSet(NOW + 2 + step, step))
    assert forecasting.at(NOW + 4 + step) == [4 + step]


def test_nothing_is_told_where_nothing_is_chosen() -> None:
    assert Told(Site(pull=False)).at(NOW) == []  # by observed work
    alone = forecast_site()
    alone.step(structs.replace(alone.started(NOW), clusters=tuple(alone.core.clusters[:1])))
    alone.seen("left", facts(8))
    assert Told(alone).at(NOW) == []


def test_a_simulation_places_by_forecasts() -> None:
    """Limits are ten times the run times of one user; observed work believes them."""
    clusters = [SimulatedCluster(name=name, cpus=4) for name in ("left", "right")]
    rng = Random(1)
    short = [rng.random() < 0.5 for _ in range(400)]
    entries = [
        WorkloadEntry(
            Job(
                id=n + 1,
                submitted=float(n * 2700),
                estimated=10_000.0,
                time_limit=10_000.0,
                cpus=4,
                user="short" if short[n] else "long",
            ),
            1000.0 if short[n] else 9000.0,
            n + 1,
        )
        for n in range(400)
    ]

    def mean_wait(load: Any) -> float:
        policy = Policy(load=load, pull=False)
        simulation = Simulation(
            Workload("two users", tuple(entries)),
            clusters,
            policy,
            lambda _: make_policy("easy", {}, {}),
        )
        jobs = simulation.run().jobs
        return sum(each.wait for each in jobs) / len(jobs)

    assert mean_wait("forecast") < mean_wait("observed")


def test_a_dry_run_has_the_same_cluster() -> None:
    asked = job(2, cpus=2, time_limit=600.0)
    assert site(EARLY_ON_LEFT).core.choose_cluster(asked, 1, ["left", "right"]) == "left"
