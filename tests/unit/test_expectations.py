"""Expected start times: each listing reports them; they are never events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from msgspec import structs

from metasched.adapters.base import Adapter
from metasched.adapters.protocol import ListingDelta, WorkerCall
from metasched.adapters.worker import AdapterHost
from metasched.core.tasks import Attempt
from metasched.daemon.manager_start_times import ExpectedStart, ManagerStartTimes
from metasched.model.cluster import ClusterInfo
from metasched.model.job import State
from metasched.model.listing import JobStatus, Listing
from metasched.model.tags import Instances

INSTANCE = "abcd1234"


class FakeAdapter:
    """An adapter whose listing has the rows that a test sets."""

    access = ""
    exclusions = None
    settle = 0.0

    def __init__(self) -> None:
        self.rows: tuple[JobStatus, ...] = ()

    def resume_after(self, cursor: str | None) -> None:
        pass

    def update_licence_demand(self, rho: Mapping[str, float]) -> None:
        """Ignored."""

    def poll(self) -> Listing:
        return Listing(taken=50.0, since=0.0, until=0.0, rows=self.rows, info=ClusterInfo(8, 0, ()))


def waiting(job: int, expected: float | None) -> JobStatus:
    tag = f"ms-{INSTANCE}-{job}-1"
    return JobStatus(tag=tag, task=0, native_id=str(job), state=State.PENDING, expected=expected)


def poll(host: AdapterHost, full: bool = False) -> ListingDelta:
    delta = host.execute(WorkerCall("poll", full=full)).delta
    assert delta is not None
    return delta


def test_a_changed_start_alone_changes_no_row() -> None:
    manager = FakeAdapter()
    host = AdapterHost(cast(Adapter, manager))
    manager.rows = (waiting(1, 100.0), waiting(2, None))
    assert poll(host).expected_starts == (("ms-abcd1234-1-1", 0, "", 100.0),)
    assert poll(host) == structs.replace(
        poll(host), rows=(), vanished=(), expected_starts=(), info=None
    )
    manager.rows = (waiting(1, 200.0), waiting(2, 300.0))
    delta = poll(host)
    assert (delta.rows, delta.vanished, delta.info) == ((), (), None)
    assert {(tag[-3:], start) for tag, _, _, start in delta.expected_starts} == {
        ("1-1", 200.0),
        ("2-1", 300.0),
    }
    assert len(poll(host, full=True).expected_starts) == 2
    manager.rows = (waiting(2, None),)
    assert {start for *_, start in poll(host).expected_starts} == {None}


def test_only_a_pending_attempt_of_the_same_dispatch_has_an_expected_start() -> None:
    manager, expectations = FakeAdapter(), ManagerStartTimes("alpha")
    host = AdapterHost(cast(Adapter, manager))
    sent = Attempt(1, 1, "alpha", State.PENDING, 10.0)
    manager.rows = (waiting(1, 100.0), waiting(2, 200.0))
    expectations.update(poll(host), Instances({INSTANCE: 0}))
    assert expectations.expected_start((1, 0), sent) == ExpectedStart(
        100.0, "alpha", reported_at=50.0
    )
    assert expectations.expected_start((1, 0), structs.replace(sent, dispatch_id=2)) is None
    assert expectations.expected_start((1, 0), structs.replace(sent, state=State.UNKNOWN)) is None
    manager.rows = (waiting(2, 200.0),)
    expectations.update(poll(host), Instances({INSTANCE: 0}))
    assert expectations.expected_start((1, 0), sent) is None
    assert expectations.expected_start((2, 0), sent) == ExpectedStart(
        200.0, "alpha", reported_at=50.0
    )
    manager.rows = ()
    expectations.update(poll(host, full=True), Instances({INSTANCE: 0}))
    assert expectations.expected_start((2, 0), sent) is None


def test_expected_starts_of_another_instance_are_ignored() -> None:
    manager, expectations = FakeAdapter(), ManagerStartTimes("alpha")
    manager.rows = (waiting(1, 100.0),)
    expectations.update(poll(AdapterHost(cast(Adapter, manager))), Instances({"deadbeef": 0}))
    assert expectations.expected_start((1, 0), Attempt(1, 1, "alpha", State.PENDING, 10.0)) is None
