"""A slow `qsub` in site mode: a dispatch ends in time, and its other tasks follow in the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.multi_user_site import gridengine_tables, running_site
from tests.harness.accounts import A
from tests.harness.gridengine import Cell

pytestmark = pytest.mark.root

TASKS = 12
QSUB = "/usr/lib/gridengine/qsub"
SLOW_QSUB = f'#!/bin/sh\nsleep 0.5\nexec {QSUB} "$@"\n'


@pytest.mark.slow("twelve submissions of half a second each, in calls of ten")
def test_tasks_that_a_slow_qsub_leaves_follow_without_doubt(
    common_folder: Path, gridengine_cell: Cell
) -> None:
    """12 commands of half a second and more do not fit into half of `call_timeout`."""
    qsub = common_folder / "slow-qsub"
    qsub.write_text(SLOW_QSUB)
    qsub.chmod(0o755)
    clusters, programs = gridengine_tables(gridengine_cell, "call_timeout = 10\n")
    programs = programs.replace(QSUB, str(qsub))
    try:
        with running_site(
            common_folder / "slow-gridengine", clusters, programs, inside=gridengine_cell.inside
        ) as site:
            a = site.by(A)
            ran = site.folder / A / "ran"
            job = a.submit(
                *("-t", "5", "-o", "/dev/null", "--array", f"1-{TASKS}"),
                *("--wrap", f"echo $METASCHED_TASK >> {ran}"),
            )
            rows = a.until_ended(job)
            assert [row["state"] for row in rows] == ["completed"] * TASKS
            assert sorted(map(int, ran.read_text().split())) == list(range(1, TASKS + 1))
            assert (
                "never submitted: the time of this call was over" in a.run("story", str(job)).stdout
            )
    finally:
        gridengine_cell.empty()
