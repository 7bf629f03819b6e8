"""Parsing and options of Slurm: answers recorded from 22.05.8, forms of later releases by hand."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from metasched.adapters.base import Submission
from metasched.adapters.slurm import batch_script, cluster_info, error_texts, statuses
from metasched.adapters.slurm import listing as text
from metasched.adapters.slurm import submission as batch
from metasched.adapters.slurm.adapter import SlurmOptions
from metasched.adapters.slurm.listing_horizon import ListingHorizon
from metasched.model.adapter_errors import Refused, Unreachable
from metasched.model.cluster import ClusterInfo, ManagerLicences, NodeCapacity
from metasched.model.job import Job, Payload, State
from metasched.model.listing import JobStatus, ListedQueue, PendingJob, StartedJob
from metasched.processes.commands import CommandResult

TAKEN = 1795228098.0
OURS = "abcd1234"

# squeue of a cluster of 4 x 16 processors, node a3 drained; `~` ends each field
QUEUE = """\
79~0~CANCELLED~main~1~10:00~1795228095~N/A~1795228095~1795228095~0~0~0~~JobHeldUser~ms-abcd1234-3-1~
77~0~FAILED~main~1~10:00~1795228095~1795228095~1795228096~1795228096~0~2304~4294901708~a4~NonZeroExitCode~ms-abcd1234-1-1~
78~0~FAILED~main~1~10:00~1795228095~1795228095~1795228096~1795228096~0~9~4294901707~a4~JobLaunchFailure~ms-abcd1234-2-1/3~
82~0~FAILED~main~1~10:00~1795228095~1795228095~1795228096~1795228096~0~4021~4294901704~a4~JobLaunchFailure~ms-abcd1234-5-1~
84_[3,5,7,9%3]~0~PENDING~main~16~20:00~1795228095~1795228096~1795229880~1795231080~0~0~4294901702~~Resources~(null)~
85~0~PENDING~main~64~30:00~1795228095~1795228095~N/A~N/A~0~0~4294901701~~Priority~ms-abcd1234-6-1~
87~0~PENDING~main~65~10:00~1795228095~1795228095~N/A~N/A~0~0~4294901700~~PartitionConfig~(null)~
89~0~PENDING~main~1~10:00~1795228095~1795231695~1795231695~1795232295~0~0~4294901698~~BeginTime~(null)~
90~0~PENDING~main~1~UNLIMITED~1795228095~1795228095~N/A~N/A~0~0~4294901697~~PartitionTimeLimit~unl~
86~0~PENDING~main~1~10:00~1795228095~N/A~N/A~N/A~0~0~0~~JobHeldUser~(null)~
80~0~RUNNING~main~2~10:00~1795228095~1795228095~1795228096~1795228696~0~0~4294901706~a4~None~ms-abcd1234-4-1~
81~0~RUNNING~main~1~10:00~1795228095~1795228095~1795228096~1795228696~0~0~4294901705~a4~None~(null)~
83~0~RUNNING~main~16~10:00~1795228095~1795228095~1795228096~1795228696~0~0~4294901703~a1~None~a|b
ms-abcd1234-9-1|~
84_1~0~RUNNING~main~16~20:00~1795228095~1795228096~1795228096~1795229296~0~0~4294901702~a2~None~(null)~
88~0~PENDING~short~4~UNLIMITED~1795228095~1795228095~N/A~N/A~0~0~4294901699~~PartitionTimeLimit~(null)~
"""
NODES = """\
a1~allocated~main*~16/0/0/16~65536~1600~(null)~gpu:0~any~up~1-00:00:00~10:00~1-infinite~1~
a1~allocated~short~16/0/0/16~65536~1600~(null)~gpu:0~any~up~30:00~n/a~1-2~1~
a2~allocated~main*~16/0/0/16~65536~1600~(null)~gpu:0~any~up~1-00:00:00~10:00~1-infinite~1~
a2~allocated~short~16/0/0/16~65536~1600~(null)~gpu:0~any~up~30:00~n/a~1-2~1~
a3~idle+drain~main*~0/0/16/16~65536~0~(null)~gpu:0~any~up~1-00:00:00~10:00~1-infinite~1~
a3~idle+drain~short~0/0/16/16~65536~0~(null)~gpu:0~any~up~30:00~n/a~1-2~1~
a4~mixed~main*~3/13/0/16~65536~300~gpu:2~gpu:1~any~up~1-00:00:00~10:00~1-infinite~1~
a4~mixed~short~3/13/0/16~65536~300~gpu:2~gpu:1~any~up~30:00~n/a~1-2~1~
"""
CONFIG = """\
Configuration data as of 1795228098
AccountingStorageBackupHost = (null)
BatchStartTimeout       = 10 sec
BOOT_TIME               = 1795226007
MinJobAge               = 300 sec
"""


def line(**changed: str) -> text.QueueLine:
    """Build the line of a completed job of metasched; `changed` overrides its fields."""
    usual = text.QueueLine(
        id="7",
        user="1000",
        state="COMPLETED",
        partition="main",
        cpus="2",
        limit="10:00",
        submitted="100",
        eligible="100",
        start="110",
        end="120",
        restarts="0",
        status="0",
        priority="99",
        nodes="a1",
        reason="None",
        tag="ms-abcd1234-1-1",
    )
    return usual._replace(**changed)


def row(**changed: str) -> JobStatus:
    (parsed,) = rows_of([line(**changed)])
    return parsed


def rows_of(lines: list[text.QueueLine]) -> list[JobStatus]:
    rows, _, set_aside = statuses.job_statuses(text.QueueListing(lines), frozenset({OURS}), 1000)
    assert set_aside == []
    return rows


def facts(*jobs: text.QueueLine) -> ClusterInfo:
    return cluster_info.build_cluster_info(jobs, text.parse_nodes(NODES, "~"), TAKEN, set())


# Recorded listings.


def test_recorded_rows_of_own_jobs() -> None:
    rows, _, set_aside = statuses.job_statuses(text.parse_queue(QUEUE, "~"), frozenset({OURS}), 0)
    assert set_aside == []
    recorded = [(r.tag, r.task, r.native_id, r.state, r.started, r.ended) for r in rows]
    at = 1795228096.0
    assert recorded == [
        ("ms-abcd1234-3-1", 0, "79", State.CANCELLED, None, at - 1),
        ("ms-abcd1234-1-1", 0, "77", State.FAILED, at, at),
        ("ms-abcd1234-2-1", 3, "78", State.FAILED, at, at),
        ("ms-abcd1234-5-1", 0, "82", State.FAILED, at, at),
        ("ms-abcd1234-6-1", 0, "85", State.PENDING, None, None),
        ("ms-abcd1234-4-1", 0, "80", State.RUNNING, at, None),
    ]
    assert [(r.exit_code, r.signal, r.manager_reason) for r in rows] == [
        (None, None, "JobHeldUser"),
        (9, None, "NonZeroExitCode"),
        (None, 9, "JobLaunchFailure"),
        (None, None, "JobLaunchFailure"),
        (None, None, "Priority"),
        (None, None, ""),
    ]
    assert [r.node for r in rows] == ["", "a4", "a4", "a4", "", "a4"]


def test_recorded_facts() -> None:
    lines = text.parse_queue(QUEUE, "~").lines
    info = cluster_info.build_cluster_info(lines, text.parse_nodes(NODES, "~"), TAKEN, {"85"})
    assert (info.cpus, info.used_cpus) == (48, 35)
    assert info.running_jobs == (
        (1795228696.0, 1),
        (1795228696.0, 2),
        (1795228696.0, 16),
        (1795229296.0, 16),
    )
    assert info.pending_jobs == 4 + 1
    assert info.owed_by_others == 4 * 16 * 1200
    assert info.queue_head == (16, 1200.0)


def test_recorded_partitions() -> None:
    main, short = cluster_info.build_cluster_info(
        [], text.parse_nodes(NODES, "~"), TAKEN, set()
    ).partitions
    usual: dict[str, Any] = {"cpus": 16, "memory": 65536, "features": ("any",)}
    assert main.nodes == (
        NodeCapacity(count=2, free_cpus=0, free_memory=63936, **usual),
        NodeCapacity(count=1, free_cpus=0, free_memory=0, up=False, **usual),
        NodeCapacity(
            count=1, free_cpus=13, free_memory=65236, gres={"gpu": 2}, free_gres={"gpu": 1}, **usual
        ),
    )
    assert short.nodes == main.nodes
    assert (main.name, main.default, main.up) == ("main", True, True)
    assert (main.max_time, main.default_time, main.max_nodes) == (86400.0, 600.0, None)
    assert (short.name, short.default, short.up) == ("short", False, True)
    assert (short.max_time, short.default_time, short.max_nodes) == (1800.0, None, 2)


def test_partitions_have_one_order_whatever_the_states_of_their_nodes() -> None:
    nodes = text.parse_nodes(NODES, "~")
    for lines in (nodes, nodes[::-1]):
        info = cluster_info.build_cluster_info([], lines, TAKEN, set())
        assert [partition.name for partition in info.partitions] == ["main", "short"]


def test_recorded_configuration() -> None:
    assert text.parse_controller(CONFIG) == text.ControllerInfo(1795228098.0, 1795226007.0, 300.0)
    assert text.parse_controller(CONFIG.replace("300 sec", "0 sec")).min_job_age is None
    for scheduler, in_order in (("builtin", True), ("backfill", False)):
        config = f"{CONFIG}SchedulerType           = sched/{scheduler}\n"
        assert text.parse_controller(config).in_order is in_order


@pytest.mark.parametrize(
    ("enforced", "required"),
    [("associations,limits", True), ("limits,associations", True), ("none", False), ("qos", False)],
)
def test_whether_jobs_need_an_association(enforced: str, required: bool) -> None:
    settings = f"AccountingStorageEnforce = {enforced}\nClusterName             = alpha\n"
    controller = text.parse_controller(CONFIG + settings)
    assert (controller.cluster, controller.requires_associations) == ("alpha", required)


@pytest.mark.parametrize(
    ("allowed", "seconds"), [("0 min", 62.0), ("5 min", 362.0), ("UNLIMITED", text.NO_LIMIT)]
)
def test_how_long_a_job_may_hold_its_nodes_after_its_limit(allowed: str, seconds: float) -> None:
    """The overrun is OverTimeLimit + KillWait + the interval of Slurm's limit checks."""
    configuration = (
        f"{CONFIG}\nKillWait                = 32 sec\nOverTimeLimit           = {allowed}\n"
    )
    assert text.parse_controller(configuration).overrun == seconds


