"""What a listing of Grid Engine reports of jobs around a restart of the qmaster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from metasched.adapters.drmaa.session import DrmaaSession
from metasched.adapters.gridengine.adapter import CellSettings, GridEngine
from metasched.adapters.gridengine.commands import CellCommands
from metasched.adapters.gridengine.listing import QstatJob, parse_accounting_line
from metasched.adapters.manager_uptime import ManagerUptime
from metasched.model.cluster import Cluster
from metasched.model.job import State
from tests.unit.gridengine_answers import INSTANCE, TAG, line

KEY = (TAG, 0, "")
NOW = 1795230300.0
LAG = 30.0
PENDING = QstatJob("5", TAG, "ada", "qw", 1, submitted=NOW - 200)


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GridEngine:
    monkeypatch.setenv("SGE_ROOT", str(tmp_path))
    settings = CellSettings(
        bin_dir=None,
        parallel_environment="smp",
        memory=None,
        default_time=60.0,
        timeout=1.0,
        settle=20.0,
        keep=3600.0,
    )
    cluster = Cluster(name="c", adapter="drmaa")
    return GridEngine(cluster, DrmaaSession("none"), settings, INSTANCE, tmp_path)


def states(cell: GridEngine, at: float, job: QstatJob | None = None) -> list[State]:
    """Return the states of the rows of a listing at a time."""
    rows = cell._task_statuses({KEY: job} if job else {}, at, LAG)
    cell._proves_absence_until(at, LAG)
    return [row.state for row in rows]


def test_a_job_that_is_missing_stays_listed_until_the_accounting_can_have_it(
    cell: GridEngine,
) -> None:
    assert states(cell, NOW, PENDING) == [State.PENDING]
    assert states(cell, NOW + 5) == [State.PENDING]
    assert states(cell, NOW + 6 + LAG) == []


def test_a_job_that_is_missing_after_a_restart_is_listed_no_more(cell: GridEngine) -> None:
    """Else the core would take it for listed after the restart, and absence as a proof."""
    assert states(cell, NOW, PENDING) == [State.PENDING]
    cell._up_since = NOW + 3
    assert states(cell, NOW + 5) == []


def test_an_end_is_told_before_the_job_that_waits_again(cell: GridEngine) -> None:
    cell._accounting_lines[KEY] = parse_accounting_line(line("0", 0))
    assert states(cell, NOW, PENDING) == [State.COMPLETED]
    assert states(cell, NOW + 5, PENDING) == [State.PENDING]
    assert states(cell, NOW + 9) == [State.COMPLETED]


def test_a_second_run_of_an_older_spool_is_not_hidden_by_the_end_of_the_first(
    cell: GridEngine,
) -> None:
    ended = cell._accounting_lines[KEY] = parse_accounting_line(line("0", 0))
    first = replace(PENDING, state="r", submitted=None, started=ended.started)
    assert states(cell, NOW, first) == [State.COMPLETED]
    assert states(cell, NOW + 2, first) == [State.COMPLETED]
    assert states(cell, NOW + 5, PENDING) == [State.PENDING]
    second = replace(first, started=NOW + 6)
    assert states(cell, NOW + 9, second) == [State.RUNNING]
    cell._accounting_lines[KEY] = parse_accounting_line(line("0", 0, start=int(NOW) + 6))
    assert states(cell, NOW + 12) == [State.COMPLETED]


@pytest.mark.parametrize("answers", [True, False])
def test_a_qmaster_that_tells_no_start_may_have_been_started(
    cell: GridEngine, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    times: list[tuple[float, float] | None] = [(100.0, 900.0), None, (100.0, 910.0)]
    if not answers:
        times[2] = (905.0, 910.0)
    monkeypatch.setattr(CellCommands, "qmaster_times", lambda _: times.pop(0))
    first = cell._follow_start(1.0)
    assert first == cell._up_since
    silent = cell._follow_start(2.0)
    assert silent > first + 700
    assert cell._up_since == first
    again = cell._follow_start(3.0)
    assert (abs(again - first) < 1) is answers


def test_a_new_start_is_later_than_each_listing_before() -> None:
    """Also if the qmaster did not tell its start with the last one, and its clock is wrong."""
    uptime = ManagerUptime()
    assert uptime.update(100.0, 190.0, listed_at=1000.0, queried_at=1000.5) == 911.5
    assert uptime.update(100.0, 195.0, listed_at=1005.0, queried_at=1005.5) == 911.5
    uptime.skip(1010.0)
    assert uptime.update(150.0, 200.0, listed_at=1015.0, queried_at=1015.5) == 1010.0
    assert uptime.update(150.0, 205.0, listed_at=1020.0, queried_at=1020.5) == 1010.0
