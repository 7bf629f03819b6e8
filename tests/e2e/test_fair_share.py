"""Fair share over two Slurm clusters: whose tasks start, and what use without metasched changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import require
from tests.e2e.fair_share import ESTIMATE, QUEUE_DEPTH, WEIGHTS, shared_site
from tests.harness.accounts import A, B
from tests.harness.slurm import accounting_missing, missing

pytestmark = pytest.mark.root

STARTS = 60


def test_two_users_get_their_shares_and_native_use_counts(common_folder: Path) -> None:
    if (reason := missing() or accounting_missing()) is not None:
        require("slurm", reason)
    with shared_site(common_folder / "fair-share") as shared:
        jobs = shared.submit_backlog(2 * STARTS)
        shared.await_sum(shared.started, jobs, STARTS)
        counts = shared.dispatched(jobs)  # the clusters start all of them
        shared.cancel(jobs)
        entitled = sum(counts.values()) * WEIGHTS[A] / sum(WEIGHTS.values())
        assert 0.8 * entitled <= counts[A] <= 1.2 * entitled, counts

        # so much more use of A that B may have some twenty tasks before A has another
        shared.run_native(A, 20 * ESTIMATE * WEIGHTS[A])
        jobs = shared.submit_backlog(STARTS)
        counts = shared.await_sum(shared.dispatched_first, jobs, QUEUE_DEPTH)
        assert counts[B] > counts[A], counts
        shared.cancel(jobs)
        assert shared.site.stop() == 0
        shared.site.replayed()
