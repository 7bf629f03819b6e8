"""Account a attacks a site by all attacks, in random order; no job of account b is lost.

`python -m tests.hostile` measures how long the jobs of b wait meanwhile (`make chaos`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.hostile.contest import contend
from tests.hostile.sites import SITES, HostileSite, missing

pytestmark = pytest.mark.root

STARTS = 12  # of b


@pytest.fixture(params=list(SITES))
def hostile(common_folder: Path, request: pytest.FixtureRequest) -> Iterator[HostileSite]:
    site_name: str = request.param
    if (reason := missing(site_name)) is not None:
        require(site_name, reason)
    folder = common_folder / f"attacked-{site_name}"
    folder.mkdir(mode=0o711)
    with SITES[site_name](folder) as site:
        yield site


@pytest.mark.slow("boots a site, on which twelve jobs start while another account attacks")
def test_no_attack_costs_another_account_a_job(hostile: HostileSite) -> None:
    result = contend(hostile, None, seed="1", number=STARTS)
    print(result)
    assert result.harm == [], result.seed
    assert len(result.attacked.delays) == STARTS
    hostile.site.stop()
    hostile.site.replayed()
