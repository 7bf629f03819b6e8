"""A candidate policy beside the one in force: its decisions, its process, its comparison."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from metasched.core.events import JobModified, JobSubmitted, Outcome
from metasched.core.transitions import TaskEvent
from metasched.daemon import shadow as shadow_module
from metasched.daemon.shadow import ShadowRunner
from metasched.daemon.shadow_process import MODULE, ObservedBatch, ShadowHandler, ShadowStart
from metasched.db.store import StorageFailed
from metasched.model.job import Job
from metasched.model.shadow import Shadow, ShadowDecision, ShadowGroup, compare
from metasched.policies.policy import PlugInSettings, Policy
from metasched.policies.shadow import (
    MAX_OBSERVED_PER_STEP,
    Candidate,
    Observation,
    ObservedPlacement,
    comparison_obstacle,
    place_obstacle,
)
from metasched.processes.pickled_process import PickledProcess, ProcessLost
from tests.unit.core_site import NOW, Site, job

CLUSTERS = ("left", "right")


def jobs(number: int = 60) -> list[Job]:
    """Return jobs with and without deadlines, of several classes."""
    draw = random.Random(7)
    return [
        job(
            id,
            cpus=draw.choice((1, 2, 4)),
            user_class=draw.choice(("gold", "regular")),
            owner_priority=draw.randrange(4),
            deadline=draw.choice((None, NOW + draw.randrange(150, 5_000))),
            time_limit=100.0,
        )
        for id in range(1, number + 1)
    ]


def observed_site(**policy: Any) -> Site:
    site = Site(**{"queue_depth": None, "seed": 3, **policy})
    site.core.state.observes = True
    return site


def submit(site: Site, *submitted: Job) -> list[Observation]:
    observed: list[Observation] = []
    for each in submitted:
        site.step(JobSubmitted(NOW, each))
        observed += site.out.observed
    return observed


def candidate(policy: Policy, margin_jobs: Sequence[Job] = (), places: bool = True) -> Candidate:
    return Candidate(policy, CLUSTERS, 0, margin_jobs, places)


def decisions(of: Candidate, observed: Sequence[Observation]) -> list[ShadowDecision]:
    return [decision for each in observed if (decision := of.decide(each)) is not None]


# Decisions


@pytest.mark.parametrize("policy", [{"load": "paper"}, {"load": "observed"}, {"ordering": "equal"}])
def test_a_copy_of_the_policy_in_force_decides_the_same(policy: dict[str, Any]) -> None:
    site = observed_site(**policy)
    submitted = jobs()
    decided = decisions(candidate(site.core.policy), submit(site, *submitted))
    assert len(decided) == len(submitted)
    assert {each.eligible for each in decided} == {2}
    assert {each.live_cluster for each in decided} == set(CLUSTERS)
    assert len({each.live_priority for each in decided}) > 2
    for each in decided:
        assert (each.priority, each.cluster) == (each.live_priority, each.live_cluster)
        task = site.core.tasks[each.job, 0]
        assert (task.priority, task.live_attempt.cluster) == (each.priority, each.cluster)


def test_another_policy_decides_otherwise_in_the_same_state() -> None:
    site = observed_site(load="paper")
    other = Policy(load="paper", weights={"user": 9.0, "deadline": 0.0, "licence": 0.0}, seed=4)
    decided = decisions(candidate(other), submit(site, *jobs()))
    by_id = {each.id: each for each in jobs()}
    for each in decided:  # the user's heuristic alone: base of the class and priority of the owner
        base = {"gold": 7, "regular": 1}[by_id[each.job].user_class]
        assert each.priority == min(base + by_id[each.job].owner_priority, 10)
    assert any(each.priority != each.live_priority for each in decided)
    assert any(each.cluster != each.live_cluster for each in decided)


def test_a_late_start_knows_the_margins_and_counts_no_job_twice() -> None:
    site = observed_site()
    first, second = jobs()[:30], jobs()[30:]
    submit(site, *first)
    last_seen = submit(site, second[0])  # stored after the candidate took over the margins
    margins = site.core.state.margin_jobs
    decided = decisions(
        candidate(site.core.policy, margins), [*last_seen, *submit(site, *second[1:])]
    )
    assert [each.priority for each in decided[1:]] == [each.live_priority for each in decided[1:]]


def test_a_modified_job_is_classified_anew_and_an_operator_s_priority_counts() -> None:
    site = observed_site(queue_depth=1)
    submitted = [job(id, cpus=4, time_limit=100.0) for id in range(1, 6)]
    observed = submit(site, *submitted)
    waiting = submitted[-1]
    site.step(JobModified(NOW, waiting, "priority 9", False, priority=9))
    observed += site.out.observed
    of = candidate(site.core.policy)
    decisions(of, observed)
    placement = ObservedPlacement(NOW, waiting, 0, 9, "left", ("left",), None)
    assert of.decide(placement) == ShadowDecision(
        NOW, waiting.id, 0, waiting.user_class, False, 1, 9, 9, "left", "left"
    )


def test_without_observation_nothing_is_collected() -> None:
    site = Site(queue_depth=None)
    assert submit(site, *jobs()) == []


def test_decisions_do_not_depend_on_the_observation() -> None:
    plain, observed = Site(queue_depth=None), observed_site(seed=0)
    submit(plain, *jobs())
    submit(observed, *jobs())
    for site in (plain, observed):
        assert len(site.core.tasks) == 60
    assert [(t.task_id, t.live_attempt.cluster) for t in plain.core.tasks.values()] == [
        (t.task_id, t.live_attempt.cluster) for t in observed.core.tasks.values()
    ]


def test_a_step_hands_on_a_bounded_number() -> None:
    site = observed_site()
    site.step(JobSubmitted(NOW, job(1, array="0-499")))
    placements = [each for each in site.out.observed if isinstance(each, ObservedPlacement)]
    assert len(site.out.observed) == MAX_OBSERVED_PER_STEP
    assert len(placements) + site.out.unobserved == sum(
        change.event is TaskEvent.SEND for change in site.out.changes
    )


def test_what_cannot_be_compared_has_a_reason() -> None:
    live = Policy()
    assert comparison_obstacle(live, Policy(weights={"user": 2.0})) == ""
    assert "max_priority is 5" in comparison_obstacle(live, Policy(max_priority=5))
    plug_in = {"small_first": PlugInSettings()}
    assert "other heuristics" in comparison_obstacle(live, Policy(heuristics=plug_in))
    assert place_obstacle(live, Policy(tolerance=0.2)) == ""
    assert "loads are not known" in place_obstacle(live, Policy(load="paper"))
    assert "the candidate binds late" in place_obstacle(live, Policy(send="late"))
    assert "in force binds late" in place_obstacle(Policy(send="late"), live)
    site = observed_site()
    decided = decisions(candidate(live, places=False), submit(site, *jobs()))
    assert {each.cluster for each in decided} == {None}


# Comparison


def test_the_comparison_counts_tasks_by_what_differs() -> None:
    result = compare(
        [
            ShadowGroup("gold", True, True, 1, "left", "right", 5),
            ShadowGroup("gold", False, True, 0, "left", "left", 10),
            ShadowGroup("regular", False, True, -1, "right", "left", 7),
            ShadowGroup("regular", False, False, 0, "left", "left", 3),
            ShadowGroup("regular", False, False, 0, "left", None, 2),
        ]
    )
    counts = result.all
    assert (counts.tasks, counts.same_priority) == (27, 15)
    assert (counts.higher_priority, counts.lower_priority) == (5, 7)
    assert (counts.choices, counts.same_cluster) == (22, 10)
    assert (counts.tasks, counts.differing) == (27, 12)
    assert (result.with_deadline.tasks, result.with_deadline.same_cluster) == (5, 0)
    assert {name: each.tasks for name, each in result.by_class.items()} == {
        "gold": 15,
        "regular": 12,
    }
    assert list(result.moves.items()) == [(("right", "left"), 7), (("left", "right"), 5)]


# The runner


class Rows:
    """A ledger that keeps decisions, or fails."""

    def __init__(self) -> None:
        self.rows: list[ShadowDecision] = []
        self.fails = False

    def add_shadow_decisions(self, number: int, decisions: Sequence[ShadowDecision]) -> None:
        if self.fails:
            raise StorageFailed("away")
        self.rows += decisions


SHADOW = Shadow(number=1, since=NOW, by="root", reason="", file="/c.toml", text="seed = 9\n")


def runner_of(site: Site, monkeypatch: pytest.MonkeyPatch, **policy: Any) -> ShadowRunner:
    monkeypatch.setattr(
        shadow_module, "candidate_policy", lambda *_: Policy(**{"seed": 9, **policy})
    )
    settings: Any = SimpleNamespace(policy=site.core.policy, licences=())
    ledger: Any = Rows()
    return ShadowRunner(site.core, settings, ledger, SHADOW)


async def until_idle(runner: ShadowRunner) -> None:
    while runner._queue and await runner._exchange():
        pass


def test_a_full_queue_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_module, "MAX_WAITING", 10)
    site = Site(queue_depth=None)
    runner = runner_of(site, monkeypatch)
    for each in jobs(20):
        site.step(JobSubmitted(NOW, each))
        runner.observe(site.out)
    assert (runner.state.waiting, runner.state.dropped) == (10, 15)
    runner.observe(Outcome(unobserved=7))
    assert runner.state.dropped == 22
    runner.end()
    assert runner.state.waiting == 0
    assert submit(site, job(100)) == []


def test_an_obstacle_observes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(queue_depth=None)
    runner = runner_of(site, monkeypatch, max_priority=5)
    assert "max_priority" in runner.state.obstacle
    assert submit(site, job(1)) == []


def test_the_process_decides_and_a_lost_one_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(queue_depth=None)
    runner = runner_of(site, monkeypatch)
    ledger: Any = runner._ledger

    def observe(submitted: Sequence[Job]) -> None:
        for each in submitted:
            site.step(JobSubmitted(NOW, each))
            runner.observe(site.out)

    async def run() -> None:
        try:
            observe(jobs()[:20])
            await until_idle(runner)
            assert [row.job for row in ledger.rows] == list(range(1, 21))
            assert runner.totals == (20, 0, 0)
            pid = runner._process.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            observe(jobs()[20:30])
            assert not await runner._exchange()
            assert runner.state.dropped == 10
            assert "did not answer" in runner.state.problem
            observe(jobs()[30:])
            await until_idle(runner)
            assert runner.state.problem == ""
            assert [row.job for row in ledger.rows[20:]] == list(range(31, 61))
            ledger.fails = True
            observe([job(200)])
            assert not await runner._exchange()
            assert (runner.state.dropped, runner.state.waiting) == (11, 0)
            assert runner.totals == (50, 0, 11)
            assert "not stored (away)" in runner.state.problem
        finally:
            await runner._process.close()

    asyncio.run(run())
    # those of the process are those of this one
    expected = [row.priority for row in ledger.rows]
    assert expected == [row.live_priority for row in ledger.rows]


def test_a_process_that_hangs_or_takes_all_memory_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_module, "TIME_LIMIT", 0.0)
    site = Site(queue_depth=None)
    runner = runner_of(site, monkeypatch)
    site.step(JobSubmitted(NOW, job(1)))
    runner.observe(site.out)

    async def run() -> None:
        assert not await runner._exchange()
        assert runner._process.pid is None
        process = PickledProcess[Any, Any](MODULE)
        with pytest.raises(ProcessLost):
            await process.ask(ObservedBatch(None, (Bomb(),)), 60.0)  # type: ignore[arg-type]
        assert process.pid is None

    asyncio.run(run())


class Bomb:
    """Takes 4 GiB when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return bytearray, (4 << 30,)


def test_the_process_ends_with_the_daemon() -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    output, _ = process.communicate(b"\0\0\0", timeout=60)  # the daemon died while it wrote
    assert (process.returncode, output) == (0, b"")


def test_messages_keep_what_the_core_observed() -> None:
    site = observed_site()
    observed = tuple(submit(site, *jobs(5)))
    start = ShadowStart(Policy(seed=9), CLUSTERS, 0, (), True)
    reply = ShadowHandler().handle(ObservedBatch(start, observed))
    assert pickle.loads(pickle.dumps(reply)) == reply
    assert len(reply.decisions) == 5
