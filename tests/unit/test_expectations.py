"""When managers expect tasks to begin: told by each listing, news of its own, never an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from msgspec import structs

from metasched.adapters.base import Adapter
from metasched.adapters.protocol import Call, News
from metasched.adapters.worker import Host
from metasched.core.tasks import Attempt
from metasched.daemon.manager_start_times import Expectation, Expectations
from metasched.model.cluster import Facts
from metasched.model.job import State
from metasched.model.listing import Listing, Row

OURS = "abcd1234"


class Told:
    """A manager that lists what a test says."""

    access = ""

    def __init__(self) -> None:
        self.rows: tuple[Row, ...] = ()

    def criticality(self, rho: Mapping[str, float]) -> None:
        """Its queue is not ordered here."""

    def poll(self) -> Listing:
        return Listing(taken=50.0, since=0.0, until=0.0, rows=self.rows, facts=Facts(8, 0, ()))


def waiting(job: int, expected: float | None) -> Row:
    tag = f"ms-{OURS}-{job}-1"
    return Row(tag=tag, task=0, native_id=str(job), state=State.PENDING, expected=expected)


def poll(host: Host, full: bool = False) -> News:
    news = host.answer(Call("poll", full=full)).news
    assert news is not None
    return news


def test_a_changed_estimate_alone_is_no_news_of_a_row() -> None:
    manager = Told()
    host = Host(cast(Adapter, manager))
    manager.rows = (waiting(1, 100.0), waiting(2, None))
    assert poll(host).expected == (("ms-abcd1234-1-1", 0, "", 100.0),)
    assert poll(host) == structs.replace(poll(host), rows=(), vanished=(), expected=(), facts=None)
    manager.rows = (waiting(1, 200.0), waiting(2, 300.0))
    news = poll(host)
    assert (news.rows, news.vanished, news.facts) == ((), (), None)
    assert {(tag[-3:], start) for tag, _, _, start in news.expected} == {
        ("1-1", 200.0),
        ("2-1", 300.0),
    }
    assert len(poll(host, full=True).expected) == 2
    manager.rows = (waiting(2, None),)
    assert {start for *_, start in poll(host).expected} == {None}


def test_what_is_expected_is_of_one_sending_that_waits() -> None:
    manager, expectations = Told(), Expectations("alpha")
    host = Host(cast(Adapter, manager))
    sent = Attempt(1, 1, "alpha", State.PENDING, 10.0)
    manager.rows = (waiting(1, 100.0), waiting(2, 200.0))
    expectations.learn(poll(host), OURS)
    assert expectations.of((1, 0), sent) == Expectation(100.0, "alpha", told=50.0)
    assert expectations.of((1, 0), structs.replace(sent, sending=2)) is None
    assert expectations.of((1, 0), structs.replace(sent, state=State.UNKNOWN)) is None
    manager.rows = (waiting(2, 200.0),)
    expectations.learn(poll(host), OURS)
    assert expectations.of((1, 0), sent) is None
    assert expectations.of((2, 0), sent) == Expectation(200.0, "alpha", told=50.0)
    manager.rows = ()
    expectations.learn(poll(host, full=True), OURS)
    assert expectations.of((2, 0), sent) is None


def test_estimates_of_another_instance_are_not_ours() -> None:
    manager, expectations = Told(), Expectations("alpha")
    manager.rows = (waiting(1, 100.0),)
    expectations.learn(poll(Host(cast(Adapter, manager))), "deadbeef")
    assert expectations.of((1, 0), Attempt(1, 1, "alpha", State.PENDING, 10.0)) is None
