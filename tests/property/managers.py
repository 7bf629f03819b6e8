"""Simulated managers that lose, restart and forget jobs; the core is compared with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import structs

from metasched.adapters.claims import EXIT_CLAIM_TAKEN
from metasched.core.events import AccountingReceived, QueryAccounting
from metasched.model.cluster import ClusterInfo, ManagerLicences, NodeCapacity, Partition
from metasched.model.job import State
from metasched.model.listing import ClaimEnd, JobStatus

Key = tuple[str, int]  # tag, task
Place = tuple[int, int]  # job, task


@dataclass
class Manager:
    """The true state of a cluster: queued, started and ended jobs by tag and task.

    Its listing proves absence from `up_since` on; its accounting keeps the jobs in `forgot`. With
    a `fence` each task makes a claim at its start; `claims` maps a claim to whether it is revoked.
    A payload records its end in its claim, unless it was killed. Nobody but claims knows of the
    jobs in `unrecorded`.
    """

    cpus: int
    fence: str = ""
    claims: dict[Key, bool] = field(default_factory=dict)
    ends: dict[Key, ClaimEnd] = field(default_factory=dict)
    rows: dict[Key, JobStatus] = field(default_factory=dict)
    sizes: dict[Key, int] = field(default_factory=dict)
    begun: Counter[Key] = field(default_factory=Counter)
    up_since: float = 0.0
    boot: float = 0.0
    forgot: dict[Key, JobStatus] = field(default_factory=dict)
    unrecorded: set[Key] = field(default_factory=set)
    licences: dict[str, ManagerLicences] = field(default_factory=dict)
    ids: int = 0
    listed: set[Key] = field(default_factory=set)
    listed_at: float = 0.0
    limit: int | None = None  # most pending and running jobs

    def submit(self, tag: str, indices: Iterable[int], cpus: int) -> dict[int, str]:
        taken = {}
        for index in indices:
            self.ids += 1
            taken[index] = f"n{self.ids}"
            self.rows[tag, index] = JobStatus(tag, index, taken[index], State.PENDING)
            self.sizes[tag, index] = cpus
        return taken

    def refuses(self, count: int) -> bool:
        """Return whether so many jobs more are above its limit."""
        live = sum(row.state in (State.PENDING, State.RUNNING) for row in self.rows.values())
        return self.limit is not None and live + count > self.limit

    def used(self) -> int:
        return sum(self.sizes[t] for t, r in self.rows.items() if r.state is State.RUNNING)

    def start(self, now: float) -> None:
        for tag, row in self.rows.items():
            if row.state is State.PENDING and self.sizes[tag] <= self.cpus - self.used():
                self.rows[tag] = structs.replace(row, state=State.RUNNING, started=now)
                if self.fence and tag in self.claims:
                    self.end_one(tag, now, State.FAILED, EXIT_CLAIM_TAKEN)
                    continue
                self.claims[tag] = False
                self.begun[tag] += 1

    def end(self, now: float, state: State) -> None:
        for tag, row in self.rows.items():
            if row.state is State.RUNNING:
                self.end_one(tag, now, state, 0)
                return

    def end_one(self, key: Key, now: float, state: State, code: int) -> None:
        row = self.rows[key]
        self.rows[key] = structs.replace(row, state=state, ended=now, exit_code=code)
        if self.claims.get(key) is False and state is State.COMPLETED:
            self.ends[key] = ClaimEnd(row.started or now, now, code)

    def withdraw(self, tag: str, indices: Iterable[int], unstarted: bool, now: float) -> None:
        for index in indices:
            row = self.rows.get((tag, index))
            if row is None or row.state not in (State.PENDING, State.RUNNING):
                continue
            if row.state is State.PENDING or not unstarted:
                self.rows[tag, index] = structs.replace(row, state=State.CANCELLED, ended=now)

    def those(self, state: State, begun: bool | None = None) -> list[Key]:
        """Return the keys of jobs in a state; `begun` selects only started or unstarted jobs."""
        return [
            key
            for key, row in self.rows.items()
            if row.state is state and begun in (None, row.started is not None)
        ]

    def boots(self, now: float) -> None:
        """Restart the manager after a kill; its listings prove nothing of the time before."""
        self.up_since = self.boot = now

    def trace(self, query: QueryAccounting, now: float) -> AccountingReceived:
        recorded = self.rows.keys() | self.forgot.keys() | self.unrecorded
        return AccountingReceived(
            now,
            query.cluster,
            tuple(
                self.forgot[m.tag, m.task]
                for m in query.missing_tasks
                if (m.tag, m.task) in self.forgot
            ),
            tuple((m.tag, m.task) for m in query.missing_tasks if (m.tag, m.task) not in recorded),
        )

    def facts(self) -> ClusterInfo:
        free = max(self.cpus - self.used(), 0)
        waiting = [self.sizes[t] for t, r in self.rows.items() if r.state is State.PENDING]
        return ClusterInfo(
            cpus=self.cpus,
            used_cpus=self.used(),
            partitions=(Partition("p", (NodeCapacity(1, self.cpus, free),), default=True),),
            running_jobs=tuple(
                (1e9, self.sizes[t]) for t, r in self.rows.items() if r.state is State.RUNNING
            ),
            pending_jobs=len(waiting),
            queue_head=(waiting[0], 100.0) if waiting else None,
            accounting_source="all that it forgot",
            licences=dict(self.licences),
        )


def place_of(key: Key) -> Place:
    """Return the job and the task of a manager's row."""
    return int(key[0].split("-")[2]), key[1]
