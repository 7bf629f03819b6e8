"""Reservations are kept on real clusters among batch jobs and over crashes."""

from __future__ import annotations

import pytest

from tests.conftest import require
from tests.e2e.conftest import Site
from tests.e2e.reservation_workload import Promises
from tests.harness.slurm import ClusterSpec, SlurmSite, missing


@pytest.mark.slow("boots two clusters of its own; windows begin after 35 s and last 90 s")
@pytest.mark.timeout(900)
def test_every_promise_is_kept_on_nodes_or_processors_of_its_own(
    site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if (reason := missing()) is not None:
        require("slurm", reason)
    folder = tmp_path_factory.mktemp("kept")  # short: slurmstepd's sockets lie below it
    specs = [ClusterSpec("kappa", "k", nodes=4, cpus=4), ClusterSpec("iota", "i", nodes=2, cpus=4)]
    with SlurmSite(folder, specs) as slurm:
        promises = Promises(site, slurm, by_processor=["iota"])
        # the faults, among them a second start, must be over when the windows begin
        lead = max(35.0, 12 * promises.start_seconds)
        requests = [("iota", 1, 0.0), ("iota", 1, 5.0), ("kappa", 1, 10.0), ("kappa", 2, 10.0)]
        later = [(cluster, units, lead + start) for cluster, units, start in requests]
        result = promises.run(later, lasts=90.0, batch=15)
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
