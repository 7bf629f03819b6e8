"""Limits of the site: counters equal a recount, and lines of waiting tasks change no decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import event as note
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from msgspec import structs

from metasched.core.events import CoreEvent, DaemonStarted, JobModified, JobSubmitted, Outcome
from metasched.core.scheduler import Core
from metasched.core.tasks import Task
from metasched.core.transitions import LIVE, QUEUED_OR_HELD
from metasched.db import limit_uses
from metasched.model.dependencies import parse_dependency
from metasched.model.job import Job, Reason, State
from metasched.model.limits import LimitScope, LimitSettings, LimitTable, ScopeKind
from tests.harness.examples import examples
from tests.property.core_rules import Deeds
from tests.property.test_ineligible_tasks import Compared
from tests.property.test_recovery import Restored

LIMITS = (
    LimitSettings(
        for_all=LimitTable(dispatched=5, licences={"a": 1}),
        each_user=LimitTable(running=2, open_tasks=9, stored_bytes=400),
    ),
    LimitSettings(
        for_all=LimitTable(open_tasks=14, stored_bytes=600),
        each_user=LimitTable(processors=6),
        users={"a": LimitTable(processors=4, dispatched=1)},
        classes={"regular": LimitTable(processors=8, queued=8)},
    ),
    LimitSettings(
        groups={"aero": LimitTable(running=3)},
        accounts={"cfd": LimitTable(dispatched=2, processors=6, stored_bytes=250)},
    ),
)
# by user
OWNERS: dict[str, dict[str, Any]] = {
    "a": {"groups": ("aero",)},
    "b": {"groups": ("aero",), "account": "cfd"},
    "": {"account": "cfd"},
}


class WithLimits(Deeds):
    """Users with groups and accounts; the limits change at each restart.

    Uses equal a recount, no limit is passed, and nothing waits below its limits.
    """

    def booted(self, max_priority: int = 10) -> DaemonStarted:
        self.starts: int = getattr(self, "starts", -1) + 1
        event = super().booted(max_priority)
        maps = {"account": {"*": "*"}}
        clusters = tuple(structs.replace(cluster, maps=maps) for cluster in event.clusters)
        chosen = LIMITS[(self.starts + event.policy.pull) % len(LIMITS)]
        return structs.replace(event, clusters=clusters, limits=chosen)

    def submit_job(self, job: Job) -> None:
        """Refuse a job that depends on a refused job."""
        targets = parse_dependency(job.dependency).targets if job.dependency else ()
        if all(target.job in self.jobs for target in targets):
            super().submit_job(job)

    def step(self, event: CoreEvent) -> None:
        """Refuse what the API refuses; a modification may charge another account."""
        jobs = self.jobs
        if isinstance(event, JobSubmitted):
            owner = OWNERS[event.job.user]
            job = structs.replace(event.job, **owner, stored_bytes=7 * (event.job.id % 3))
            limits = self.core.limits
            new_tasks = [(job, len(job.indices))]
            if limits.admission_refusal(new_tasks) or limits.permanent_refusal(job):
                del jobs[job.id], self.submitted[job.id]
                return
            jobs[job.id] = self.submitted[job.id] = job
            event = JobSubmitted(event.time, job, event.target_summaries)
        elif isinstance(event, JobModified):
            account = (None, "cfd")[len(self.events) % 2]
            job = structs.replace(event.job, account=account)
            jobs[job.id] = job
            event = structs.replace(event, job=job)
        super().step(event)

    @rule(
        array=st.sampled_from(["0-5", "1-9:2", "0-7"]),
        name=st.sampled_from(["mine", "yours"]),
        cpus=st.sampled_from([1, 1, 3]),
        licences=st.sampled_from([{}, {}, {"a": 1}]),
        held=st.sampled_from([False, False, True]),
    )
    def submit_range(
        self, array: str, name: str, cpus: int, licences: dict[str, int], held: bool
    ) -> None:
        """Submit an array of which few tasks may be dispatched; the others stay a range."""
        job = Job(
            id=len(self.jobs) + 1,
            submitted=self.now,
            user=self.users[name],
            estimated=100.0,
            cpus=cpus,
            tasks=cpus,
            held=held,
            name=name,
            licences=licences,
            array=array,
        )
        self.submit_job(job)

    def decide(self, event: CoreEvent) -> Outcome:
        core = self.core
        before = {} if isinstance(event, DaemonStarted) else _used(core)
        outcome = super().decide(event)
        for (scope, resource), change in outcome.limit_changes.items():
            used = _used(core)[scope, resource]
            if not isinstance(event, DaemonStarted):
                assert used == before.get((scope, resource), 0) + change.delta
            assert change.forced or change.delta <= 0 or used <= change.maximum
            if change.delta > 0 and change.maximum == used:
                note("a limit is reached")
        return outcome

    @invariant()
    def uses_are_right(self) -> None:
        if not hasattr(self, "core"):
            return
        tasks = self.open_tasks()
        counted = recount(tasks.values())
        for use in self.core.limits.uses_of(self.core.limits.scopes()):
            assert use.used == counted[use.scope, use.resource], use
        if len(tasks) > len(self.core.tasks):
            note("a range waits")
        if any(task.state is State.UNKNOWN for task in tasks.values()):
            note("a task is unknown")

    @invariant()
    def who_fits_does_not_wait(self) -> None:
        if not hasattr(self, "core"):
            return
        next_due = self.core.next_due
        if next_due is not None and next_due <= self.now:
            return  # the next step goes on
        for task in self.open_tasks().values():
            if task.state is State.QUEUED and task.reason in (
                Reason.LIMIT_USER,
                Reason.LIMIT_CLASS,
            ):
                note("a task waits for a limit")
                assert self.core.limit_shortage(task) is not None, task


def recount(tasks: Iterable[Task]) -> Counter[tuple[LimitScope, str]]:
    """Count what open tasks take."""
    counted: Counter[tuple[LimitScope, str]] = Counter()
    jobs = set[int]()
    for task in tasks:
        job = task.job
        taken = {"open_tasks": 1, "queued": int(task.state in QUEUED_OR_HELD)}
        if job.id not in jobs:
            jobs.add(job.id)
            taken["stored_bytes"] = job.stored_bytes
        if task.state in LIVE:
            taken["dispatched"] = 1
            if not task.live_attempt.lease_expired:
                taken |= {"running": 1, "processors": job.cpus}
                taken |= {f"licence:{name}": count for name, count in job.licences.items()}
        scopes = [
            (ScopeKind.ALL, ""),
            (ScopeKind.USER, job.user),
            (ScopeKind.CLASS, job.user_class),
        ]
        scopes += [(ScopeKind.GROUP, group) for group in job.groups]
        scopes += [(ScopeKind.ACCOUNT, job.account)] if job.account else []
        for scope in scopes:
            for resource, amount in taken.items():
                counted[LimitScope(*scope), resource] += amount
    return counted


class Limited(WithLimits, Compared):
    """A core that examines every waiting task decides alike."""


def _used(core: Core) -> dict[tuple[LimitScope, str], int]:
    return {
        (use.scope, use.resource): use.used for use in core.limits.uses_of(core.limits.scopes())
    }


class LimitedRestored(WithLimits, Restored):
    """The rows of a database agree with its tasks, and a restored core with one that went on."""

    def store(self) -> None:
        super().store()
        with self.engine.connect() as connection:
            assert list(limit_uses.find_mismatches(connection)) == []


TestLimited = Limited.TestCase
TestLimited.settings = examples(50, steps=30)
TestLimitedRestored = pytest.mark.slow("each life is stored, and restored at each restart")(
    LimitedRestored.TestCase
)
TestLimitedRestored.settings = examples(20, steps=30)
