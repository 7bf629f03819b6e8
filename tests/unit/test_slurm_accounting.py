"""Slurm accounting: only records of the job's owner count."""

from __future__ import annotations

import pwd
import time
from pathlib import Path

import pytest

import metasched.adapters.slurm.accounting as accounting_module
from metasched.adapters.slurm.accounting import SlurmAccounting
from metasched.adapters.slurm.accounting_records import SlurmRecord
from metasched.adapters.slurm.foreign_use import Slurmdbd as SlurmdbdInfo
from metasched.adapters.slurm.listing import ControllerInfo, parse_admin_level, parse_controller
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

    hides_jobs, level = False, "None"

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

    def slurmdbd(self) -> SlurmdbdInfo:
        return SlurmdbdInfo(0.0, "slurm", self.hides_jobs)

    def admin_level(self, user: str) -> str:
        return self.level


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


@pytest.mark.parametrize(
    ("hides", "level", "proved"),
    [(False, "None", 1), (True, "None", 0), (True, "Operator", 1), (True, "Administrator", 1)],
)
def test_a_slurmdbd_that_hides_jobs_proves_no_absence(
    monkeypatch: pytest.MonkeyPatch, hides: bool, level: str, proved: int
) -> None:
    monkeypatch.setattr(accounting_module, "user_name_of", lambda uid: "metasched")
    answers = Slurmdbd()
    answers.hides_jobs, answers.level = hides, level
    task = MissingTask(TAG, 0, "5", SENT, user=OWNER.pw_name)
    assert len(SlurmAccounting(answers, "comment", None).query([task]).never_started) == proved
    assert len(SlurmAccounting(answers, "comment", OWNER.pw_uid).query([task]).never_started) == 1


def test_a_job_of_a_moment_ago_may_have_no_record_yet() -> None:
    task = MissingTask(TAG, 0, "5", time.time() - 3, time.time() - 2, user=OWNER.pw_name)
    assert SlurmAccounting(Slurmdbd(), "comment", None).query([task]).never_started == ()


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


def test_the_controller_tells_whether_it_hides_jobs_and_who_is_an_operator() -> None:
    text = "Configuration data as of 7\nBOOT_TIME = 1\nMinJobAge = 300 sec\n"
    shown = parse_controller(f"{text}PrivateData = accounts,jobs\nSlurmUser = slurm(64030)\n")
    assert (shown.hides_jobs, shown.slurm_user) == (True, 64030)
    shown = parse_controller(f"{text}PrivateData = none\n")
    assert (shown.hides_jobs, shown.slurm_user) == (False, None)
    records = (
        "UserName=xa(1) DefAccount=x DefWckey=(null) AdminLevel=Operator\n"
        "UserName=a(2) DefAccount=x DefWckey=(null) AdminLevel=Not Set\n"
        "UserName=b(3) DefAccount=x DefWckey=(null) AdminLevel=Administrator\n"
    )
    levels = {user: parse_admin_level(records, user) for user in ("a", "b", "xa", "x", "")}
    assert levels == {"a": "Not", "b": "Administrator", "xa": "Operator", "x": "", "": ""}
