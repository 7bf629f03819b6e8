"""The experiment of scheduling times: each event has a pass, and jobs arrive as they leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("scipy")

from metasched.laboratory.experiments.catalogue import EXPERIMENTS
from metasched.laboratory.experiments.pass_times import BEGIN, EVENTS, PassTimesCase, full_queue
from metasched.policies.local.convergent.policies import VARIANTS
from metasched.policies.local.convergent.weights import (
    OPTIMAL,
    PREEMPTIVE_INCREMENTAL,
    PREEMPTIVE_OPTIMAL,
)

JOBS = 200  # more than machines, so that some always wait


@pytest.mark.parametrize("name", [PREEMPTIVE_INCREMENTAL, PREEMPTIVE_OPTIMAL])
def test_a_pass_for_each_event(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variant: Any = VARIANTS[name]
    decide: Callable[..., Any] = variant.choose_changes
    seen: list[int] = []  # jobs of each pass

    def count(policy: Any, now: float, queue: Any, running: Any, free: Any) -> Any:
        seen.append(len(queue) + len(running))
        return decide(policy, now, queue, running, free)

    monkeypatch.setattr(variant, "choose_changes", count)
    times = PassTimesCase(JOBS, name).run(1)
    assert min(times) > 0
    assert seen == [JOBS, *[JOBS - 1, JOBS] * EVENTS]


def test_the_queue_of_a_bench_is_that_of_table_4() -> None:
    manager = full_queue(JOBS, OPTIMAL)
    assert len(manager.cluster.machines) == 150
    assert len(manager.queue) == JOBS
    started = manager.run_policy(BEGIN).started
    assert 100 < len(started) == len(manager.running) <= 150


def test_both_versions_are_compared_with_as_many_jobs() -> None:
    experiment = EXPERIMENTS["convergent-scaling"]
    cases = [(case.row, case.column) for case in experiment.cases()]
    rows = dict.fromkeys(row for row, _ in cases)
    assert list(rows) == ["500 jobs", "1,000 jobs", "2,000 jobs", "5,000 jobs", "10,000 jobs"]
    assert cases == [(row, c) for row in rows for c in ("edf", "cs-i-p", "cs-ni-p")]
    assert experiment.baseline == "cs-ni-p"
