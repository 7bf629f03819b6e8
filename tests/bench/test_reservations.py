"""Delay between the starts of 30 reservations and of their jobs, beside 200 batch jobs."""

from __future__ import annotations

from statistics import median

import pytest

from tests.bench.conftest import Record
from tests.conftest import require
from tests.e2e.conftest import Site
from tests.e2e.reservation_workload import Promises
from tests.harness.gridengine import Cell
from tests.harness.gridengine import missing as no_gridengine
from tests.harness.slurm import ClusterSpec, SlurmSite, missing

LASTS = 90.0
SPECS = [ClusterSpec("kappa", "k", nodes=4, cpus=4), ClusterSpec("iota", "i", nodes=4, cpus=4)]


@pytest.mark.bench
@pytest.mark.timeout(1800)
def test_thirty_reservations_among_two_hundred_jobs(
    site: Site, tmp_path_factory: pytest.TempPathFactory, record: Record
) -> None:
    """Use two Slurm clusters and a cell; drain a node, kill a controller and the daemon.

    One Slurm cluster reserves nodes, the other reserves processors.
    """
    for manager, reason in (("slurm", missing()), ("gridengine", no_gridengine())):
        if reason is not None:
            require(manager, reason)
    requests = [
        (("kappa", "iota", "cell")[n % 3], 1 + n // 3 % 2, 100.0 + 110.0 * (n // 6))
        for n in range(30)
    ]
    slurm_folder, cell_folder = (tmp_path_factory.mktemp(name) for name in ("slurm", "cell"))
    with SlurmSite(slurm_folder, SPECS) as slurm, Cell(cell_folder) as cell:
        result = Promises(site, slurm, cell, by_processor=["iota"]).run(requests, LASTS, batch=200)
    late = sorted(result.late.values())
    record("start of a job after its window's, median", median(late), "s", target="at most 10 s")
    record("the same, worst", late[-1], "s", target="at most 10 s")
    record("jobs started of promised reservations", 100 * len(late) / result.promised, "%")
    assert (len(late), result.strangers, result.leftover) == (result.promised, [], [])
    assert list(result.moved.values()) == [True]
    assert result.batch_completed + result.batch_lost == 200
    assert result.batch_lost <= 16  # lost only around the kill of the controller
