"""Use that accounting reports: every processor-second once, and nothing of metasched's own jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from metasched.adapters.gridengine.foreign_use import ForeignUseFile
from metasched.adapters.launcher_client import user_name_of
from metasched.adapters.slurm.foreign_use import (
    Slurmdbd,
    SlurmForeignUse,
    UseRecords,
    parse_slurmdbd,
    parse_use,
    sum_records,
)
from metasched.adapters.slurm.listing import ControllerInfo
from metasched.adapters.slurm.shares import parse_shares
from metasched.model.adapter_errors import Unreachable
from metasched.model.fair_share import MIN_WEIGHT, ForeignUse
from metasched.model.foreign_use import MAX_ROWS, UseAnswer, UseQuery, UseSum

NOW = 1_700_000_000
HOUR = 3600.0


def used(answer: UseAnswer) -> dict[tuple[str, str], float]:
    return {(row.user, row.account): row.processor_seconds for row in answer.rows}


def test_use_is_summed_by_user_and_account() -> None:
    total = UseSum()
    total.add("ada", "phys", 10.0, 5.0)
    total.add("ada", "phys", 2.5, 3.0)
    total.add("ada", "chem", 1.0, 9.0)
    assert total.rows == (
        ForeignUse(user="ada", account="chem", processor_seconds=1.0, ended=9.0),
        ForeignUse(user="ada", account="phys", processor_seconds=12.5, ended=5.0),
    )


@pytest.mark.parametrize("user", ["", "a b", "a\nb", "x" * 65, "a:b", "\x1b[2J"])
def test_a_record_without_a_user_is_set_aside(user: str) -> None:
    total = UseSum()
    total.add(user, "phys", 10.0, 5.0)
    total.add("ada", "phys", 1.0, 5.0)
    assert [row.user for row in total.rows] == ["ada"]
    assert total.set_aside == 1
    assert total.defect


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 1e30])
def test_an_absurd_amount_is_set_aside(seconds: float) -> None:
    total = UseSum()
    total.add("ada", "phys", seconds, 5.0)
    assert total.rows == ()
    assert total.set_aside == 1


def test_an_account_that_is_no_name_counts_for_its_user() -> None:
    total = UseSum()
    total.add("ada", "we\nird", 10.0, 5.0)
    assert total.rows == (ForeignUse(user="ada", account="", processor_seconds=10.0, ended=5.0),)


def test_invented_accounts_do_not_lengthen_an_answer() -> None:
    total = UseSum()
    for number in range(MAX_ROWS + 500):
        total.add("ada", f"a{number}", 1.0, 5.0)
    assert len(total.rows) <= MAX_ROWS + 1
    assert sum(row.processor_seconds for row in total.rows) == MAX_ROWS + 500


@dataclass
class Accounting:
    """A slurmdbd with running and ended jobs, which answers as `sacct --truncate` does."""

    jobs: list[tuple[str, int, int, int]] = field(default_factory=list)  # id, cpus, start, end
    now: float = NOW
    unsent: int = 0
    hides_jobs: bool = False
    boot: float = NOW - HOUR  # of slurmdbd
    level: str = "None"
    down: bool = False
    windows: list[tuple[int, int]] = field(default_factory=list)
    extra: list[list[str]] = field(default_factory=list)

    def controller(self) -> ControllerInfo:
        return ControllerInfo(now=self.now, boot=NOW - HOUR, min_job_age=300.0, slurmdbd=True)

    def unsent_messages(self) -> int:
        return self.unsent

    def use_between(self, begin: int, end: int) -> UseRecords:
        self.windows.append((begin, end))
        if self.down:
            raise Unreachable("sacct: no answer within 15 s")
        records = [
            [id, "0", str(cpus * seconds), str(started), str(min(ended, end)), "root", "phys"]
            for id, cpus, started, ended in self.jobs
            if (seconds := min(ended, end) - max(started, begin)) >= 0
        ]
        return UseRecords([*records, *self.extra], "")

    def slurmdbd(self) -> Slurmdbd:
        return Slurmdbd(self.boot, "slurm", self.hides_jobs)

    def admin_level(self, user: str) -> str:
        return self.level


def ask(reader: SlurmForeignUse, cursor: str = "", span: float = HOUR, **own: float) -> UseAnswer:
    since = time.time() - 10 * HOUR
    return reader.query(UseQuery(cursor=cursor, since=since, max_span=span, own_jobs=own))


def test_windows_add_up_to_the_whole_use() -> None:
    slurmdbd = Accounting(
        [("1", 4, NOW - 30_000, NOW - 20_000), ("2_7", 2, NOW - 9_000, NOW + 9_000)]
    )
    reader, cursor, total, has_more = SlurmForeignUse(slurmdbd, settle=0.0), "", 0.0, True
    while has_more:
        answer = ask(reader, cursor)
        total += sum(used(answer).values())
        cursor, has_more = answer.cursor, answer.more
    assert total == 4 * 10_000 + 2 * (9_000 - 10)
    slurmdbd.now += 100
    answer = ask(reader, cursor)
    assert used(answer) == {("root", "phys"): 200.0}
    assert not answer.more
    assert all(end - begin <= HOUR for begin, end in slurmdbd.windows)


def test_a_window_without_time_is_not_queried() -> None:
    slurmdbd = Accounting()
    answer = ask(SlurmForeignUse(slurmdbd, settle=0.0), cursor=str(NOW - 5))
    assert slurmdbd.windows == []
    assert answer.cursor == str(NOW - 5)


def test_own_jobs_do_not_count_but_others_with_their_ids_do() -> None:
    slurmdbd = Accounting([("1", 1, NOW - 500, NOW - 400), ("2", 1, NOW - 300, NOW - 100)])
    skew = time.time() - NOW
    answer = ask(
        SlurmForeignUse(slurmdbd, 0.0),
        str(NOW - HOUR).split(".")[0],
        **{
            "1": NOW - 500 + skew,
            "2": NOW - 200 + skew,
        },
    )
    assert used(answer) == {("root", "phys"): 200.0}


def test_of_an_own_job_accounting_counts_nothing_whatever_it_says() -> None:
    """The ledger has its start and end: accounting may call it longer, wider or another user's."""
    submitted = NOW - 500
    slurmdbd = Accounting([("7", 1, NOW - 400, NOW - 100)])
    slurmdbd.extra = [
        ["1", "0", "999999", str(submitted), str(NOW), "root", "phys"],
        ["1", "1", "7", str(submitted + 5), str(NOW - 300), "daemon", "chem"],
    ]
    skew = time.time() - NOW
    answer = ask(SlurmForeignUse(slurmdbd, 0.0), str(NOW - 600), **{"1": submitted + skew})
    assert used(answer) == {("root", "phys"): 300.0}