@pytest.mark.parametrize(
    ("boot", "age", "since", "up"),
    [(900, 300, -48.5, -48.5), (100, 300, -249.6, -848.5), (100, None, -848.5, -848.5)],
)
def test_a_listing_reaches_no_further_back_than_boot_and_min_job_age(
    boot: float, age: float | None, since: float, up: float
) -> None:
    controller = text.ControllerInfo(now=1000.0, boot=boot, min_job_age=age)
    assert ListingHorizon().update(controller, listed_at=50.4, queried_at=50.5) == pytest.approx(
        (since, up)
    )


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_controller_whose_clock_is_set_has_not_been_up_longer_or_shorter(step: float) -> None:
    reach = ListingHorizon()
    reach.update(text.ControllerInfo(1000.0, 900.0, None), 50.4, 50.5)
    since, up = reach.update(text.ControllerInfo(1010.0 + step, 900.0, None), 60.4, 60.5)
    assert up == pytest.approx(-48.5)
    # after a step forward, Slurm has purged the jobs that ended before
    assert since == pytest.approx(50.4 if step > 0 else -48.5)


def test_a_controller_that_was_started_anew_was_not_up_before_it_was_last_seen() -> None:
    reach = ListingHorizon()
    reach.update(text.ControllerInfo(1000.0, 900.0, None), 50.4, 50.5)
    controller = text.ControllerInfo(4610.0, 1005.0, None)  # it restarted, then its clock was set
    assert reach.update(controller, 60.4, 60.5) == pytest.approx((50.4, 50.4))


# Invalid listings.


def test_an_empty_queue_is_no_jobs() -> None:
    assert text.parse_queue("", "~") == ([], "")
    assert text.parse_queue("\n", "~") == ([], "")


@pytest.mark.parametrize(
    "answer",
    [
        QUEUE[:-1],  # cut off
        QUEUE[:-5],
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
        QUEUE + "80~0~CANCELLED~main~1~10:00~1~1~1~1~0~0~0~~None~the first line\n",
    ],
)
def test_half_a_listing_is_none(answer: str) -> None:
    with pytest.raises(ValueError, match=r"read as lines|truncated"):
        text.parse_queue(answer, "~")


