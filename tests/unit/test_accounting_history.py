"""Accounting of Slurm and Grid Engine as a workload: their texts, and lines that are wrong."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from metasched.errors import UserError
from metasched.laboratory.simulate.accounting_history import (
    MAX_LINE,
    UNREADABLE,
    AccountingError,
    parse_cpus,
    read_accounting,
)
from metasched.laboratory.simulate.recorded_workload import NOT_ENDED, NOT_STARTED, RecordedPeriod
from metasched.laboratory.simulate.submissions import array_arrivals

HEADER = "JobID|User|Group|Cluster|Submit|Eligible|Start|End|AllocCPUS|TimelimitRaw|State\n"
GOOD = "7|ada|lab|alpha|2026-03-01T10:00:00|2026-03-01T10:05:00|2026-03-01T11:00:00|"
GOOD += "2026-03-01T11:30:00|16|60|COMPLETED\n"
BLOCK = """\
==============================================================
qname        all.q
hostname     node1
group        lab
owner        bob
jobname      x
jobnumber    12
taskid       3
pe_taskid    NONE
qsub_time    Sun Mar  1 10:00:00 2026
start_time   Sun Mar  1 10:10:00 2026
end_time     Sun Mar  1 10:40:00 2026
slots        4
category     -l h_rt=3600,h_vmem=1G -pe smp 4
"""


def at(hour: int, minute: int = 0) -> float:
    return datetime(2026, 3, 1, hour, minute).timestamp()


def sacct(tmp_path: Path, *lines: str, **period: float) -> RecordedPeriod:
    path = tmp_path / "slurm.txt"
    path.write_text(HEADER + "".join(lines))
    return read_accounting([path], [], {}, **period)


def test_a_job_of_slurm(tmp_path: Path) -> None:
    period = sacct(tmp_path, GOOD)
    [entry], [task] = period.workload.entries, period.tasks
    job = entry.job
    assert (job.user, job.group, job.cpus, job.estimated) == ("ada", "lab", 16, 3600.0)
    assert (job.time_limit, job.array) == (3600.0, None)
    assert (job.submitted, entry.run_time, entry.home) == (at(10, 5), 1800.0, "alpha")
    assert task == (7, 0, "alpha", at(10), at(11), at(11, 30))
    [cluster] = period.clusters
    assert (cluster.name, cluster.cpus) == ("alpha", 16)
    assert period.local_policies == {"alpha": "easy"}
    assert "(alpha 16)" in period.notes[0]


def test_a_job_of_grid_engine(tmp_path: Path) -> None:
    path = tmp_path / "cell.txt"
    slave = BLOCK.replace("NONE", "1.node2")
    path.write_text(BLOCK + slave)
    period = read_accounting([], [path], {"cell": 8})
    [entry], [task] = period.workload.entries, period.tasks
    job = entry.job
    assert (job.user, job.group, job.cpus, job.estimated) == ("bob", "lab", 4, 3600.0)
    assert (job.submitted, entry.run_time) == (at(10), 1800.0)
    assert task[:3] == (12, 3, "cell")  # the only task of its array is simulated as a job
    assert (period.clusters[0].cpus, period.notes) == (8, ())
    assert period.local_policies == {"cell": "first-fit"}


def arrays(period: RecordedPeriod) -> list[tuple[int, str | None]]:
    """Return the id and the indices of each array that a simulation submits."""
    arrivals = array_arrivals(period.workload.entries).values()
    return [(arrival.job.id, arrival.job.array) for arrival in arrivals if arrival.submits]


def test_tasks_of_an_array_are_submitted_as_one_job(tmp_path: Path) -> None:
    """Each is accounted by itself; a step and the tasks that never started are left out."""
    first = GOOD.replace("7|", "9_4|", 1)
    lines = (
        GOOD,
        first,
        first.replace("_4", "_4.batch"),
        first.replace("_4", "_5").replace("T11:00", "T11:20"),
        first.replace("_4", "_6"),
        first.replace("_4", "_[7-8%2]").replace("2026-03-01T11:00:00", "Unknown"),
        first.replace("9_", "10_"),
    )
    period = sacct(tmp_path, *lines)
    assert [(task.job, task.task) for task in period.tasks] == [
        *((7, 0), (9, 4), (9, 5), (9, 6), (10, 4))
    ]
    assert arrays(period) == [(2, "4-6")]
    assert period.workload.dropped == {NOT_STARTED: 1}
    run = period.run(period.policy)
    assert [each.entry.job.id for each in run.jobs] == [1, 2, 3, 4, 5]


def test_an_array_of_grid_engine(tmp_path: Path) -> None:
    path = tmp_path / "cell.txt"
    single = BLOCK.replace("jobnumber    12", "jobnumber    13").replace(
        "taskid       3", "taskid       undefined"
    )
    path.write_text(BLOCK + BLOCK.replace("taskid       3", "taskid       5") + single)
    period = read_accounting([], [path], {})
    assert [(task.job, task.task) for task in period.tasks] == [(12, 3), (12, 5), (13, 0)]
    assert arrays(period) == [(1, "3,5")]


def test_what_is_no_task_of_an_array_is_a_job_of_its_own(tmp_path: Path) -> None:
    """A second run of a task, another submission, owner, limit or cluster, a wild index."""
    first = GOOD.replace("7|", "9_4|", 1)
    others = (
        first,
        first.replace("_4", "_5").replace("|2026-03-01T10:00", "|2026-03-01T10:02"),
        first.replace("_4", "_6").replace("ada", "bob"),
        first.replace("_4", "_7").replace("|60|", "|90|"),
        first.replace("_4", "_8").replace("alpha", "beta"),
        first.replace("_4", "_99999999999"),
        first.replace("_4", "_3000000000"),
        first.replace("_4", "_٤"),
        first.replace("9_", "1" * 30 + "_"),
    )
    period = sacct(tmp_path, first, *others)
    assert (len(period.tasks), arrays(period)) == (10, [])
    assert len(period.run(period.policy).jobs) == 10
    again = sacct(tmp_path, first, first, first.replace("_4", "_5"))
    assert arrays(again) == [(1, "4-5")]
    assert len(again.run(again.policy).jobs) == 3


def test_the_most_processors_in_use_at_a_time(tmp_path: Path) -> None:
    """Two jobs at a time, and a third when the first has ended."""
    second = GOOD.replace("7|", "8|", 1).replace("|16|", "|4|")
    third = second.replace("T11:00", "T11:30").replace("T11:30:00|4", "T12:00:00|4")
    period = sacct(tmp_path, GOOD, second, third)
    assert period.clusters[0].cpus == 20


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (GOOD.replace("2026-03-01T11:00:00", "Unknown"), NOT_STARTED),
        (GOOD.replace("2026-03-01T11:30:00", "Unknown"), NOT_ENDED),
        (GOOD.replace("|16|", "|0|"), NOT_STARTED),
        (GOOD.replace("|16|", "|x|"), UNREADABLE),
        (GOOD.replace("|16|", "|99999999999|"), UNREADABLE),
        (GOOD.replace("2026-03-01T10:00:00", "soon"), UNREADABLE),
        (GOOD.replace("T11:30", "T10:30"), UNREADABLE),  # it ends before it starts
        (GOOD.replace("ada", "a|b"), UNREADABLE),
        (GOOD.replace("2026-03-01T11:30:00", "999999999999"), UNREADABLE),  # no date: year 33658
        (GOOD.replace("2026-03-01T10:00:00", "0001-01-02T10:00:00"), UNREADABLE),
        ("x" * (MAX_LINE + 9) + "\n", UNREADABLE),
        ("\n", UNREADABLE),
    ],
)
def test_a_line_that_cannot_be_used_is_counted(tmp_path: Path, line: str, cause: str) -> None:
    period = sacct(tmp_path, line, GOOD)
    assert len(period.tasks) == 1
    assert cause in period.workload.dropped


def test_steps_do_not_count_and_limits_may_be_missing(tmp_path: Path) -> None:
    step, endless = GOOD.replace("7|", "7.batch|", 1), GOOD.replace("|60|", "|UNLIMITED|")
    period = sacct(tmp_path, step, endless)
    [entry] = period.workload.entries
    assert entry.job.estimated == period.policy.default_time
    assert entry.job.time_limit is None
    assert period.workload.dropped == {}


def test_only_the_period(tmp_path: Path) -> None:
    later = GOOD.replace("7|", "8|", 1).replace("2026-03-01T10:00", "2026-03-01T10:30")
    assert [t.job for t in sacct(tmp_path, GOOD, later, since=at(10, 20)).tasks] == [8]
    assert [t.job for t in sacct(tmp_path, GOOD, later, until=at(10, 20)).tasks] == [7]
    with pytest.raises(AccountingError, match="no job of the period has run and ended"):
        sacct(tmp_path, GOOD, since=at(12))


def test_other_files_and_sizes(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("")
    with pytest.raises(AccountingError, match=r"no column jobid, .*x.txt; write it by: sacct -aPX"):
        read_accounting([path], [], {})
    with pytest.raises(AccountingError, match=r"no job, .*x.txt; write it by: qacct -j"):
        read_accounting([], [path], {})
    path.write_text(HEADER + GOOD)
    with pytest.raises(AccountingError, match='no job ran on "beta", --cpus; there are alpha'):
        read_accounting([path], [], {"beta": 4})
    with pytest.raises(AccountingError, match="alpha had 16 processors in use at a time"):
        read_accounting([path], [], {"alpha": 4})
    assert parse_cpus(["alpha=4", "b=c=7"]) == {"alpha": 4, "b=c": 7}
    for text in ("alpha", "=4", "alpha=", "alpha=-1", "alpha=0", "alpha=" + "9" * 5000, "a=٤"):
        with pytest.raises(UserError, match="--cpus; write"):
            parse_cpus([text])
