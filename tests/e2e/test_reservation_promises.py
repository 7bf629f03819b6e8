"""Reservations are kept on real clusters among batch jobs and over crashes."""

from __future__ import annotations

import pytest

from tests.conftest import require
from tests.e2e.conftest import Site
from tests.e2e.reservation_workload import Promises
from tests.harness.slurm import ClusterSpec, SlurmSite, missing


@pytest.mark.slow
def test_every_promise_is_kept_on_nodes_or_processors_of_its_own(
    site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if (reason := missing()) is not None:
        require("slurm", reason)
    folder = tmp_path_factory.mktemp("kept")  # short: slurmstepd's sockets lie below it
    specs = [ClusterSpec("kappa", "k", nodes=4, cpus=4), ClusterSpec("iota", "i", nodes=2, cpus=4)]
    with SlurmSite(folder, specs) as slurm:
        requests = [("iota", 1, 40.0), ("iota", 1, 45.0), ("kappa", 1, 50.0), ("kappa", 2, 50.0)]
        result = Promises(site, slurm, by_processor=["iota"]).run(requests, lasts=90.0, batch=15)
    assert (result.promised, result.refused) == (3, 0)
    assert len(result.late) == 3
    assert min(result.late.values()) > -1.0  # managers round their times
    assert result.strangers == []
    assert list(result.moved.values()) == [True]
    assert result.leftover == []
    assert result.batch_completed + result.batch_lost == 15
    assert result.batch_lost <= 8  # jobs of the last moment before the kill
    assert site.stop() == 0
    site.replayed()
