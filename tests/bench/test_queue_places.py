"""Cost of refilling the queue of a cluster while many users wait for places there."""

from __future__ import annotations

from itertools import islice
from time import process_time

import pytest

from metasched.core.events import Dispatch, DispatchAccepted, JobSubmitted
from metasched.model.fair_share import FairShareSettings
from metasched.model.job import State
from tests.bench.conftest import Record
from tests.unit.core_site import NOW, Site, facts, job

DEPTH, GROUPS, STARTS, LISTINGS = 400, 4, 20, 30


def accept(site: Site) -> int:
    """Let the manager accept what was dispatched; return the number of tasks."""
    dispatches = [action for action in site.out.actions if isinstance(action, Dispatch)]
    for sent in dispatches:
        natives = dict.fromkeys(sent.indices, "7")
        site.step(DispatchAccepted(NOW, sent.job, sent.dispatch_id, natives))
    return sum(len(sent.indices) for sent in dispatches)


def milliseconds(users: int, fair_share: FairShareSettings | None) -> float:
    """Return the processor time for each task that follows a start.

    Each listing shows `STARTS` starts. Each user has jobs of `GROUPS` kinds.
    """
    site = Site(queue_depth=DEPTH, fair_share=fair_share)
    site.seen("left", facts(64, 0))
    for id in range(DEPTH + max(2 * users * GROUPS, STARTS * (LISTINGS + 1))):
        kind, user = divmod(id, users)
        limit = 100.0 + kind % GROUPS
        submitted = job(id + 1, user=f"u{user}", clusters=("left",), time_limit=limit)
        site.step(JobSubmitted(NOW, submitted))
        accept(site)
    waiting = site.core.state.views["left"].unstarted_tasks
    assert len(waiting) == DEPTH
    dispatched, begun = 0, process_time()
    for now in range(LISTINGS):
        rows = [
            site.row(State.RUNNING, task.job.id, task.live_attempt.dispatch_id, started=NOW)
            for task in islice(waiting.values(), STARTS)
        ]
        site.seen("left", None, *rows, at=NOW + now, partial=True)
        dispatched += accept(site)
    took = process_time() - begun
    assert dispatched == STARTS * LISTINGS
    return took / dispatched * 1000


@pytest.mark.bench
@pytest.mark.cpu
@pytest.mark.parametrize("shares", [False, True], ids=["turns", "shares"])
def test_a_refill_among_many_users(record: Record, shares: bool) -> None:
    fair_share = FairShareSettings() if shares else None
    few, many = milliseconds(8, fair_share), milliseconds(800, fair_share)
    name = f"a task that follows a start, 800 users wait, by {'shares' if shares else 'turns'}"
    target = "at most 1 ms"
    record(name, many, "ms of CPU", peers={"8 users": few}, target=target)
    assert many < 1.0