@pytest.mark.parametrize(
    ("answer", "lost"),
    [
        (QUEUE + "more\n", set()),
        ("squeue: warning\n" + QUEUE, set()),
        (QUEUE.replace("\n85~", "\nwarning: a\nwarning: b\n85~"), set()),
        (QUEUE.replace("~Resources~", "~", 1), {"84_[3,5,7,9%3]"}),
        (QUEUE.replace("~Resources~", "~Resources~more~", 1), {"84_[3,5,7,9%3]"}),
        (QUEUE.replace("~\n85~", "~85~"), {"84_[3,5,7,9%3]", "85"}),
    ],
)
def test_a_line_that_is_no_record_costs_no_other(answer: str, lost: set[str]) -> None:
    whole, (lines, unreadable) = text.parse_queue(QUEUE, "~"), text.parse_queue(answer, "~")
    assert unreadable
    assert lines == [line for line in whole.lines if line.id not in lost]
    _, _, set_aside = statuses.job_statuses(
        text.QueueListing(lines, unreadable), frozenset({OURS}), 0
    )
    assert [(row.tag, row.task) for row in set_aside] == [("", -1)]


@pytest.mark.parametrize(
    ("changed", "tag"),
    [
        ({"restarts": "many"}, "ms-abcd1234-1-1"),
        ({"start": "soon"}, "ms-abcd1234-1-1"),
        ({"end": "9" * 400}, "ms-abcd1234-1-1"),
        ({"status": ":"}, "ms-abcd1234-1-1"),
        ({"user": "nobody"}, "ms-abcd1234-1-1"),
        ({"tag": "ms-abcd1234-1-1/a", "id": "7_[1-9:0]"}, "ms-abcd1234-1-1"),
        ({"tag": "ms-abcd1234-1-1/a", "id": "7_[0-1000000]"}, "ms-abcd1234-1-1"),
        ({"user": "?", "tag": "a comment"}, ""),
        ({"user": "1001", "restarts": "many"}, None),  # another user's job
        ({"tag": "a comment", "restarts": "many"}, None),
    ],
)
def test_a_line_that_cannot_be_used_is_set_aside_alone(
    changed: dict[str, str], tag: str | None
) -> None:
    lines = [line(**changed), line(id="8", tag="ms-abcd1234-2-1")]
    rows, _, set_aside = statuses.job_statuses(text.QueueListing(lines), frozenset({OURS}), 1000)
    assert [row.tag for row in rows] == ["ms-abcd1234-2-1"]
    expected = [] if tag is None else [(tag, -1, "")]
    assert [(row.tag, row.task, row.owner) for row in set_aside] == expected


def test_one_tag_stands_for_no_more_tasks_than_a_dispatch_has() -> None:
    """Any user can copy metasched's marks to his arrays, and Slurm may list each task on a line."""
    lines = [line(id=f"7_{i}", user="1001", tag="ms-abcd1234-1-1/a") for i in range(5000)]
    rows, _, set_aside = statuses.job_statuses(text.QueueListing(lines), frozenset({OURS}), None)
    assert len(rows) == text.MAX_DISPATCHED_TASKS
    assert [(row.tag, row.task, row.owner) for row in set_aside] == [
        ("ms-abcd1234-1-1", -1, "1001")
    ]


def test_a_line_with_unusable_amounts_does_not_count_in_the_load() -> None:
    lines = [line(state="RUNNING", cpus="many"), line(state="RUNNING", nodes="a[1-9999999999]")]
    assert not any(map(statuses.is_readable, lines))
    assert statuses.is_readable(line())


def test_free_text_forges_no_record() -> None:
    forged = "x\n7|0|COMPLETED|ms-abcd1234-6-1|\n"
    lines, _ = text.parse_queue("".join(f"{field}<k>" for field in line(tag=forged)) + "\n", "<k>")
    assert [result.tag for result in lines] == [forged]
    assert rows_of(lines) == []


@pytest.mark.parametrize("config", ["", CONFIG.replace("BOOT", "boat"), "BOOT_TIME = 2024-01-01"])
def test_a_configuration_without_times_is_none(config: str) -> None:
    with pytest.raises(ValueError, match="scontrol show config"):
        text.parse_controller(config)


@pytest.mark.parametrize(
    "changed",
    [
        {"user": "1001"},  # other users may write the tag into their comments
        {"tag": "ms-other123-1-1"},
        {"tag": "(null)"},
        {"tag": "ms-abcd1234-1-1/x"},
        {"tag": "ms-abcd1234-1-1 "},
        {"tag": "ms-abcd1234-1"},
    ],
)
def test_rows_of_other_users_are_foreign(changed: dict[str, str]) -> None:
    assert rows_of([line(**changed)]) == []


def test_marks_are_read_back() -> None:
    for index in (0, 1, 10000):
        assert text.parse_mark(text.format_mark("ms-a-1-2", index), "7") == {
            ("ms-a-1-2", index): "7"
        }


@pytest.mark.parametrize(
    ("id", "tasks"),
    [
        ("7_3", [3]),
        ("7_[0]", [0]),
        ("7_[1-3,9-13:2%4]", [1, 2, 3, 9, 11, 13]),
        ("7", []),  # all pending tasks were cancelled at once: the id does not name them
    ],
)
def test_the_tasks_of_an_array_are_selected_by_their_ids(id: str, tasks: list[int]) -> None:
    expected = {("ms-a-1-2", task): f"7_{task}" for task in tasks}
    assert text.parse_mark(text.format_mark("ms-a-1-2", None), id) == expected


def test_ids_of_tasks_are_folded_for_commands() -> None:
    assert list(text.job_arguments(["9", "7_1", "7_2", "7_3", "7_9", "8_4"])) == [
        ["9", "7_[1-3,9]", "8_[4]"]
    ]
    assert list(text.job_arguments(["7_5", "7_1", "7_3"])) == [["7_[1,3,5]"]]  # not 7_[1-5:2]
    for scattered in ([str(i) for i in range(1200)], [f"7_{i}" for i in range(0, 2400, 2)]):
        calls = list(text.job_arguments(scattered))
        assert [" ".join(ids).count(",") + len(ids) for ids in calls] == [500, 500, 200]


