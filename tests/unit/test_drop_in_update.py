"""`scontrol update`: which attributes change jobs of metasched, and what is refused."""

from __future__ import annotations

import os
import pwd
from typing import Any

import pytest

from metasched.client.connection import ClientError, NotFound, PermissionDenied
from metasched.drop_in.command import CommandError
from metasched.drop_in.job_update import update_jobs


class Requests:
    """Records requests instead of sending them."""

    def __init__(self, error: ClientError | None = None, *rows: tuple[str, str]) -> None:
        """`rows`: user and state of the tasks of the job."""
        self.sent: list[tuple[str, Any]] = []
        self.rows = [
            {"job": 17, "task": index, "user": user, "state": state, "time_limit": 570.0}
            for index, (user, state) in enumerate(rows)
        ]
        self._error = error

    def request(
        self, method: str, path: str, query: Any = None, body: Any = None
    ) -> tuple[list[Any], dict[str, str]]:
        if path == "/jobs/details":
            return self.rows, {}
        self.sent.append((path, body))
        if self._error is not None:
            raise self._error
        return [], {}


def update(requests: Requests, *words: str) -> int:
    return update_jobs(requests, ["17"], ["JobId=17", *words])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["TimeLimit=1-0"], {"time_limit": 86400}),
        (["timel=UNLIMITED"], {"time_limit": None}),
        (["JobName=a b", "Partition=long"], {"name": "a b", "partition": "long"}),
        (["Account=", "Features=gpu|ib"], {"account": None, "constraint": "gpu|ib"}),
        (["StartTime=uts1900000000"], {"begin": 1.9e9}),
        (["QOS=high", "Deadline=uts1900000000"], {"qos": "high", "deadline": 1.9e9}),
    ],
)
def test_attributes_are_mapped(words: list[str], changes: dict[str, object]) -> None:
    requests = Requests()
    assert update(requests, *words) == 0
    assert requests.sent == [("/jobs/modify", {"choice": {"jobs": ["17"]}, "changes": changes})]


@pytest.mark.parametrize(
    ("word", "minutes"),
    [
        ("TimeLimit=+5", 15),
        ("TimeLimit=-5", 5),
        ("timel+=5", 15),
        ("TimeLimit-=9", 1),
        ("TimeLimit=+1:30", 12),
        ("TimeLimit=-1", 9),
        ("TimeLimit+=1-00", 1450),
        ("TimeLimit=+0", 10),
    ],
)
def test_a_relative_time_limit_is_that_of_the_job_changed(word: str, minutes: int) -> None:
    """The job has 9.5 minutes, which count as 10."""
    requests = Requests(None, ("ada", "queued"))
    assert update(requests, word) == 0
    changes = {"time_limit": minutes * 60}
    assert requests.sent == [("/jobs/modify", {"choice": {"jobs": ["17"]}, "changes": changes})]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("TimeLimit+=+5", "Invalid syntax, variations of +=- are not accepted."),
        ("TimeLimit=+x", "Invalid TimeLimit value"),
        ("TimeLimit=+", "Invalid TimeLimit value"),
        ("TimeLimit=+UNLIMITED", "Invalid TimeLimit value"),
        ("TimeLimit=+-1", "Invalid TimeLimit value"),
        ("TimeLimit=-11", "TimeLimit decrement larger than current time limit (11 > 10)"),
        ("TimeLimit=-10", "TimeLimit would be 0; cancel the job instead"),
    ],
)
def test_wrong_changes_of_a_time_limit(word: str, message: str) -> None:
    requests = Requests(None, ("ada", "queued"))
    with pytest.raises(CommandError) as refused:
        update(requests, "JobName=a", word)
    assert str(refused.value) == f"scontrol: error: {message}"
    assert requests.sent == []


def test_a_job_without_a_time_limit_has_none_to_change() -> None:
    requests = Requests(None, ("ada", "queued"))
    requests.rows[0]["time_limit"] = None
    with pytest.raises(CommandError, match="the job has no TimeLimit to change"):
        update(requests, "TimeLimit=+5")
    assert requests.sent == []


def test_priority_zero_is_a_hold() -> None:
    requests = Requests()
    assert update(requests, "Priority=0") == 0
    assert requests.sent == [("/jobs/hold", {"jobs": ["17"]})]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["JobName=a", "Nice=5"], "Update of this parameter is not supported: Nice=5\nRequest"),
        (["Priority=7"], "not supported: Priority=7"),
        (["JobName+=a"], r"not supported: JobName\+=a"),
        (["TimeLimit+-=5"], r"not supported: TimeLimit\+-=5"),
        (["NumNodes=2"], "not supported: NumNodes=2"),
        (["time=5"], "not supported: time=5"),  # Slurm has TimeMin, too
        (["TimeLimit=x"], "scontrol: error: Invalid TimeLimit value"),
        (["StartTime=x"], "scontrol: error: Invalid time specification x"),
        (["word\x1b[31m"], r"Invalid input: word\?\[31m"),
        ([], "No changes specified"),
    ],
)
def test_the_rest_is_refused_and_changes_nothing(words: list[str], message: str) -> None:
    requests = Requests()
    with pytest.raises(CommandError, match=message):
        update(requests, *words)
    assert requests.sent == []


def test_a_job_that_is_missing_costs_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    requests = Requests(NotFound("no job"))
    ids = ["17", "18_3"]
    assert update_jobs(requests, ids, ["JobId=17,18_3", "TimeLimit=5"]) == 1  # type: ignore[arg-type]
    assert capsys.readouterr().err == (
        "Invalid job id specified for job 17\n18_3: Invalid job id specified\n"
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NotFound("no job 17"), "Invalid job id specified for job 17"),
        (PermissionDenied("not yours"), "Invalid user id for job 17"),
        (ClientError("17 is a task"), "slurm_update error: 17 is a task"),
    ],
)
def test_refusals_of_the_daemon(
    error: ClientError, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update(Requests(error), "TimeLimit=5") == 1
    assert capsys.readouterr().err == f"{message}\n"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("bob queued", "Invalid user id for job 17"),
        ("bob failed", "Invalid user id for job 17"),
        ("me failed", "Job has already finished for job 17"),
        ("me failed me queued", "slurm_update error: no cluster fits"),
    ],
)
def test_a_refused_update_says_why(
    rows: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [pwd.getpwuid(os.getuid()).pw_name if w == "me" else w for w in rows.split()]
    pairs = zip(words[::2], words[1::2], strict=True)
    requests = Requests(PermissionDenied("no cluster fits"), *pairs)
    assert update(requests, "Partition=long") == 1
    assert capsys.readouterr().err == f"{message}\n"