def test_use_waits_for_messages_that_slurmdbd_lacks() -> None:
    slurmdbd = Accounting([("1", 1, NOW - 8_000, NOW)], unsent=1)
    reader = SlurmForeignUse(slurmdbd, settle=0.0)
    answer = ask(reader, cursor=str(NOW - 600))
    assert (answer.rows, answer.cursor, answer.more) == ((), str(NOW - 600), False)
    answer = ask(reader, cursor=str(NOW - 4_000))  # but not for ever
    assert used(answer) == {("root", "phys"): 400.0}


def test_a_controller_whose_clock_was_set_back_is_not_counted_twice() -> None:
    slurmdbd = Accounting([("1", 1, NOW - 8_000, NOW + 8_000)])
    reader = SlurmForeignUse(slurmdbd, settle=0.0)
    cursor = ask(reader, cursor=str(NOW - 600)).cursor
    slurmdbd.now -= 1800
    answer = ask(reader, cursor)
    assert (answer.rows, answer.cursor) == ((), cursor)
    slurmdbd.now -= 30 * 86400  # it had been wrong by far: use counts from now on
    answer = ask(reader, cursor)
    assert (answer.rows, answer.cursor) == ((), str(slurmdbd.now - 10))


@pytest.mark.parametrize("cursor", ["x", "-5", "9" * 30, "1e5", "\u0663"])
def test_a_broken_cursor_begins_anew(cursor: str) -> None:
    slurmdbd = Accounting([("1", 1, NOW - 20_000, NOW)])
    answer = ask(SlurmForeignUse(slurmdbd, settle=0.0), cursor)
    assert int(answer.cursor) < NOW - HOUR
    assert answer.more


