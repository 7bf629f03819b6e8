"""Commands on jobs: status, actions, wait, story, explain."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from metasched.cli import job_commands
from metasched.paths import NEXT_CURSOR_HEADER
from tests.unit.cli.fake_daemon import FakeDaemon, Run, answer_paths, row, started, verdict


def details(job: int = 17, state: str = "running", **fields: object) -> dict[str, object]:
    """A row of `GET /jobs/details`."""
    values: dict[str, object] = {
        "cpus": 4,
        "nodes": None,
        "node_list": "a[1-2]",
        "time_limit": 600.0,
    }
    return row(job, state, **{"attempt_state": None, **values, **fields})


HEADING = ["JOB", "NAME", "USER", "STATE", "TIME", "LEFT", "NODES", "CPUS", "CLUSTER", "(REASON)"]


def test_many_rows_in_json_are_written_as_few(
    daemon: FakeDaemon, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: dict[str, Any] = {
        "name": 'ü\u202e\x1b"\\',
        "native": {"a": "--tmp=5"},
        "gres": {},
        "clusters": [],
    }
    rows = [
        details(id, time_limit=time_limit, **texts) for id, time_limit in ((17, 1e20), (18, 0.1))
    ]
    written = []
    for most in (2, 1):
        monkeypatch.setattr(job_commands, "MANY_ROWS", most)
        daemon.answer("/jobs/details", rows)
        written.append(run("status", "--json").out)
    assert written[1] == written[0] == json.dumps(rows, indent=2) + "\n"


def test_status_is_a_plain_uncut_table_in_a_pipe(daemon: FakeDaemon, run: Run) -> None:
    name, ran = "ü" * 255, {"started": "2026-01-31T10:00:00Z", "ended": "2026-01-31T10:01:05Z"}
    waiting = details(18, "pending", reason="manager:Resources", node_list="", nodes=3)
    task = details(19, "completed", array="1-3", task=3, exit_code=0, name=name, **ran)
    daemon.answer("/jobs/details", [waiting, task])
    header, first, second = run("status").out.splitlines()
    assert header.split() == HEADING
    assert first.split() == ["18", "sim", "ada", "pending", "3", "4", "left", "(manager:Resources)"]
    assert second.split() == ["19_3", name, "ada", "completed", "1:05", "2", "4", "left"]


def test_json_of_status_is_that_of_the_api(daemon: FakeDaemon, run: Run) -> None:
    rows = [details(), details(18)]
    daemon.answer("/jobs/details", rows)
    assert json.loads(run("status", "--json").out) == rows


def test_long_status_lists_what_jobs_used(daemon: FakeDaemon, run: Run) -> None:
    ran = {"started": "2026-01-31T10:00:00Z", "ended": "2026-01-31T10:01:05Z", "exit_code": 0}
    tasks = [
        details(19, "completed", array="1-3", task=task, cpu_seconds=61.5, max_memory=size, **ran)
        for task, size in ((1, 900), (2, 20480), (3, None))
    ]
    daemon.answer("/jobs/details", [details(18, "pending", node_list="", nodes=1), *tasks])
    header, waiting, ended = run("status", "--long").out.splitlines()
    assert header.split()[3:7] == ["EXIT", "TIME", "CPU_TIME", "MAX_MEMORY"]
    assert waiting.split() == ["18", "sim", "pending", "1", "4", "left"]
    assert ended.split()[:7] == ["19_[1-3]", "sim", "completed", "0", "1:05", "3:04", "20.0G"]
    assert json.loads(run("status", "--long", "--json").out)[1]["max_memory"] == 900


def test_columns_and_order_of_status(daemon: FakeDaemon, run: Run) -> None:
    started = {"started": "2026-01-31T10:00:00Z"}
    rows = [
        details(17, "completed", **started, ended="2026-01-31T10:00:09Z"),
        details(18, "queued"),
        details(19, "failed", **started, ended="2026-01-31T10:00:11Z", exit_code=1),
    ]
    daemon.answer("/jobs/details", rows)
    options = ["--format", "job,code,time,exit,native_id", "--sort", "-time"]
    assert [line.split() for line in run("status", *options).out.splitlines()] == [
        ["JOB", "ST", "TIME", "EXIT", "NATIVE_ID"],
        ["19", "F", "0:11", "1", "5"],
        ["17", "CD", "0:09", "5"],
        ["18", "PD", "5"],
    ]
    every = run("status", "--format", "all").out.splitlines()[0].split()
    assert {"PARTITION", "NODE_LIST", "EXPECTED_START", "ENDED"} <= {*every}
    wrong = run("status", "--sort", "job,-colour")
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err.startswith("metasched: error: '-colour' is no column, --sort; use job, name,")


def test_status_fits_a_narrow_terminal(
    daemon: FakeDaemon, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: dict[str, Any] = {"reason": "manager:AssocGrpCpuLimit", "user": "ada_lovelace"}
    rows = [
        details(100000017, name="training-of-the-large-model"),
        details(100000018, "pending", name="post", cluster="alpha", **waiting),
    ]
    daemon.answer("/jobs/details", rows)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")  # without colours
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    lines = run("status").out.splitlines()
    assert max(map(len, lines)) <= 80
    start = lines[0].index("NAME")
    end = lines[0].index("USER")
    names = "".join(line[start:end].strip() for line in lines[1:])
    assert names.startswith("training-of-the-large-model")
    assert "post" in names


def test_an_unknown_job_does_not_hide_the_others(daemon: FakeDaemon, run: Run) -> None:
    task = details(18, task=3, array="2-3", number=19)
    daemon.answer("/jobs/details", [details(17, number=17), task])
    assert run("status", "17", "18_03", "19", "19", "18_[3]").code == 0
    assert run("status", "16", "--state", "failed").code == 0  # the filter may leave it out
    done = run("status", "17", "18_3", "20", "18_4")
    assert (done.code, len(done.out.splitlines())) == (5, 3)
    assert done.err.splitlines() == [
        "metasched: error: no job 20; see `metasched status --all`",
        "metasched: error: no job 18_4; see `metasched status --all`",
    ]
    assert daemon.requests[-1][2]["skip_missing"] == ["true"]


def test_status_of_own_jobs_by_slurm_words(daemon: FakeDaemon, run: Run) -> None:
    daemon.answer("/health", {"user": "ada"})
    daemon.answer("/jobs/details", [])
    run("status", "--me", "--state", "R,PENDING,Held")
    query = daemon.requests[-1][2]
    assert (query["user"], query["state"]) == (["ada"], ["running,queued,held,dispatching,pending"])
    run("status", "--state", "pending,R")
    assert daemon.requests[-1][2]["state"] == ["pending,running"]
    run("status", "--state", "pd,f,timeout")  # codes in any case, as in squeue
    expected = "queued,held,dispatching,pending,failed,rejected,timeout"
    assert daemon.requests[-1][2]["state"] == [expected]
    run("status", "--state", "OOM,nf,DEADLINE,CG,boot_fail")
    expected = "out_of_memory,node_fail,timeout,running"
    assert daemon.requests[-1][2]["state"] == [expected]
    both = run("status", "--me", "--user", "bob")
    assert (both.code, both.err) == (
        2,
        "metasched: error: --me and --user, metasched status; give either\n",
    )


def test_a_watched_listing_ends_with_its_jobs(
    daemon: FakeDaemon, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_commands, "WATCH_INTERVAL", 0.0)
    daemon.answer("/jobs/details", [details()], [details(state="completed")])
    printed = run("status", "--watch", "--format", "state").out
    assert printed.split() == ["STATE", "running", "STATE", "completed"]


def test_status_sends_its_filters(daemon: FakeDaemon, run: Run) -> None:
    daemon.answer("/jobs/details", [])
    before = time.time()
    run("status", "17", "18_3", "--user", "a&b", "--state", "held,queued", "--all")
    run("status", "--since", "2h")
    assert daemon.requests[0][2] == {
        "job": ["17", "18_3"],
        "user": ["a&b"],
        "state": ["held,queued"],
        "all": ["true"],
        "skip_missing": ["true"],
        "fold": ["true"],
        "limit": ["5000"],
    }
    assert daemon.requests[1][2].keys() == {"since", "fold", "limit"}
    assert float(daemon.requests[1][2]["since"][0]) == pytest.approx(before - 7200, abs=60)


def test_a_row_of_waiting_tasks_is_a_line(daemon: FakeDaemon, run: Run) -> None:
    waiting: dict[str, Any] = {"array": "1-9", "state": "queued", "number": 18}
    rows = [
        row(job=17, task=1, array="1-9", state="running", number=17),
        row(job=17, task=2, folded="2-4", **waiting),
        row(job=17, task=5, **(waiting | {"state": "held", "number": 21})),
        row(job=17, task=6, folded="6-9", **(waiting | {"number": 22})),
    ]
    daemon.answer("/jobs/details", rows)
    ran = run("status", "17_1", "17_3", "17_[7-8]", "19", "25")
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == [
        "17_1",
        "17_[2-4,6-9]",
        "17_5",
    ]
    assert (ran.code, ran.err) == (0, "")
    missing = run("status", "17_10", "26")
    assert [line.split()[4] for line in missing.err.splitlines()] == ["17_10;", "26;"]


def test_status_prints_all_pages(daemon: FakeDaemon, run: Run) -> None:
    pages = [[row(job=17), row(job=18)], [], [row(job=19)]]
    cursors = ("5.18.0", "5.18.7")
    daemon.answer(
        "/jobs/details",
        *((200, page, {NEXT_CURSOR_HEADER: c}) for page, c in zip(pages, cursors, strict=False)),
        pages[2],
    )
    lines = run("status", "--user", "ada").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["17", "18", "19"]
    queries = [query for _, _, query, _ in daemon.requests]
    assert [query.get("cursor") for query in queries] == [None, *([c] for c in cursors)]
    assert [query["user"] for query in queries] == [["ada"]] * 3


def test_tables_contain_no_control_characters(daemon: FakeDaemon, run: Run) -> None:
    daemon.answer("/jobs/details", [details(reason="manager:\x1b[2J\nx")])
    done = run("status")
    assert "manager:?[2J?x" in done.out
    assert done.out.count("\n") == 2


def test_characters_outside_the_encoding_of_the_terminal(daemon: FakeDaemon) -> None:
    daemon.answer("/jobs/details", [details(name="ünï")])
    out, err = started("status", env={**os.environ, "PYTHONIOENCODING": "ascii"}).communicate()
    assert (b"\\xfcn\\xef" in out, err) == (True, b"")


def test_status_on_a_terminal(
    daemon: FakeDaemon,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    daemon.answer(
        "/jobs/details", [details(name="[bold]name", started="2026-01-31T10:00:00+00:00")]
    )
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    done = run("status", "--format", "all")
    assert "[bold]name" in done.out
    assert "2026-01-3" in done.out
    assert "+00:00" not in done.out
    assert "ENDED" not in done.out


@pytest.mark.parametrize("command", ["cancel", "hold", "release"])
def test_actions(daemon: FakeDaemon, run: Run, command: str) -> None:
    states = {"was": "held", "state": "queued", "note": "soon"}
    rows = [{"job": 17, "task": None, **states}]
    folded = {"job": 17, "tasks": None, "count": 1, **states}
    daemon.answer(f"/jobs/{command}", {"folded": [folded]})
    done = run(command, "17", "18_3", "--state", "held")
    assert done.code == 0
    assert done.out.splitlines()[1].split() == ["17", "held", "queued", "soon"]
    assert daemon.requests[0][3] == {"jobs": ["17", "18_3"], "user": None, "state": "held"}
    assert json.loads(run(command, "--user", "ada", "--json").out) == rows
    assert daemon.requests[1][3] == {"jobs": [], "user": "ada", "state": None}
    run(command, "--state", "R,oom")
    assert daemon.requests[2][3]["state"] == "running,out_of_memory"


@pytest.mark.parametrize(
    ("word", "wider"), [("CG", "running"), ("completing", "running"), ("RH", "pending")]
)
def test_actions_take_no_state_that_selects_more(
    daemon: FakeDaemon, run: Run, word: str, wider: str
) -> None:
    """`cancel --state CG` would cancel all running jobs."""
    done = run("cancel", "--state", f"held,{word}")
    assert (done.code, daemon.requests) == (2, [])
    message = f"{word} is not told from other states, --state; name jobs, or use {wider}"
    assert message in done.err


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([("completed", 0)], 0),
        ([("failed", 3)], 3),
        ([("failed", 143)], 143),
        ([("failed", None)], 1),
        ([("failed", 0)], 1),
        ([("timeout", None)], 124),
        ([("timeout", 143)], 124),
        ([("cancelled", None)], 130),
        ([("rejected", None)], 3),
        ([("completed", 0), ("failed", 7), ("failed", 2)], 7),
    ],
)
def test_wait_exits_with_the_highest_code(
    daemon: FakeDaemon, run: Run, states: list[tuple[str, int | None]], code: int
) -> None:
    ended = [row(17 + i, state, exit_code=code) for i, (state, code) in enumerate(states)]
    daemon.answer("/jobs/wait", [row()], [row(state="unknown")], ended)
    done = run("wait", "17", "18")
    assert (done.code, done.err) == (code, "")
    assert len(daemon.requests) == 3
    assert daemon.requests[0][2]["job"] == ["17", "18"]
    assert len(done.out.splitlines()) == 1 + len(states)


def test_story_is_a_line_per_event(daemon: FakeDaemon, run: Run) -> None:
    event = {"time": "2026-01-31T10:00:00+00:00", "task": None, "attempt": None, "event": "queued"}
    fields = {"from": None, "to": "queued", "cluster": None, "reason": None, "cause": "submitted"}
    sent = {"task": 3, "attempt": 1, "event": "send", "from": "queued", "to": "dispatching"}
    events = [event | fields, event | fields | sent | {"cluster": "left", "reason": "priority"}]
    daemon.answer("/jobs/17/story", {"job": 17, "events": events})
    done = run("story", "17")
    assert done.out.splitlines() == [
        "2026-01-31T10:00:00+00:00  queued  queued  (submitted)",
        "2026-01-31T10:00:00+00:00 task 3 attempt 1  send  queued -> dispatching on left  "
        "(priority: submitted)",
    ]
    assert json.loads(run("story", "17", "--json").out) == events


def test_explain(daemon: FakeDaemon, run: Run) -> None:
    down = {"eligible": False, "reason": "cluster_down", "text": "no answer for 30 s"}
    answer = {
        "job": 17,
        "task": 3,
        "state": "queued",
        "reason": "cluster_down",
        "priority": 7,
        "text": "It waits with us.",
        "parts": [{"heuristic": "user", "contribution": 7, "weight": 1.0}],
        "clusters": [
            verdict("left", chosen=True, account="physics", nodes={"text": "partition main: few"}),
            verdict("right", load=None, nodes=None, **down),
        ],
    }
    daemon.answer("/jobs/17_3/explain", answer)
    lines = [line.split() for line in run("explain", "17_3").out.splitlines()]
    assert " ".join(lines[0]) == "Job 17_3 is queued, cluster_down, priority 7."
    assert " ".join(lines[1]) == "It waits with us."
    assert ["user", "7", "1"] in lines
    assert ["left", "yes", "yes", "physics", "120", "2"] in lines
    assert "right no 2 cluster_down: no answer for 30 s" in [" ".join(line) for line in lines]
    assert [" ".join(line) for line in lines[-2:]] == ["NODES", "left, partition main: few"]
    assert json.loads(run("explain", "17_3", "--json").out) == answer


def test_explain_shows_self_optimisation(daemon: FakeDaemon, run: Run) -> None:
    tuned = {"parameter": "base-span", "before": [2.0, 2.0], "after": [0.84, 1.125]}
    evidence = {"distance": 0.312, "expected": 0.1, "time": "2026-01-31T10:00:00+00:00"}
    ended = {**evidence, "parameter": "base", "before": [2.5], "after": [], "distance": None}
    parts = [{"heuristic": "deadline", "contribution": 7, "weight": 1.0}]
    answer = {**FAILED, "state": "queued", "parts": parts, "tuning": [tuned | evidence, ended]}
    daemon.answer("/jobs/17/explain", answer)
    assert run("explain", "17").out.splitlines()[-2:] == [
        "base-span: 2, 2 -> 0.84, 1.125 at 2026-01-31T10:00:00+00:00 "
        "(the priorities were 0.31 from the target, 0.10 expected)",
        "base: 2.5 -> as configured at 2026-01-31T10:00:00+00:00 (the policy was changed)",
    ]


def test_explain_of_an_ended_job_says_what_it_used(daemon: FakeDaemon, run: Run) -> None:
    answer = {**FAILED, "state": "completed", "text": "It has ended."}
    used = {"elapsed": 65.0, "cpu_seconds": 61.5, "max_memory": 900, "nodes": "a1"}
    daemon.answer("/jobs/17/explain", {**answer, "usage": used})
    daemon.answer("/jobs/details", [details(17, "completed", started="2026-01-31T10:00:00Z")])
    expected = "It used 1:05 of time, 1:01 of processor time, at most 900M of memory on a1."
    assert run("explain", "17").out.splitlines()[2:] == [expected]
    daemon.answer("/jobs/17/explain", {**answer, "usage": dict.fromkeys(used)})
    assert run("explain", "17").out.splitlines()[2:] == []


FAILED = {"job": 17, "task": None, "state": "failed", "reason": None, "priority": 7, "text": ""}


def explained_end(daemon: FakeDaemon, run: Run, path: Path, **fields: object) -> list[str]:
    """Return the lines of `explain` about the end of a job with this output."""
    ran = {"started": "2026-01-31T10:00:00Z", "ended": "2026-01-31T10:01:05Z"}
    daemon.answer("/jobs/17/explain", FAILED)
    daemon.answer("/jobs/details", [details(17, "failed", **{**ran, "exit_code": 3, **fields})])
    answer_paths(daemon, path)
    return run("explain", "17").out.splitlines()[1:]


def test_explain_of_a_failed_job(daemon: FakeDaemon, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "17.out"
    path.write_text("".join(f"line {i}\n" for i in range(3000)) + "no such file\x1b[2J")
    end = explained_end(daemon, run, path, signal=None)
    last = [f"  line {i}" for i in range(2991, 3000)]
    assert end == ["", "Exit code 3.", f"Output: {path}", *last, "  no such file?[2J"]
    path.unlink()
    end = explained_end(daemon, run, path, exit_code=None, signal=9)
    expected = ["Exit code unknown, signal 9.", f"Output: {path}"]
    assert end[1:] == [*expected, "  (No such file or directory here)"]


def test_explain_does_not_wait_for_a_pipe_of_a_job(
    daemon: FakeDaemon, run: Run, tmp_path: Path
) -> None:
    """An operator who asks about a job of another reads a path that its owner chose."""
    os.mkfifo(tmp_path / "pipe")
    end = explained_end(daemon, run, tmp_path / "pipe")
    assert end[-1] == "  (not a regular file here)"


def test_explain_of_a_job_that_never_started(daemon: FakeDaemon, run: Run, tmp_path: Path) -> None:
    assert explained_end(daemon, run, tmp_path / "17.out", started=None) == []
