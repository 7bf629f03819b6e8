"""Slurm accounting: only records of the job's owner count."""

from __future__ import annotations

import pwd
import time
from pathlib import Path

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


@pytest.mark.parametrize("mark", [None, TAG])
def test_an_unreadable_record_is_not_outlived_by_an_earlier_run(mark: str | None) -> None:
    earlier = record(OWNER.pw_uid, "5", SENT + 1, "3:0")
    damaged = SlurmRecord(
        *("5", str(OWNER.pw_uid), State.UNKNOWN, "", 0.0, None, None, "", mark), is_readable=False
    )
    accounting = SlurmAccounting(Slurmdbd(earlier, damaged), "comment", None)
    task = MissingTask(TAG, 0, "5", SENT, SENT + 2, user=OWNER.pw_name)
    answer = accounting.query([task])
    assert (answer.rows, answer.never_started) == ((), ())


def test_an_unreadable_record_of_another_job_changes_nothing() -> None:
    own = record(OWNER.pw_uid, "5", SENT + 1, "3:0")
    damaged = SlurmRecord(
        *("6", str(OWNER.pw_uid), State.UNKNOWN, "", 0.0, None, None, "", None), is_readable=False
    )
    accounting = SlurmAccounting(Slurmdbd(own, damaged), "comment", None)
    [row] = accounting.query([MissingTask(TAG, 0, "5", SENT, user=OWNER.pw_name)]).rows
    assert row.exit_code == 3


# as Slurm 22.05 writes a job of another account whose name has line breaks
FORGED = (
    "JobId=4 UserId=bin({forger}) GroupId=bin(1) Name=x JobState=COMPLETED Partition=main "
    "TimeLimit=5 {times} WcKey= Cluster=c SubmitTime={at} EligibleTime={at} DerivedExitCode=0:0 "
    "ExitCode=0:0 \nJobId=5 UserId=root({owner}) GroupId=root(0) Name=x JobState=COMPLETED "
    "Partition=main TimeLimit=5 {times} WcKey={tag} Cluster=c SubmitTime={at} EligibleTime={at} "
    "DerivedExitCode=0:0 ExitCode=0:0 \n"
)


@pytest.mark.parametrize(
    ("user", "trusted", "counts"), [(0, False, 1), (None, False, 0), (None, True, 1)]
)
def test_lines_that_any_account_can_write_count_in_site_mode_only_if_trusted(
    tmp_path: Path, user: int | None, trusted: bool, counts: int
) -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(SENT + 1))
    times = f"StartTime={at} EndTime={at} NodeList=n1 NodeCnt=1 ProcCnt=1 WorkDir=/"
    (tmp_path / "completions").write_text(
        FORGED.format(forger=FORGER.pw_uid, owner=OWNER.pw_uid, times=times, at=at, tag=TAG)
    )
    controller = ControllerInfo(
        now=time.time(),
        boot=SENT - 10,
        min_job_age=300.0,
        completions=str(tmp_path / "completions"),
    )
    source = Slurmdbd()
    source.controller = lambda: controller  # type: ignore[method-assign]
    accounting = SlurmAccounting(source, "wckey", user, trusted)
    answer = accounting.query([MissingTask(TAG, 0, "5", SENT, user=OWNER.pw_name)])
    assert len(answer.rows) == counts
    assert bool(accounting.describe_lookup(controller, True)) == bool(counts)
    if not counts:
        assert answer.never_started == ()
