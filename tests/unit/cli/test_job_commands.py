"""Commands on jobs: status, actions, wait, story, explain."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest

from metasched.paths import NEXT_CURSOR_HEADER
from tests.unit.cli.fake_daemon import FakeDaemon, Run, row, started, verdict


def test_status_is_a_plain_uncut_table_in_a_pipe(daemon: FakeDaemon, run: Run) -> None:
    name = "ü" * 255
    rows = [row(name=name), row(18, "completed", array="1-3", task=3, exit_code=0)]
    daemon.answer("/jobs", rows)
    done = run("status")
    header, first, second = done.out.splitlines()
    assert header.split() == [
        *["JOB", "NAME", "USER", "STATE", "REASON", "PRIORITY", "CLUSTER", "NATIVE_ID"],
        *["SUBMITTED", "EXPECTED_START", "STARTED", "ENDED", "EXIT"],
    ]
    assert first.split() == ["17", name, "ada", "running", "7", "left", "5", row()["submitted"]]
    assert second.split()[:2] == ["18_3", "sim"]
    assert second.split()[-1] == "0"
    assert json.loads(run("status", "--json").out) == rows


def test_status_sends_its_filters(daemon: FakeDaemon, run: Run) -> None:
    daemon.answer("/jobs", [])
    before = time.time()
    run("status", "17", "18_3", "--user", "a&b", "--state", "held,queued", "--all")
    run("status", "--since", "2h")
    assert daemon.requests[0][2] == {
        "job": ["17", "18_3"],
        "user": ["a&b"],
        "state": ["held,queued"],
        "all": ["true"],
        "limit": ["5000"],
    }
    assert daemon.requests[1][2].keys() == {"since", "limit"}
    assert float(daemon.requests[1][2]["since"][0]) == pytest.approx(before - 7200, abs=60)


def test_status_prints_all_pages(daemon: FakeDaemon, run: Run) -> None:
    pages = [[row(job=17), row(job=18)], [], [row(job=19)]]
    cursors = ("5.18.0", "5.18.7")
    daemon.answer(
        "/jobs",
        *((200, page, {NEXT_CURSOR_HEADER: c}) for page, c in zip(pages, cursors, strict=False)),
        pages[2],
    )
    lines = run("status", "--user", "ada").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["17", "18", "19"]
    queries = [query for _, _, query, _ in daemon.requests]
    assert [query.get("cursor") for query in queries] == [None, *([c] for c in cursors)]
    assert [query["user"] for query in queries] == [["ada"]] * 3


def test_tables_contain_no_control_characters(daemon: FakeDaemon, run: Run) -> None:
    daemon.answer("/jobs", [row(reason="manager:\x1b[2J\nx")])
    done = run("status")
    assert "manager:?[2J?x" in done.out
    assert done.out.count("\n") == 2


def test_characters_outside_the_encoding_of_the_terminal(daemon: FakeDaemon) -> None:
    daemon.answer("/jobs", [row(name="ünï")])
    out, err = started("status", env={**os.environ, "PYTHONIOENCODING": "ascii"}).communicate()
    assert (b"\\xfcn\\xef" in out, err) == (True, b"")


def test_status_on_a_terminal(
    daemon: FakeDaemon,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    daemon.answer("/jobs", [row(name="[bold]name", started="2026-01-31T10:00:00+00:00")])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    done = run("status")
    assert "[bold]name" in done.out
    assert "2026-01-3" in done.out
    assert "+00:00" not in done.out
    assert "ENDED" not in done.out


@pytest.mark.parametrize("command", ["cancel", "hold", "release"])
def test_actions(daemon: FakeDaemon, run: Run, command: str) -> None:
    rows = [{"job": 17, "task": None, "was": "held", "state": "queued", "note": "soon"}]
    daemon.answer(f"/jobs/{command}", {"jobs": rows})
    done = run(command, "17", "18_3", "--state", "held")
    assert done.code == 0
    assert done.out.splitlines()[1].split() == ["17", "held", "queued", "soon"]
    assert daemon.requests[0][3] == {"jobs": ["17", "18_3"], "user": None, "state": "held"}
    assert json.loads(run(command, "--user", "ada", "--json").out) == rows
    assert daemon.requests[1][3] == {"jobs": [], "user": "ada", "state": None}


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
            verdict("left", chosen=True, account="physics"),
            verdict("right", load=None, **down),
        ],
    }
    daemon.answer("/jobs/17_3/explain", answer)
    lines = [line.split() for line in run("explain", "17_3").out.splitlines()]
    assert " ".join(lines[0]) == "Job 17_3 is queued, cluster_down, priority 7."
    assert " ".join(lines[1]) == "It waits with us."
    assert ["user", "7", "1"] in lines
    assert ["left", "yes", "yes", "physics", "120", "2"] in lines
    assert "right no 2 cluster_down: no answer for 30 s" in [" ".join(line) for line in lines]
    assert json.loads(run("explain", "17_3", "--json").out) == answer