def test_windows_become_shorter_while_sacct_does_not_answer() -> None:
    slurmdbd = Accounting([("1", 1, NOW - 20_000, NOW)], down=True)
    reader = SlurmForeignUse(slurmdbd, settle=0.0)
    for _ in range(12):
        with pytest.raises(Unreachable):
            ask(reader)
    lengths = [end - begin for begin, end in slurmdbd.windows]
    assert lengths == sorted(lengths, reverse=True)
    assert (lengths[0], lengths[-1]) == (HOUR, 60)
    slurmdbd.down = False
    while ask(reader, str(slurmdbd.windows[-1][1])).more:
        pass
    assert slurmdbd.windows[-2][1] - slurmdbd.windows[-2][0] > 1000


def test_a_record_that_cannot_be_read_is_set_aside_alone() -> None:
    slurmdbd = Accounting(
        [("1", 1, NOW - 500, NOW - 400)],
        extra=[
            ["2", "x", "1", "1", "1", "", ""],
            ["3", "0", "9" * 40, "1", "1", "", ""],
            ["4", "0", "7", "Unknown", "1", "", ""],
        ],
    )
    answer = ask(SlurmForeignUse(slurmdbd, 0.0), str(NOW - 900))
    assert used(answer) == {("root", "phys"): 100.0}
    assert answer.set_aside == 3
    assert "2" in answer.defect


def test_text_between_records_is_counted_as_set_aside() -> None:
    query = UseQuery(since=0.0, max_span=1.0)
    output = "sacct: error: oops\n5|#|0|#|9|#|10|#|20|#|root|#|a|#|\n"
    total = sum_records(parse_use(output, "|#|"), query, 0.0, user_name_of)
    assert [row.processor_seconds for row in total.rows] == [9.0]
    assert total.set_aside == 1


def test_a_user_without_an_account_here_keeps_the_name_of_slurmdbd() -> None:
    query = UseQuery(since=0.0, max_span=1.0)
    records = UseRecords([["5", "4242424", "9", "10", "20", "guest", "a"]], "")
    total = sum_records(records, query, 0.0, user_name_of)
    assert [row.user for row in total.rows] == ["guest"]


def test_a_slurmdbd_that_hides_jobs_is_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    slurmdbd = Accounting([("1", 1, NOW - 500, NOW - 400)], hides_jobs=True)
    reader = SlurmForeignUse(slurmdbd, 0.0)
    with pytest.raises(Unreachable, match="adminlevel=operator"):
        ask(reader, str(NOW - 900))
    assert slurmdbd.windows == []
    slurmdbd.level = "Operator"
    assert used(ask(reader, str(NOW - 900))) == {("root", "phys"): 100.0}


def test_the_configuration_of_slurmdbd() -> None:
    text = (
        "BOOT_TIME    = 2023-11-14T22:13:20\nPrivateData     = {}\nSlurmUser      = slurm(64030)\n"
    )
    assert parse_slurmdbd(text.format("none")) == Slurmdbd(NOW, "slurm", hides_jobs=False)
    assert parse_slurmdbd(text.format("accounts,jobs")).hides_jobs
    with pytest.raises(ValueError, match="PrivateData"):
        parse_slurmdbd("")


def test_use_waits_for_a_slurmdbd_that_has_just_started() -> None:
    accounting = Accounting([("1", 1, NOW - 500, NOW)], boot=NOW - 30)
    reader = SlurmForeignUse(accounting, settle=20.0)
    assert ask(reader, cursor=str(NOW - 400)).cursor == str(NOW - 400)
    accounting.now += 60
    assert used(ask(reader, cursor=str(NOW - 400))) == {("root", "phys"): 400.0}


# Shares

ROOT_LINES = "root||||1\nroot||root||1\n"


