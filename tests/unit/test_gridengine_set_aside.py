"""Jobs of Grid Engine that cannot be read, and how long they stay."""

from __future__ import annotations

from metasched.adapters.gridengine import listing
from metasched.adapters.gridengine.set_aside import SetAsideJobs
from metasched.adapters.known_jobs import KnownJobs
from metasched.model.listing import KnownJob
from tests.unit.gridengine_answers import INSTANCES, TAG

KEEP, LAG = 100.0, 10.0  # seconds


def set_aside_jobs() -> SetAsideJobs:
    return SetAsideJobs(listing.OwnJobs(INSTANCES, "ada"), KEEP)


def unreadable(name: str = f"{TAG}.7", owner: str = "ada") -> list[listing.UnreadableJob]:
    return [listing.UnreadableJob(name, owner, "no slots")]


def test_an_unreadable_job_of_qstat_stays_until_the_accounting_would_have_its_end() -> None:
    jobs, key = set_aside_jobs(), (TAG, 7, "")
    for listed_at in (0.0, 5.0):
        jobs.update(unreadable(), [], {}, listed_at, LAG)
        assert list(jobs) == [key]
    assert [(row.tag, row.task) for row in jobs.rows] == [(TAG, 7)]
    jobs.update([], [], {}, 15.0, LAG)  # it was listed at 5
    assert list(jobs) == [key]
    jobs.update([], [], {}, 15.1, LAG)
    assert list(jobs) == []


def test_an_unreadable_line_of_the_accounting_stays_for_long() -> None:
    jobs = set_aside_jobs()
    jobs.update(unreadable(), unreadable(), {}, 0.0, LAG)
    jobs.update(unreadable(), [], {}, 50.0, LAG)  # qstat does not shorten it
    jobs.update([], [], {}, KEEP, LAG)
    assert list(jobs) == [(TAG, 7, "")]
    jobs.update([], [], {}, KEEP + 0.1, LAG)
    assert list(jobs) == []


def test_a_readable_job_replaces_its_unreadable_row() -> None:
    jobs = set_aside_jobs()
    jobs.update(unreadable() + unreadable(""), [], {}, 0.0, LAG)
    assert set(jobs) == {(TAG, 7, ""), ("", -1, "")}
    jobs.update([], [], {(TAG, 7, ""): object()}, 1.0, LAG)
    assert set(jobs) == {("", -1, "")}
    jobs.discard(("", -1, ""))
    assert jobs.rows == ()


def test_an_unreadable_job_of_another_account_is_no_task() -> None:
    jobs = set_aside_jobs()
    jobs.update(unreadable(owner="bob"), unreadable("", "bob"), {}, 0.0, LAG)
    assert jobs.rows == ()


def test_a_renamed_job_of_unknown_submission_is_undecided() -> None:
    """`qstat` shows no submission of a running job, and `qstat -j` may not answer."""
    known = KnownJobs({}, [KnownJob("5", TAG, 7, "", 90.0, 91.0, 90.0, 0)])
    running = listing.QstatJob("5", "x", "ada", "r", 1, started=100.0)
    by_task, _, undecided = listing.OwnJobs(INSTANCES, "ada").identify([running], known, 0.0)
    assert by_task == {}
    assert [(row.tag, row.task) for row in undecided] == [(TAG, 7)]
