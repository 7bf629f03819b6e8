"""Coverage and width of expected starts on two real Slurm clusters that others use, too."""

from __future__ import annotations

import random
import statistics
import time
from datetime import datetime

import pytest

from metasched.client.client import Client
from tests.bench.conftest import Record
from tests.conftest import require
from tests.e2e.conftest import Site
from tests.harness.slurm import SlurmSite, missing

KNOWN = 100  # ended jobs before: fewer are no forecast
OWN, FOREIGN = 80, 30  # jobs that then wait
LIMIT = 60.0  # seconds, of all jobs; they run for 5 to 50
TOLERANCE = 2.0  # seconds: Slurm starts jobs by cycles, and listings are a second apart
SEED = 21
LEARNING = """
[[cluster]]
name = "here"
adapter = "local"
cpus = 100
"""


def _seconds(text: str | None) -> float:
    return datetime.fromisoformat(text or "").timestamp()


@pytest.mark.bench
@pytest.mark.timeout(1200)
def test_true_starts_lie_in_their_intervals(
    site: Site, tmp_path_factory: pytest.TempPathFactory, record: Record
) -> None:
    """The first interval that a waiting job is shown is compared with its start."""
    if (reason := missing()) is not None:
        require("slurm", reason)
    rng = random.Random(SEED)
    with SlurmSite(tmp_path_factory.mktemp("slurm")) as slurm:
        clusters = [slurm["alpha"], slurm["beta"]]
        site.configure(LEARNING + "".join(c.table("poll_interval = 1.0\n") for c in clusters))
        site.start()
        client = Client(site.folder / "ms.sock", timeout=60)

        def wrap() -> tuple[str, str]:
            return "--wrap", f"exec sleep {rng.uniform(5, 50):.1f}"

        for _ in range(KNOWN):
            site.submit("-n", "1", "--time", "1", "--cluster", "here", *wrap())
        site.until(lambda: not client.jobs(state="queued,dispatching,pending,running"), 300)
        own: set[int] = set()
        for number in range(OWN + FOREIGN):
            size = rng.choice([2, 4, 8, 16])
            if number * FOREIGN // (OWN + FOREIGN) != ((number + 1) * FOREIGN // (OWN + FOREIGN)):
                rng.choice(clusters).run("sbatch", f"-n{size}", "-t1", "-o/dev/null", *wrap())
            else:
                name = rng.choice(clusters).name
                own.add(site.submit("-n", str(size), "--time", "1", "--cluster", name, *wrap()))
        first = _follow(client, own)
    compared = [(shown, start) for shown, start in first.values() if shown is not None]
    assert len(compared) >= 20, "too few jobs waited"
    covered = [
        early - TOLERANCE <= start <= late + TOLERANCE for (early, _, late), start in compared
    ]
    record("jobs that were shown an interval", len(compared), "jobs")
    share = 100 * statistics.fmean(covered)
    record("started within their first interval", share, "%", target="nominal 80%")
    width = statistics.median(late - early for (early, _, late), _ in compared)
    record("median width of the interval", width, "s")
    near = [abs(median - start) <= 60 for (_, median, _), start in compared]
    record("median within 1 min of the start", 100 * statistics.fmean(near), "%")
    assert share > 40, "intervals say little: look for a defect"


def _follow(
    client: Client, jobs: set[int]
) -> dict[int, tuple[tuple[float, float, float] | None, float]]:
    """Return the first interval that each job was shown (early, median, late), and its start."""
    shown: dict[int, tuple[float, float, float]] = {}
    starts: dict[int, float] = {}
    while len(starts) < len(jobs):
        rows = client.jobs([str(job) for job in sorted(jobs)])
        for row in rows:
            job = row["job"]
            if row["started"]:
                starts[job] = _seconds(row["started"])
            elif row["expected_early"] and job not in shown:
                early, median = _seconds(row["expected_early"]), _seconds(row["expected_start"])
                shown[job] = early, median, _seconds(row["expected_late"])
        time.sleep(1)
    return {job: (shown.get(job), start) for job, start in starts.items()}
