"""A core with simulated managers, and a record of jobs, licences and starts kept without it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis.stateful import RuleBasedStateMachine

from metasched.core.array_remainder import REMAINDER_MINIMUM, range_of
from metasched.core.dependency_status import TargetSummary
from metasched.core.events import (
    Action,
    CoreEvent,
    DaemonStarted,
    Dispatch,
    Outcome,
    Withdraw,
)
from metasched.core.recovered_state import RecoveredState
from metasched.core.scheduler import Core
from metasched.core.tasks import Task
from metasched.core.transitions import ATTEMPT_FINAL, FINAL, TaskEvent
from metasched.model.arrays import format_indices
from metasched.model.cluster import Cluster
from metasched.model.dependencies import DEPENDENCY_TYPES as AFTER
from metasched.model.dependencies import SINGLETON, parse_dependency
from metasched.model.job import Job, State
from metasched.model.licence import Lease, LicencePool, LingeringTokens
from metasched.policies.policy import Policy
from tests.property.managers import Key, Manager, Place, place_of

INSTANCE = "cafe"
SIZES = {"left": 8, "right": 4}
KINDS = (*AFTER, SINGLETON)
POOLS = (
    LicencePool(name="a", total=2, linger=30.0),
    LicencePool(name="b", total=3, server="s", stale_after=500.0),
    LicencePool(name="c", total=1, clusters=("left",)),
)
WANTS: tuple[dict[str, int], ...] = (
    {},
    {},
    {},
    {"a": 1},
    {"a": 2},
    {"a": 1, "b": 1},
    {"b": 3},
    {"c": 1},
    {"a": 1, "c": 1},
)
# alternatives, of which a job needs one
EITHER: tuple[tuple[dict[str, int], ...], ...] = (
    ({"a": 1}, {"b": 1}),
    ({"c": 1}, {"a": 2}, {"b": 2}),
    ({"b": 3}, {"c": 1}),
)


def copy_outcome(outcome: Outcome) -> Outcome:
    """Copy an outcome at all depths; a copy of a task loses its classified priority."""
    copied = copy.deepcopy(outcome)
    tasks = [*outcome.tasks.values(), *(task for task, _ in outcome.closed_attempts)]
    copies = [*copied.tasks.values(), *(task for task, _ in copied.closed_attempts)]
    for task, task_copy in zip(tasks, copies, strict=True):
        task_copy.classified_priority = task.classified_priority
    return copied


@dataclass(frozen=True)
class SubmitCommand:
    """A dispatch whose command was started and is not answered yet."""

    action: Dispatch
    tag: str
    indices: list[int]
    cpus: int  # of each task


class Life(RuleBasedStateMachine):
    """The core, its managers, and a record of both that is kept independently of the core."""

    binds_late = False  # whether clusters bind reservations late
    remainder_minimum = REMAINDER_MINIMUM  # tasks of an array that has a remainder

    def new_core(self) -> Core:
        return Core(self.remainder_minimum)

    def begin(self, policy: Policy, fences: Sequence[str]) -> None:
        """Start with an empty state; the clusters of `fences` use claims."""
        self.now = 100_000.0  # the clock may be set back by hours, but never before the epoch
        self.policy = policy
        self.managers = {
            name: Manager(cpus, "/fence" if name in fences else "") for name, cpus in SIZES.items()
        }
        self.core = self.new_core()
        self.configured = sorted(SIZES)
        self.described: tuple[LicencePool, ...] = POOLS
        self.events: list[CoreEvent] = []
        self.outcomes: list[Outcome] = []
        self.actions: list[Action] = []
        self.begun_withdrawals: list[Withdraw] = []  # those of `actions` that were tried before
        self.under_way: list[SubmitCommand] = []
        self.jobs: dict[int, Job] = {}
        self.submitted: dict[int, Job] = {}
        self.again: dict[Place, tuple[int, int]] = {}
        self.requeued: Counter[Place] = Counter()
        self.cancelled: set[Place] = set()
        self.lost: set[Place] = set()
        self.excused: Counter[Place] = Counter()  # starts that metasched did not cause
        self.restarted: set[Place] = set()  # by a manager, though no job here may run again
        self.final: dict[Place, State] = {}
        self.begun_at: dict[Place, float] = {}  # as the core knows it; includes ended tasks
        self.came: set[Place] = set()  # tasks whose dependencies were met at some time
        self.ended_attempts: dict[tuple[int, int, int], State] = {}
        self.pools: dict[str, list[int]] = {}  # total, leased, excess; as in the database
        self.held: dict[Place, dict[str, int]] = {}  # leased tokens of each task
        self.lingering: list[LingeringTokens] = []
        self.totals: dict[str, int] = {}  # set by an operator
        self.clock_set_back = False  # while no daemon ran
        self.doubted = False  # licences of an unknown task were released

    def booted(self, max_priority: int = 10) -> DaemonStarted:
        clusters = tuple(
            Cluster(
                name=name,
                adapter="local",
                move_after=20.0,
                fence_dir=self.managers[name].fence,
                supports_reservations=True,
                binds_late=self.binds_late,
            )
            for name in self.configured
        )
        policy = replace(self.policy, max_priority=max_priority)
        return DaemonStarted(self.now, INSTANCE, policy, clusters, pools=self.described)

    def decide(self, event: CoreEvent) -> Outcome:
        return self.core.step(event)

    def step(self, event: CoreEvent) -> None:
        self.events.append(event)
        out = self.decide(event)
        self.outcomes.append(copy_outcome(out))
        self.actions += out.actions
        for action in out.actions:
            if isinstance(action, Dispatch):
                self.check_dispatch(action)
        self.store_licences(out)
        # as `db.leases.lingering` finds them
        self.lingering = [tokens for tokens in self.lingering if tokens.until > event.time]
        for task, attempt in out.closed_attempts:
            key = (task.job.id, task.index, attempt.number)
            assert key not in self.ended_attempts, "an ended attempt ended again"
            assert attempt.state in ATTEMPT_FINAL
            self.ended_attempts[key] = attempt.state
            task_id = (task.job.id, task.index)
            highest = max(attempt.dispatch_id, self.again.get(task_id, (0, 0))[1])
            self.again[task_id] = (task.attempts, highest)
        for change in out.changes:
            if change.event is TaskEvent.REQUEUE:
                task_id = (change.job, change.index)
                self.requeued[task_id] += 1
                self.cancelled.discard(task_id)
                self.final.pop(task_id, None)
                self.begun_at.pop(task_id, None)
                self.came.discard(task_id)
        for task_id, task in out.tasks.items():
            assert task_id not in self.final, "an ended task changed"
            started = task.attempt.started if task.attempt else None
            if task.state in FINAL:
                self.final[task_id] = task.state
                assert task.ended is not None
                self.begun_at[task_id] = task.ended if started is None else started
            elif started is not None:
                self.begun_at[task_id] = started
            else:
                self.begun_at.pop(task_id, None)
        for job_id, run in out.cancelled_runs:
            for index in range_of(run):
                assert (job_id, index) not in self.final
                self.final[job_id, index] = State.CANCELLED
                self.begun_at[job_id, index] = event.time
        for task_id, task in self.open_tasks().items():
            if not task.attempts and task.job.dependency and self.has_come(task.job, task.index):
                self.came.add(task_id)
        for action in out.actions:
            if isinstance(action, Dispatch) and not isinstance(event, DaemonStarted):
                for index in action.indices:
                    self.may_be_sent(self.core.tasks[action.job, index])

    def open_tasks(self) -> dict[Place, Task]:
        """Return all open tasks; those of remainders as single tasks."""
        tasks = dict(self.core.tasks)
        for job_id, remainder in self.core.remainders.items():
            for run in remainder.runs:
                for index in range_of(run):
                    assert (job_id, index) not in tasks
                    task = self.core.find_task((job_id, index))
                    assert task is not None
                    tasks[job_id, index] = task
        return tasks

    def check_dispatch(self, action: Dispatch) -> None:
        """Check that a dispatch sends its tasks, and only these, to the cluster of their attempts.

        A task may have left the dispatch within the step.
        """
        for index in action.indices:
            task = self.core.tasks.get((action.job, index))
            if task is not None and task.attempt is not None:
                attempt = task.attempt
                assert attempt.dispatch_id == action.dispatch_id, (task.name, action)
                assert attempt.cluster == action.cluster, (task.name, action)

    def store_licences(self, out: Outcome) -> None:
        """Count leases as the database does, and check its constraint."""
        for name, status in out.licence_statuses.items():
            pool = self.pools.setdefault(name, [0, 0, 0])
            pool[0] = pool[0] if status.total is None else status.total
            pool[2] = max(pool[1] - pool[0], 0)
        for change in out.leases:
            lease = change if isinstance(change, Lease) else change.lease
            task_id = (lease.job, lease.index)
            for name, count in lease.tokens.items():
                pool = self.pools[name]
                pool[1] += count if change is lease else -count
                if change is not lease or lease.forced:
                    pool[2] = max(pool[1] - pool[0], 0)
                assert 0 <= pool[1] <= pool[0] + pool[2], (name, pool)
            if isinstance(change, Lease):
                assert task_id not in self.held
                self.held[task_id] = dict(lease.tokens)
            else:
                assert self.held.pop(task_id) == lease.tokens
                self.lingering += [
                    LingeringTokens(name, lease.tokens[name], change.until, until)
                    for name, until in change.lingering_until.items()
                ]

    def may_be_sent(self, task: Task) -> None:
        """Check that dependencies are met at a task's first dispatch, as sbatch defines them."""
        if task.attempts == 1 and task.job.dependency is not None:
            came = (task.job.id, task.index) in self.came
            assert came or self.has_come(task.job, task.index), (task.name, task.job.dependency)

    def has_come(self, job: Job, index: int, within: float = 0.0) -> bool:
        """Return whether dependencies are met, now or `within` seconds by time alone."""
        any_of = "?" in (job.dependency or "")
        targets = [
            self.term_has_come(job, index, term, self.now + within)
            for term in (job.dependency or "").replace("?", ",").split(",")
        ]
        return any(targets) if any_of else all(targets)

    def term_has_come(self, job: Job, index: int, term: str, at: float) -> bool:
        condition, _, target = term.partition(":")
        if condition == "singleton":
            earlier = [j for j in self.jobs.values() if j.name == job.name and j.id < job.id]
            return all((j.id, i) in self.final for j in earlier for i in j.indices)
        target, _, minutes = target.partition("+")
        id, _, task = target.partition("_")
        places = [(int(id), i) for i in ([int(task)] if task else self.jobs[int(id)].indices)]
        if condition == "aftercorr" and not task and job.array and self.jobs[int(id)].array:
            places = [(int(id), index)]
        ends = [self.final.get(task_id) for task_id in places]
        match condition:
            case "after":
                begun = [self.begun_at.get(task_id, 1e12) for task_id in places]
                return at >= max(begun) + 60 * int(minutes or 0)
            case "afterany":
                return None not in ends
            case "afternotok":
                return None not in ends and any(end is not State.COMPLETED for end in ends)
            case _:
                return all(end is State.COMPLETED for end in ends)

    def fates_of(self, job: Job) -> tuple[TargetSummary, ...]:
        """Return the summaries of the job's dependencies that a database would have."""
        fates = []
        for target in parse_dependency(job.dependency or "").targets:
            places = [
                (target.job, i) for i in self.jobs[target.job].indices if target.index in (None, i)
            ]
            ended = [task_id for task_id in places if task_id in self.final]
            good = [i for j, i in ended if self.final[j, i] is State.COMPLETED]
            bad = [i for j, i in ended if self.final[j, i] is not State.COMPLETED]
            begun = max((self.begun_at[task_id] for task_id in ended), default=0.0)
            array = self.jobs[target.job].array is not None
            fates.append(
                TargetSummary(
                    target, len(places), array, format_indices(good), format_indices(bad), begun
                )
            )
        return tuple(fates)

    def indices(self, send: Dispatch) -> list[int]:
        return [task.index for task in self.core.tasks_of_dispatch(send.job, send.dispatch_id)]

    def goes_before(self, key: Key) -> bool:
        """Return whether the task's newer attempt yields to this attempt, which began earlier."""
        task = self.core.tasks.get(place_of(key))
        sending = int(key[0].split("-")[3])
        return task is not None and task.attempt is not None and task.attempt.yields_to == sending

    def wanted(self, send: Dispatch) -> bool:
        tasks = self.core.tasks_of_dispatch(send.job, send.dispatch_id)
        return any(task.attempt and task.attempt.intent is None for task in tasks)

    def restored(self) -> Core:
        """Return a core restored from the state that a database would have."""
        return self.restore_from(self.core, self.new_core())

    def restore_from(self, former: Core, core: Core) -> Core:
        """Restore a fresh core from the state of another, as a database would have it."""
        books = former.state
        tasks, last_sending, facts, drains, ended, leases, remainders = copy.deepcopy(
            (
                *(
                    books.tasks,
                    books.last_dispatch,
                    books.cluster_info,
                    books.drains,
                    books.ended_tasks,
                ),
                former.licences.leases,
                books.remainders,
            )
        )
        for task_id, task in tasks.items():  # the database has it, a copy of a struct loses it
            task.classified_priority = books.tasks[task_id].classified_priority
        recovered = RecoveredState(
            tasks=[task for _, task in sorted(tasks.items())],
            last_dispatches=last_sending,
            info=facts,
            margins=[
                job for job in self.submitted.values() if job.margin is not None and job.margin >= 0
            ],
            drains=list(drains.values()),
            ended=ended,
            target_summaries={
                id: list(self.fates_of(self.jobs[id]))
                for id in sorted({id for id, _ in tasks} | remainders.keys())
                if self.jobs[id].dependency
            },
            leases=sorted(leases.values(), key=lambda lease: (lease.job, lease.index)),
            lingering=self.lingering,
            totals=self.totals,
            remainders=[rest for _, rest in sorted(remainders.items())],
        )
        core.restore(recovered)
        return core

    def unknown(self) -> list[Place]:
        return sorted(p for p, t in self.core.tasks.items() if t.state is State.UNKNOWN)

    def those(self, state: State, begun: bool | None = None) -> list[tuple[Manager, Key]]:
        return [(m, key) for m in self.managers.values() for key in m.those(state, begun)]

    def beginnings(self) -> Counter[Place]:
        begun: Counter[Place] = Counter()
        for manager in self.managers.values():
            for key, times in manager.begun.items():
                begun[place_of(key)] += times
        return begun
