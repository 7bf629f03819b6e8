"""Faults on a few sites lose and duplicate no job; every step has a crash point."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import site_mode
from tests.chaos.audit import audit
from tests.chaos.cover import missed, record, steps_of_local, steps_of_slurm
from tests.chaos.faults import FAULTS, Fault, Manager, Trial
from tests.chaos.round import Managers, play, slurm_clusters
from tests.chaos.site import ChaosSite
from tests.chaos.stream import Stream
from tests.conftest import require
from tests.harness import slurm
from tests.harness.gridengine import Cell
from tests.harness.postgresql import Server, missing
from tests.harness.slurm import SlurmSite

SEED = "test"
SOON = 20  # passages until a death, on average
pytestmark = [
    pytest.mark.slow("plays rounds of faults on sites with real managers"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def slurm_site(common_folder: Path) -> Iterator[SlurmSite]:
    if (reason := slurm.missing()) is not None:
        require("slurm", reason)
    with slurm_clusters(common_folder / "slurm-faults") as site:
        yield site


def each_of(manager: Manager, may_fail: bool = False) -> Fault:
    """Return a fault that strikes once with each quick fault of that manager and `may_fail`."""
    faults = [f for f in FAULTS if (f.manager, f.may_fail, f.quick) == (manager, may_fail, True)]
    faults.reverse()  # daemons last: each successor is under orders to die, too

    def strike(trial: Trial) -> None:
        trial.passages = SOON
        for fault in faults:
            trial.strikes = 0
            fault.strike(trial)

    return Fault("each", manager, strike, 1, 1, may_fail=may_fail)


def struck(folder: Path, fault: Fault, managers: Managers) -> set[str]:
    """Play a round with the fault, check its result, and return the crash points passed."""
    result = play(folder / "site", fault, managers, SEED, 1)
    assert not result.failure, result.failure
    assert result.jobs > 0
    assert result.recoveries
    return set(result.passed)


def test_over_local_clusters(tmp_path: Path) -> None:
    struck(tmp_path, each_of("local"), Managers())


@pytest.mark.parametrize("may_fail", [False, True])
def test_over_slurm(may_fail: bool, tmp_path: Path, slurm_site: SlurmSite) -> None:
    for cluster in slurm_site:
        cluster.empty()
    points = struck(tmp_path, each_of("slurm", may_fail), Managers(slurm=slurm_site))
    assert may_fail or not missed(steps_of_slurm(), points)


@pytest.mark.root
def test_over_local_clusters_in_site_mode(common_folder: Path) -> None:
    """Two accounts submit; the launcher and the daemon are killed."""
    if (reason := site_mode.missing()) is not None:
        pytest.skip(reason)
    struck(common_folder / "local-site", each_of("local_site"), Managers(site_mode=True))


@pytest.mark.root
def test_over_slurm_in_site_mode(common_folder: Path, slurm_site: SlurmSite) -> None:
    if (reason := site_mode.missing()) is not None:
        pytest.skip(reason)
    for cluster in slurm_site:
        cluster.empty()
    managers = Managers(slurm=slurm_site, site_mode=True)
    struck(common_folder / "slurm-site", each_of("slurm_site"), managers)


def test_over_postgresql(tmp_path: Path, common_folder: Path) -> None:
    if (reason := missing()) is not None:
        require("postgresql", reason)
    with Server(common_folder / "pg-faults") as server:
        struck(tmp_path, each_of("postgresql"), Managers(server=server))


def test_over_gridengine(tmp_path: Path, gridengine_cell: Cell) -> None:
    gridengine_cell.empty()
    struck(tmp_path, each_of("gridengine"), Managers(cell=gridengine_cell))


def test_every_step_has_a_crash_point(tmp_path: Path) -> None:
    """`make chaos` kills a process at each of the points that this run passes."""
    site = ChaosSite(tmp_path / "site")
    stream = Stream(site.client, site.run_log, ("left", "right"), SEED)
    try:
        points = record(site, stream)
        assert not missed(steps_of_local(), points)
        verdict = audit(site.store, stream)
        assert verdict.well, verdict
        assert not verdict.waiting, verdict
    finally:
        stream.stop()
        site.close()
