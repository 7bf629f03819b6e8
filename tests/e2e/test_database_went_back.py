"""The database goes back in time: a copied file, a restored image, a server that lost commits."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Site
from tests.e2e.test_restored_backup import Jobs, Manager, local, slurm_without_records


def copied(site: Site, name: str) -> None:
    """Copy the database file and its log, as `cp` does beside a stopped daemon."""
    for suffix in ("", "-wal", "-shm"):
        source = site.database.with_name(site.database.name + suffix)
        if source.exists():
            shutil.copy(source, site.folder / (name + suffix))


def findings(site: Site, check: str, code: int = 1) -> list[dict[str, Any]]:
    printed = json.loads(site.run("doctor", "--json", code=code).stdout)
    return [finding for finding in printed if finding["check"] == check]


@pytest.mark.slow("boots a controller, and starts the daemon three times")
@pytest.mark.parametrize("boot", [local, slurm_without_records], ids=lambda b: b.__name__)
def test_a_copied_file_doubles_and_cancels_nothing(
    site: Site,
    boot: Callable[[Path, pytest.FixtureRequest], Manager],
    request: pytest.FixtureRequest,
) -> None:
    """10 tasks wait in the copy, and have run since under tags that it would use again."""
    manager = boot(site.folder, request)
    site.before = manager.inside
    site.configure(manager.table)
    site.start()
    jobs = Jobs(site, 1)
    jobs.submit("blocks", 4)
    jobs.until(blocks="running")
    names = [f"job{number}" for number in range(10)]
    after = f"afterany:{jobs.ids['blocks']}"
    for name in names:
        jobs.submit(name, 1, 3 if name == "job1" else 0, "--dependency", after)
    former = site.instance
    site.stop()
    copied(site, "copy.db")
    site.start()
    jobs.end("blocks", *names[:6])
    states = {name: "failed" if name == "job1" else "completed" for name in names[:6]}
    states |= dict.fromkeys(names[6:], "running")
    jobs.until(blocks="completed", **states)
    lost = [jobs.submit(f"lost{number}", 1) for number in range(4)]
    site.stop()
    site.restore(site.folder / "copy.db")
    [finding] = findings(site, "database history")
    assert finding["id"] == "database-went-back", finding
    site.start()

    # what the manager knows under the old tags settles the tasks
    assert site.instance != former
    jobs.until(blocks="completed", **states)
    [record] = [row for row in site.json("events") if row["kind"] == "database_went_back"]
    assert "its last event is" in record["cause"]
    assert "its mark says" in record["cause"]
    [finding] = findings(site, "database history")
    assert former in finding["mend"]
    jobs.end(*names, *(f"lost{number}" for number in range(4)))
    new = [f"new{number}" for number in range(6)]
    for name in new:
        assert jobs.submit(name, 1) > max(lost)
    jobs.end(*new)
    jobs.until(**dict.fromkeys(names, "completed") | {"job1": "failed"})
    jobs.until(**dict.fromkeys(new, "completed"))
    ran = Counter(jobs.ran.read_text().split())
    assert set(ran.values()) == {1}, ran
    assert {"blocks", *names, *new} <= set(ran)
    site.stop()
    site.replayed()

    # the finding stays until the database is adopted
    findings(site, "database history")
    assert "nobody can answer" in site.error("db", "adopt", code=2)
    assert site.json("db", "adopt", "--yes")["events"] > 0
    site.start()
    assert not findings(site, "database history", code=0)
    assert [row for row in site.json("events") if row["kind"] == "database_went_back"] == [record]
