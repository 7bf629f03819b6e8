"""Limits of the site: counters equal a recount, and lines of waiting tasks change no decision."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis.stateful import invariant
from msgspec import structs

from metasched.core.events import CoreEvent, DaemonStarted, JobModified, JobSubmitted, Outcome
from metasched.core.scheduler import Core
from metasched.core.transitions import LIVE, QUEUED_OR_HELD
from metasched.db import limit_uses
from metasched.model.dependencies import parse_dependency
from metasched.model.job import Job, Reason, State
from metasched.model.limits import LimitScope, LimitSettings, LimitTable, ScopeKind
from tests.harness.examples import examples
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


class WithLimits:
    """Users with groups and accounts; the limits change at each restart."""

    def booted(self, max_priority: int = 10) -> DaemonStarted:
        self.starts: int = getattr(self, "starts", -1) + 1
        event: DaemonStarted = super().booted(max_priority)  # type: ignore[misc]
        maps = {"account": {"*": "*"}}
        clusters = tuple(structs.replace(cluster, maps=maps) for cluster in event.clusters)
        chosen = LIMITS[(self.starts + event.policy.pull) % len(LIMITS)]
        return structs.replace(event, clusters=clusters, limits=chosen)

    def submit_job(self, job: Job) -> None:
        """Refuse a job that depends on a refused job."""
        targets = parse_dependency(job.dependency).targets if job.dependency else ()
        if all(target.job in self.jobs for target in targets):  # type: ignore[attr-defined]
            super().submit_job(job)  # type: ignore[misc]

    def step(self, event: CoreEvent) -> None:
        """Refuse what the API refuses; a modification may charge another account."""
        jobs: dict[int, Job] = self.jobs  # type: ignore[attr-defined]
        if isinstance(event, JobSubmitted):
            owner = OWNERS[event.job.user]
            job = structs.replace(event.job, **owner, stored_bytes=7 * (event.job.id % 3))
            limits = self.core.limits  # type: ignore[attr-defined]
            new_tasks = [(job, len(job.indices))]
            if limits.admission_refusal(new_tasks) or limits.permanent_refusal(job):
                del jobs[job.id], self.submitted[job.id]  # type: ignore[attr-defined]
                return
            jobs[job.id] = self.submitted[job.id] = job  # type: ignore[attr-defined]
            event = JobSubmitted(event.time, job, event.target_summaries)
        elif isinstance(event, JobModified):
            account = (None, "cfd")[len(self.events) % 2]  # type: ignore[attr-defined]
            job = structs.replace(event.job, account=account)
            jobs[job.id] = job
            event = structs.replace(event, job=job)
        super().step(event)  # type: ignore[misc]


def recount(core: Core) -> Counter[tuple[LimitScope, str]]:
    """Count what the open tasks of a core take."""
    counted: Counter[tuple[LimitScope, str]] = Counter()
    jobs = set[int]()
    for task in core.tasks.values():
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
    """Uses equal a recount; a core that examines every waiting task decides alike."""

    def decide(self, event: CoreEvent) -> Outcome:
        before = {} if isinstance(event, DaemonStarted) else _used(self.core)
        outcome = super().decide(event)
        for (scope, resource), change in outcome.limit_changes.items():
            used = _used(self.core)[scope, resource]
            if not isinstance(event, DaemonStarted):
                assert used == before.get((scope, resource), 0) + change.delta
            assert change.forced or change.delta <= 0 or used <= change.maximum
        return outcome

    @invariant()
    def uses_are_right(self) -> None:
        if hasattr(self, "core"):
            counted = recount(self.core)
            for use in self.core.limits.uses_of(self.core.limits.scopes()):
                assert use.used == counted[use.scope, use.resource], use

    @invariant()
    def who_fits_does_not_wait(self) -> None:
        if not hasattr(self, "core"):
            return
        next_due = self.core.next_due
        if next_due is not None and next_due <= self.now:
            return  # the next step goes on
        for task in self.core.tasks.values():
            if task.state is State.QUEUED and task.reason in (
                Reason.LIMIT_USER,
                Reason.LIMIT_CLASS,
            ):
                assert self.core.limits.shortage(task.job) is not None, task


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
TestLimitedRestored = LimitedRestored.TestCase
TestLimitedRestored.settings = examples(20, steps=30)
