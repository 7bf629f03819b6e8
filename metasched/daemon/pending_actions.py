"""Actions of the core that wait for a cluster: dispatches, withdrawals, queries, revocations.

Pending actions are not stored. After a restart the core issues the same actions again, since they
follow from the states of attempts.
"""

from __future__ import annotations

import heapq
import math
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from msgspec import structs

from metasched.adapters.base import Submission, Withdrawal
from metasched.client.dialects import has_sbatch_lines, script_dialect
from metasched.config.settings import ClusterSettings
from metasched.core.events import Action, Dispatch, QueryAccounting, Revoke, Withdraw
from metasched.daemon.circuit_breaker import CircuitBreaker
from metasched.daemon.host import SchedulerHost
from metasched.model.job import Payload
from metasched.model.listing import TaskClaim
from metasched.model.manager_options import ManagerOptions
from metasched.model.reservation import manager_name
from metasched.policies.eligible import choose_gres, translate_job

# Requests after which a withdrawal without effect is reported to operators. The core repeats it
# every minute until the manager lists its tasks as ended.
REPORTED_TRIES = 5
MAX_COUNTED = 1000  # withdrawals whose requests are counted before ended ones are forgotten
MAX_CLAIMS_PER_CALL = 100  # each is written to the disk of the shared filesystem


class FutileWithdrawal(NamedTuple):
    """A withdrawal that was requested several times without effect."""

    job: int
    cluster: str
    tries: int
    reason: str  # what the manager said last; "": it reported no error


@dataclass(eq=False)
class PendingWithdrawal:
    """A withdrawal that is repeated until the manager has accepted it."""

    action: Withdraw
    owner: str  # of the job
    breaker: CircuitBreaker  # delays the next try after a failure
    begun: bool = False  # its manager may have received it

    @property
    def key(self) -> tuple[int, int, bool]:
        return self.action.job, self.action.dispatch_id, self.action.only_pending


