"""Time until a killed daemon serves again, with 10,000 and 50,000 open jobs."""

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

BATCH, ROUNDS = 1000, 5
ASKED = {10_000: 5.0, 50_000: 10.0}  # seconds, by number of open jobs


def occupy(site: Site, client: Client) -> None:
    """Fill both local clusters with a long job each."""
    for cluster, cpus in (("left", "8"), ("right", "4")):
        site.submit("--wrap", "sleep 3600", "-n", cpus, "--cluster", cluster, "-t", "2:00:00")
    site.until(lambda: len(client.jobs(state="running")) == 2)


def restart_after_a_kill(site: Site, client: Client) -> tuple[float, float]:
    """Return the seconds until a killed daemon answers again, and until it has listed all."""
    site.stop(signal.SIGKILL)
    begun = time.monotonic()
    site.launch()
    while True:
        try:
            client.health()
            break
        except ClientError:
            time.sleep(0.01)
    serving = time.monotonic() - begun
    site.until(lambda: all(c["state"] == "up" for c in client.clusters()))
    return serving, time.monotonic() - begun


@pytest.mark.bench
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("jobs", ASKED)
def test_recovery_with_open_jobs(jobs: int, site: Site, record: Record) -> None:
    """Half of the jobs are held, half are pending on two clusters; time since SIGKILL."""
    depth = f"poll_interval = 0.2\nqueue_depth = {jobs}\n"
    site.configure(TWO_LOCAL.replace("poll_interval = 0.2\n", depth))
    site.start()
    client = Client(site.folder / "ms.sock", timeout=300)
    occupy(site, client)  # all other jobs wait
    for _ in range(jobs // BATCH // 2):
        client.submit(submission(site.folder, BATCH, held=True))
        client.submit(submission(site.folder, BATCH))
    site.until(lambda: len(client.jobs(state="pending")) == jobs // 2, 1200)
    serving, heard = [], []
    for _ in range(ROUNDS):
        until_serving, until_listed = restart_after_a_kill(site, client)
        serving.append(until_serving)
        heard.append(until_listed)
    asked, with_jobs = ASKED[jobs], f"with {jobs:,} open jobs"
    record(
        f"until the daemon answers, {with_jobs}",
        median(serving),
        "s",
        target=f"at most {asked:g} s",
    )
    record(f"until all clusters were listed, {with_jobs}", median(heard), "s")
    assert median(serving) < asked
