"""Group commit on both databases: what shares a transaction, and what a failure takes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Engine
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.exc import OperationalError

from metasched.api.submission_keys import earlier_answer
from metasched.config.reading import load_settings
from metasched.core.events import ClusterDrained, CoreEvent, JobSubmitted, Outcome
from metasched.core.scheduler import Core, replay
from metasched.daemon import commit_group
from metasched.daemon.metrics import Metrics
from metasched.daemon.progress import Progress
from metasched.daemon.quarantine import Quarantine
from metasched.daemon.service import SchedulerService
from metasched.db.ledger import Ledger, StoredJob
from metasched.db.store import Database, RowsRejected, StorageFailed
from metasched.db.submission_keys import Receipt, SubmissionKey
from metasched.model.arrays import parse_array
from metasched.model.job import Job, Payload

NOW = 1_800_000_000.0
TEXTS = {"s": "#!/bin/sh\n", "e": "{}"}
KEY = SubmissionKey("ada", "k", "body")
TWO_CLUSTERS = """
[[cluster]]
name = "left"
adapter = "local"
cpus = 4

[[cluster]]
name = "right"
adapter = "local"
cpus = 4
"""


@dataclass
class Commits:
    """Commits of the writing connection; `failing` makes the next one fail."""

    number: int = 0
    failing: bool = False

    def count(self, _: object) -> None:
        if self.failing:
            raise OperationalError("COMMIT", {}, Exception("disk I/O error"))
        self.number += 1


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    opened = Ledger(database.open())
    yield opened
    opened.close()


@pytest.fixture
def commits() -> Iterator[Commits]:
    counter = Commits()
    sqlalchemy_event.listen(Engine, "commit", counter.count)
    yield counter
    sqlalchemy_event.remove(Engine, "commit", counter.count)


@pytest.fixture
def run(
    ledger: Ledger, tmp_path: Path
) -> Callable[[Callable[[SchedulerService], Coroutine[Any, Any, None]]], None]:
    """Return a function that runs a test in the event loop of a service without workers."""
    config = tmp_path / "metasched.toml"
    config.write_text(TWO_CLUSTERS)
    settings = load_settings(config)

    def run_test(test: Callable[[SchedulerService], Coroutine[Any, Any, None]]) -> None:
        async def run_in_loop() -> None:
            await test(
                SchedulerService(
                    settings, ledger, Quarantine(), Metrics(), Progress(), cast(Any, None)
                )
            )

        asyncio.run(run_in_loop())

    return run_test


async def submit(service: SchedulerService, **fields: Any) -> int:
    """Submit a job as the API does; return its id once it is stored. `environment` is a digest."""
    environment = fields.pop("environment", "e")
    array = fields.get("array")
    job_id = service.ledger.next_job(len(parse_array(array).indices) if array else 1)
    job = Job(id=job_id, submitted=NOW, estimated=60.0, user="ada", **fields)
    await service.apply_events(
        JobSubmitted(NOW, job),
        stored=[
            StoredJob(
                job=job, script="s", environment=environment, payload=Payload(script="", output="/")
            )
        ],
        new_texts=TEXTS,
        receipt=Receipt(KEY, NOW, lambda: {"jobs": [job_id]}) if job.name == "keyed" else None,
    )
    return job_id


def stored_jobs(ledger: Ledger) -> list[int]:
    """Return the ids of the jobs that another connection sees."""
    return [row["job"] for row in ledger.status()]


Run = Callable[[Callable[[SchedulerService], Coroutine[Any, Any, None]]], None]


def test_requests_and_events_of_clusters_share_a_commit(
    run: Run, ledger: Ledger, commits: Commits
) -> None:
    async def test(service: SchedulerService) -> None:
        before = commits.number
        seen: list[tuple[int, list[int]]] = []

        async def submit_and_look() -> None:
            await submit(service)
            seen.append((commits.number - before, stored_jobs(ledger)))

        drains = (ClusterDrained(NOW, name, "op", "") for name in ("left", "right"))
        await asyncio.gather(
            *(submit_and_look() for _ in range(5)), *(service.apply_events(d) for d in drains)
        )
        # nobody goes on before the only commit, which has the jobs of all
        assert seen == [(1, [1, 2, 3, 4, 5])] * 5

    run(test)
    events = list(ledger.events())
    assert [type(event) for event in events[1:]] == [JobSubmitted] * 5 + [ClusterDrained] * 2
    restored = Core()
    ledger.restore(restored, 100)
    assert sorted(restored.tasks) == [(id, 0) for id in range(1, 6)]


def test_a_request_alone_waits_for_nobody(run: Run, commits: Commits) -> None:
    async def test(service: SchedulerService) -> None:
        for _ in range(3):
            before = commits.number
            await submit(service)
            assert commits.number == before + 1

    run(test)


def test_a_group_is_bounded(
    run: Run, ledger: Ledger, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_group, "MAX_MEMBERS", 2)

    async def test(service: SchedulerService) -> None:
        before = commits.number
        await asyncio.gather(*(submit(service) for _ in range(5)))
        assert commits.number == before + 3
        monkeypatch.setattr(commit_group, "MAX_MEMBERS", 100)
        monkeypatch.setattr(commit_group, "MAX_TASKS", 10)
        await asyncio.gather(*(submit(service, array="1-6", held=True) for _ in range(4)))
        assert commits.number == before + 3 + 2
        monkeypatch.setattr(commit_group, "MAX_TEXT", 1)
        await asyncio.gather(*(submit(service) for _ in range(2)))
        assert commits.number == before + 3 + 2 + 2

    run(test)


def test_a_request_that_fails_leaves_the_group_before_it_stored(
    run: Run, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those after it change nothing and are refused, as after any restart of the service."""

    async def test(service: SchedulerService) -> None:
        step, defect = service.core.step, ZeroDivisionError("a defect of the core")

        def step_or_fail(event: CoreEvent) -> Outcome:
            outcome = step(event)
            if isinstance(event, JobSubmitted) and event.job.id == 3:
                raise defect
            return outcome

        monkeypatch.setattr(service.core, "step", step_or_fail)
        results = await asyncio.gather(*(submit(service) for _ in range(5)), return_exceptions=True)
        assert results[:3] == [1, 2, defect]
        assert [type(result) for result in results[3:]] == [StorageFailed] * 2
        assert service.failure is defect

    run(test)
    check_stored(ledger, [1, 2])


