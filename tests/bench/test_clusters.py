"""Cost of many clusters: memory of their workers, idle daemon, polls, cold start."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median

import psutil
import pytest

from metasched.adapters.local.adapter import Local, LocalOptions
from metasched.model.cluster import Cluster
from tests.bench.conftest import Record
from tests.e2e.conftest import Site
from tests.harness.worker_adapter import WorkerAdapter

CLUSTERS, POLLS, IDLE_SECONDS = 50, 20, 60.0
PAUSE = 0.2  # seconds between two polls of a cluster


@contextmanager
def workers(number: int, folder: Path) -> Iterator[list[WorkerAdapter]]:
    """Workers of local clusters, each polled once."""
    with ExitStack() as stack:
        adapters = [
            stack.enter_context(closing(worker_of(folder / f"c{n}"))) for n in range(number)
        ]
        for adapter in adapters:
            adapter.poll()
        yield adapters


def worker_of(folder: Path) -> WorkerAdapter:
    folder.mkdir(parents=True)
    options = LocalOptions(cpus=4)
    cluster = Cluster(name=folder.name, adapter="local")
    python = [sys.executable]
    return WorkerAdapter(
        cluster, options, "bench", folder, Local.capabilities_for(options), python, {}
    )


def seconds_of_a_poll(adapters: list[WorkerAdapter]) -> float:
    """Poll the workers in turn, each after the same pause; return the median time of a poll."""
    times = []
    for _ in range(POLLS):
        for adapter in adapters:
            time.sleep(PAUSE / len(adapters))
            begun = time.perf_counter()
            adapter.poll()
            times.append(time.perf_counter() - begun)
    return median(times)


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_polls_of_50_clusters(tmp_path: Path, record: Record) -> None:
    with workers(1, tmp_path / "alone") as alone, workers(CLUSTERS, tmp_path / "all") as all_of:
        pairs = [(seconds_of_a_poll(alone), seconds_of_a_poll(all_of)) for _ in range(3)]
    record(
        "a warm poll of each of 50 clusters",
        median(of_all for _, of_all in pairs) * 1e3,
        "ms",
        peers={"one cluster": median(of_one for of_one, _ in pairs) * 1e3},
        target="at most 2 x peer",
    )


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_a_daemon_of_50_clusters(site: Site, record: Record) -> None:
    site.configure(
        "".join(
            f'[[cluster]]\nname = "c{number}"\nadapter = "local"\ncpus = 4\n'
            for number in range(CLUSTERS)
        )
    )
    begun = time.monotonic()
    site.launch()
    site.until(lambda: {row["state"] for row in site.cluster_rows()} == {"up"})
    cold_start = time.monotonic() - begun
    processes = [psutil.Process(site.pid), *site.workers]
    assert len(processes) == CLUSTERS + 1
    time.sleep(12)  # the first polls are over
    before = sum(sum(process.cpu_times()[:2]) for process in processes)
    time.sleep(IDLE_SECONDS)
    used = sum(sum(process.cpu_times()[:2]) for process in processes) - before
    daemon, *sizes = [process.memory_full_info().pss / 1e6 for process in processes]
    record("cold start with 50 clusters, until all answer", cold_start, "s", target="under 15 s")
    record("largest worker (PSS) of 50", max(sizes), "MB", target="under 16 MB")
    record("daemon (PSS)", daemon, "MB")
    record(
        "idle daemon with 50 workers",
        used / IDLE_SECONDS * 100,
        "% of a core",
        target="under 1%",
    )
