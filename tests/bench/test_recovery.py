"""Time until a killed daemon serves again, with 10,000 open jobs."""

from __future__ import annotations

import signal
import time
from statistics import median

import pytest

from metasched.client.client import Client
from metasched.client.connection import ClientError
from tests.bench.conftest import Record
from tests.bench.test_daemon import submission
from tests.e2e.conftest import TWO_LOCAL, Site

JOBS, BATCH, ROUNDS = 10_000, 1000, 5
ASKED = 5.0  # seconds


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_recovery_with_10_000_open_jobs(site: Site, record: Record) -> None:
    """Half of the jobs are held, half are pending on two clusters; time since SIGKILL."""
    depth = f"poll_interval = 0.2\nqueue_depth = {JOBS}\n"
    site.configure(TWO_LOCAL.replace("poll_interval = 0.2\n", depth))
    site.start()
    client = Client(site.folder / "ms.sock", timeout=300)
    for cluster, cpus in (("left", "8"), ("right", "4")):  # all other jobs wait
        site.submit("--wrap", "sleep 3600", "-n", cpus, "--cluster", cluster, "-t", "2:00:00")
    site.until(lambda: len(client.jobs(state="running")) == 2)
    for _ in range(JOBS // BATCH // 2):
        client.submit(submission(site.folder, BATCH, held=True))
        client.submit(submission(site.folder, BATCH))
    site.until(lambda: len(client.jobs(state="pending")) == JOBS // 2, 600)
    serving, heard = [], []
    for _ in range(ROUNDS):
        site.stop(signal.SIGKILL)
        begun = time.monotonic()
        site.launch()
        while True:
            try:
                client.health()
                break
            except ClientError:
                time.sleep(0.01)
        serving.append(time.monotonic() - begun)
        site.until(lambda: all(c["state"] == "up" for c in client.clusters()))
        heard.append(time.monotonic() - begun)
    record("until the daemon answers", median(serving), "s", target="at most 5 s")
    record("until all clusters were listed", median(heard), "s")
    assert median(serving) < ASKED
