"""The accounting file of Grid Engine, followed as it grows."""

from __future__ import annotations

from pathlib import Path

from metasched.adapters.gridengine.accounting import AccountingFile
from tests.unit.gridengine_answers import INSTANCES, TAG, line


def test_the_accounting_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "accounting"
    path.write_text("# Version: 8.1.9\n" + line("0", 1).replace(TAG, "other") + line("0", 0))
    followed = AccountingFile(path, INSTANCES)
    assert [record.exit_status for record in followed.read_new()] == [0]
    assert followed.since == 1795230195.0
    with path.open("a") as file:
        file.write(line("0", 3)[:50])
        file.flush()
        assert followed.read_new() == []
        file.write(line("0", 3)[50:])
    assert [record.exit_status for record in followed.read_new()] == [3]
    path.rename(tmp_path / "accounting.1")
    with (tmp_path / "accounting.1").open("a") as old:
        old.write(line("0", 4))
    path.write_text(line("0", 5))
    assert [record.exit_status for record in followed.read_new()] == [4, 5]
    assert followed.since == 1795230195.0
    followed.close()


def test_a_bad_line_of_the_accounting_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "accounting"
    bad = line("0", 7).replace(":1795230194:", ":yesterday:", 1)
    path.write_text(bad + line("0", 1) + bad[:40] + "\n" + line("0", 2) + "nonsense\n" + bad)
    followed = AccountingFile(path, INSTANCES)
    assert [record.exit_status for record in followed.read_new()] == [1, 2]
    assert {job.name for job in followed.unreadable} == {TAG}
    assert followed.since == 1795230195.0
    with path.open("a") as file:
        file.write(line("0", 3))
    assert [record.exit_status for record in followed.read_new()] == [3]
    assert followed.unreadable == []
    followed.close()


def test_an_accounting_that_is_not_there_yet_is_followed_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "accounting"
    followed = AccountingFile(path, INSTANCES)
    assert followed.read_new() == []
    since = followed.since
    assert since is not None
    path.write_text(line("0", 3, start=int(since) + 100))
    assert [record.exit_status for record in followed.read_new()] == [3]
    assert followed.since == since
    followed.close()


def test_an_accounting_out_of_reach_proves_nothing(tmp_path: Path) -> None:
    followed = AccountingFile(tmp_path / "unmounted" / "accounting", INSTANCES)
    assert followed.read_new() == []
    assert followed.since is None
