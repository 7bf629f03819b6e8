"""A restored backup: attempts of former instances are followed, and never touched unasked."""

from __future__ import annotations

import pytest

from metasched.adapters.claims import new_claim_folder
from metasched.core.events import (
    ClusterDrained,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    DispatchStarted,
    JobSubmitted,
    Revoke,
    UserRequested,
    Withdraw,
)
from metasched.core.task_state_machine import HELD_AFTER_BACKUP
from metasched.core.tasks import Intent
from metasched.model.job import State
from metasched.model.listing import JobStatus
from metasched.model.tags import Instances, tag_of
from metasched.policies.policy import Policy
from tests.unit.core_site import NOW, Site, facts, job

FIRST_DISPATCH = 5  # of the new instance


def restore(site: Site, at: float = NOW + 5) -> None:
    """Start the daemon of a restored backup."""
    site.step(
        DaemonStarted(
            at,
            "f00d",
            Policy(pull_after=0.0),
            tuple(site.core.clusters),
            first_dispatches={"cafe": 0, "f00d": FIRST_DISPATCH},
            restored=True,
        )
    )


def pending_at_the_backup(fence_dir: str = "") -> Site:
    """A task is pending on left under dispatch 1, and the backup has been restored."""
    site = Site(fence_dir=fence_dir)
    site.step(JobSubmitted(NOW, job()))
    fence = new_claim_folder(fence_dir, 1) if fence_dir else ""
    site.step(DispatchStarted(NOW, 1, 1, fence))
    site.step(DispatchAccepted(NOW, 1, 1, {0: "7"}))
    site.seen("left", facts(8), site.row(State.PENDING))
    restore(site)
    return site


def test_a_tag_names_the_instance_that_owns_its_dispatch_id() -> None:
    instances = Instances({"a": 0, "b": 3, "c": 3})
    assert instances.newest == "c"
    for id, name in ((1, "a"), (2, "a"), (3, "c"), (9, "c")):
        assert instances.tag_of(7, id) == f"ms-{name}-7-{id}"
        assert instances.parse_tag(f"ms-{name}-7-{id}") == (7, id)
        assert instances.is_former(id) == (name == "a")
    for tag in ("ms-a-7-3", "ms-b-7-3", "ms-c-7-2", "ms-x-7-1", "ms-a-7"):
        assert instances.parse_tag(tag) is None


def test_queued_tasks_are_held_until_they_are_released() -> None:
    site = Site(listed=False)
    site.step(JobSubmitted(NOW, job()))
    restore(site)
    assert site.state() is State.HELD
    assert [change.cause for change in site.out.changes] == [HELD_AFTER_BACKUP]
    assert site.seen("left", facts(8), full=True) == []
    site.step(DaemonStarted(NOW + 9, "f00d", Policy(), tuple(site.core.clusters)))
    assert site.state() is State.HELD


def test_a_released_task_gets_a_dispatch_id_of_the_new_instance() -> None:
    site = Site(listed=False)
    site.step(JobSubmitted(NOW, job()))
    restore(site)
    site.seen("left", facts(8), full=True)
    released = site.step(UserRequested(NOW + 6, "release", 1))
    assert released == [Dispatch(1, FIRST_DISPATCH, "left", (0,))]
    # a dispatch of the former daemon after the backup
    other = JobStatus(tag_of("cafe", 1, FIRST_DISPATCH), 0, "9", State.FAILED, NOW, NOW, 1)
    site.seen("left", None, other)
    assert site.state() is State.DISPATCHING