def test_no_array_is_held_as_a_whole() -> None:
    first, last = text.separate_arrays(["9", "7_1", "7_2", "8_4"])
    assert (first, last) == (["9", "7_2"], ["7_1", "8_4"])


# States, starts and ends.


@pytest.mark.parametrize(
    ("slurm_state", "state"),
    [
        *((w, State.PENDING) for w in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED")),
        *((w, State.PENDING) for w in ("REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")),
        *((w, State.RUNNING) for w in ("RUNNING", "COMPLETING", "RESIZING", "SIGNALING")),
        ("STAGE_OUT", State.RUNNING),
        *((w, State.SUSPENDED) for w in ("SUSPENDED", "STOPPED")),
        ("COMPLETED", State.COMPLETED),
        *((w, State.FAILED) for w in ("FAILED", "LAUNCH_FAILED", "RECONFIG_FAIL")),
        *((w, State.TIMEOUT) for w in ("TIMEOUT", "DEADLINE")),
        ("CANCELLED", State.CANCELLED),
        *((w, State.NODE_FAIL) for w in ("NODE_FAIL", "BOOT_FAIL")),
        ("PREEMPTED", State.PREEMPTED),
        ("OUT_OF_MEMORY", State.OUT_OF_MEMORY),
        *((w, State.UNKNOWN) for w in ("REVOKED", "SOMETHING_NEW")),
    ],
)
def test_every_state_of_slurm(slurm_state: str, state: State) -> None:
    assert row(state=slurm_state).state is state


@pytest.mark.parametrize(
    ("changed", "started"),
    [
        ({"state": "PENDING", "nodes": "", "start": "400"}, None),  # an estimate
        ({"state": "CONFIGURING"}, None),
        ({"state": "RUNNING"}, 110.0),
        ({"state": "COMPLETING"}, 110.0),
        ({"state": "CANCELLED", "nodes": ""}, None),
        ({"state": "CANCELLED", "nodes": "(null)"}, None),
        ({"state": "CANCELLED"}, 110.0),
        ({"state": "FAILED", "nodes": "", "reason": "BadConstraints", "status": "1"}, None),
        ({"state": "PENDING", "nodes": "", "start": "N/A", "restarts": "1"}, 100.0),
        ({"state": "CANCELLED", "nodes": "", "start": "115", "restarts": "1"}, 115.0),
        ({"state": "COMPLETING", "start": "115", "end": "715", "restarts": "1"}, 100.0),
        ({"state": "COMPLETING", "start": "115", "end": "N/A", "restarts": "1"}, 100.0),
        ({"state": "COMPLETING", "start": "115", "end": "120", "restarts": "1"}, 115.0),
        ({"state": "COMPLETING", "start": "115", "end": "715"}, 115.0),
        ({"state": "NODE_FAIL"}, 110.0),
    ],
)
def test_begun_or_certainly_not(changed: dict[str, str], started: float | None) -> None:
    assert row(**changed).started == started


@pytest.mark.parametrize(
    ("state", "status", "ended", "code", "signal"),
    [
        ("COMPLETED", "0", 120.0, 0, None),
        ("COMPLETED", "0:0", 120.0, 0, None),
        ("FAILED", "2304", 120.0, 9, None),
        ("FAILED", "9:0", 120.0, 9, None),
        ("FAILED", "9", 120.0, None, 9),
        ("FAILED", "0:9", 120.0, None, 9),
        ("FAILED", "139", 120.0, None, 11),  # with a core dump
        ("FAILED", "4021", 120.0, None, None),
        ("CANCELLED", "15", 120.0, None, 15),
        ("CANCELLED", "768", 120.0, 3, None),
        ("TIMEOUT", "15", 120.0, None, 15),
        ("TIMEOUT", "0:15", 120.0, None, 15),
        ("OUT_OF_MEMORY", "0:125", 120.0, None, 125),
        ("NODE_FAIL", "1", 120.0, None, None),
        ("RUNNING", "0", None, None, None),
        ("COMPLETING", "2304", None, None, None),
    ],
)
def test_how_it_ended(
    state: str, status: str, ended: float | None, code: int | None, signal: int | None
) -> None:
    parsed = row(state=state, status=status)
    assert (parsed.ended, parsed.exit_code, parsed.signal) == (ended, code, signal)


def test_what_never_began_has_no_exit_code() -> None:
    parsed = row(state="CANCELLED", nodes="", status="0", reason="Resources")
    assert (parsed.exit_code, parsed.signal, parsed.manager_reason) == (None, None, "Resources")


# Small forms.


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("10:00", 600.0),
        ("0:30", 30.0),
        ("1:00:00", 3600.0),
        ("1-00:00:00", 86400.0),
        ("365-12:30:01", 365 * 86400 + 45001.0),
        ("UNLIMITED", None),
        ("infinite", None),
        ("n/a", None),
        ("NOT_SET", None),
        ("Partition_Limit", None),
    ],
)
def test_durations(written: str, seconds: float | None) -> None:
    assert text.parse_duration(written) == seconds


@pytest.mark.parametrize(
    ("job", "tasks"),
    [
        ("7", 1),
        ("7_4", 1),
        ("7_[4]", 1),
        ("7_[1-9]", 9),
        ("7_[0-9,20,30-31%5]", 13),
        ("12_[1-299:2%5]", 150),
        ("12_[1-10:4,100]", 4),
        ("7+1", 1),
    ],
)
def test_tasks_of_an_array(job: str, tasks: int) -> None:
    assert text.task_count(job) == tasks


@pytest.mark.parametrize(
    ("written", "counts"),
    [
        ("(null)", {}),
        ("", {}),
        ("gpu:2", {"gpu": 2}),
        ("gpu:2(S:0-1)", {"gpu": 2}),
        ("gpu:a100:2(IDX:0,1),shard:8(0/4,0/4)", {"gpu": 2, "gpu:a100": 2, "shard": 8}),
        ("gpu:a100:2,gpu:h100:1", {"gpu": 3, "gpu:a100": 2, "gpu:h100": 1}),
        ("gpu:a100:0(IDX:N/A)", {"gpu": 0, "gpu:a100": 0}),
        ("craynetwork:no_consume:4", {"craynetwork": 4, "craynetwork:no_consume": 4}),
    ],
)
def test_generic_resources(written: str, counts: dict[str, int]) -> None:
    assert text.parse_gres(written) == counts


