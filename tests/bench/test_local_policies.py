"""What a simulation costs with each local policy, beside EASY on the same jobs."""

from __future__ import annotations

from time import process_time

import pytest

from metasched.laboratory.experiments.local_policies import LOCAL_POLICIES
from metasched.laboratory.simulate.engine import Schedule
from tests.bench.conftest import Record
from tests.harness.traces import trace

ROWS, PEER, ROUNDS = ("SDSC 0.90", "CERIT 0.90"), "easy", 2


def cost(row: str, policy: str) -> float:
    """Return seconds of CPU of a simulation of 2,000 jobs."""
    case = next(c for c in LOCAL_POLICIES.cases() if (c.row, c.column) == (row, policy))
    case.scenario(1)  # reads the trace
    times = []
    for _ in range(ROUNDS):
        begun = process_time()
        result = case.run(1)
        times.append(process_time() - begun)
        assert isinstance(result, Schedule)
        assert len(result.jobs) > 1900
    return min(times)


@pytest.mark.bench
@pytest.mark.cpu
@pytest.mark.parametrize("row", ROWS)
def test_cost_of_a_policy(row: str, record: Record) -> None:
    pytest.importorskip("scipy")
    trace("CERIT-wagap-2013.swf.gz")
    peer = cost(row, PEER)
    for policy in dict.fromkeys(case.column for case in LOCAL_POLICIES.cases()):
        seconds = peer if policy == PEER else cost(row, policy)
        record(f"{row}: {policy}", seconds, "s of CPU", peers={PEER: peer})