def test_shares_of_accounts_and_users() -> None:
    tree = parse_shares(
        ROOT_LINES + "phys|root|||2\nphys||ada||30\nphys||bob||parent\nchem|root|||1\n"
        "lab|chem|||5\nlab||ada||7\n"
    )
    accounts = {account.name: account for account in tree.accounts}
    assert tree.users == {"root": 1.0}
    assert (accounts["phys"].weight, accounts["phys"].parent) == (2.0, "")
    assert accounts["phys"].users == {"ada": 30.0, "bob": 1.0}
    assert (accounts["lab"].parent, accounts["lab"].weight) == ("chem", 5.0)
    assert accounts["lab"].users == {"ada": 7.0}


def test_an_account_with_the_share_of_its_parent_passes_its_children_on() -> None:
    tree = parse_shares(ROOT_LINES + "phys|root|||2\nmid|phys|||parent\nmid||ada||4\nlow|mid|||9\n")
    accounts = {account.name: account for account in tree.accounts}
    assert accounts.keys() == {"phys", "low"}
    assert accounts["phys"].users == {"ada": 4.0}
    assert accounts["low"].parent == "phys"


def test_a_share_of_all_partitions_is_preferred_to_one_of_a_partition() -> None:
    for lines in ("a||ada|gpu|9\na||ada||2\n", "a||ada||2\na||ada|gpu|9\n"):
        [account] = parse_shares(f"{ROOT_LINES}a|root|||1\n{lines}").accounts
        assert account.users == {"ada": 2.0}


def test_the_share_zero_is_the_least_weight() -> None:
    [account] = parse_shares(ROOT_LINES + "a|root|||0\n").accounts
    assert account.weight == MIN_WEIGHT


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "sacctmgr: error: no\n",
        "a|root|||1\n",  # others are hidden
        f"{ROOT_LINES}a|b|||1\nb|a|||1\n",
        f"{ROOT_LINES}a|b|||parent\nb|a|||parent\n",
        f"{ROOT_LINES}a|nowhere|||1\n",
        f"{ROOT_LINES}a|nowhere|||parent\n",
        f"{ROOT_LINES}a|root|||1\na|root|||2\n",
        f"{ROOT_LINES}a|root|||-1x\n",
        f"{ROOT_LINES}a|root|||{'9' * 30}\n",
        f"{ROOT_LINES}a|root|||999999999999\n",
        f"{ROOT_LINES}x\x07y|root|||1\n",
        f"{ROOT_LINES}a|root|||1\na||{'u' * 70}||1\n",
        ROOT_LINES + "".join(f"a{i}|root|||1\n" for i in range(20_001)),
    ],
    ids=range(14),
)
def test_an_absurd_tree_is_refused(lines: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each names its own defect
        parse_shares(lines)


# Grid Engine

FIELDS = 45


def line(
    number: int,
    started: int,
    ended: int,
    slots: int = 1,
    project: str = "NONE",
    task_of_job: str = "NONE",
    submitted: int | None = None,
) -> str:
    values = ["0"] * FIELDS
    values[1], values[3], values[4], values[5] = "host", "ada", "job", str(number)
    values[8] = str(started - 5 if submitted is None else submitted)
    values[9], values[10], values[11], values[12] = str(started), str(ended), "0", "0"
    values[31], values[34], values[41] = project, str(slots), task_of_job
    return ":".join(values) + "\n"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[Path, ForeignUseFile]]:
    reader = ForeignUseFile(tmp_path / "accounting", settle=2.0)
    yield tmp_path / "accounting", reader
    reader.close()


def ask_file(
    reader: ForeignUseFile,
    cursor: str = "",
    since: float = 0.0,
    own: Mapping[str, float] | None = None,
) -> UseAnswer:
    return reader.query(UseQuery(cursor=cursor, since=since, max_span=HOUR, own_jobs=own or {}))


