"""The audit finds every kind of violation; `missed` finds steps without crash points."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from metasched.db.sqlite import Sqlite
from tests.chaos.audit import Verdict, audit
from tests.chaos.cover import missed, steps
from tests.chaos.round import settle
from tests.chaos.site import ChaosSite
from tests.chaos.stream import JobKind, Stream


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[ChaosSite, Stream]:
    """A stopped site after a run without faults, and its stream."""
    site = ChaosSite(tmp_path_factory.mktemp("lived"))
    stream = Stream(site.client, site.run_log, ("left", "right"), "audit")
    try:
        site.begin()
        for licences in ({}, {"matlab": 3}, {"matlab": 2, "ansys": 1}, {}):
            stream.submit(2, JobKind(seconds=0.0, licences=licences))
        settle(site, stream)
    finally:
        site.close()
    return site, stream


class Ruined:
    """A copy of the site's database and notes that a test corrupts."""

    def __init__(self, site: ChaosSite, stream: Stream, folder: Path) -> None:
        self.database, self.run_log = folder / "db", folder / "ran"
        with (
            closing(sqlite3.connect(site.database)) as old,
            closing(sqlite3.connect(self.database)) as new,
        ):
            old.backup(new)
        self.run_log.write_text(site.run_log.read_text())
        self.used = folder / "ran.used"
        self.used.write_text(Path(f"{site.run_log}.used").read_text())
        self.owners = folder / "ran.owners"
        self.owners.write_text(Path(f"{site.run_log}.owners").read_text())
        self.stream = Stream(site.client, self.run_log, stream.clusters, "")
        self.stream.promises = stream.promises

    def sql(self, statement: str) -> None:
        with closing(sqlite3.connect(self.database)) as database, database:
            database.execute(statement)

    def instance(self) -> str:
        with closing(sqlite3.connect(self.database)) as database:
            [(name,)] = database.execute("SELECT name FROM instance")
        return str(name)

    def last_lease(self, job: int) -> int:
        """Return the attempt that ran: earlier attempts may have been recalled."""
        with closing(sqlite3.connect(self.database)) as database:
            [(last,)] = database.execute("SELECT max(attempt) FROM lease WHERE job = ?", (job,))
        return int(last)

    def verdict(self, *tags: str, may_fail: bool = False) -> Verdict:
        return audit(Sqlite(self.database), self.stream, [lambda: tags], may_fail)


@pytest.fixture
def after(lived: tuple[ChaosSite, Stream], tmp_path: Path) -> Ruined:
    return Ruined(*lived, tmp_path)


def test_nothing_is_found_where_all_is_well(after: Ruined) -> None:
    verdict = after.verdict()
    assert verdict.well, verdict
    assert (verdict.jobs, verdict.waiting) == (8, [])


def test_a_second_beginning_is_found(after: Ruined) -> None:
    with after.run_log.open("a") as run_log:
        run_log.write("t3\n")
    assert len(after.verdict().duplicated) == 1


def test_a_job_that_its_manager_starts_again_is_no_second_submission(after: Ruined) -> None:
    lines = after.owners.read_text()
    [line] = [line for line in lines.splitlines() if line.startswith("t3 ")]
    with after.run_log.open("a") as run_log:
        run_log.write("t3\n")
    after.owners.write_text(f"{lines}{line}\n")
    assert len(after.verdict().duplicated) == 1  # no fault explains it
    verdict = after.verdict(may_fail=True)
    assert (len(verdict.restarted), verdict.duplicated) == (1, [])
    after.owners.write_text(f"{lines}{line}-other\n")
    assert len(after.verdict(may_fail=True).duplicated) == 1


def test_a_second_dispatch_is_no_start_by_the_manager(after: Ruined) -> None:
    with after.run_log.open("a") as run_log:
        run_log.write("t3\n")
    with closing(sqlite3.connect(after.database)) as database, database:
        database.row_factory = sqlite3.Row
        [row, *_] = database.execute(
            "SELECT attempt.* FROM attempt JOIN job ON job.id = attempt.job WHERE name = 't3'"
        )
        values = {**row, "number": row["number"] + 100, "dispatch_id": row["dispatch_id"] + 1}
        database.execute(
            f"INSERT INTO attempt VALUES ({', '.join('?' * len(values))})", list(values.values())
        )
    assert len(after.verdict(may_fail=True).duplicated) == 1


def test_a_start_under_another_account_is_found(after: Ruined) -> None:
    uid = os.geteuid()
    after.owners.write_text(after.owners.read_text().replace(f"t3 {uid}", "t3 4711"))
    assert after.verdict().wrong == [f"t3 began as uid 4711, its owner is {uid}"]


def test_a_job_that_never_began_is_found(after: Ruined) -> None:
    after.run_log.write_text(after.run_log.read_text().replace("t3\n", ""))
    assert len(after.verdict().lost) == 1


def test_an_accepted_job_that_is_not_stored_is_found(after: Ruined) -> None:
    after.sql("UPDATE job SET name = 'other' WHERE name = 't3'")
    verdict = after.verdict()
    assert len(verdict.lost) == 1
    assert "t3 began and is not stored" in verdict.wrong


def test_a_submission_that_is_stored_twice_is_found(after: Ruined) -> None:
    after.sql("UPDATE job SET name = 't2' WHERE name = 't3'")
    assert after.verdict().duplicated == ["t2 is stored 2 times"]


def test_a_state_that_the_story_does_not_give_is_found(after: Ruined) -> None:
    after.sql("UPDATE task SET state = 'pending', ended = NULL WHERE job = 3")
    assert any("differ" in wrong for wrong in after.verdict().wrong)


