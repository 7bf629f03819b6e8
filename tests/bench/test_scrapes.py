"""What a scrape of the metrics costs the daemon, with a long queue and a cluster that is away."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest

from metasched.client.client import Client
from tests.bench.conftest import Record
from tests.bench.test_daemon import submission
from tests.bench.test_requests import cpu_seconds
from tests.e2e.conftest import TWO_LOCAL, Site
from tests.harness.http_calls import call

SCRAPES, ROUNDS = 20, 5
DEAD = '[[cluster]]\nname = "dead"\nadapter = "slurm"\nconfig = "{0}"\nbin_dir = "/nonexistent"\n'


@pytest.mark.bench
@pytest.mark.timeout(600)
@pytest.mark.parametrize("queued", [1_000, 10_000, 100_000])
def test_a_scrape(site: Site, record: Record, queued: int) -> None:
    (site.folder / "slurm.conf").touch()
    site.configure(TWO_LOCAL + DEAD.format(site.folder / "slurm.conf"))
    site.start("down:")
    client, socket = Client(site.folder / "ms.sock"), site.folder / "ms.sock"
    for _ in range(queued // 1_000):
        client.submit(submission(site.folder, 1_000, held=True))
    daemon = psutil.Process(site.pid)

    def scrape() -> None:
        assert call(socket, "GET", "/metrics").status == 200

    def cost(read: Callable[[], object]) -> float:
        """Return milliseconds of the daemon's processor time for a call."""
        before = cpu_seconds(daemon)
        for _ in range(SCRAPES):
            read()
        return (cpu_seconds(daemon) - before) / SCRAPES * 1e3

    scrapes, pages = [], []
    for _ in range(ROUNDS):
        scrapes.append(cost(scrape))
        pages.append(cost(lambda: call(socket, "GET", "/jobs?all=1&limit=100")))
    record(
        f"a scrape with {queued:,} queued jobs",
        min(scrapes),
        "ms",
        peers={"a page of 100 jobs": min(pages)},
        target="under 50 ms",
    )
