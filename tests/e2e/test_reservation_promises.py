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
        wishes = [("iota", 1, 40.0), ("iota", 1, 45.0), ("kappa", 1, 50.0), ("kappa", 2, 50.0)]
        kept = Promises(site, slurm, by_processor=["iota"]).run(wishes, lasts=90.0, batch=15)
    assert (kept.promised, kept.refused) == (3, 0)
    assert len(kept.late) == 3
    assert min(kept.late.values()) > -1.0  # managers round their times
    assert kept.strangers == []
    assert list(kept.moved.values()) == [True]
    assert kept.left == []
    assert kept.batch_completed + kept.batch_lost == 15
    assert kept.batch_lost <= 8  # jobs of the last moment before the kill
    assert site.stop() == 0
    site.replayed()
