"""Whose commands count when a worker judges whether its manager stood still."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from metasched.adapters import worker
from metasched.adapters.base import Adapter, Submission
from metasched.adapters.protocol import WorkerCall
from metasched.adapters.worker import AdapterHost
from metasched.model.adapter_errors import Unreachable
from metasched.model.cluster import ClusterInfo
from metasched.model.listing import Listing

EPOCH = 1_000_000.0
SUBMISSION = Submission(tag="t", job=cast(Any, None), payload=cast(Any, None))


class SlowSubmissions:
    """An adapter that answers polls at once. Its submissions take 12 s and get no answer."""

    access, exclusions, settle = "", None, 20.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: EPOCH + self.now)
        monkeypatch.setattr(worker, "time", clock)

    def submit(self, submission: Submission) -> dict[int, str]:
        self.now += 12.0
        raise Unreachable("no answer")

    def resume_after(self, cursor: str | None) -> None: ...
    def update_licence_demand(self, rho: object) -> None: ...

    def poll(self) -> Listing:
        return Listing(EPOCH + self.now, EPOCH, EPOCH + self.now, (), ClusterInfo(1, 0, ()))


@pytest.mark.parametrize(("owner", "is_proved"), [("", False), ("eve", True)])
def test_the_commands_of_owners_keep_nothing_in_doubt(
    owner: str, is_proved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = SlowSubmissions(monkeypatch)
    host = AdapterHost(cast(Adapter, adapter))

    def until() -> float:
        adapter.now += 5.0
        delta = host.execute(WorkerCall("poll")).delta
        assert delta is not None
        return delta.until

    assert [until() for _ in range(8)][-3:] == [EPOCH + begun for begun in (5.0, 10.0, 15.0)]
    host.execute(WorkerCall("submit", submission=SUBMISSION, owner=owner))
    assert (until() > 0) is is_proved