def test_a_refused_row_takes_back_its_own_request_alone(run: Run, ledger: Ledger) -> None:
    """Only a defect passes a constraint: the core was asked before."""

    async def test(service: SchedulerService) -> None:
        results = await asyncio.gather(
            submit(service),
            submit(service, array="1-3"),
            submit(service, environment=None),
            submit(service),
            return_exceptions=True,
        )
        assert list(results[:2]) == [1, 2]
        assert [type(result) for result in results[2:]] == [RowsRejected, StorageFailed]
        assert service.failure is results[2]

    run(test)
    check_stored(ledger, [1, 2, 2, 2])


def test_a_refused_row_of_the_first_request_stores_nothing(run: Run, ledger: Ledger) -> None:
    async def test(service: SchedulerService) -> None:
        with pytest.raises(RowsRejected):
            await submit(service, environment=None)

    run(test)
    check_stored(ledger, [])


def check_stored(ledger: Ledger, jobs: list[int]) -> None:
    """Check that these tasks are stored, that the events lead to them, and that writes go on."""
    assert stored_jobs(ledger) == jobs
    changes = [change for outcome in replay(ledger.events()) for change in outcome.changes]
    assert {change.job for change in changes} == set(jobs)
    for id in set(jobs):
        replayed = [(c.index, c.after, c.cause) for c in changes if c.job == id]
        assert [(c["task_index"], c["after"], c["cause"]) for c in ledger.story(id)] == replayed
    restored = Core()
    ledger.restore(restored, 100)
    assert {id for id, _ in restored.tasks} == set(jobs)
    ledger.add_token("ada", "secret", NOW, NOW + 60)
    stored = ledger.find_token("secret", NOW)
    assert stored is not None
    assert stored.user == "ada"


