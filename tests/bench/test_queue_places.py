"""Cost of places in a cluster's queue, and of licence tokens, while many users wait for them."""

from __future__ import annotations

import gc
from itertools import islice
from time import process_time

import pytest

from metasched.core.events import Dispatch, DispatchAccepted, JobSubmitted
from metasched.model.fair_share import FairShareSettings
from metasched.model.job import State
from metasched.model.licence import LicencePool
from tests.bench.conftest import Record
from tests.unit.core_site import NOW, Site, facts, job

DEPTH, GROUPS, STARTS, LISTINGS = 400, 4, 20, 30
TOKENS, RETURNS = 20, 5


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
    gc.collect()  # else a collection of all objects of the benches may fall into the time
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


def milliseconds_of_grant(users: int, fair_share: FairShareSettings | None) -> float:
    """Return the processor time for each task that gets a token which another returned.

    Each of the `RETURNS` listings shows the ends of all `TOKENS` tasks that have tokens.
    """
    site = Site(pools=(LicencePool(name="matlab", total=TOKENS),), fair_share=fair_share)
    site.seen("left", facts(64, 0))
    for id in range(TOKENS + max(2 * users, TOKENS * (RETURNS + 1))):
        wanting = job(id + 1, user=f"u{id % users}", clusters=("left",), licences={"matlab": 1})
        site.step(JobSubmitted(NOW, wanting))
        accept(site)
    gc.collect()  # else a collection of all objects of the benches may fall into the time
    granted, begun = 0, process_time()
    for now in range(1, RETURNS + 1):
        tasks = site.core.state.views["left"].live_tasks.values()
        live = [(task.job.id, task.live_attempt.dispatch_id) for task in tasks]
        rows = [
            site.row(State.COMPLETED, job_id, sending, started=NOW, ended=NOW + now, exit_code=0)
            for job_id, sending in live
        ]
        site.seen("left", None, *rows, at=NOW + now, partial=True)
        granted += accept(site)
    took = process_time() - begun
    assert granted == TOKENS * RETURNS
    return took / granted * 1000


@pytest.mark.bench
@pytest.mark.cpu
@pytest.mark.parametrize("shares", [False, True], ids=["turns", "shares"])
def test_a_token_among_many_users(record: Record, shares: bool) -> None:
    fair_share = FairShareSettings() if shares else None
    few, many = milliseconds_of_grant(8, fair_share), milliseconds_of_grant(800, fair_share)
    name = f"a token that is returned, 800 users wait, by {'shares' if shares else 'turns'}"
    record(name, many, "ms of CPU", peers={"8 users": few}, target="at most 2 ms")
    assert many < 2.0
