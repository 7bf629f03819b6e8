"""Submissions by the command line: request, output, warnings, repetition without an answer."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metasched.cli import app as cli_app
from metasched.client.client import Client
from metasched.client.connection import BadRequest, ResponseLost
from metasched.client.job_request import prepare_submission
from metasched.client.options import parse_command_line
from metasched.client.schemas import SubmitRequest
from tests.unit.cli.fake_daemon import FakeDaemon, Run, accepted, row, verdict


def test_submit_sends_a_complete_request(daemon: FakeDaemon, run: Run, home: Path) -> None:
    daemon.answer("/jobs", accepted())
    arguments = (
        "-n",
        "2",
        "-t",
        "10",
        "--native",
        "left:-x",
        "--export",
        "A=ü",
        "job.sh",
        "-n",
        "ü",
    )
    (home / "job.sh").write_text("#!/bin/sh\n#MS --urgency 2\n")
    done = run("submit", *arguments)
    assert (done.code, done.err) == (0, "")
    assert done.out == "Job 17: priority 7, cluster left\n"
    [(method, path, _, body)] = daemon.requests
    assert (method, path) == ("POST", "/jobs")
    expected, _ = prepare_submission(*parse_command_line(arguments), environ={}, now=time.time())
    assert body == json.loads(json.dumps(expected))
    assert msgspec.convert(body, SubmitRequest).jobs[0].arguments == ("-n", "ü")


@pytest.mark.parametrize(
    ("option", "out"),
    [
        (
            "--json",
            '{"job": 17, "priority": 7, "cluster": null, "expected_start": null, '
            '"expected_early": null, "expected_late": null}\n',
        ),
        ("--parsable", "17\n"),
    ],
)
def test_submit_output_for_programs(daemon: FakeDaemon, run: Run, option: str, out: str) -> None:
    daemon.answer("/jobs", accepted(cluster=None))
    assert run("submit", option, "--wrap", "x").out == out


def test_the_expected_start_is_told(daemon: FakeDaemon, run: Run) -> None:
    starts = {"expected_start": "B", "expected_early": "A", "expected_late": "C"}
    daemon.answer("/jobs", accepted(**starts))
    expected = "Expected to start at B, with 80% probability between A and C."
    assert run("submit", "--wrap", "x").out.splitlines()[1:] == [expected]
    daemon.answer("/jobs", accepted(**starts))
    answer = json.loads(run("submit", "--json", "--wrap", "x").out)
    assert {key: answer[key] for key in starts} == starts


def test_warnings_go_to_stderr(daemon: FakeDaemon, run: Run, home: Path) -> None:
    daemon.answer("/jobs", accepted(warnings=["the deadline has passed"]))
    (home / "job.sh").write_text("#!/bin/sh\n#SBATCH --tmp=1\n")
    done = run("submit", "--parsable", "job.sh")
    assert done.out == "17\n"
    assert done.err.splitlines() == [
        "metasched: warning: unknown options ignored, job.sh: --tmp",
        "metasched: warning: the deadline has passed",
    ]


def test_strict_refuses_warnings(daemon: FakeDaemon, run: Run, home: Path) -> None:
    (home / "job.sh").write_text("#!/bin/sh\n#SBATCH --tmp=1\n")
    done = run("submit", "--strict", "job.sh")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert done.err.endswith("--tmp; fix it, or leave out --strict\n")
    assert daemon.requests == []


def test_dry_run_explains_the_outcome(daemon: FakeDaemon, run: Run) -> None:
    why = {
        "parts": [{"heuristic": "deadline", "contribution": 0.123456, "weight": 2}],
        "clusters": [verdict("left", chosen=True), verdict("right", eligible=False)],
    }
    daemon.answer("/jobs", accepted(job=None, why=why))
    done = run("submit", "--dry-run", "--wait", "--wrap", "x")
    assert (done.code, daemon.requests[0][3]["dry_run"]) == (0, True)
    assert done.out.startswith("Dry run, nothing submitted. Outcome: priority 7, cluster left\n")
    assert ["deadline", "0.1235", "2"] in [line.split() for line in done.out.splitlines()]
    assert json.loads(run("submit", "--dry-run", "--json", "--wrap", "x").out)["why"] == why


def test_submit_wait_exits_with_the_code_of_the_job(daemon: FakeDaemon, run: Run) -> None:
    daemon.answer("/jobs", accepted())
    daemon.answer("/jobs/wait", [row()], [row(state="failed", exit_code=9)])
    done = run("submit", "--wait", "--parsable", "--wrap", "x")
    assert (done.code, done.out) == (9, "17\n")
    assert [path for _, path, _, _ in daemon.requests] == ["/jobs", "/jobs/wait", "/jobs/wait"]


def test_typer_and_the_quick_reader_agree_on_submit(
    daemon: FakeDaemon, run: Run, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.answer("/jobs", accepted())
    (home / "job.sh").write_text("#!/bin/sh\n")
    arguments = [
        "submit",
        "-n",
        "2",
        "--hold",
        "--native",
        "a:-x",
        "--native",
        "b:-y",
        "--export=NONE",
    ]
    arguments += ["--mem", "4G", "job.sh", "--mem", "x"]
    run(*arguments)
    cli_app.build_app()(arguments, standalone_mode=False)
    assert len(daemon.requests) == 2
    assert daemon.requests[0] == daemon.requests[1]


def test_a_daemon_that_refuses_the_caller_gets_no_submission_twice(
    daemon: FakeDaemon, run: Run
) -> None:
    daemon.answer("/jobs", b"")
    daemon.answer("/health", (401, {}))
    assert "check with `metasched status`" in run("submit", "--wrap", "x").err
    assert [path for _, path, _, _ in daemon.requests] == ["/jobs", "/health"]


def test_a_submission_without_answer_is_repeated_with_its_key(
    daemon: FakeDaemon, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasched.client.client.RETRY_INTERVAL", 0.0)
    row: dict[str, Any] = {"job": 7, "priority": 3, "cluster": None, "tasks": None, "warnings": []}
    daemon.answer("/jobs", b"", (504, {"error": "?"}), (503, {"error": "away"}), {"jobs": [row]})
    daemon.answer("/health", (503, {"error": "away"}), {"instance": "a"})
    assert run("submit", "--parsable", "--wrap", "x").out == "7\n"
    sent = [
        (key, body)
        for key, (_, path, _, body) in zip(daemon.keys, daemon.requests, strict=True)
        if path == "/jobs"
    ]
    assert len(sent) == 4
    assert all(again == sent[0] for again in sent)
    assert re.fullmatch("[0-9a-f]{32}", sent[0][0])
    # another submission has another key
    assert run("submit", "--parsable", "--wrap", "x").out == "7\n"
    assert daemon.keys[-1] not in (sent[0][0], "")


def test_a_refusal_of_a_repeated_submission_is_final(daemon: FakeDaemon, run: Run) -> None:
    daemon.answer("/jobs", b"", (409, {"error": "another submission has used key k"}))
    daemon.answer("/health", {"instance": "a"})
    done = run("submit", "--wrap", "x")
    assert (done.code, "has used key k" in done.err) == (1, True)


def test_a_submission_is_repeated_for_a_time(daemon: FakeDaemon) -> None:
    daemon.answer("/jobs", b"")
    daemon.answer("/health", {"instance": "a"})
    with pytest.raises(ResponseLost, match="check with"):
        Client(daemon.path, retry_time=0).submit({})
    assert len(daemon.requests) == 1
    with pytest.raises(BadRequest, match="no idempotency key"):
        Client(daemon.path).submit({}, "k\r\nX: y")
