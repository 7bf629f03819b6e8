"""Scopes of a manager's refusals, and limits that are found and kept full."""

from __future__ import annotations

import pytest

from metasched.adapters.gridengine.submission import parse_rejection
from metasched.adapters.slurm.submission import parse_refusal
from metasched.core.events import (
    Dispatch,
    DispatchAccepted,
    DispatchRejected,
    DispatchStarted,
    JobSubmitted,
)
from metasched.model.job import Job, Reason, State
from metasched.model.refusal_scope import JobSet, RefusalScope, jobs_in_scope, scope_of_user
from tests.unit.core_site import NOW, Site, job
from tests.unit.limited_manager import LimitedManager

FAILED = "sbatch: error: Batch job submission failed: "
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n"


@pytest.mark.parametrize(
    ("detail", "scope"),
    [
        ("AssocMaxSubmitJobLimit", "user+account"),
        ("AssocGrpSubmitJobsLimit", "account"),
        ("QOSMaxSubmitJobPerUserLimit", "user+qos"),
        ("QOSGrpSubmitJobsLimit", "qos"),
        ("MaxSubmitJobsPerAccount", "account+qos"),
        ("SomeNewSubmitJobLimit", "user"),
    ],
)
def test_slurm_names_the_limit(detail: str, scope: RefusalScope) -> None:
    refusal = parse_refusal(1, f"sbatch: error: {detail}\n{FAILED}{POLICY}")
    assert refusal is not None
    assert (refusal.retryable, refusal.scope) == (True, scope)


@pytest.mark.parametrize(
    ("message", "scope"),
    [
        (POLICY, "user"),
        ("Partition in DOWN state\n", "partition"),
        ("Requested reservation not usable now\n", "job"),
        ("Unable to create job record, try again\n", "cluster"),
        ("I/O error writing script/environment to file\n", "cluster"),
    ],
)
def test_slurm_errors_have_a_scope(message: str, scope: RefusalScope) -> None:
    refusal = parse_refusal(1, FAILED + message)
    assert refusal is not None
    assert (refusal.retryable, refusal.scope) == (True, scope)


@pytest.mark.parametrize(
    ("message", "retryable", "scope"),
    [
        ("job rejected: only 3 jobs are allowed per user (current job count: 3)", True, "user"),
        ("job rejected: only 9 jobs are allowed per cluster", True, "cluster"),
        ('job rejected: the requested project "x" does not exist', False, "cluster"),
    ],
)
def test_grid_engine_rejections_have_a_scope(message: str, retryable: bool, scope: str) -> None:
    refusal = parse_rejection(f"Unable to run job: {message}.")
    assert (refusal.retryable, refusal.scope) == (retryable, scope)


def test_a_scope_selects_jobs() -> None:
    refused = job(1, user="a", account="x", qos="high", partition="p")
    other_scopes = {
        "user": job(2, user="b", account="x", qos="high", partition="p"),
        "account": job(3, user="a", account="y", qos="high", partition="p"),
        "qos": job(4, user="a", account="x", partition="p"),
        "partition": job(5, user="a", account="x", qos="high"),
    }
    for name, other in other_scopes.items():
        for scope in ("cluster", "user", "account", "user+account", "user+qos", "partition"):
            jobs = jobs_in_scope(scope, refused)
            assert jobs.includes(refused)
            assert jobs.includes(other) is (name not in scope.split("+")), (scope, name)
    # two users' default accounts differ
    assert jobs_in_scope("account", job(1, user="a")) == JobSet(user="a", account="")
    assert scope_of_user("cluster") == "user"
    assert scope_of_user("account") == "user+account"
    assert scope_of_user("job") == "job"


def refused(site: Site, scope: RefusalScope, *jobs: Job) -> None:
    """Submit jobs to the left cluster, which refuses job 1."""
    for submitted in jobs:
        site.step(JobSubmitted(NOW, submitted))
        site.step(DispatchStarted(NOW, submitted.id, 1))
    site.step(DispatchRejected(NOW, 1, 1, "full", retry_later=True, scope=scope))


@pytest.mark.parametrize(
    ("scope", "open_to"), [("user", {3}), ("user+partition", {2, 3}), ("cluster", set())]
)
def test_only_the_refused_jobs_wait(scope: RefusalScope, open_to: set[int]) -> None:
    site = Site()
    refused(site, scope, job(1, user="a", clusters=("left",)))
    assert site.core.tasks[1, 0].reason == Reason.LIMIT_MANAGER
    site.step(JobSubmitted(NOW + 1, job(2, user="a", partition="main", clusters=("left",))))
    site.step(JobSubmitted(NOW + 1, job(3, user="b", clusters=("left",))))
    waiting = {id for id in (2, 3) if site.state(id) is State.QUEUED}
    assert waiting == {2, 3} - open_to
    assert all(site.core.tasks[id, 0].reason == Reason.LIMIT_MANAGER for id in waiting)


@pytest.mark.parametrize("array", ["0-59", None])
def test_limits_are_found_and_refilled(array: str | None) -> None:
    """Run 60 tasks of 30 s on two clusters with a limit of 10 tasks each: 90 s at best."""
    site = Site()
    managers = {name: LimitedManager(site, name, 10, 30.0) for name in ("left", "right")}
    actions: list[object] = []
    if array is None:
        for id in range(1, 61):
            actions += site.step(JobSubmitted(NOW, job(id, user="a")))
    else:
        actions += site.step(JobSubmitted(NOW, job(1, user="a", array=array)))
    now = NOW
    while site.core.tasks and now < NOW + 300:
        while actions:
            action = actions.pop(0)
            if isinstance(action, Dispatch):
                actions += managers[action.cluster].submit(action, now)
        now += 1.0
        for manager in managers.values():
            actions += manager.poll(now)
    assert now - NOW <= 180
    ended = [row for m in managers.values() for row in m.rows.values()]
    assert len({(row.tag.split("-")[2], row.task) for row in ended}) == 60
    assert len(ended) == 60  # each task ran once
    assert sum(manager.refusals for manager in managers.values()) <= 60


def test_a_limit_that_grows_is_noticed() -> None:
    site = Site()
    refused(site, "user", job(1, user="a", clusters=("left",)))
    assert site.state() is State.QUEUED
    site.seen("left", at=NOW + 5)
    assert site.state() is State.QUEUED
    site.seen("left", at=NOW + 11)
    assert site.state() is State.DISPATCHING  # a probe
    dispatch_id = site.core.tasks[1, 0].live_attempt.dispatch_id
    site.step(DispatchStarted(NOW + 11, 1, dispatch_id))
    site.step(DispatchAccepted(NOW + 12, 1, dispatch_id, {0: "7"}))
    site.step(JobSubmitted(NOW + 13, job(2, user="a", clusters=("left",))))
    assert site.state(2) is State.DISPATCHING