def test_a_failed_commit_stores_none_of_the_group(
    run: Run, ledger: Ledger, commits: Commits
) -> None:
    async def test(service: SchedulerService) -> None:
        commits.failing = True
        results = await asyncio.gather(*(submit(service) for _ in range(3)), return_exceptions=True)
        commits.failing = False
        assert [type(result) for result in results] == [StorageFailed] * 3
        assert isinstance(service.failure, StorageFailed)
        with pytest.raises(StorageFailed):
            await submit(service)
        with pytest.raises(StorageFailed):  # until the service starts again
            ledger.add_token("ada", "s", NOW, NOW + 60)
        ledger.acquire_lock()
        again = SchedulerService(
            service.settings, ledger, Quarantine(), Metrics(), Progress(), cast(Any, None)
        )
        assert await submit(again) == 1

    run(test)
    check_stored(ledger, [1])


def test_a_failed_commit_of_a_transaction_leaves_nothing_for_the_next(
    ledger: Ledger, commits: Commits
) -> None:
    ledger.restore(Core(), 100)
    commits.failing = True
    with pytest.raises(StorageFailed):
        ledger.add_token("ada", "lost", NOW, NOW + 60)
    commits.failing = False
    ledger.add_token("ada", "kept", NOW, NOW + 60)
    assert ledger.find_token("lost", NOW) is None
    assert ledger.find_token("kept", NOW) is not None


def test_another_transaction_stores_the_group_before_it(run: Run, ledger: Ledger) -> None:
    async def test(service: SchedulerService) -> None:
        submission = asyncio.ensure_future(submit(service))
        await asyncio.sleep(0)  # it has stepped and waits
        ledger.add_token("ada", "s", NOW, NOW + 60)
        assert stored_jobs(ledger) == [1]
        assert await submission == 1

    run(test)


def test_a_repeated_submission_of_the_same_group_is_answered_when_it_is_stored(
    run: Run, ledger: Ledger, commits: Commits
) -> None:
    async def test(service: SchedulerService) -> None:
        first = asyncio.ensure_future(submit(service, name="keyed"))
        await asyncio.sleep(0)
        before = commits.number
        assert earlier_answer(service, KEY, NOW) == {"jobs": [1]}
        assert commits.number == before + 1
        assert stored_jobs(ledger) == [1] == [await first]

    run(test)


def test_a_repeated_submission_gets_no_answer_of_what_is_lost(
    run: Run, ledger: Ledger, commits: Commits
) -> None:
    async def test(service: SchedulerService) -> None:
        first = asyncio.ensure_future(submit(service, name="keyed"))
        await asyncio.sleep(0)
        commits.failing = True
        with pytest.raises(StorageFailed):
            earlier_answer(service, KEY, NOW)
        commits.failing = False
        with pytest.raises(StorageFailed):
            await first

    run(test)
    assert ledger.status() == []


def test_a_caller_that_goes_away_takes_nothing_back(run: Run, ledger: Ledger) -> None:
    async def test(service: SchedulerService) -> None:
        gone, stays = (asyncio.ensure_future(submit(service)) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        assert await stays == 2
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert service.failure is None

    run(test)
    assert stored_jobs(ledger) == [1, 2]


def test_actions_begin_after_the_commit(
    run: Run, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(service: SchedulerService) -> None:
        started: list[list[int]] = []
        start = partial(service._start_actions)

        def start_actions(outcomes: list[Outcome]) -> None:
            started.append(stored_jobs(ledger))
            start(outcomes)

        monkeypatch.setattr(service._group, "_on_stored", start_actions)
        await asyncio.gather(*(submit(service) for _ in range(2)))
        assert started == [[1, 2]] * 2

    run(test)