# Demand.


@pytest.mark.parametrize(
    ("changed", "owed"),
    [
        ({}, 2 * 600.0),
        ({"limit": "UNLIMITED"}, 2 * text.NO_LIMIT),
        ({"limit": "Partition_Limit"}, 2 * 600.0),  # the default of main
        ({"limit": "NOT_SET", "partition": "short"}, 2 * 1800.0),  # no default: its maximum
        ({"limit": "NOT_SET", "partition": "gone"}, 2 * text.NO_LIMIT),
        ({"id": "7_[1-5%2]"}, 5 * 2 * 600.0),
        ({"cpus": "4-8"}, 4 * 600.0),
        ({"partition": "short,main"}, 2 * 600.0),
        ({"reason": "Resources"}, 2 * 600.0),
        ({"reason": "ReqNodeNotAvail, UnavailableNodes:a3"}, 2 * 600.0),
        ({"reason": "JobHeldUser", "priority": "0"}, 0),
        ({"priority": "0"}, 0),
        ({"reason": "JobHeldAdmin"}, 0),
        ({"reason": "Dependency"}, 0),
        ({"reason": "DependencyNeverSatisfied"}, 0),
        ({"reason": "BeginTime"}, 0),
        ({"eligible": str(int(TAKEN) + 60)}, 0),
        ({"eligible": "N/A"}, 2 * 600.0),
        ({"reason": "PartitionConfig"}, 0),
        ({"reason": "PartitionNodeLimit"}, 0),
        ({"reason": "AssocGrpCpuLimit"}, 0),
        ({"reason": "QOSMaxJobsPerUserLimit"}, 0),
        ({"reason": "BadConstraints"}, 0),
        ({"state": "REQUEUE_HOLD", "priority": "0"}, 0),
    ],
)
def test_what_others_wait_for(changed: dict[str, str], owed: float) -> None:
    usual = {"state": "PENDING", "nodes": "", "start": "N/A", "end": "N/A", "tag": "(null)"}
    info = facts(line(**{**usual, **changed}))
    assert info.owed_by_others == owed
    assert (info.pending_jobs > 0, info.queue_head is not None) == (owed > 0, owed > 0)


def test_the_head_is_the_first_in_slurms_own_order() -> None:
    waiting = line(state="PENDING", nodes="", start="N/A", end="N/A")
    jobs = [
        waiting._replace(id="9", priority="50", cpus="1"),
        waiting._replace(id="10_[1-3]", priority="70", cpus="3"),
        waiting._replace(id="8", priority="70", cpus="2"),
    ]
    assert facts(*jobs).queue_head == (2, 600.0)
    important = NODES.replace("~1-2~1~", "~1-2~5~")  # raises the priority tier of `short`
    jobs[0] = jobs[0]._replace(partition="short")
    assert cluster_info.build_cluster_info(
        jobs, text.parse_nodes(important, "~"), TAKEN, set()
    ).queue_head == (1, 600.0)


@pytest.mark.parametrize(
    ("changed", "end"),
    [
        ({"end": str(int(TAKEN) + 50)}, TAKEN + 50),
        ({"end": "120"}, 120),  # past its limit, or completing
        ({"end": "N/A"}, 110 + text.NO_LIMIT),
        ({"end": "NONE"}, 110 + text.NO_LIMIT),
    ],
)
@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"])
def test_when_running_work_ends(state: str, changed: dict[str, str], end: float) -> None:
    assert facts(line(state=state, **changed)).running_jobs == ((end, 2),)


@pytest.mark.parametrize(
    ("state", "up"),
    [
        *((s, True) for s in ("idle", "mixed", "allocated", "idle+planned", "completing")),
        *((s, True) for s in ("idle+cloud+powered_down", "IDLE", "idle+powering_up")),
        *((s, False) for s in ("down", "idle+drain", "allocated+drain", "down+not_responding")),
        *((s, False) for s in ("idle+maint", "idle+reserved", "unknown", "mixed+fail")),
        *((s, False) for s in ("idle+not_responding", "idle+reboot_issued", "future")),
    ],
)
def test_which_nodes_are_usable(state: str, up: bool) -> None:
    (first, *_) = text.parse_nodes(NODES, "~")
    info = cluster_info.build_cluster_info(
        [], [first._replace(state=state, cpus="0/16/0/16")], TAKEN, set()
    )
    assert info.cpus == (16 if up else 0)
    assert [n.up for n in info.partitions[0].nodes] == [up]


# Submissions.


def order(options: tuple[str, ...] = (), arguments: tuple[str, ...] = (), **job: Any) -> Submission:
    return Submission(
        tag="ms-abcd1234-1-1",
        job=Job(id=1, submitted=0.0, estimated=60.0, **job),
        payload=Payload(script="#!/bin/sh\n", arguments=arguments, directory="/home/ada"),
        options=options,
    )


def test_every_request_has_its_own_argument() -> None:
    request = order(
        name="-x",
        cpus=8,
        tasks=2,
        nodes=2,
        memory=100,
        memory_per_cpu=None,
        gres={"gpu:a100": 2, "shard": 1},
        exclusive=True,
        time_limit=61.0,
        account="-a",
        partition="--wrap=x",
        qos="high",
        constraint="a&b",
        options=("--nice", "5"),
        arguments=("-z", ""),
    )
    specification = batch.sbatch_arguments(request, 3, "comment")
    assert set(specification) >= {
        *("--job-name=-x", "--comment=ms-abcd1234-1-1/3", "--no-requeue", "--exclusive"),
        *("--ntasks=2", "--cpus-per-task=4", "--nodes=2", "--mem=100M", "--time=2"),
        *("--gres=gpu:a100:2,shard:1", "--account=-a", "--partition=--wrap=x", "--qos=high"),
        *("--constraint=a&b", "--input=/dev/null", "--open-mode=truncate", "--chdir=/home/ada"),
    }
    assert specification[-4:] == ["--nice=5", "/dev/stdin", "-z", ""]
    assert all(argument.startswith("--") for argument in specification[:-4])


