"""What ended tasks used: sacct's records, their owners, and the questions of the daemon."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from metasched.adapters.protocol import WorkerCall, WorkerReply
from metasched.adapters.slurm.job_usage import JobRecord, match_usage, parse_usage
from metasched.config.settings import ClusterSettings
from metasched.daemon import usage_collector
from metasched.daemon.host import SchedulerHost
from metasched.daemon.usage_collector import (
    HORIZON,
    INTERVAL,
    LONG_SWEEP,
    MAX_QUESTIONS,
    RECENT,
    UsageCollector,
)
from metasched.daemon.worker_process import WorkerProcess
from metasched.model.cluster import Cluster
from metasched.model.job_usage import EndedRun, RunUsage

END = "1700000000"
NOW = 1.7e9


def parsed(*records: tuple[str, ...]) -> dict[str, JobRecord]:
    lines = ("".join(f"{field};;" for field in record) + "\n" for record in records)
    return parse_usage("".join(lines), ";;")


def test_the_steps_of_a_job_count() -> None:
    jobs = parsed(
        ("12", "1000", END, "1-02:03:04", "", "3600", "32"),
        ("12.batch", "", END, "00:01.500", "2048K", "3600", "32"),
        ("12.0", "", END, "00:01.500", "1.50G", "1", "2"),
        ("13_4", "1001", END, "00:01.250", "", "0", "1"),
        ("14", "1000", "Unknown", "00:00:00", "", "7", "1"),
    )
    assert jobs["12"] == JobRecord("1000", True, 93784.0, 1536, 3600.0, 32)
    assert jobs["13_4"] == JobRecord("1001", True, 1.25, None, 0.0, 1)
    assert not jobs["14"].has_ended


@pytest.mark.parametrize("text", ["", "x", "-1:00", "1:2:3:4", "00:00:00:00", "9" * 30])
def test_values_that_cannot_be_read_are_unknown(text: str) -> None:
    jobs = parsed(
        ("12", "1000", END, text, "", f"{text}s", f"{text}-"),
        ("12.batch", "", END, "", f"{text}?", "", ""),
    )
    assert jobs["12"] == JobRecord("1000", True, None, None)


def test_a_truncated_output_is_no_answer() -> None:
    with pytest.raises(ValueError, match="truncated"):
        parse_usage("12;;1000;;17", ";;")


def test_only_records_of_the_owner_that_have_ended() -> None:
    runs = [EndedRun(1, 0, 1, id, user) for id, user in (("1", "a"), ("2", "a"), ("3", "none"))]
    runs += [EndedRun(1, 0, 1, "4", "a"), EndedRun(1, 0, 1, "5", "a")]
    jobs = {
        "1": JobRecord("1000", True, 1.0, 5),
        "2": JobRecord("1001", True, 1.0, 5),
        "3": JobRecord("", True, 1.0, 5),
        "4": JobRecord("1000", False, 1.0, 5),
    }
    used = match_usage(runs, jobs, lambda user: {"a": "1000"}.get(user, ""))
    assert used == {0: RunUsage(1.0, 5)}


class FakeSite:
    """A ledger with ended runs, and a worker that answers with the use of some."""

    def __init__(self, runs: list[EndedRun], usage: dict[int, RunUsage]) -> None:
        self.runs, self.usage = runs, usage
        self.error: Literal["", "unreachable"] = ""
        self.calls: list[WorkerCall] = []
        self.stored: dict[EndedRun, RunUsage] = {}
        self.portions: list[int] = []  # runs by transaction
        self.ledger = SimpleNamespace(ended_runs=self._ended_runs, store_usage=self._store)
        settings = SimpleNamespace(cluster=Cluster(name="c", adapter="slurm"), call_timeout=60.0)
        self.collector = UsageCollector(
            cast(SchedulerHost, self),
            cast(ClusterSettings, settings),
            cast(WorkerProcess, self),
            is_up=lambda: True,
        )

    def _ended_runs(
        self, cluster: str, since: float, limit: int, after: EndedRun | None
    ) -> list[EndedRun]:
        first = 0 if after is None else self.runs.index(after) + 1
        runs = [run for run in self.runs[first:] if run.ended >= since and run not in self.stored]
        return runs[:limit]

    def _store(self, usage: dict[EndedRun, RunUsage]) -> None:
        self.portions.append(len(usage))
        self.stored.update(usage)

    async def call(self, call: WorkerCall) -> WorkerReply:
        self.calls.append(call)
        return WorkerReply(usage=self.usage, error=self.error)

    def collect(self, now: float = NOW) -> list[tuple[Any, ...]]:
        """Let a round pass; return the runs of each question so far."""
        asyncio.run(self.collector.collect(now))
        return [call.ended for call in self.calls]


FIRST = EndedRun(1, 0, 1, "11", "ada", NOW - 2.0)
SECOND = EndedRun(2, 3, 2, "12_3", "bob", NOW - 1.0)


def test_a_question_names_all_runs_whose_use_is_unknown() -> None:
    site = FakeSite([FIRST, SECOND], {1: RunUsage(5.0, 7)})
    assert site.collect() == [(FIRST, SECOND)]
    assert site.stored == {SECOND: RunUsage(5.0, 7)}
    assert site.collect()[1:] == [(FIRST,)]


def test_the_scheduler_waits_for_a_bounded_number_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_collector, "STORE_PAUSE", 0.001)
    runs = [EndedRun(id, 0, 1, str(id), "ada", NOW - 2.0) for id in range(250)]
    site = FakeSite(runs, {position: RunUsage(5.0, 7) for position in range(250)})
    others = 0  # what other parts of the daemon do meanwhile

    async def count_turns() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    async def collect() -> None:
        counting = asyncio.create_task(count_turns())
        turns: list[int] = []

        def store(usage: dict[EndedRun, RunUsage]) -> None:
            turns.append(others)
            site._store(usage)

        site.ledger.store_usage = store
        await site.collector.collect(NOW)
        counting.cancel()
        assert len(set(turns)) == 3

    asyncio.run(collect())
    assert site.portions == [100, 100, 50]
    assert site.stored.keys() == set(runs)


def test_a_run_that_accounting_does_not_know_is_asked_for_until_it_is_old() -> None:
    run = EndedRun(1, 0, 1, "11", "ada", NOW)
    site = FakeSite([run], {})
    for number in range(LONG_SWEEP):
        questions = site.collect(NOW + number * INTERVAL)
    assert questions == [(run,)] * (int(RECENT / INTERVAL) + 1)
    later, step = NOW + LONG_SWEEP * INTERVAL, HORIZON / 4 / LONG_SWEEP
    for number in range(6 * LONG_SWEEP):
        again = site.collect(later + number * step)
    assert len(again) == len(questions) + 4


def test_runs_that_ended_days_ago_are_asked_for_in_portions_oldest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage_collector, "MAX_RUNS", 2)
    runs = [EndedRun(n, 0, 1, str(n), "ada", NOW - 86400.0 * (3.0 - n / 100)) for n in range(25)]
    site = FakeSite(runs, {})  # accounting knows none
    for count in (MAX_QUESTIONS, 2 * MAX_QUESTIONS, 13):
        questions = site.collect()
        assert len(questions) == count
    assert [run for question in questions for run in question] == runs


def test_a_round_without_an_answer_ends_and_the_sweep_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage_collector, "MAX_RUNS", 1)
    site = FakeSite([FIRST, SECOND], {})
    site.error = "unreachable"
    assert site.collect() == [(FIRST,)]
    assert site.collect() == [(FIRST,), (SECOND,)]
    site.error, site.usage = "", {0: RunUsage(1.0)}
    site.collect()
    site.collect()
    assert set(site.stored) == {FIRST, SECOND}


@pytest.mark.parametrize(
    "usage",
    [
        {7: RunUsage(1.0, 1)},
        {-1: RunUsage(1.0, 1)},
        {0: RunUsage(-1.0, 1)},
        {0: RunUsage(float("nan"), 1)},
        {0: RunUsage(1.0, 2**60)},
    ],
)
def test_answers_of_a_lying_worker_are_not_stored(usage: dict[int, RunUsage]) -> None:
    site = FakeSite([FIRST], usage)
    site.collect()
    assert site.stored == {}
