"""Deletions that were requested of Grid Engine, and what they prove."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from metasched.adapters.base import Withdrawal
from metasched.adapters.gridengine.commands import CellCommands
from metasched.adapters.gridengine.listing import OwnJobs, QstatJob, QstatListing
from metasched.adapters.gridengine.withdrawals import Deletion, DeletionLog, JobDeletion
from metasched.processes.commands import CommandResult

NOW = 1_700_000_000.0
DELETION = Deletion(tag="ms-abc-7-1", task=0, native_id="12", requested_at=NOW)


class Qmaster(CellCommands):
    """A cell with job 12, which has the next of `states` at each listing."""

    def __init__(self, *states: str) -> None:
        super().__init__(None, 1.0, None)
        self.states, self.requests = list(states), list[str]()

    def list_jobs(self, user: str) -> QstatListing:
        state = self.states.pop(0)
        return QstatListing([QstatJob("12", DELETION.tag, "ada", state, 1)], [])

    def run_as_owner(self, user: str, verb: str, ids: str) -> CommandResult:
        self.requests.append(verb)
        deleted = verb == "cancel"
        return CommandResult(0, f"ada has deleted job {ids}\n" if deleted else "", "")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deletions"


def request(log: DeletionLog, deletion: Deletion) -> None:
    """Log a deletion as it is requested."""
    if not log.covers(deletion):
        log.add([deletion])


def test_a_job_that_ends_while_it_is_deleted_again_was_deleted(path: Path) -> None:
    log = DeletionLog(path, keep=3600.0)
    request(log, DELETION)
    request(log, structs.replace(DELETION, requested_at=NOW + 9))
    assert log.explains_end(DELETION.key, ended=NOW + 3)
    assert not log.explains_end(DELETION.key, ended=NOW - 3)


def test_another_job_of_the_task_was_deleted_at_its_own_time(path: Path) -> None:
    """Ids are issued anew after a qmaster lost its last seconds."""
    log = DeletionLog(path, keep=3600.0)
    request(log, DELETION)
    request(log, structs.replace(DELETION, native_id="13", requested_at=NOW + 9))
    assert not log.explains_end(DELETION.key, ended=NOW + 3)


def test_a_deletion_under_a_hold_proves_more_than_an_earlier_one(path: Path) -> None:
    log = DeletionLog(path, keep=3600.0)
    request(log, DELETION)
    assert not log.proves_gone(DELETION.key, NOW + 60, lag=30.0)
    request(log, structs.replace(DELETION, requested_at=NOW + 9, held=True))
    request(log, structs.replace(DELETION, requested_at=NOW + 12))
    assert log.proves_gone(DELETION.key, NOW + 60, lag=30.0)
    assert not log.proves_gone(DELETION.key, NOW + 30, lag=30.0)


@pytest.mark.parametrize(
    ("state", "is_proof"),
    [
        ("qw", True),
        ("Rq", False),
        ("hRwq", False),
        ("r", False),  # qdel deletes it as a waiting job: it was rescheduled after the listing
    ],
)
def test_only_the_deletion_of_a_job_that_never_started_proves_its_end(
    path: Path, state: str, is_proof: bool
) -> None:
    log, qmaster = DeletionLog(path, keep=3600.0), Qmaster(state)
    deletion = JobDeletion(qmaster, OwnJobs(frozenset({"abc"}), "ada"), log)
    deletion.withdraw_all([Withdrawal(tag=DELETION.tag, native_ids={0: "12"})])
    assert qmaster.requests == ["cancel"]
    assert log.proves_gone(DELETION.key, NOW * 2, lag=30.0) == is_proof


def test_a_job_that_was_rescheduled_while_it_was_held_is_released(path: Path) -> None:
    log, qmaster = DeletionLog(path, keep=3600.0), Qmaster("qw", "hRq")
    deletion = JobDeletion(qmaster, OwnJobs(frozenset({"abc"}), "ada"), log)
    withdrawal = Withdrawal(tag=DELETION.tag, native_ids={0: "12"}, only_pending=True)
    deletion.withdraw_all([withdrawal])
    assert qmaster.requests == ["hold", "release"]
    assert not log.proves_gone(DELETION.key, NOW * 2, lag=30.0)


def test_a_job_that_has_started_since_its_deletion_is_not_proven_gone(path: Path) -> None:
    """Jobs in a reservation are logged as deleted when they are submitted."""
    log = DeletionLog(path, keep=float("inf"))
    log.add([structs.replace(DELETION, held=True)])
    assert log.proves_gone(DELETION.key, NOW + 60, lag=30.0)
    log.distrust([DELETION.key, ("ms-abc-7-1", 1, "")])
    assert not log.proves_gone(DELETION.key, NOW + 60, lag=30.0)
    after_restart = DeletionLog(path, keep=float("inf"))
    assert not after_restart.proves_gone(DELETION.key, NOW + 60, lag=30.0)


def test_a_rescheduling_that_no_listing_has_shown_yet_is_seen_by_the_deletion(path: Path) -> None:
    log, qmaster = DeletionLog(path, keep=float("inf")), Qmaster("Rq")
    log.add([structs.replace(DELETION, held=True)])  # at its submission, in a reservation
    deletion = JobDeletion(qmaster, OwnJobs(frozenset({"abc"}), "ada"), log)
    deletion.withdraw_all([Withdrawal(tag=DELETION.tag, native_ids={0: "12"})])
    assert not log.proves_gone(DELETION.key, NOW * 2, lag=30.0)
