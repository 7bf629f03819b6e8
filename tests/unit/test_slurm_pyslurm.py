"""Exit statuses that pyslurm reports wrongly are replaced by those of squeue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from metasched.adapters.slurm import listing as text
from metasched.adapters.slurm.commands import SlurmCommands
from metasched.adapters.slurm.pyslurm_access import PyslurmAccess

FIELDS = (
    *("77", "0", "FAILED", "main", "1", "10:00", "1795228095", "1795228095", "1795228095"),
    *("1795228096", "0", "72:0", "4294901708", "a4", "NonZeroExitCode", "ms-abcd1234-1-1"),
)
TOLD = text.QueueLine(*FIELDS)  # as pyslurm reports it: exit code - 128
ENDED = TOLD._replace(status="51200")


class Squeue:
    """An squeue with prepared answers; `asked` records the job ids of each call."""

    def __init__(self, *answers: list[text.QueueLine]) -> None:
        self._answers, self.calls = list(answers), list[Sequence[str]]()

    def jobs(self, *, ids: Sequence[str] = (), **_: Any) -> text.QueueListing:
        self.calls.append(ids)
        return text.QueueListing(self._answers.pop(0))


@pytest.fixture
def access() -> PyslurmAccess:
    made = PyslurmAccess.__new__(PyslurmAccess)  # pyslurm need not be installed
    made._squeue_lines = {}
    return made


def test_a_failed_job_is_queried_only_until_squeue_reports_its_end(
    access: PyslurmAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    completing = ENDED._replace(state="COMPLETING")
    squeue = Squeue([completing], [ENDED])
    monkeypatch.setattr(SlurmCommands, "jobs", lambda _, **arguments: squeue.jobs(**arguments))
    assert access._correct_lines([TOLD]) == ([completing], "")
    assert access._correct_lines([TOLD]) == ([ENDED], "")
    assert access._correct_lines([TOLD]) == ([ENDED], "")
    assert squeue.calls == [["77"], ["77"]]


def test_what_squeue_does_not_know_is_not_listed(
    access: PyslurmAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = Squeue([])
    monkeypatch.setattr(SlurmCommands, "jobs", lambda _, **arguments: squeue.jobs(**arguments))
    running = TOLD._replace(id="78", state="RUNNING")
    assert access._correct_lines([TOLD, running]) == ([running], "")
    assert access._correct_lines([TOLD, running]) == ([running], "")
    assert squeue.calls == [["77"]]