def test_what_is_not_requested_is_no_argument() -> None:
    names = {
        argument.partition("=")[0] for argument in batch.sbatch_arguments(order(), 0, "comment")
    }
    assert names.isdisjoint(
        {"--nodes", "--mem", "--mem-per-cpu", "--gres", "--exclusive", "--time", "--error"}
        | {"--account", "--partition", "--qos", "--constraint", "--requeue"}
    )


def test_tag_and_name_change_places() -> None:
    arguments = batch.sbatch_arguments(order(name="mine"), 0, "name")
    assert "--job-name=ms-abcd1234-1-1" in arguments
    assert "--comment=mine" in arguments
    assert "--job-name=ms-abcd1234-1-1" in batch.sbatch_arguments(order(), 0, "comment")


def test_only_the_user_lets_slurm_requeue() -> None:
    assert "--requeue" in batch.sbatch_arguments(order(requeue=True), 0, "comment")


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("a\nb\tc\x00d", "a b c d"),
        ("'\"`$", "'\"`$"),
        ("żółw", "żółw"),
        ("x" * 10_000, "x" * 256),
        ("🐢" * 10_000, "🐢" * 256),
        ("\udc80", "ms-abcd1234-1-1"),
        (" \n ", "ms-abcd1234-1-1"),
    ],
)
def test_names_as_slurm_can_carry_them(name: str, written: str) -> None:
    assert f"--job-name={written}" in batch.sbatch_arguments(order(name=name), 0, "comment")


@pytest.mark.parametrize(
    "options",
    [
        *(("--array=1-3",), ("-a", "1-3"), ("-a1-3",), ("--arr", "1"), ("-Hva1",), ("--a=1",)),
        *(("--comment=x",), ("--com=x",), ("--wrap=true",), ("--wait",), ("-W",), ("-M", "beta")),
        *(("--clusters=beta",), ("--test-only",), ("--requeue",), ("--export=NONE",), ("-Q",)),
        *(
            ("--get-user-env",),
            ("--help",),
            ("-h",),
            ("-V",),
            ("--quiet",),
            ("--pars",),
            ("--uid=0",),
        ),
        *(
            ("-D", "/"),
            ("-D/",),
            ("--chdir=/",),
            ("-o", "x"),
            ("--output=x",),
            ("-vex",),
            ("-i", "x"),
        ),
        *(("script.sh",), ("--nice", "5", "script.sh"), ("--",), (":",), ("-",), ("--nice=5", "x")),
        ("--nice=\0",),
    ],
)
def test_native_options_that_would_harm_are_refused(options: tuple[str, ...]) -> None:
    with pytest.raises(Refused, match=r"native option|NUL") as refusal:
        batch.sbatch_arguments(order(options=options), 0, "comment")
    assert not refusal.value.retryable


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--licenses=matlab:2",), ("--licenses=matlab:2",)),
        (("--nice", "5", "--begin", "now+1hour"), ("--nice=5", "--begin=now+1hour")),
        (("-w", "a[1-2]", "-x", "a3"), ("-wa[1-2]", "-xa3")),
        (("-wa2", "-H", "-vvk"), ("-wa2", "-H", "-vvk")),
        (("--job-name=other",), ("--job-name=other",)),
        (("--exclusive", "/tmp/script"), ("--exclusive=/tmp/script",)),
    ],
)
def test_native_options_are_the_users_own_but_never_a_script(
    options: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    arguments = batch.sbatch_arguments(order(options=options), 0, "comment")
    assert tuple(arguments[-len(expected) - 1 : -1]) == expected


def test_with_the_tag_in_the_name_the_job_is_own() -> None:
    for option in ("--job-name=x", "-Jx", "--job=x"):
        with pytest.raises(Refused):
            batch.sbatch_arguments(order(options=(option,)), 0, "name")
    batch.sbatch_arguments(order(options=("--comment=x",)), 0, "name")


def test_the_environment_ends_each_variable_by_a_nul() -> None:
    request = order()
    payload = Payload(script="", directory="/d", environment={"A": "1\n2", "B": "é\udcff"})
    content = batch.environment_file(
        Submission(tag=request.tag, job=request.job, payload=payload), 4, "alpha"
    )
    variables = content.split(b"\0")
    assert variables.pop() == b""
    assert {b"A=1\n2", b"B=\xc3\xa9\xff", b"SLURM_SUBMIT_DIR=/d", b"METASCHED_TASK=4"} <= set(
        variables
    )


@pytest.mark.parametrize("variable", [("A=B", "1"), ("", "1"), ("A", "1\0B=2"), ("A\0", "1")])
def test_variables_that_cannot_be_handed_on(variable: tuple[str, str]) -> None:
    request = order()
    payload = Payload(script="", environment=dict([variable]))
    with pytest.raises(Refused, match="environment variable"):
        batch.environment_file(
            Submission(tag=request.tag, job=request.job, payload=payload), 0, "alpha"
        )


@pytest.mark.parametrize(
    ("source", "sent"),
    [
        ("#!/bin/sh\n#SBATCH -t 9\ntrue\n", "#!/bin/sh\n# SBATCH -t 9\ntrue\n"),
        ("#!/bin/sh\n\n \t\n  # c\n#SBATCHx\ntrue", "#!/bin/sh\n\n \t\n  # c\n# SBATCHx\ntrue"),
        ("#!/bin/sh\n#SLURM x\ntrue", "#!/bin/sh\n# SLURM x\ntrue"),
        ("#!/bin/sh\n: x\n#SBATCH -t 9\n", "#!/bin/sh\n: x\n#SBATCH -t 9\n"),
        ("#!/bin/sh\n  #SBATCH -t 9\n##SBATCH\n", "#!/bin/sh\n  #SBATCH -t 9\n##SBATCH\n"),
        ("", ""),
    ],
)
def test_directives_before_the_first_command_are_taken_out(source: str, sent: str) -> None:
    assert batch_script.without_directives(source) == sent.encode()
    assert source.count("\n") == sent.count("\n")


# Refusals of sbatch.

FAILED = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("message", "again"),
    [
        ("sbatch: error: invalid partition specified: nope\n" + FAILED + "Invalid partition name"
         " specified\n", False),
        (FAILED + "Invalid feature specification\n", False),
        (FAILED + "Requested node configuration is not available\n", False),
        (FAILED + "Invalid account or account/partition combination specified\n", False),
        (FAILED + "Invalid qos specification\n", False),
        (FAILED + "Invalid license specification\n", False),
        (FAILED + "Pathname of a file, directory or other parameter too long\n", False),
        (FAILED + "User's group not permitted to use this partition\n", False),
        (FAILED + "Access/permission denied\n", False),
        (FAILED + "Requested time limit is invalid (missing or exceeds some limit)\n", False),
        ("sbatch: error: Invalid generic resource (gres) specification\n", False),
        ("sbatch: unrecognized option '--frob'\nTry \"sbatch --help\" for more information\n",
         False),
        ("/opt/slurm 26/bin/sbatch: unrecognized option '--frob'\n", False),
        ("sbatch: option '--ti=3x' is ambiguous; possibilities: '--time' '--time-min'\n", False),
        ("sbatch: error: Batch script is empty!\n", False),
        ("sbatch: error: Batch script contains DOS line breaks (\\r\\n)\n"
         "sbatch: error: instead of expected UNIX line breaks (\\n).\n", False),
        (FAILED + "Required partition not available (inactive or drain)\n", True),
        (FAILED + "Partition in DOWN state\n", True),
        (FAILED + "System submissions disabled\n", True),
        (FAILED + "Requested partition configuration not available now\n", True),
        (FAILED + "Unable to create job record, try again\n", True),
        ("sbatch: error: AssocMaxSubmitJobLimit\n" + FAILED + "Job violates accounting/QOS policy"
         " (job submit limit, user's size and/or time limits)\n", True),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit\n" + FAILED + "Job violates accounting/QOS"
         " policy (job submit limit, user's size and/or time limits)\n", True),
        ("sbatch: error: QOSMaxCpuPerJobLimit\n" + FAILED + "Job violates accounting/QOS policy"
         " (job submit limit, user's size and/or time limits)\n", False),
        (FAILED + "Job violates accounting/QOS policy (job submit limit, user's size and/or time"
         " limits)\n", True),
    ],
)  # fmt: skip
def test_certain_refusals(message: str, again: bool) -> None:
    refusal = batch.parse_refusal(1, message)
    assert refusal is not None
    assert refusal.retryable is again
    assert "sbatch: " not in refusal.reason
    assert "\n" not in refusal.reason


