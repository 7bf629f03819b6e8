"""The log of the deletions that were requested of Grid Engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from metasched.adapters.gridengine.withdrawals import Deletion, DeletionLog

NOW = 1_700_000_000.0
DELETION = Deletion(tag="ms-abc-7-1", task=0, native_id="12", requested_at=NOW)


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
