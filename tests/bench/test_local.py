"""Job starts per second of `local`, and the memory of a supervisor."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import pytest

from metasched.adapters.base import Submission, Withdrawal
from metasched.adapters.local.adapter import Local, LocalOptions
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Payload, State
from metasched.model.tags import tag_of
from tests.bench.conftest import Record
from tests.harness import processes

JOBS, SLEEPERS, ROUNDS = 300, 20, 3


def order(number: int, command: str) -> Submission:
    return Submission(
        tag=tag_of("bench", number, 1),
        job=Job(id=number, submitted=time.time(), estimated=60),
        payload=Payload(script=f"#!/bin/sh\nexec {command}\n"),
    )


def started_per_second(adapter: Local, first: int) -> float:
    """Return the rate from the first submission to the last start."""
    begun = time.time()
    for number in range(first, first + JOBS):
        adapter.submit(order(number, "/bin/true"))
    while any(row.ended is None for row in adapter.poll().rows):
        time.sleep(0.05)
    starts = [row.started or 0.0 for row in adapter.poll().rows]
    return JOBS / (max(starts) - begun)


def pss(pid: int) -> int:
    """Return kB of memory, with shared pages divided among the processes that share them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


@pytest.mark.bench
def test_local(tmp_path: Path, record: Record) -> None:
    options = LocalOptions(cpus=64, kill_wait=1.0)
    adapter = Local(Cluster(name="bench", adapter="local"), options, "bench", tmp_path)
    try:
        rates = [started_per_second(adapter, JOBS * turn) for turn in range(ROUNDS)]
        sleepers = [order(10**6 + number, "sleep 60") for number in range(SLEEPERS)]
        for sleeper in sleepers:
            adapter.submit(sleeper)
        while sum(row.state is State.RUNNING for row in adapter.poll().rows) < SLEEPERS:
            time.sleep(0.05)
        sizes = [
            pss(pid)
            for pid in processes.of_cluster(tmp_path)
            if "supervisor.py" in Path(f"/proc/{pid}/cmdline").read_text()
        ]
        for sleeper in sleepers:
            adapter.withdraw(Withdrawal(tag=sleeper.tag, native_ids={0: None}))
        while any(row.ended is None for row in adapter.poll().rows):
            time.sleep(0.05)
    finally:
        adapter.close()
        processes.kill(processes.of_cluster(tmp_path))
    record("job starts", median(rates), "/s", target="at least 50/s")
    record("supervisor of a job (PSS)", max(sizes) / 1e3, "MB", target="at most 10 MB")
    assert median(rates) >= 50
    assert max(sizes) < 10_000