def test_a_story_that_was_changed_is_found(after: Ruined) -> None:
    after.sql("UPDATE change SET cause = 'magic' WHERE id = 5")
    assert any("replays differently" in wrong for wrong in after.verdict().wrong)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM audit WHERE kind = 'policy_changed'",
        "INSERT INTO audit SELECT id - 1, time, kind, actor, owner, job, task_index, reservation, "
        "cluster, licence, cause, count, details FROM audit WHERE kind = 'policy_changed'",
    ],
    ids=["missing", "twice"],
)
def test_an_audit_record_that_is_missing_or_stored_twice_is_found(
    after: Ruined, statement: str
) -> None:
    assert after.verdict().well
    after.sql(statement)
    assert any("audit records" in wrong for wrong in after.verdict().wrong)


def test_an_orphan_is_found(after: Ruined) -> None:
    instance = after.instance()
    verdict = after.verdict(f"ms-{instance}-3-1", "ms-somebody-3-1")
    assert [wrong for wrong in verdict.wrong if "manager" in wrong] == [
        f"ms-{instance}-3-1 is in its manager and not live in the database"
    ]


def test_reservations_that_are_lost_and_orphaned_are_found(after: Ruined) -> None:
    instance = after.instance()
    after.stream.promised = {7: False}
    reserved = [f"ms-{instance}-r8", "ms-somebody-r8"]
    assert audit(Sqlite(after.database), after.stream, reserved=reserved).wrong == [
        "reservation 7 was promised and is not stored",
        f"reservation ms-{instance}-r8 is in its manager and over",
    ]


def test_licences_that_two_windows_have_are_found(after: Ruined) -> None:
    for id, start, licences in ((7, 10, '{"ansys": 2}'), (8, 15, '{"ansys": 2, "matlab": 6}')):
        after.sql(
            "INSERT INTO reservation VALUES "
            f"({id}, 'ada', 'left', {start}, {start + 10}, 1, 1, 1, 'bound', 'made', "
            f"'[\"n{id}\"]', '[\"n{id}\"]', true, 0, NULL, '[]', 0, '{licences}', '', NULL, "
            "'[]', '[]', NULL)"
        )
    names = {f"ms-{after.instance()}-r{id}" for id in (7, 8)}
    assert audit(Sqlite(after.database), after.stream, reserved=names).wrong == [
        "4 of licence ansys kept with reservation 8, not 3"
    ]


def test_licences_that_a_payload_did_not_have_are_found(after: Ruined) -> None:
    last = after.last_lease(4)
    after.sql(f"UPDATE lease SET tokens = 1 WHERE job = 4 AND attempt = {last}")
    assert after.verdict().wrong == [
        f"attempt {last} of task 4_0 (completed) had leased {{'matlab': 1}}, "
        "its job wants {'matlab': 3}"
    ]


def test_licences_that_were_not_given_back_are_found(after: Ruined) -> None:
    last = after.last_lease(4)
    after.sql(f"UPDATE lease SET until = NULL, reason = NULL WHERE job = 4 AND attempt = {last}")
    violations = after.verdict().wrong
    assert f"attempt {last} of task 4_0 (completed) has its licences" in violations
    assert "licence matlab counts 0 leased, there are 3" in violations


def test_more_in_use_than_there_are_is_found(after: Ruined) -> None:
    assert len(after.used.read_text().splitlines()) == 8
    with after.used.open("a") as notes:
        notes.write('1.5 1 t1 begin {"matlab": 4}\n1.6 2 t2 begin {"matlab": 3}\n')
    assert not after.verdict().wrong  # the first payload may have ended before the second began
    with after.used.open("a") as notes:
        notes.write('1.6 1 t1 end {"matlab": 4}\n')
    assert not after.verdict().wrong
    with after.used.open("a") as notes:
        notes.write('1.7 1 t1 end {"matlab": 4}\n')
    assert after.verdict().wrong == ["7 of licence matlab in use with t2, there are 6"]


def test_a_step_without_a_point_is_found() -> None:
    needed = steps()
    assert (
        ".CommandExecutor._store ",
        "[DispatchStarted]",
        "before the commit",
    ) in needed
    points = {
        "cluster_connection.ClusterConnection.run > "
        "command_executor.CommandExecutor._store > "
        "service.SchedulerService.apply_events > "
        "ledger.Ledger.add_to_group(DispatchStarted): before the commit"
    }
    remaining = missed(needed, points)
    assert len(needed) - len(remaining) == 2  # the event, and the transaction
    assert ".CommandExecutor._store  [DispatchAccepted] before the commit" in remaining


def test_an_end_that_the_fault_made_is_counted_apart(after: Ruined) -> None:
    after.sql("UPDATE task SET state = 'failed' WHERE job = 3")
    assert any("did not fail" in wrong for wrong in after.verdict().wrong)
    verdict = audit(Sqlite(after.database), after.stream, may_fail=True)
    assert len(verdict.ended) == 1
    assert not any("did not fail" in wrong for wrong in verdict.wrong)


def test_what_a_forgetful_manager_still_lists_is_no_orphan(after: Ruined) -> None:
    instance = after.instance()
    # a job so short that no listing may have shown it running
    after.sql("UPDATE attempt SET started = ended WHERE job = 3 AND started IS NULL")
    tags = [f"ms-{instance}-3-1", f"ms-{instance}-3-9"]  # there was no ninth dispatch
    assert len(after.verdict(*tags).wrong) == 2
    verdict = audit(Sqlite(after.database), after.stream, [lambda: tags], may_fail=True)
    assert [wrong for wrong in verdict.wrong if "manager" in wrong] == [
        f"{tags[1]} is in its manager and not live in the database"
    ]
