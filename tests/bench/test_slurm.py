"""What a poll of a Slurm cluster costs with 20,000 jobs of ours in it."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from statistics import median

import psutil
import pytest

from metasched.adapters.base import Order
from metasched.adapters.slurm import Slurm, SlurmOptions
from metasched.model import Cluster, Job, Payload, tag_of
from tests.conftest import require
from tests.slurm import ALPHA, SlurmSite, missing

LISTED = 20_000


@pytest.mark.bench
@pytest.mark.timeout(600)
def test_twenty_thousand_jobs_in_one_poll(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of them have records of their own, split off by a hold; half wait in arrays."""
    if (reason := missing()) is not None:
        require("slurm", reason)
    with SlurmSite(tmp_path / "site", [ALPHA]) as slurm:
        alpha = slurm["alpha"]
        alpha.run("sbatch", "-N", "4", "--exclusive", "-t", "600", "--wrap", "sleep 6000")
        options = SlurmOptions(config=str(alpha.conf), access="commands")
        adapter = Slurm(Cluster(name="alpha", adapter="slurm"), options, "cafe", tmp_path)
        for number in range(LISTED // 1000):
            job = Job(id=number + 1, submitted=0.0, estimated=60.0, array="0-999")
            tag, payload = tag_of("cafe", job.id, 1), Payload(script="#!/bin/sh\ntrue\n")
            natives = adapter.submit(Order(tag=tag, job=job, payload=payload, indices=job.indices))
            if number % 2:
                apart = f"{natives[0].partition('_')[0]}_[0-998]"
                alpha.run("scontrol", "hold", apart)
                alpha.run("scontrol", "release", apart)
        me, times, rows = psutil.Process(), [], 0
        for _ in range(5):
            before = sum(me.cpu_times()[:4])
            rows = len(adapter.poll().rows)
            times.append(sum(me.cpu_times()[:4]) - before)
    figures = {
        "bench": "slurm poll, commands",
        "rows": rows,
        "cpu_s_per_poll": round(median(times), 3),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    with capsys.disabled():
        print(f"\n{json.dumps(figures)}")
    assert rows == LISTED
    assert median(times) < 1
