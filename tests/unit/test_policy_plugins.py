"""Local policies of other packages, by entry points."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from metasched.adapters.local.options import LocalOptions
from metasched.daemon import forecast_policies
from metasched.daemon.forecast_policies import InterruptiblePolicy, make_forecast_policy
from metasched.laboratory.experiments.policy_trial import trial_of
from metasched.laboratory.simulate.cluster_specs import parse_clusters
from metasched.laboratory.simulate.settings import SimulationSettings, simulate
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.job import Job
from metasched.policies.local import exclusion
from metasched.policies.local.exclusion import ExcludablePolicy
from metasched.policies.local.orders import FCFS
from metasched.policies.local.queueing import FreeResources, JobStart, WaitingJob
from metasched.policies.local.registry import (
    check_policy_name,
    keeps_order,
    make_excludable,
    make_policy,
)
from metasched.processes.pickled_process import PickledProcess

MODULE = """\
from metasched.policies.local.orders import FirstFit

class Last(FirstFit):
    name = "last"
    in_order = True

    def sort_queue(self, queue):
        return list(reversed(queue))

class Raising(FirstFit):
    def choose_starts(self, now, queue, running, free):
        return 1 / 0

class Twice(FirstFit):
    def choose_starts(self, now, queue, running, free):
        return [(next(iter(queue)).id, 0)] * 2

class Crowding(FirstFit):
    def choose_starts(self, now, queue, running, free):
        return [(job.id, 0) for job in queue]

class Endless(FirstFit):
    def choose_starts(self, now, queue, running, free):
        while True:
            yield next(iter(queue)).id, 0

class Leaving(FirstFit):
    def choose_starts(self, now, queue, running, free):
        raise SystemExit
"""


@pytest.fixture(autouse=True)
def their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "their_policy-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-policy\nVersion: 1\n")
    names = ("Last", "Raising", "Twice", "Crowding", "Endless", "Leaving")
    points = "".join(f"{name.lower()} = their_policy:{name}\n" for name in names)
    (info / "entry_points.txt").write_text(f"[metasched.policies]\n{points}")
    (tmp_path / "their_policy.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_policy_of_another_package_is_chosen_by_its_name() -> None:
    assert LocalOptions(cpus=2, policy="last").policy == "last"
    queue = [WaitingJob(1, 2, 10.0), WaitingJob(2, 2, 10.0)]
    chosen = make_policy("last").choose_starts(0.0, queue, [], FreeResources(2))
    assert chosen == [JobStart(2)]
    assert keeps_order("last")
    with pytest.raises(ValueError, match='policy last has no parameter "age"; it has none'):
        make_policy("last", {"age": 1.0})


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match='unknown policy "las"; '):
        check_policy_name("las")


@pytest.mark.parametrize("name", ["raising", "twice", "crowding", "endless", "leaving"])
def test_fcfs_decides_the_passes_of_a_simulation_in_which_a_policy_fails(name: str) -> None:
    jobs = [Job(id=n, submitted=0.0, estimated=10.0, cpus=2) for n in (1, 2)]
    workload = Workload("w", tuple(WorkloadEntry(job, 10.0, job.id) for job in jobs))
    schedule = simulate(workload, parse_clusters("2"), SimulationSettings(policy=name))
    assert [placed.start for placed in schedule.jobs] == [0.0, 10.0]
    assert set(schedule.excluded_passes) == {name}
    fine = simulate(workload, parse_clusters("2"), SimulationSettings(policy="last"))
    assert [placed.start for placed in fine.jobs] == [10.0, 0.0]
    assert not fine.excluded_passes
    trial = trial_of(schedule)
    assert trial.excluded_passes == schedule.excluded_passes


def test_a_policy_that_hangs_ends_no_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    class Swallowing(FCFS):
        """It takes whatever is raised for an error of its own, and goes on."""

        calls = 0

        def choose_starts(self, *_: Any) -> list[JobStart]:
            type(self).calls += 1
            while True:
                try:
                    time.sleep(60.0)
                except Exception:
                    continue

    monkeypatch.setattr(forecast_policies, "_hanging", set())
    handler = signal.getsignal(signal.SIGALRM)
    queue, free = [WaitingJob(1, 2, 10.0)], FreeResources(2)
    for _ in range(2):  # an object for each forward run
        policy = InterruptiblePolicy("hanging", ExcludablePolicy("hanging", Swallowing()), 0.05)
        for _ in range(2):
            assert policy.choose_starts(0.0, queue, [], free) == [JobStart(1)]
    assert Swallowing.calls == 1
    assert signal.getsignal(signal.SIGALRM) == handler


def test_a_policy_of_another_package_is_in_time_in_a_forecast() -> None:
    policy = make_forecast_policy("last")
    queue = [WaitingJob(1, 2, 10.0), WaitingJob(2, 2, 10.0)]
    assert policy.choose_starts(0.0, queue, [], FreeResources(2)) == [JobStart(2)]
    assert isinstance(policy, InterruptiblePolicy)
    assert not isinstance(make_forecast_policy("fcfs"), InterruptiblePolicy)


def test_what_a_policy_prints_is_no_reply_and_its_memory_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "from metasched.processes.pickled_process import answer_requests\n"
    program += """
def answer(size):
    try:
        return [print("text", flush=True), len(bytearray(size))]
    except MemoryError:
        return "no memory"

answer_requests(answer, 2**29)
"""
    (tmp_path / "printing.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def ask() -> list[object]:
        process = PickledProcess[int, object]("printing")
        try:
            return [await process.ask(size, 60.0) for size in (7, 2**29, 8)]
        finally:
            await process.close()

    assert asyncio.run(ask()) == [[None, 7], "no memory", [None, 8]]


def test_a_simulation_asks_about_the_head_of_a_long_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that come later are no reason to ask about the last of them alone."""
    monkeypatch.setattr(exclusion, "MAX_ASKED", 2)
    policy = make_excludable("last")
    queue = [WaitingJob(id, 1, 10.0) for id in (1, 2, 3)]
    assert policy.choose_starts(0.0, queue, [], FreeResources(1)) == [JobStart(2)]
    assert not policy.incremental
    assert isinstance(policy, ExcludablePolicy)
    assert policy.excluded_passes == 0