@pytest.mark.parametrize(
    ("message", "is_refusal"),
    [
        ("", True),
        (FAILED + "Unable to contact slurm controller (connect failure)\n", False),
        (FAILED + "Unable to contact slurm controller (receive failure)\n", False),
        (FAILED + "Socket timed out on send/recv operation\n", False),
        (FAILED + "Zero Bytes were transmitted or received\n", False),
        (FAILED + "Unexpected message received\n", False),
        (FAILED + "Connection reset by peer\n", False),
        (FAILED + "Incompatible versions of client and server code\n", False),
        (FAILED + "Invalid authentication credential\n", False),
        (FAILED + "Protocol authentication error\n", False),
        ("sbatch: fatal: Could not establish a configuration source\n", False),
        ("sbatch: error: If munged is up, restart with --num-threads=10\nsbatch: error: Munge "
         "encode failed: Failed to access socket\n" + FAILED + "Protocol authentication error\n",
         False),
        (FAILED + "Invalid job credential\n", True),
        (FAILED + "Unspecified error\n", True),
        (FAILED + "Operation not permitted\n", True),  # of a plug-in that returns 1
        ("sbatch: error: Unable to open file bb.txt: No such file or directory\n", True),
        (FAILED + "Connection timed out\n", False),
        (FAILED + "No route to host\n", False),
        (FAILED + "Resource temporarily unavailable\n", False),
        (FAILED + "Time limit specification required, but not provided\n", True),
        (FAILED + "Something that no release has said yet\n", True),
        ("sbatch: error: cli_filter plugin terminated with error\n", True),
        ("sbatch: error: Invalid project specified\n", True),  # of a plug-in, perhaps afterwards
        (FAILED + "Invalid qos specification\nsbatch: error: and then a plug-in spoke\n", True),
    ],
)  # fmt: skip
def test_what_leaves_a_doubt_is_no_refusal_yet(message: str, is_refusal: bool) -> None:
    assert batch.parse_refusal(1, message) is None
    assert bool(batch.unproved_answer(1, "", message).sentence) is is_refusal


@pytest.mark.parametrize(("exit_code", "is_refusal"), [(1, True), (3, True), (124, False)])
def test_a_deadline_of_a_wrapper_is_no_refusal(exit_code: int, is_refusal: bool) -> None:
    assert bool(batch.unproved_answer(exit_code, "", "").sentence) is is_refusal


@pytest.mark.parametrize(
    ("exit_code", "stdout", "outcome"),
    [
        (0, "17\n", "17"),
        (1, "17;alpha\n", "17"),
        (137, "a plug-in says 3 things\n17\n17\n", "17"),
        (1, "17\n18\n", "unknown"),
        (1, "017\n", "refused"),
        (1, "job 17\n", "refused"),
        (1, "", "refused"),
        (0, "", "unknown"),
        (2, "", "unknown"),
        (137, "", "unknown"),
        (255, "", "unknown"),
    ],
)
def test_an_id_is_an_answer_whatever_follows(exit_code: int, stdout: str, outcome: str) -> None:
    """Test each exit code with an output, beside an error that the controller alone sends."""
    result = CommandResult(exit_code, stdout, FAILED + "Invalid qos specification\n")
    try:
        found = batch.parse_answer(result)
    except Refused:
        found = "refused"
    except Unreachable:
        found = "unknown"
    assert found == outcome


@given(
    exit_code=st.integers(-64, 255),
    before=st.lists(st.text(max_size=20)),
    after=st.lists(st.text(max_size=20)),
    stderr=st.text(),
)
def test_any_output_with_one_id_is_accepted(
    exit_code: int, before: list[str], after: list[str], stderr: str
) -> None:
    lines = "\n".join([*before, "4711", *after])
    assume(batch.parse_job_ids(lines) == {"4711"})
    assert batch.parse_answer(CommandResult(exit_code, lines, stderr)) == "4711"


