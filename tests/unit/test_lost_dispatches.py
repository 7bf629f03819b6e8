"""Rows of dispatches that the ledger lacks: what proves that the database went back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from metasched.core.events import DaemonStarted, JobSubmitted, UserRequested
from metasched.core.tasks import EndedTask, PastAttempt
from metasched.daemon.lost_dispatches import DatabaseWentBack, LostDispatches
from metasched.db.instances import FirstIds
from metasched.model.job import State
from metasched.model.listing import JobStatus
from metasched.model.tags import TagKey, tag_of
from metasched.policies.policy import Policy
from tests.unit.core_site import NOW, Site, job

KEY = "secret"


@dataclass
class Stored:
    """A ledger whose next job is 2."""

    next_job_id: int = 2
    losses: list[tuple[str, FirstIds]] = field(default_factory=list)
    dispatches: dict[int, int] = field(default_factory=dict)  # the highest, by job
    asked: list[int] = field(default_factory=list)  # jobs whose highest dispatch was read

    def last_dispatch(self, job: int) -> int:
        self.asked.append(job)
        return self.dispatches[job]

    def note_loss(self, cause: str, lost: FirstIds) -> None:
        self.losses.append((cause, lost))

    def skip_ids(self, lost: FirstIds) -> None:
        self.next_job_id = max(self.next_job_id, lost.job)


class Host:
    """A service in site mode: job 1 of ada is queued, and no dispatch was made."""

    def __init__(self) -> None:
        site = Site(listed=False)
        site.step(JobSubmitted(NOW, job()))
        self.core, self.ledger = site.core, Stored()
        self.core.tag_key = TagKey(KEY, 0)
        first = {"cafe": 0, "f00d": 5}
        clusters = tuple(site.core.clusters)
        site.step(DaemonStarted(NOW, "f00d", Policy(), clusters, first_dispatches=first))
        self.failure: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        self.failure = error

    def owner_of(self, tag: str) -> str:
        dispatch = self.core.instances.parse_tag(tag)
        return "ada" if dispatch is not None and dispatch[0] == 1 else ""

    def is_owner(self, tag: str, account: str) -> bool:
        return self.owner_of(tag) == account


def row(tag: str, owner: str = "ada", task: int = 0) -> JobStatus:
    return JobStatus(tag, task, "7", State.RUNNING, owner=owner)


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def sifted(host: Host) -> LostDispatches:
    return LostDispatches(cast(Any, host), "left")


@pytest.mark.parametrize(("number", "next_job"), [(1, 2), (9, 10)])
def test_a_tag_with_its_digest_proves_it(
    host: Host, sifted: LostDispatches, number: int, next_job: int
) -> None:
    dispatch = max(host.core.state.last_dispatch.get(1, 0) + 1, 5)
    with pytest.raises(DatabaseWentBack, match="the database lacks"):
        sifted.sift([row(tag_of("f00d", number, dispatch, KEY))])
    [(_, lost)] = host.ledger.losses
    assert lost.job == next_job
    assert lost.dispatch > dispatch
    assert isinstance(host.failure, DatabaseWentBack)


@pytest.mark.parametrize(
    ("tag", "owner"),
    [
        ("ms-f00d-9-7", "ada"),
        (tag_of("f00d", 9, 7, "guessed"), "ada"),
        (tag_of("f00d", 1, 70, "guessed"), "ada"),
        (tag_of("f00d", 1, 70, KEY), "eve"),  # of a job of ada
        (tag_of("cafe", 9, 1, "guessed"), "ada"),
    ],
)
def test_without_proof_it_is_a_warning_a_day(
    host: Host,
    sifted: LostDispatches,
    caplog: pytest.LogCaptureFixture,
    tag: str,
    owner: str,
) -> None:
    for _ in range(3):
        assert sifted.sift([row(tag, owner)]) == ()
    assert host.ledger.losses == []
    assert host.failure is None
    assert len(caplog.records) == 1


def test_rows_of_the_lost_time_are_followed_by_their_former_name(
    host: Host, sifted: LostDispatches
) -> None:
    rows = [row(tag_of("cafe", 9, 1, KEY)), row("of somebody else"), row("ms-beef-1-1")]
    assert sifted.sift(rows) == tuple(rows)
    assert host.ledger.next_job_id == 10


def test_a_tag_of_an_ended_job_with_another_task_proves_nothing(
    host: Host, sifted: LostDispatches
) -> None:
    """The digest says nothing about the task, which the owner can write behind any of his tags."""
    core = host.core
    core.step(UserRequested(NOW, "cancel", 1, by="ada"))
    assert not core.state.is_open(1)
    ended = EndedTask(State.COMPLETED, 1, {6: PastAttempt("left", True)})
    core.state.ended_tasks[1, 0] = core.state.ended_tasks[1, 1] = ended
    host.ledger.dispatches[1] = 8  # of another task of the job
    rows = [row(tag_of("f00d", 1, 8, KEY)), row(tag_of("f00d", 1, 7, KEY), task=1)]
    assert sifted.sift(rows) == tuple(rows)
    assert host.failure is None
    assert host.ledger.asked == [1]
    with pytest.raises(DatabaseWentBack):
        sifted.sift([row(tag_of("f00d", 1, 9, KEY))])