class PendingActions:
    """Pending actions of a cluster, in the order of their execution.

    Dispatches and withdrawals are executed by owner. Where the commands of all owners run in
    sequence (`by_owner` is False), they have a common queue under the owner "".
    """

    def __init__(
        self, host: SchedulerHost, settings: ClusterSettings, max_delay: float, by_owner: bool
    ) -> None:
        self._host, self._settings, self._by_owner = host, settings, by_owner
        self.paused = False  # no dispatch is begun: the service is about to be replaced
        self._max_delay = max_delay  # seconds between two tries of a withdrawal
        # by owner: a heap by queue key
        self._dispatches: dict[str, list[tuple[float, int, int, Dispatch]]] = {}
        self._withdrawals: dict[tuple[int, int, bool], PendingWithdrawal] = {}
        # of withdrawals that are not known to have an effect: requests made, and the last error
        self._tries: dict[tuple[int, int, bool], tuple[int, str]] = {}
        self._most_tries = MAX_COUNTED  # above, those that have ended are forgotten
        self._accounting_query: QueryAccounting | None = None
        self._claims: dict[str, dict[TaskClaim, None]] = {}  # by `_waiting_owner`, in order
        self._claims_due = 0.0  # monotonic seconds

    def enqueue(self, action: Action) -> None:
        """Add an action. Withdrawals of the same dispatch are merged."""
        match action:
            case Dispatch():
                tasks = self._host.core.tasks_of_dispatch(action.job, action.dispatch_id)
                queue_key = min((task.queue_key for task in tasks), default=0.0)
                entry = (queue_key, action.job, action.dispatch_id, action)
                queue = self._queue_of(tasks[0].job.user if tasks else "")
                heapq.heappush(self._dispatches.setdefault(queue, []), entry)
            case Withdraw():
                delay = min(2 * self._settings.poll_interval, self._max_delay)
                owner = self._host.owner_of(self._tag(action))
                pending = PendingWithdrawal(action, owner, CircuitBreaker(delay, self._max_delay))
                earlier = self._withdrawals.pop(pending.key, None)
                if earlier is not None:
                    native_ids = {**earlier.action.native_ids, **action.native_ids}
                    pending.action = replace(action, native_ids=native_ids)
                    pending.begun = earlier.begun
                self._withdrawals[pending.key] = pending
            case QueryAccounting():
                self._accounting_query = action
            case Revoke():
                for claim in action.claims:
                    self._claims.setdefault(self._waiting_owner(claim), {})[claim] = None

    def _waiting_owner(self, claim: TaskClaim) -> str:
        """Return the owner of an open task; "" if it has ended, so that no user waits for it."""
        core = self._host.core
        dispatch = core.instances.parse_tag(claim.tag)
        task = core.tasks.get((dispatch[0], claim.task)) if dispatch is not None else None
        return "" if task is None else task.job.user

    def _queue_of(self, owner: str) -> str:
        return owner if self._by_owner else ""

    def due_by_owner(self) -> dict[str, float]:
        """Return when the next action of each owner is due (monotonic seconds, 0.0: now)."""
        due = {} if self.paused else dict.fromkeys(self._dispatches, 0.0)
        for pending in self._withdrawals.values():
            queue = self._queue_of(pending.owner)
            due[queue] = min(due.get(queue, math.inf), pending.breaker.open_until)
        return due

    def counts(self) -> dict[str, int]:
        """Return the number of pending actions by kind."""
        return {
            "dispatch": sum(map(len, self._dispatches.values())),
            "withdrawal": len(self._withdrawals),
            "accounting": int(self._accounting_query is not None),
            "claim": sum(map(len, self._claims.values())),
        }

    # Dispatches

    def has_dispatches(self, owner: str) -> bool:
        return owner in self._dispatches and not self.paused

    def take_dispatches(self, owner: str, task_limit: int) -> list[Dispatch]:
        """Remove and return the next dispatches, until they hold `task_limit` tasks or more."""
        dispatches: list[Dispatch] = []
        queue = self._dispatches.get(owner, [])
        while queue and not self.paused and task_limit > 0:
            dispatches.append(heapq.heappop(queue)[-1])
            task_limit -= len(dispatches[-1].indices)
        if not queue:
            self._dispatches.pop(owner, None)
        return dispatches

    def clear_dispatches(self) -> None:
        """Remove all dispatches."""
        self._dispatches.clear()

    def build_submission(self, dispatch: Dispatch, payload: Payload) -> Submission | None:
        """Return a dispatch in the terms of the cluster's adapter.

        None if all its tasks are to be withdrawn, or the cluster is full since it was decided.
        UnmappedNameError if the cluster has no name for something that the job requests.
        """
        core, name = self._host.core, self._settings.cluster.name
        tasks = core.tasks_of_dispatch(dispatch.job, dispatch.dispatch_id)
        attempts = [task.attempt for task in tasks if task.attempt and task.attempt.intent is None]
        if not attempts or core.decided_before_refusal(tasks[0]):
            return None
        info, _ = core.cluster_status(name)
        first_id = self._settings.exports_ids_from
        chosen = choose_gres(tasks[0].job, attempts[0].gres_choice)
        job = translate_job(chosen, self._settings.cluster, info)
        exports_job_id = (
            first_id is not None
            and job.id >= first_id
            and (first_id > 1 or has_sbatch_lines(payload.script))
        )
        if job.requeue is None and not attempts[0].fence:
            # without a claim its user must ask for restarts: the manager's default does not count
            job = structs.replace(job, requeue=False)
        if hosts := tasks[0].hosts_to_avoid(name):
            requested = job.manager_options or ManagerOptions()
            job = structs.replace(job, manager_options=requested.without_hosts(hosts))
        return Submission(
            tag=core.instances.tag_of(dispatch.job, dispatch.dispatch_id),
            job=job,
            payload=payload,
            indices=tuple(task.index for task in tasks),
            priority=tasks[0].priority,
            options=tuple(shlex.split(job.native.get(name, ""))),
            fence=attempts[0].fence,
            reservation=manager_name(core.instance, job.reservation) if job.reservation else "",
            leased_licences=tasks[0].job.licences,
            waits_since=core.waits_since(tasks[0]),
            daemon_variables=self._host.settings.job_variables,
            makes_token=self._host.settings.jobs_make_tokens,
            exports_job_id=exports_job_id,
            has_drop_ins=first_id != 1,
            dialect=script_dialect(payload.script),
            prologue=self._settings.prologue,
            login=self._settings.login,
        )

    # Withdrawals

    @property
    def has_withdrawals(self) -> bool:
        return bool(self._withdrawals)

    def next_withdrawal_due(self, owner: str | None = None) -> float:
        """Monotonic seconds at which the next withdrawal may be tried; inf without any.

        Of an owner, or of all with None.
        """
        due = (pending.breaker.open_until for pending in self._withdrawals_of(owner))
        return min(due, default=math.inf)

    def _withdrawals_of(self, owner: str | None) -> Iterator[PendingWithdrawal]:
        return (
            pending
            for pending in self._withdrawals.values()
            if owner is None or self._queue_of(pending.owner) == owner
        )

    def retry_withdrawals_now(self) -> None:
        """Forget the failures of withdrawals: the cluster was unreachable and replies again."""
        for pending in self._withdrawals.values():
            pending.breaker.record_success()

    def next_withdrawals(self, owner: str) -> list[PendingWithdrawal]:
        """Return the most urgent withdrawal and similar withdrawals, up to a dispatch's task limit.

        A withdrawal that has failed is returned alone.
        """
        first = min(self._withdrawals_of(owner), key=lambda pending: pending.breaker.open_until)
        if first.breaker.failures:
            return [first]
        batch = [first]
        room = self._settings.cluster.max_tasks_per_dispatch - len(first.action.native_ids)
        for pending in self._withdrawals.values():
            if (
                pending is not first
                and not pending.breaker.failures
                and pending.action.only_pending == first.action.only_pending
                and pending.owner == first.owner
            ):
                room -= len(pending.action.native_ids)
                if room < 0:
                    break
                batch.append(pending)
        return batch

    def waiting_withdrawals(self) -> set[tuple[str, int]]:
        """Return (tag, index) of the tasks whose withdrawals certainly reached no manager yet."""
        return {
            (self._tag(pending.action), index)
            for pending in self._withdrawals.values()
            if not pending.begun
            for index in pending.action.native_ids
        }

    def withdrawal_request(self, pending: PendingWithdrawal) -> Withdrawal:
        """Return a withdrawal in the terms of the adapter."""
        action = pending.action
        known = self._host.core.known_jobs_of(action.job, action.dispatch_id, action.native_ids)
        return Withdrawal(
            tag=self._tag(pending.action),
            user=pending.owner,
            native_ids=pending.action.native_ids,
            only_pending=pending.action.only_pending,
            jobs=tuple(known),
        )

    def remove_withdrawals(self, batch: list[PendingWithdrawal], reason: str = "") -> None:
        """Remove withdrawals that were answered, except those replaced by a newer action meanwhile.

        `reason`: why the manager refused them for good; the core requests them again.
        """
        self._count_tries(batch, reason)
        for pending in batch:
            if self._withdrawals.get(pending.key) is pending:
                del self._withdrawals[pending.key]

    def delay_withdrawals(self, batch: list[PendingWithdrawal], reason: str) -> None:
        """Record a failed call."""
        self._count_tries(batch, reason)
        for pending in batch:
            pending.breaker.record_failure(reason, time.time(), time.monotonic())

    def _count_tries(self, batch: list[PendingWithdrawal], reason: str) -> None:
        for pending in batch:
            tries, _ = self._tries.get(pending.key, (0, ""))
            self._tries[pending.key] = tries + 1, reason
        if len(self._tries) > self._most_tries:
            self._forget_ended()
            self._most_tries = 2 * len(self._tries) + MAX_COUNTED

    def _forget_ended(self) -> None:
        core = self._host.core
        for key in list(self._tries):
            tasks = core.tasks_of_dispatch(*key[:2])
            if not any(task.attempt and task.attempt.intent for task in tasks):
                del self._tries[key]

    def futile_withdrawals(self) -> list[FutileWithdrawal]:
        """Return the withdrawals whose tasks are still listed after several requests."""
        self._forget_ended()
        return [
            FutileWithdrawal(job, self._settings.cluster.name, tries, reason)
            for (job, _, _), (tries, reason) in self._tries.items()
            if tries >= REPORTED_TRIES
        ]

    def _tag(self, action: Withdraw) -> str:
        return self._host.core.instances.tag_of(action.job, action.dispatch_id)

    # Accounting queries and claims

    @property
    def has_accounting_query(self) -> bool:
        return self._accounting_query is not None

    def take_accounting_query(self) -> QueryAccounting | None:
        query, self._accounting_query = self._accounting_query, None
        return query

    @property
    def next_claims_due(self) -> float:
        """Monotonic seconds at which the next claims may be revoked; inf without any."""
        return self._claims_due if self._claims else math.inf

    def record_claims_call(self, begun: float, ended: float) -> None:
        """Let other actions have as much time as a call took; `begun` and `ended`: monotonic.

        So they wait neither for a folder that hangs, nor for thousands of claims on a slow folder.
        """
        self._claims_due = 2 * ended - begun

    def take_claims(self) -> tuple[TaskClaim, ...]:
        """Remove and return claims to be revoked in a call: of a single owner, who then comes last.

        So no owner waits for thousands of claims of another, and a call ends in time.
        """
        owner = next(iter(self._claims))
        queue = self._claims.pop(owner)
        claims = tuple(islice(queue, MAX_CLAIMS_PER_CALL))
        for claim in claims:
            del queue[claim]
        if queue:
            self._claims[owner] = queue
        return claims
