"""The daemon asks accounting for use and shares, and stores each answer once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metasched.adapters.protocol import WorkerCall, WorkerReply
from metasched.config.settings import ClusterSettings
from metasched.core.events import CoreEvent, Outcome, SharesReported, UseReported
from metasched.daemon.host import SchedulerHost
from metasched.daemon.use_monitor import HISTORY, UseCursor, UseMonitor
from metasched.daemon.worker_process import WorkerProcess
from metasched.model.cluster import Cluster
from metasched.model.fair_share import FairShareSettings, ForeignUse, ShareAccount, ShareTree
from metasched.model.foreign_use import UseAnswer

TREE = ShareTree(users={"ada": 2.0})
ADA = ForeignUse(user="ada", account="phys", processor_seconds=9.0, ended=100.0)


@dataclass
class FakeSite:
    """A host with one cluster, and the worker of the cluster with its answers, in order."""

    replies: list[WorkerReply] = field(default_factory=list)
    settings: Any = None
    source: str = "sacct"
    ended: dict[str, float] = field(default_factory=dict)  # stored native ids
    live: dict[str, float] = field(default_factory=dict)  # native ids of open tasks
    events: list[CoreEvent] = field(default_factory=list)
    calls: list[WorkerCall] = field(default_factory=list)
    ended_since: list[float] = field(default_factory=list)
    trees: dict[str, ShareTree] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings = SimpleNamespace(
            fair_share=FairShareSettings(half_life=3600.0), use_interval=0.01
        )
        self.core = SimpleNamespace(
            cluster_status=lambda _: (SimpleNamespace(use_source=self.source), None),
            tasks_on=lambda _: [
                SimpleNamespace(live_attempt=SimpleNamespace(native_id=id, dispatched=at))
                for id, at in self.live.items()
            ],
            fair_share=SimpleNamespace(trees=self.trees),
        )
        self.ledger = SimpleNamespace(ended_jobs=self._ended_jobs)

    def _ended_jobs(self, cluster: str, since: float) -> Mapping[str, float]:
        self.ended_since.append(since)
        return self.ended

    async def apply_events(self, *events: CoreEvent) -> list[Outcome]:
        self.events += events
        for event in events:
            if isinstance(event, SharesReported):
                self.trees[event.cluster] = event.tree
        return []

    async def call(self, call: WorkerCall) -> WorkerReply:
        self.calls.append(call)
        if not self.replies:
            await asyncio.Event().wait()
        return self.replies.pop(0)

    def monitor(self, cursor: str = "", is_up: bool = True) -> UseMonitor:
        cluster = Cluster(name="alpha", adapter="slurm")
        return UseMonitor(
            cast(SchedulerHost, self),
            ClusterSettings(cluster, {}, 1.0, 60.0, None, {}),
            cast(WorkerProcess, self),
            cursor,
            lambda: is_up,
        )

    def run(self, monitor: UseMonitor) -> None:
        """Run the monitor until all replies have been taken and it asks once more."""

        async def until_asked() -> None:
            running = asyncio.create_task(monitor.run())
            while self.replies or len(self.calls) == 0:
                await asyncio.sleep(0.005)
                if running.done():
                    return
            running.cancel()
            await asyncio.wait([running])
            assert running.cancelled() or running.exception() is None

        asyncio.run(until_asked())


def use(*rows: ForeignUse, cursor: str = "5", until: float = 50.0, **more: Any) -> WorkerReply:
    return WorkerReply(use=UseAnswer(rows=rows, cursor=cursor, until=until, **more))


def test_a_cursor_is_written_and_read() -> None:
    cursor = UseCursor(17, 23, "1:5 x")
    assert UseCursor.parse(str(cursor)) == cursor
    for text in ("", "17", "a b c", "-1 5 x", "1.5 2 x", f"{'9' * 40} 1 x"):
        assert UseCursor.parse(text) is None


def test_nothing_is_asked_without_fair_share() -> None:
    site = FakeSite([use()])
    site.settings.fair_share = None
    asyncio.run(site.monitor().run())
    assert site.calls == []


@pytest.mark.parametrize(("source", "is_up"), [("", True), ("sacct", False)])
def test_nothing_is_asked_of_a_cluster_that_cannot_answer(source: str, is_up: bool) -> None:
    site = FakeSite(source=source)

    async def run_for_a_while() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await site.monitor(is_up=is_up).run()

    asyncio.run(run_for_a_while())
    assert site.calls == []


def test_use_and_cursor_are_one_event() -> None:
    site = FakeSite([use(ADA, cursor="7")], ended={"1": 3.0}, live={"2": 4.0})
    before = time.time()
    site.run(site.monitor())
    [event] = site.events
    assert isinstance(event, UseReported)
    assert event.uses == (ADA,)
    cursor = UseCursor.parse(event.cursor)
    assert cursor is not None
    assert cursor.position == "7"
    assert before - 1 <= cursor.counted_since <= time.time()
    query = site.calls[0].use_query
    assert query is not None
    assert query.own_jobs == {"1": 3.0, "2": 4.0}
    assert query.since == pytest.approx(before - HISTORY * 3600, abs=60)
    # before the first start, jobs of metasched count as those of others
    assert site.ended_since[0] == cursor.counted_since


def test_later_queries_go_on_at_the_cursor() -> None:
    now = int(time.time())
    site = FakeSite([use(cursor="8", until=now - 10.0), use(ADA, cursor="9", until=now - 5.0)])
    site.run(site.monitor(f"1000 {now - 900} 7"))
    assert [call.use_query and call.use_query.cursor for call in site.calls[:2]] == ["7", "8"]
    assert site.ended_since[:2] == [now - 900 - 600, now - 10 - 600]
    [event] = site.events  # an answer without use is not stored
    assert isinstance(event, UseReported)
    assert event.cursor == f"1000 {now - 5} 9"


def test_the_first_cursor_is_stored_without_use() -> None:
    site = FakeSite([use(cursor="8"), use(cursor="9")])
    site.run(site.monitor())
    [event] = site.events
    assert isinstance(event, UseReported)
    assert event.uses == ()


def test_a_user_who_cannot_be_stored_does_not_count() -> None:
    nobody = ForeignUse(user="\ud800", account="", processor_seconds=1.0, ended=1.0)
    site = FakeSite([use(nobody, ADA)])
    site.run(site.monitor())
    [event] = site.events
    assert isinstance(event, UseReported)
    assert event.uses == (ADA,)


def test_a_failure_is_logged_once_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    site = FakeSite([WorkerReply("unreachable", "slurmdbd is down")] * 3 + [use(ADA)])
    monitor = site.monitor("1000 2000 7")
    site.run(monitor)
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "cluster alpha: its accounting reports no use: slurmdbd is down"
    ]
    assert {call.use_query.cursor for call in site.calls[:4] if call.use_query} == {"7"}
    assert len(site.events) == 1
    assert monitor.breaker.failures == 0


def test_shares_are_stored_when_they_change() -> None:
    other = ShareTree(accounts=(ShareAccount(name="phys"),))
    shares = [WorkerReply(shares=tree) for tree in (TREE, TREE, other)]
    site = FakeSite([shares[0], use(), shares[1], use(), shares[2], use()])
    site.settings.fair_share = FairShareSettings(shares_from="alpha")
    site.run(site.monitor("1000 2000 7"))
    trees = [event.tree for event in site.events if isinstance(event, SharesReported)]
    assert trees == [TREE, other]


def test_shares_that_cannot_be_read_stay_as_they_were() -> None:
    site = FakeSite([WorkerReply("unreachable", "a cycle"), use(ADA)])
    site.settings.fair_share = FairShareSettings(shares_from="alpha")
    monitor = site.monitor("1000 2000 7")
    site.run(monitor)
    assert [type(event) for event in site.events] == [UseReported]
    assert monitor.shares_breaker.last_error == "a cycle"


def test_shares_are_asked_of_the_configured_cluster_only() -> None:
    site = FakeSite([use(ADA)])
    site.settings.fair_share = FairShareSettings(shares_from="beta")
    site.run(site.monitor())
    assert {call.operation for call in site.calls} == {"use"}


def test_records_that_cannot_be_read_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    site = FakeSite([use(set_aside=2, defect="job '5'")] * 3)
    site.run(site.monitor())
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "job '5'" in warnings[0]