def test_each_line_of_the_file_counts_once(file: tuple[Path, ForeignUseFile]) -> None:
    path, reader = file
    assert ask_file(reader).rows == ()  # no job has ended yet
    path.write_text("# a comment\n" + line(1, NOW, NOW + 10, 4) + line(2, NOW, NOW + 5, 1, "phys"))
    answer = ask_file(reader)
    assert used(answer) == {("ada", ""): 40.0, ("ada", "phys"): 5.0}
    assert ask_file(reader, answer.cursor).rows == ()
    with path.open("a") as appended:
        appended.write(line(3, NOW, NOW + 7) + line(4, NOW, NOW + 9)[:20])
    again = ask_file(reader, answer.cursor)
    assert used(again) == {("ada", ""): 7.0}  # the incomplete line follows later
    other = ForeignUseFile(path, settle=2.0)  # after a restart
    assert used(ask_file(other, answer.cursor)) == used(again)
    other.close()


def test_own_jobs_and_tasks_of_parallel_jobs_do_not_count(
    file: tuple[Path, ForeignUseFile],
) -> None:
    path, reader = file
    path.write_text(
        line(1, NOW, NOW + 10)
        + line(2, NOW, NOW + 20)
        + line(3, NOW, NOW + 40, task_of_job="1.host")
    )
    answer = ask_file(reader, own={"1": NOW - 5.0, "2": NOW + 500.0})  # 2: an id that came again
    assert used(answer) == {("ada", ""): 20.0}


def test_a_rotated_file_is_read_to_its_end(file: tuple[Path, ForeignUseFile]) -> None:
    path, reader = file
    path.write_text(line(1, NOW, NOW + 10))
    cursor = ask_file(reader).cursor
    with path.open("a") as appended:
        appended.write(line(2, NOW, NOW + 20))
    path.rename(path.with_name("accounting.0"))
    path.write_text(line(3, NOW, NOW + 40))
    answer = ask_file(reader, cursor)
    assert used(answer) == {("ada", ""): 20.0}
    assert answer.more
    assert used(ask_file(reader, answer.cursor)) == {("ada", ""): 40.0}


def test_an_answer_sums_up_a_bounded_time_only(file: tuple[Path, ForeignUseFile]) -> None:
    path, reader = file
    path.write_text(line(1, NOW, NOW + 10) + line(2, NOW, NOW + 3000) + line(3, NOW, NOW + 9000))
    answer = ask_file(reader)
    assert used(answer) == {("ada", ""): 3010.0}
    assert answer.more
    last = ask_file(reader, answer.cursor)
    assert (used(last), last.more) == ({("ada", ""): 9000.0}, False)


def test_old_and_broken_lines_do_not_stop_the_file(file: tuple[Path, ForeignUseFile]) -> None:
    path, reader = file
    path.write_bytes(
        line(1, NOW - 9000, NOW - 8000).encode()
        + b"garbage\n\xff\xfe:::\n"
        + line(2, NOW, NOW + 1).replace(":ada:", ":a b:").encode()
        + line(3, NOW, NOW + 5).encode()
        + line(4, NOW + 50, NOW).encode()
    )
    answer = ask_file(reader, since=NOW - 100)
    assert used(answer) == {("ada", ""): 5.0}
    assert answer.set_aside == 4
    assert not answer.more


def test_a_job_that_was_submitted_just_now_counts_later(
    file: tuple[Path, ForeignUseFile],
) -> None:
    path, reader = file
    now = int(time.time())
    path.write_text(
        line(1, NOW, NOW + 10) + line(2, now, now + 1, submitted=now) + line(3, NOW, NOW + 10)
    )
    answer = ask_file(reader)
    assert (used(answer), answer.more) == ({("ada", ""): 10.0}, False)
    assert used(ask_file(ForeignUseFile(path, settle=-60.0), answer.cursor)) == {("ada", ""): 11.0}


@pytest.mark.parametrize("cursor", ["x", "1:", ":5", "1:-5", "1:999999999"])
def test_a_broken_cursor_reads_the_file_from_its_start(
    file: tuple[Path, ForeignUseFile], cursor: str
) -> None:
    path, reader = file
    path.write_text(line(1, NOW, NOW + 10))
    assert used(ask_file(reader, cursor)) == {("ada", ""): 10.0}


def test_a_file_that_cannot_be_read_is_unreachable(tmp_path: Path) -> None:
    (tmp_path / "accounting").mkdir()
    with pytest.raises(Unreachable, match="directory"):
        ask_file(ForeignUseFile(tmp_path / "accounting", settle=2.0))
