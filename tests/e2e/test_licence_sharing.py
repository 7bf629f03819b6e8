"""Two Slurm clusters and a Grid Engine cell share tokens: use never exceeds the total."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Site
from tests.e2e.licence_sharing import TOTAL, WANTS, Sharing
from tests.harness.gridengine import Cell
from tests.harness.slurm import SlurmSite


@pytest.mark.slow("jobs of three managers take licences while the daemon is killed")
@pytest.mark.timeout(600)
def test_never_more_in_use_than_there_are_however_often_the_daemon_is_killed(
    site: Site, slurm_site: SlurmSite, gridengine_cell: Cell
) -> None:
    """The jobs last 2 s; tests/bench measures the token use of jobs of 10 s."""
    use = Sharing(site, slurm_site, gridengine_cell).run(2.0, 10, only=("", "", "cell"))
    assert use.completed == use.begun == len(WANTS)
    assert TOTAL - 1 <= use.most <= TOTAL
    assert "cell" in use.clusters
    assert len(use.clusters) > 1
    site.stop()
    site.replayed()
    assert all(row["ok"] for row in site.json("db", "check"))