def test_an_intended_dispatch_was_made_after_the_backup() -> None:
    site = Site()
    assert site.step(JobSubmitted(NOW, job())) == [Dispatch(1, 1, "left", (0,))]
    restore(site)
    assert site.out.actions == []
    site.seen("left", facts(8), full=True, at=NOW + 60, since=1.0)
    assert site.state() is State.UNKNOWN
    site.seen("left", None, site.row(State.RUNNING, started=NOW + 1), at=NOW + 61)
    assert site.state() is State.RUNNING
    ended = site.row(State.COMPLETED, started=NOW + 1, ended=NOW + 62, exit_code=0)
    site.seen("left", None, ended, at=NOW + 63)
    assert (1, 0) not in site.core.tasks


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_task_that_left_its_manager_unstarted_is_held_and_not_dispatched(is_listed: bool) -> None:
    """It was cancelled or moved after the backup."""
    site = pending_at_the_backup()
    site.seen("left", facts(8), site.row(State.PENDING), at=NOW + 6, full=True)
    rows = [site.row(State.CANCELLED, ended=NOW + 7)] if is_listed else []
    actions = site.seen(
        "left", facts(8), *rows, at=NOW + 70, full=True, since=1.0, previous_taken=NOW + 6
    )
    assert site.state() is State.HELD
    assert actions == []
    assert site.out.changes[-1].cause == HELD_AFTER_BACKUP


def test_nothing_is_withdrawn_but_by_request() -> None:
    site = pending_at_the_backup()
    waiting = site.row(State.PENDING)
    site.seen("left", facts(8, 0), waiting, at=NOW + 6, full=True)
    assert site.seen("right", facts(4), at=NOW + 7, full=True) == []  # no pull
    assert site.step(ClusterDrained(NOW + 8, "left")) == []
    assert site.core.tasks[1, 0].live_attempt.intent is None
    [action] = site.step(UserRequested(NOW + 9, "cancel", 1))
    assert isinstance(action, Withdraw)
    assert (action.dispatch_id, action.only_pending) == (1, False)
    site.seen("left", None, site.row(State.CANCELLED, ended=NOW + 10), at=NOW + 10)
    assert (1, 0) not in site.core.tasks


def test_a_pull_under_way_at_the_backup_is_dropped() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    attempt = site.core.tasks[1, 0].live_attempt
    attempt.intent, attempt.target = Intent.PULL, "right"
    restore(site)
    attempt = site.core.tasks[1, 0].live_attempt
    assert (attempt.intent, attempt.target) == (None, None)


def test_a_claim_is_read_but_not_revoked() -> None:
    site = pending_at_the_backup(fence_dir="/fence")
    [action] = site.seen("left", facts(8), at=NOW + 60, full=True, since=1.0)
    assert site.state() is State.UNKNOWN
    assert isinstance(action, Revoke)
    assert [claim.started for claim in action.claims] == [True]
    assert not site.core.tasks[1, 0].live_attempt.revoking


def test_an_attempt_that_was_given_up_is_not_withdrawn_when_it_is_listed_again() -> None:
    site = Site(pull=False)
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.step(UserRequested(NOW, "hold", 1))
    site.seen("left", None, site.row(State.CANCELLED, ended=NOW))
    assert site.state() is State.HELD
    restore(site)
    assert site.seen("left", facts(8), site.row(State.PENDING), at=NOW + 6, full=True) == []
    assert site.state() is State.PENDING
    assert site.core.tasks[1, 0].held


@pytest.mark.parametrize(
    ("listed", "after"),
    [
        (State.RUNNING, State.RUNNING),
        (State.COMPLETED, State.COMPLETED),
        (State.PENDING, State.PENDING),
    ],
)
def test_a_dispatch_of_after_the_backup_settles_its_held_task(listed: State, after: State) -> None:
    """Its tag is of the former name, and only the manager knows it."""
    site = Site(listed=False)
    site.step(JobSubmitted(NOW, job()))
    restore(site)
    assert site.state() is State.HELD
    started = None if listed is State.PENDING else NOW + 1
    ended = NOW + 4 if listed is State.COMPLETED else None
    row = JobStatus("ms-cafe-1-2", 0, "9", listed, started, ended, 0 if ended else None)
    site.seen("left", facts(8), row, full=True)
    assert site.out.tasks[1, 0].state is after
    assert not [action for action in site.out.actions if isinstance(action, Withdraw)]


def test_a_dispatch_of_the_present_name_that_was_never_made_settles_nothing() -> None:
    site = Site(listed=False)
    site.step(JobSubmitted(NOW, job()))
    restore(site)
    row = JobStatus(f"ms-f00d-1-{FIRST_DISPATCH}", 0, "9", State.RUNNING, NOW + 1)
    site.seen("left", facts(8), row, full=True)
    assert site.state() is State.HELD
