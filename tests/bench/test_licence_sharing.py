"""How well tokens are used that two real Slurm clusters and a Grid Engine cell share."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import Site
from tests.e2e.sharing import POLL, TOTAL, WANTS, Sharing
from tests.gridengine import Cell
from tests.slurm import SlurmSite

SECONDS = 10.0  # of each job


@pytest.mark.bench
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [0, 10])
def test_tokens_in_use(
    kills: int,
    site: Site,
    slurm_site: SlurmSite,
    gridengine_cell: Cell,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use = Sharing(site, slurm_site, gridengine_cell).run(SECONDS, kills)
    with capsys.disabled():
        print(
            json.dumps(
                {
                    "bench": "tokens shared by three managers",
                    "kills": kills,
                    "poll_interval_s": POLL,
                    "most_of_4": use.most,
                    "share": round(use.share, 3),
                    "seconds": round(use.seconds, 1),
                    "clusters": sorted(use.clusters),
                }
            )
        )
    assert use.most <= TOTAL
    assert use.completed == use.begun == len(WANTS)
