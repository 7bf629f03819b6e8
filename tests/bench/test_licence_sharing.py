"""Use of tokens shared by two real Slurm clusters and a Grid Engine cell."""

from __future__ import annotations

import pytest

from tests.bench.conftest import Record
from tests.e2e.conftest import Site
from tests.e2e.licence_sharing import TOTAL, WANTS, Sharing
from tests.harness.gridengine import Cell
from tests.harness.slurm import SlurmSite

SECONDS = 10.0  # run time of a job


@pytest.mark.bench
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [0, 10])
def test_tokens_in_use(
    kills: int,
    site: Site,
    slurm_site: SlurmSite,
    gridengine_cell: Cell,
    record: Record,
) -> None:
    use = Sharing(site, slurm_site, gridengine_cell).run(SECONDS, kills)
    run = f"daemon killed {kills} times" if kills else "undisturbed"
    record(f"token-seconds used, {run}", 100 * use.share, "%", target="at least 80%")
    assert use.most <= TOTAL
    assert use.completed == use.begun == len(WANTS)
