"""Slurm accounting: only records of the job's owner count."""

from __future__ import annotations

import pwd
import time

import pytest

from metasched.adapters.slurm.accounting import SlurmAccounting
from metasched.adapters.slurm.accounting_records import SlurmRecord
from metasched.adapters.slurm.listing import ControllerInfo
from metasched.model.job import State
from metasched.model.listing import MissingTask
from metasched.model.tags import tag_of

OWNER, FORGER = pwd.getpwuid(0), pwd.getpwuid(1)
TAG = tag_of("cafe", 7, 1)
SENT = 1_000_000.0


def record(user: int, id: str, submit: float, status: str) -> SlurmRecord:
    return SlurmRecord(id, str(user), State.FAILED, status, submit, submit, submit + 1, "n1", TAG)


class Slurmdbd:
    """A slurmdbd that answers every query with these records."""

    def __init__(self, *records: SlurmRecord) -> None:
        self.records = list(records)
        self.calls: list[tuple[str, ...]] = []

    def controller(self) -> ControllerInfo:
        return ControllerInfo(now=time.time(), boot=SENT - 10, min_job_age=300.0, slurmdbd=True)

    def sacct(self, *filters: str) -> list[SlurmRecord]:
        self.calls.append(filters)
        return self.records

    def unsent_messages(self) -> int:
        return 0

    def purge_age(self) -> float | None:
        return None


@pytest.mark.parametrize("native", ["5", None])
def test_a_forged_record_does_not_stand_in_for_the_owners(native: str | None) -> None:
    own = record(OWNER.pw_uid, "5", SENT + 1, "3:0")
    forged = record(FORGER.pw_uid, "6", SENT + 60, "0:0")
    accounting = SlurmAccounting(Slurmdbd(own, forged), "comment", None)
    [row] = accounting.query([MissingTask(TAG, 0, native, SENT, user=OWNER.pw_name)]).rows
    assert (row.native_id, row.exit_code, row.owner) == ("5", 3, OWNER.pw_name)


def test_a_forged_record_is_no_end_and_hides_no_absence() -> None:
    forged = record(FORGER.pw_uid, "6", SENT + 60, "0:0")
    accounting = SlurmAccounting(Slurmdbd(forged), "comment", None)
    answer = accounting.query([MissingTask(TAG, 0, None, SENT, user=OWNER.pw_name)])
    assert (answer.rows, answer.never_started) == ((), ((TAG, 0),))


def test_no_mail_for_a_job_whose_owner_has_no_account_any_more() -> None:
    answers = Slurmdbd()
    gone = MissingTask(TAG, 0, None, SENT, user="no-such-account")
    assert SlurmAccounting(answers, "comment", None).query([gone]).never_started == ()
    assert answers.calls == []
