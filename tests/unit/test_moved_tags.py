"""Jobs whose tag was moved, removed or copied, in listings, withdrawals and accounting of Slurm."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from metasched.adapters.base import Withdrawal
from metasched.adapters.known_jobs import SentJob, merge_alterations
from metasched.adapters.protocol import WorkerCall
from metasched.adapters.slurm import adapter, listing, statuses
from metasched.adapters.slurm.accounting_records import SlurmRecord, latest_records
from metasched.adapters.worker import AdapterHost
from metasched.model.cluster import Cluster
from metasched.model.job import Job, State
from metasched.model.listing import Alteration, JobStatus, JobTerms, KnownJob, MissingTask

INSTANCE = "abcd1234"
TAG, OTHER_TAG = f"ms-{INSTANCE}-1-1", f"ms-{INSTANCE}-2-1"
NOW = float(int(time.time()))
SUBMITTED = NOW - 100
UID = str(os.geteuid())


def line(id: str, text: str, **changed: str) -> listing.QueueLine:
    """Return the line of a pending job of this account."""
    return listing.QueueLine(
        *(id, UID, "PENDING", "main", "2", "10:00", f"{SUBMITTED:.0f}", f"{SUBMITTED:.0f}"),
        *("N/A", "N/A", "0", "0", "99", "", "Resources", text),
    )._replace(**changed)


def known(id: str, tag: str = TAG, task: int = 0, submitted: float | None = SUBMITTED) -> KnownJob:
    """Return a job as the daemon knows it."""
    return KnownJob(id, tag, task, "", SUBMITTED - 1, SUBMITTED + 1, submitted, 0)


class Manager:
    """Stands for the commands of a Slurm whose jobs are `lines`; an owner cannot be provoked here
    to change a tag between two lines of one listing."""

    name = "commands"

    def __init__(self, *lines: listing.QueueLine) -> None:
        self.lines = list(lines)
        self.cancelled: list[str] = []

    def jobs(
        self,
        *,
        ids: Sequence[str] = (),
        user: int | None = None,
        split_arrays: bool = False,
        known: Collection[str] = (),
    ) -> listing.QueueListing:
        return listing.QueueListing(self.lines)

    def nodes(self) -> list[listing.SinfoRecord]:
        return []

    def controller(self) -> listing.ControllerInfo:
        return listing.ControllerInfo(float(int(time.time())), boot=NOW - 5000, min_job_age=300)

    def licences(self) -> dict[str, Any]:
        return {}

    def hold(self, ids: Collection[str]) -> str:
        self.lines = [item._replace(priority="0") for item in self.lines]
        return ""

    def release(self, ids: Collection[str]) -> None:
        pass

    def cancel(self, ids: Collection[str]) -> None:
        self.cancelled += ids


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
def slurm(manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> adapter.Slurm:
    options = adapter.SlurmOptions(config="/nowhere")
    slurm = adapter.Slurm(Cluster(name="alpha", adapter="slurm"), options, INSTANCE, tmp_path)
    monkeypatch.setattr(adapter.Slurm, "_access", manager)
    monkeypatch.setattr(slurm._associations, "current", lambda _: ())
    monkeypatch.setattr(slurm._reservations, "upcoming", lambda *_: ())
    return slurm


def poll(host: AdapterHost, *jobs: KnownJob, full: bool = False) -> Any:
    reply = host.execute(WorkerCall("poll", full=full, known=jobs))
    assert reply.delta is not None, reply.reason
    return reply.delta


# Listings


def test_a_job_that_loses_its_tag_between_two_listings_does_not_vanish(
    slurm: adapter.Slurm, manager: Manager
) -> None:
    host = AdapterHost(slurm)
    manager.lines = [line("7", TAG), line("8", OTHER_TAG)]
    assert len(poll(host, full=True).rows) == 2
    for text in ("x", "", OTHER_TAG):
        manager.lines[0] = line("7", text)
        delta = poll(host)
        assert (delta.rows, delta.vanished) == ((), ())
    manager.lines[0] = line("7", "x", submitted=f"{SUBMITTED + 50:.0f}")
    assert poll(host).vanished == ((TAG, 0, ""),)  # another job: the id was issued anew


def test_a_job_without_a_tag_in_its_first_listing_is_known_by_its_dispatch(
    slurm: adapter.Slurm, manager: Manager
) -> None:
    manager.lines = [line("7", "x")]
    assert [row.tag for row in poll(AdapterHost(slurm), known("7", submitted=None)).rows] == [TAG]
    late = structs.replace(known("7", submitted=None), dispatched=NOW - 50, accepted=NOW - 49)
    assert poll(AdapterHost(slurm), late).rows == ()


def test_a_known_job_without_tag_and_submission_is_set_aside(
    slurm: adapter.Slurm, manager: Manager
) -> None:
    host = AdapterHost(slurm)
    manager.lines = [line("7", TAG), line("8", OTHER_TAG)]
    poll(host, full=True)
    manager.lines[0] = line("7", "x", submitted="Unknown")
    delta = poll(host)
    assert delta.vanished == ()
    assert [(row.tag, row.task) for row in delta.quarantined] == [(TAG, 0)]


UNANSWERED = structs.replace(known("", OTHER_TAG, submitted=None), accepted=None)


def test_where_tags_are_removed_a_later_job_may_be_a_dispatch_without_an_answer(
    slurm: adapter.Slurm, manager: Manager
) -> None:
    host = AdapterHost(slurm)
    manager.lines = [line("7", "x"), line("9", "y", state="COMPLETED")]
    for _ in range(2):  # the first shows that tags are removed
        delta = poll(host, known("7", submitted=None), UNANSWERED)
        assert [(row.tag, row.task) for row in delta.quarantined] == [(OTHER_TAG, -1)]
    manager.lines[1] = line("9", "y", submitted=f"{SUBMITTED - 10:.0f}")  # before the dispatch
    assert poll(host, UNANSWERED).quarantined == ()
    manager.lines[1] = line("9", "y", user="1")  # of another account
    assert poll(host, UNANSWERED).quarantined == ()


def test_where_tags_stay_jobs_of_the_owner_delay_no_dispatch(
    slurm: adapter.Slurm, manager: Manager
) -> None:
    host = AdapterHost(slurm)
    manager.lines = [line("7", TAG), line("9", "y")]
    assert poll(host, UNANSWERED, full=True).quarantined == ()
    manager.lines[0] = line("7", "x")  # its owner removes the tag later
    delta = poll(host, UNANSWERED)
    assert (delta.vanished, delta.quarantined) == ((), ())


def test_owners_who_remove_their_own_tags_delay_no_others(slurm: adapter.Slurm) -> None:
    host = AdapterHost(slurm)
    host._without_tags = {"eve"}
    assert not host._loses_tags_of("ada")
    assert host._loses_tags_of("eve")
    host._without_tags = {"eve", "bob"}
    assert host._loses_tags_of("ada")


def test_a_copied_tag_is_reported_once_and_changes_nothing(
    slurm: adapter.Slurm, manager: Manager
) -> None:
    host = AdapterHost(slurm)
    manager.lines = [line("7", TAG)]
    poll(host, full=True)
    manager.lines = [line("9", TAG, state="RUNNING"), line("7", TAG), line("10", TAG)]
    delta = poll(host)
    assert (delta.rows, delta.vanished) == ((), ())
    [copy] = delta.alterations
    assert (copy.kind, copy.native_id, copy.jobs) == ("copy", "9", 2)
    assert poll(host).alterations == ()
    manager.lines = [line("9", TAG, state="RUNNING")]
    assert poll(host).vanished == ((TAG, 0, ""),)


@pytest.mark.parametrize("text", [TAG, f"{TAG}-zzzzzzzzzzzz"], ids=["none", "wrong"])
@pytest.mark.parametrize("was_listed", [True, False])
def test_a_copied_tag_with_another_digest_is_a_copy(
    slurm: adapter.Slurm, manager: Manager, text: str, was_listed: bool
) -> None:
    """Else its end would count as that of the attempt, whose licences would be free."""
    host, tag = AdapterHost(slurm), f"{TAG}-abcdefghijkl"
    if was_listed:
        manager.lines = [line("7", tag)]
        assert len(poll(host, full=True).rows) == 1
    copied = line("9", text, state="COMPLETED", end=f"{NOW:.0f}", status="0")
    manager.lines = [copied, line("7", tag)]
    delta = poll(host, known("7", tag, submitted=None))
    assert [(row.tag, row.native_id) for row in delta.rows] == [(tag, "7")][was_listed:]
    assert [(copy.kind, copy.native_id) for copy in delta.alterations] == [("copy", "9")]
    manager.lines = [line("7", tag)]
    assert poll(host).vanished == ()


@pytest.mark.parametrize("text", ["x", "", TAG, f"{OTHER_TAG}/a", f"{OTHER_TAG}/7"])
def test_pending_tasks_that_share_a_record_are_known_one_by_one(text: str) -> None:
    jobs = {f"7_{task}": known(f"7_{task}", task=task) for task in (1, 2, 5)}
    found = statuses.job_statuses(
        listing.QueueListing([line("7_[1-2,4-6]", text), line("8_[1-2]", text)]),
        frozenset({INSTANCE}),
        int(UID),
        jobs,
    )
    shown = {row.native_id for row in (*found.tagged, *found.untagged)}
    assert shown >= {"7_1", "7_2", "7_5"}
    assert {row.native_id for row in found.untagged} <= jobs.keys()


def test_a_known_job_whose_line_cannot_be_read_is_set_aside_under_its_tag() -> None:
    found = statuses.job_statuses(
        listing.QueueListing([line("7", "x", restarts="many")]),
        frozenset({INSTANCE}),
        int(UID),
        {"7": known("7")},
    )
    [row] = found.set_aside
    assert (row.tag, row.task) == (TAG, 0)


# Withdrawals


def withdraw(slurm: adapter.Slurm, *, only_pending: bool, submitted: float | None) -> None:
    native_ids: dict[int, str | None] = {0: "7"}
    jobs = (known("7", submitted=submitted),)
    slurm.withdraw(Withdrawal(tag=TAG, native_ids=native_ids, only_pending=only_pending, jobs=jobs))


@pytest.mark.parametrize("only_pending", [True, False])
@pytest.mark.parametrize("submitted", [SUBMITTED, None], ids=["listed before", "new"])
def test_a_job_without_its_tag_is_withdrawn_and_no_other_of_its_id(
    slurm: adapter.Slurm, manager: Manager, only_pending: bool, submitted: float | None
) -> None:
    manager.lines = [line("7", "x", submitted=f"{SUBMITTED + 50:.0f}")]
    withdraw(slurm, only_pending=only_pending, submitted=submitted)
    assert manager.cancelled == []
    manager.lines = [line("7", "x"), line("9", TAG)]
    withdraw(slurm, only_pending=only_pending, submitted=submitted)
    assert manager.cancelled == ["7"]


# Accounting


def record(id: str, mark: str, submit: float = SUBMITTED) -> SlurmRecord:
    end = submit + 20
    return SlurmRecord(id, UID, State.COMPLETED, "0:0", submit, submit + 5, end, "a1", mark)


def test_accounting_knows_a_job_by_its_submission_and_ignores_copies_of_its_tag() -> None:
    task = MissingTask(TAG, 0, "7", SUBMITTED - 1, SUBMITTED + 1, submitted=SUBMITTED)
    moved, copied = record("7", "x"), record("9", TAG, SUBMITTED + 30)
    issued_anew = record("7", "x", SUBMITTED + 50)
    assert latest_records([moved, copied, issued_anew], [task], 0.0) == {task: moved}
    assert latest_records([copied, issued_anew], [task], 0.0) == {task: None}
    by_tag = structs.replace(task, native_id=None, submitted=None)
    assert latest_records([moved, copied], [by_tag], 0.0) == {by_tag: copied}


# Terms

SENT = Job(
    id=1,
    submitted=0.0,
    estimated=60.0,
    cpus=4,
    time_limit=290.0,
    account="physics",
    partition="a,b",
)
LISTED = JobTerms(cpus=4, pending=True, account="physics", partition="a", limit=300.0)


@pytest.mark.parametrize(
    ("terms", "kinds"),
    [
        (LISTED, []),
        (structs.replace(LISTED, cpus=8, pending=False), []),  # whole cores
        (structs.replace(LISTED, account=None), []),
        (structs.replace(LISTED, cpus=8), ["processors"]),
        (structs.replace(LISTED, cpus=2, pending=False), ["processors"]),
        (structs.replace(LISTED, account="misc", partition="c"), ["account", "partition"]),
        (structs.replace(LISTED, limit=None), ["limit"]),
        (structs.replace(LISTED, limit=60.0), ["limit"]),
    ],
)
def test_terms_are_compared_with_what_was_sent(terms: JobTerms, kinds: list[str]) -> None:
    job = SentJob(TAG, 0, SENT, has_options=False)
    assert [item.kind for item in job.alterations("7", True, terms, 60.0)] == kinds
    chosen_by_owner = SentJob(TAG, 0, SENT, has_options=True)
    assert [item.kind for item in chosen_by_owner.alterations("7", False, terms, 60.0)] == ["tag"]


def test_of_each_kind_the_first_is_reported_with_a_count() -> None:
    found = [Alteration("tag", TAG, task, str(task), TAG, "x") for task in range(1000)]
    found.append(Alteration("limit", TAG, 5, "5", "60 s", "none"))
    merged = merge_alterations(found)
    assert [(item.kind, item.task, item.jobs) for item in merged] == [
        ("tag", 0, 1000),
        ("limit", 5, 1),
    ]


def test_rows_with_another_submission_differ() -> None:
    row = JobStatus(TAG, 0, "7", State.PENDING, submitted=SUBMITTED)
    assert row != structs.replace(row, submitted=SUBMITTED + 1)
