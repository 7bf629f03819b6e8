"""1,000 power cuts: the mark and the end of the log are lost apart, and none is a false alarm.

A commit has returned only if its part of the log is on disk (`synchronous=FULL`). All later bytes
may be lost, or torn. The mark is not synced: any former mark may be there, a torn one, or none.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from metasched.core.events import ClusterDrained, DaemonStarted
from metasched.core.scheduler import Core
from metasched.db import marks
from metasched.db.instances import Identity
from metasched.db.ledger import Ledger
from metasched.db.sqlite import Sqlite
from metasched.model.cluster import Cluster
from metasched.policies.policy import Policy

NOW = 1_800_000_000.0
COMMITS = 12
CUTS = 1000


@dataclass
class Disk:
    """What the files hold once a commit has returned."""

    database: bytes
    log: bytes
    mark: bytes  # written after this commit


def start(path: Path, at: float) -> tuple[Identity, Ledger, Core]:
    """Start a daemon on a database, up to its names."""
    database = Sqlite(path)
    lock = database.acquire_writer()
    writer = lock.__enter__()
    ledger = Ledger(writer.engine, writer, mark_path=lambda name: database.mark_path(path, name))
    core = Core()
    ledger.restore(core, 10)
    ledger.end = lambda: lock.__exit__(None, None, None)  # type: ignore[attr-defined]
    return ledger.identity(at), ledger, core


def record_start(identity: Identity, ledger: Ledger, core: Core) -> None:
    started = DaemonStarted(
        NOW,
        identity.instance,
        Policy(),
        (Cluster(name="left", adapter="local"),),
        first_dispatches=identity.first_dispatches,
        restored=identity.restored,
        went_back=identity.went_back,
    )
    ledger.record_start(started, core.step(started), None)


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Disk]:
    """Return the disk after each commit of a daemon."""
    monkeypatch.setattr(marks, "INTERVAL", 0.0)
    path = tmp_path / "ledger.db"
    identity, ledger, core = start(path, NOW)
    record_start(identity, ledger, core)
    disks = []
    for number in range(COMMITS):
        event = ClusterDrained(NOW + number, "left", "root", f"reason {number}" * 500)
        ledger.record([(event, core.step(event))])
        ledger.write_mark()
        read = [file.read_bytes() for file in files_of(path)]
        disks.append(Disk(*read))
        if number == COMMITS // 2:
            ledger._connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            ledger._connection.commit()
            disks[-1] = Disk(*(file.read_bytes() for file in files_of(path)))
    ledger.end()  # type: ignore[attr-defined]
    path.unlink()  # a file beside it would be a copy
    return disks


def files_of(path: Path) -> tuple[Path, Path, Path]:
    return path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}.mark")


def after_cut(folder: Path, disks: list[Disk], draw: random.Random, *, lies: bool = False) -> str:
    """Cut the power after a commit, and start again; return whether it seems to have gone back.

    `lies`: the disk has lost commits that it had confirmed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    number = draw.randrange(COMMITS - 1)
    disk, later = disks[number], disks[number + 1]
    log = disk.log
    if later.log.startswith(log) and draw.random() < 0.5:  # the next commit was being written
        log = later.log[: draw.randint(len(log), max(len(later.log) - 1, len(log)))]
    kept = draw.randint(number + 1, COMMITS - 1) if lies else draw.randint(0, number)
    mark = disks[kept].mark
    path = folder / "ledger.db"
    if not lies and draw.random() < 0.3:
        mark = mark[: draw.randrange(len(mark))]
    for file, content in zip(files_of(path), (disk.database, log, mark), strict=True):
        if content or file.suffix != ".mark" or draw.random() < 0.5:
            file.write_bytes(content)
    identity, ledger, _ = start(path, NOW + 100)
    ledger.end()  # type: ignore[attr-defined]
    return identity.went_back


@pytest.mark.slow("opens 1,000 databases")
def test_a_power_cut_is_no_false_alarm(tmp_path: Path, life: list[Disk]) -> None:
    draw = random.Random(7)
    for cut in range(CUTS):
        assert not after_cut(tmp_path / "cut", life, draw), cut


def test_a_disk_that_lied_is_noticed(tmp_path: Path, life: list[Disk]) -> None:
    draw = random.Random(8)
    for cut in range(20):
        assert "its last event is" in after_cut(tmp_path / "cut", life, draw, lies=True), cut