@given(exit_code=st.integers(-64, 255), said=st.text(), wrapped=st.booleans())
@example(1, "Unspecified error", True)
@example(1, "Invalid job credential", True)
def test_words_of_no_list_never_refuse(exit_code: int, said: str, wrapped: bool) -> None:
    texts = {text for _, text in error_texts.CONTROLLER_ERRORS}
    stderr = f"{FAILED}{said}" if wrapped else f"sbatch: error: {said}"
    lines = stderr.splitlines()
    assume(not any(line.endswith(text) for line in lines for text in texts))
    assume(not batch._NOT_SENT.fullmatch(lines[-1].rpartition("error: ")[2].strip()))
    with pytest.raises(Unreachable):
        batch.parse_answer(CommandResult(exit_code, "", stderr))


def test_the_controllers_errors_are_its_own() -> None:
    others = {text for _, text in error_texts.TRANSPORT_ERRORS}
    others |= {os.strerror(number) for number in range(200)} | {"Unspecified error"}
    for number, said in error_texts.CONTROLLER_ERRORS:
        assert 2000 <= number <= 2999
        assert said not in others
    numbers = {number for number, _ in error_texts.TRANSPORT_ERRORS}
    assert all(1000 <= number < 2000 or 5000 <= number < 7000 for number in numbers)
    assert numbers >= {1000, 1800, 5004, 6000}


@pytest.mark.parametrize(("number", "is_transport"), [(1, False), (110, True), (1001, True)])
def test_numbers_of_errors_and_their_texts_agree(number: int, is_transport: bool) -> None:
    assert batch.is_transport_error(number) is is_transport
    text = dict(error_texts.TRANSPORT_ERRORS).get(number) or os.strerror(number)
    assert batch.is_about_connection(f"Batch job submission failed: {text}") is is_transport


def test_a_complaint_is_one_line_without_the_commands_name() -> None:
    output = "slurm_load_jobs error: Unable to contact\nsqueue: error: a\nsqueue: fatal: b\n\n"
    assert batch.error_message(output) == "slurm_load_jobs error: Unable to contact; a; b"
    assert batch.error_message("") == "no explanation"


@pytest.mark.parametrize(
    ("wrong", "text_"),
    [
        ({"config": "slurm.conf"}, "config is 'slurm.conf'; it must be an absolute path"),
        ({"bin_dir": "bin"}, "bin_dir is 'bin'"),
        ({"access": "drmaa"}, "access is 'drmaa'; it must be one of auto, pyslurm, commands"),
        ({"tag_field": "account"}, "tag_field is 'account'"),
        ({"reservation_unit": "core"}, "reservation_unit is 'core'"),
        ({"timeout": 0.0}, "timeout is 0.0"),
        ({"timeout": float("inf")}, "timeout is inf"),
        ({"settle": -1.0}, "settle is -1.0"),
    ],
)
def test_wrong_options_are_named(wrong: dict[str, Any], text_: str) -> None:
    with pytest.raises(ValueError, match=text_):
        SlurmOptions(**{"config": "/etc/slurm.conf", **wrong})


def test_licences_as_slurm_counts_them() -> None:
    sample = (
        "LicenseName=matlab Total=4 Used=1 Free=2 Reserved=1 Remote=no\n"
        "LicenseName=abq@flex Total=10 Used=12 Free=-2 Reserved=0 Remote=yes LastConsumed=0\n"
    )
    assert text.parse_licences(sample) == {
        "matlab": ManagerLicences(4, 2),
        "abq@flex": ManagerLicences(10, 12),
    }
    assert text.parse_licences("No licenses configured in Slurm.\n") == {}
    with pytest.raises(ValueError, match="no number"):
        text.parse_licences("LicenseName=matlab Total=4\n")


# Expected starts of pending jobs.


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 110.0),
        ({"start": "N/A"}, None),
        ({"eligible": "N/A", "reason": "JobHeldAdmin"}, None),  # Slurm keeps an earlier estimate
        ({"state": "RUNNING"}, None),
        ({"state": "CANCELLED"}, None),
        ({"id": "7_[4]", "tag": "ms-abcd1234-1-1/a"}, 110.0),
    ],
)
def test_a_start_is_expected_of_what_can_begin(
    changed: dict[str, str], expected: float | None
) -> None:
    assert row(**{"state": "PENDING", "nodes": "", **changed}).expected == expected


def test_of_tasks_that_share_a_record_no_start_is_known() -> None:
    shared = line(state="PENDING", nodes="", id="7_[4-6]", tag="ms-abcd1234-1-1/a")
    assert {row.expected for row in rows_of([shared])} == {None}


# The order of the queue


def pending_line(job: str, **changed: str) -> text.QueueLine:
    usual = {"state": "PENDING", "start": "N/A", "end": "N/A", "nodes": "", "tag": ""}
    return line(id=job, **{**usual, **changed})


def queue_of(*lines: text.QueueLine, own: Iterable[str] = ()) -> ListedQueue:
    nodes = text.parse_nodes(NODES, "~")
    partitions = cluster_info.build_cluster_info(lines, nodes, TAKEN, set()).partitions
    return cluster_info.build_queue(lines, nodes, partitions, TAKEN, set(own))


def test_pending_jobs_are_in_the_order_of_their_priorities() -> None:
    queue = queue_of(
        pending_line("7", priority="10"),
        pending_line("9_[1-4]", priority="30", cpus="4", user="1001"),
        pending_line("8", priority="10", limit="1:00:00", cpus="2-8"),
        line(id="5", state="RUNNING"),
        pending_line("6", priority="0"),  # held
        pending_line("4", priority="50", reason="Dependency"),
        own=["8", "9_[1-4]"],
    )
    assert queue == ListedQueue(
        (
            PendingJob("9", 4, 600.0, 4, "1001"),
            PendingJob("", 2, 600.0, 1, "1000"),
            PendingJob("8", 2, 3600.0, 1, "1000"),
        ),
        running=(StartedJob(120.0, 2, 600.0, "1000"),),
    )


def test_a_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_info, "MAX_LISTED_JOBS", 2)
    lines = [pending_line(str(number), priority=str(number)) for number in range(1, 4)]
    queue = queue_of(*lines, own=["2", "3"])
    assert [job.native_id for job in queue.jobs] == ["3", "2"]
    assert not queue.complete
    assert queue_of(*lines[:2]).complete


def test_a_strange_pending_job_can_be_divided_by() -> None:
    """Whatever a manager prints: no size and no limit is 0."""
    [job] = queue_of(pending_line("7", cpus="0", limit="0:00")).jobs
    assert (job.cpus, job.limit) == (1, 600.0)  # the limit of the partition
