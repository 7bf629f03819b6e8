"""A period of a site as its ledger has it: what to simulate, to learn what would have changed.

The entries of the workload are tasks that ran, under the ids of the record: these decide draws
between equal clusters. Each arrives when nothing but the scheduling kept it back: after its
submission, its begin time, and the ends of the tasks that it depended on; if it was submitted held,
when it was first dispatched. The limit of an array is simulated. Of the clusters that could ever
run it, as they reported themselves last, simulated managers know names and counted processors.
Times are epoch seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, and_, func, select

from metasched.core.array_remainder import run_length
from metasched.core.events import ClusterDrained, ClusterResumed, DaemonStarted, UseReported
from metasched.db.schema import (
    attempt,
    cluster,
    current_spec,
    dependency,
    event,
    job,
    licence,
    task,
    task_run,
)
from metasched.errors import UserError
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import Schedule, Simulation
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.cluster import Cluster, ClusterInfo
from metasched.model.fair_share import FairShareSettings
from metasched.model.job import Job
from metasched.model.licence import LicencePool
from metasched.model.limits import LimitSettings
from metasched.policies.eligible import PERMANENT_REASONS, find_ineligibility
from metasched.policies.local.queueing import LocalPolicy
from metasched.policies.local.registry import check_policy_name, make_excludable
from metasched.policies.policy import Policy

GAP = 600.0  # seconds without a daemon that are reported
_IN_PORTIONS = {"yield_per": 1000}
# why tasks are left out, in `Workload.dropped`
NOT_ENDED, NOT_STARTED = "still open", "ended without a start"
NO_CLUSTER = "ran on a cluster that is not known any more"


class NothingRecorded(UserError):
    """The ledger has no jobs of the period, or not all data to simulate them."""


class RecordedTask(NamedTuple):
    """What happened to a task; times are epoch seconds."""

    job: int
    task: int  # index in its job
    cluster: str  # where it ran
    submitted: float
    started: float
    ended: float


@dataclass(frozen=True, kw_only=True)
class RecordedPeriod:
    """The tasks that were submitted in a period and ran, and their site."""

    workload: Workload
    tasks: tuple[RecordedTask, ...]  # of each entry of the workload, whose job ids count from 1
    clusters: tuple[SimulatedCluster, ...]
    policy: Policy  # last policy in force
    pools: tuple[LicencePool, ...] = ()
    fair_share: FairShareSettings | None = None
    limits: LimitSettings = field(default_factory=LimitSettings)
    drains: tuple[ClusterDrained | ClusterResumed, ...] = ()
    notes: tuple[str, ...] = ()  # gaps of the record, and differences of the simulation
    local_policies: Mapping[str, str] = field(default_factory=dict)  # by cluster

    def simulation(
        self, policy: Policy, progress: Callable[[int], None] | None = None
    ) -> Simulation:
        """Return a simulation of the period under a policy."""
        return Simulation(
            self.workload,
            self.clusters,
            policy,
            self._make_local_policy,
            progress,
            licence_pools=self.pools,
            fair_share=self.fair_share,
            limits=self.limits,
            drains=self.drains,
        )

    def run(self, policy: Policy, progress: Callable[[int], None] | None = None) -> Schedule:
        """Simulate the period under a policy."""
        return self.simulation(policy, progress).run()

    def _make_local_policy(self, simulated: SimulatedCluster) -> LocalPolicy:
        return make_excludable(self.local_policies[simulated.name], {}, simulated.licences)


def read_period(
    connection: Connection, since: float | None = None, until: float | None = None
) -> RecordedPeriod:
    """Read the tasks submitted from `since` to before `until` (epoch seconds; None: all).

    NothingRecorded if there is no such task, or a local policy of the site is not installed here.
    """
    first, last = -math.inf if since is None else since, math.inf if until is None else until
    site = _read_site(connection, first, last)
    reader = _TaskReader(connection, site)
    entries, tasks = reader.read(first, last)
    if not entries:
        reasons = ", ".join(f"{count} {cause}" for cause, count in reader.dropped.items())
        raise NothingRecorded(
            "no task that was submitted in the period has run and ended"
            f"{f' ({reasons})' if reasons else ''}; choose other times, or simulate a trace: "
            "--trace FILE"
        )
    largest = Counter[str]()
    for entry, recorded in zip(entries, tasks, strict=True):
        largest[recorded.cluster] = max(largest[recorded.cluster], entry.job.cpus)
    clusters = tuple(
        SimulatedCluster(
            name=name,
            cpus=max(site.infos[name].cpus, largest[name], 1),
            benchmark=entry.benchmark,
            queue_depth=entry.queue_depth,
        )
        for name, entry in site.clusters.items()
    )
    return RecordedPeriod(
        workload=Workload("record", tuple(entries), dropped=dict(reader.dropped)),
        tasks=tuple(tasks),
        clusters=clusters,
        policy=site.started.policy,
        pools=site.pools,
        fair_share=site.started.fair_share,
        limits=site.started.limits,
        drains=tuple(_read_drains(connection, site, first, last)),
        notes=(*site.notes, *reader.notes(), *_foreign_use(connection, first, last)),
        local_policies={name: _installed_policy(entry) for name, entry in site.clusters.items()},
    )


def _installed_policy(entry: Cluster) -> str:
    """Return the local policy of a recorded cluster. NothingRecorded if it is not installed."""
    name = entry.local_policy_or_fcfs
    try:
        check_policy_name(name)
    except ValueError as error:
        raise NothingRecorded(
            f"policy {name} of cluster {entry.name} is not installed here ({error}); "
            "install its package"
        ) from None
    return name


# The site


class _Site(NamedTuple):
    started: DaemonStarted  # the last start in the period, with the policy
    clusters: dict[str, Cluster]
    infos: dict[str, ClusterInfo]  # as last reported, by cluster
    pools: tuple[LicencePool, ...]
    notes: tuple[str, ...]


def _read_site(connection: Connection, since: float, until: float) -> _Site:
    """Read the configuration in the period. NothingRecorded if there is none."""
    starts = [
        (row.id, msgspec.json.decode(row.data, type=DaemonStarted))
        for row in connection.execute(
            select(event.c.id, event.c.data)
            .where(event.c.kind == DaemonStarted.__name__, event.c.time <= until)
            .order_by(event.c.id)
        )
    ]
    if not starts:
        raise NothingRecorded(
            "the ledger has no start of a daemon in the period, so no policy and no clusters; "
            "choose other times, or simulate a trace: --trace FILE"
        )
    before = [start for start in starts if start[1].time <= since]
    within = [*before[-1:], *(start for start in starts if start[1].time > since)]
    infos = {
        row.name: msgspec.json.decode(row.info, type=ClusterInfo)
        for row in connection.execute(select(cluster.c.name, cluster.c.info))
    }
    # in the order of the last start, which decides among equals
    latest_clusters: dict[str, Cluster] = {}
    for _, started in reversed(within):
        for entry in started.clusters:
            latest_clusters.setdefault(entry.name, entry)
    notes = list(_gaps(connection, within, since))
    if silent := sorted(latest_clusters.keys() - infos.keys()):
        notes.append(f"clusters that never answered are left out: {', '.join(silent)}")
    policies = [started.policy for _, started in within]
    changes = sum(a != b for a, b in pairwise(policies))
    if changes:
        notes.append(
            f"the policy changed {_times(changes)} in the period; compared is its last one, "
            f"version {within[-1][1].policy_version}"
        )
    started = within[-1][1]
    if started.fair_share is not None:
        notes.append("fair share begins without use from before the period")
    pools, pool_notes = _read_pools(connection, started)
    clusters = {name: entry for name, entry in latest_clusters.items() if name in infos}
    if undeclared := sorted(name for name, entry in clusters.items() if not entry.local_policy):
        notes.append(
            "FCFS stands for the managers of clusters whose adapters declare no local policy: "
            f"{', '.join(undeclared)}"
        )
    return _Site(started, clusters, infos, pools, (*notes, *pool_notes))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _gaps(
    connection: Connection, starts: list[tuple[int, DaemonStarted]], since: float
) -> Iterator[str]:
    """Yield how long no daemon ran, and how much of the beginning is not stored."""
    missing, longest = 0.0, 0.0
    for id, started in starts:
        last = connection.execute(
            select(event.c.time).where(event.c.id < id).order_by(event.c.id.desc()).limit(1)
        ).scalar()
        if last is not None and started.time > since and started.time - last > GAP:
            missing += started.time - max(last, since)
            longest = max(longest, started.time - max(last, since))
    if missing:
        yield (
            f"no daemon ran for {missing / 3600:.1f} h of the period, {longest / 3600:.1f} h at a "
            "time: waits in it are those of a site without metasched"
        )
    oldest = connection.execute(select(func.min(job.c.submitted))).scalar()
    if oldest is not None and math.isfinite(since) and oldest - since > GAP:
        yield f"nothing is stored of the first {(oldest - since) / 86400:.1f} days of the period"


def _read_pools(
    connection: Connection, started: DaemonStarted
) -> tuple[tuple[LicencePool, ...], list[str]]:
    """Return the licences with their totals of now."""
    totals = {
        row.name: row.total for row in connection.execute(select(licence.c.name, licence.c.total))
    }
    pools, unknown = [], []
    for pool in started.pools or ():
        total = totals.get(pool.name) if pool.total is None else pool.total
        if total is None:
            unknown.append(pool.name)
        else:
            # counts of its server are not simulated
            pools.append(replace(pool, total=total, server="", linger=pool.linger))
    if unknown:
        return tuple(pools), [
            f"licences whose totals are unknown are left out: {', '.join(unknown)}"
        ]
    return tuple(pools), []


def _read_drains(
    connection: Connection, site: _Site, since: float, until: float
) -> list[ClusterDrained | ClusterResumed]:
    """Return the drains in the order of their times, first those in force when it begins."""
    in_force: dict[str, ClusterDrained | ClusterResumed] = {}
    within: list[ClusterDrained | ClusterResumed] = []
    kinds: dict[str, type[ClusterDrained | ClusterResumed]] = {
        kind.__name__: kind for kind in (ClusterDrained, ClusterResumed)
    }
    query = select(event.c.kind, event.c.data).where(event.c.kind.in_(kinds), event.c.time <= until)
    for row in connection.execute(query.order_by(event.c.id)):
        act = msgspec.json.decode(row.data, type=kinds[row.kind])
        if act.cluster not in site.clusters:
            continue
        if act.time <= since:
            in_force[act.cluster] = act
        else:
            within.append(act)
    drained = [act for act in in_force.values() if isinstance(act, ClusterDrained)]
    return sorted([*drained, *within], key=lambda act: act.time)


def _foreign_use(connection: Connection, since: float, until: float) -> Iterator[str]:
    """Yield how much jobs used that metasched did not send; they are not simulated."""
    seconds = 0.0
    query = select(event.c.data).where(
        event.c.kind == UseReported.__name__, event.c.time >= since, event.c.time <= until
    )
    for data in connection.execute(query, execution_options=_IN_PORTIONS).scalars():
        reported = msgspec.json.decode(data, type=UseReported)
        seconds += sum(use.processor_seconds for use in reported.uses)
    if seconds:
        yield (
            f"jobs that metasched did not send used {seconds / 3600:.0f} processor hours; they are "
            "not simulated, so waits are shorter than they were"
        )


# The tasks


class _RecordedEntry(NamedTuple):
    entry: WorkloadEntry
    recorded: RecordedTask
    singly: bool  # whether tasks of its array may have arrived at different times


def _by_arrival(arrival: _RecordedEntry) -> tuple[float, int, int]:
    return arrival.entry.job.submitted, arrival.recorded.job, arrival.recorded.task


def _assemble_arrays(entries: list[_RecordedEntry]) -> list[_RecordedEntry]:
    """Let tasks of an array arrive together, as far as they did: with the first of them.

    Tasks that took other alternative licences than the first form an array of their own.
    """
    arrivals: dict[int, float] = {}
    for entry, recorded, singly in entries:
        if not singly:
            arrival = arrivals.get(recorded.job, math.inf)
            arrivals[recorded.job] = min(arrival, entry.job.submitted)
    unused_ids = count(max((recorded.job for _, recorded, _ in entries), default=0) + 1)
    ids: dict[int, dict[Hashable, int]] = {}  # by job and licences
    assembled = []
    for entry, recorded, singly in entries:
        if entry.job.array is None:
            assembled.append(_RecordedEntry(entry, recorded, singly))
            continue
        submitted = entry.job.submitted if singly else arrivals[recorded.job]
        by_licences = ids.setdefault(recorded.job, {})
        licences = frozenset(entry.job.licences.items())
        if licences not in by_licences:
            by_licences[licences] = next(unused_ids) if by_licences else recorded.job
        job = msgspec.structs.replace(entry.job, submitted=submitted)
        task = by_licences[licences], recorded.task
        assembled.append(_RecordedEntry(entry._replace(job=job, task=task), recorded, singly))
    return assembled


class _TaskReader:
    """Makes entries of a workload of rows."""

    def __init__(self, connection: Connection, site: _Site) -> None:
        self._connection, self._site = connection, site
        self._pools = {pool.name for pool in site.pools}
        self._eligible: dict[Hashable, tuple[str, ...]] = {}  # clusters by requirements
        self.dropped = Counter[str]()  # tasks left out, by cause
        self._reserved = self._unleased = 0  # tasks

    def read(self, since: float, until: float) -> tuple[list[WorkloadEntry], list[RecordedTask]]:
        """Return the tasks that ran, in the order of their arrival."""
        in_period = (job.c.submitted >= since) & (job.c.submitted < until)
        met = {
            row.job: row.ended
            for row in self._connection.execute(
                select(dependency.c.job, func.max(task.c.ended).label("ended"))
                .join_from(dependency, task, task.c.job == dependency.c.target)
                .group_by(dependency.c.job)
            )
        }
        query = (
            select(
                *(task.c.job, task.c.task_index, task.c.ended.label("task_ended")),
                current_spec,
                *(attempt.c.cluster, attempt.c.dispatched, attempt.c.started, attempt.c.run_since),
                *(attempt.c.ended, attempt.c.elapsed, attempt.c.allocated_cpus),
                attempt.c.licence_choice,
            )
            .join_from(task, job, job.c.id == task.c.job)
            .outerjoin(
                attempt,
                and_(
                    attempt.c.job == task.c.job,
                    attempt.c.task_index == task.c.task_index,
                    attempt.c.number == task.c.attempts,
                ),
            )
            .where(in_period)
            .order_by(task.c.job, task.c.task_index)
        )
        decoder = msgspec.json.Decoder(Job)
        arrivals: list[_RecordedEntry] = []
        job_id, submitted_job = 0, None
        for row in self._connection.execute(query, execution_options=_IN_PORTIONS):
            if row.job != job_id:  # the tasks of an array share a text
                job_id, submitted_job = row.job, decoder.decode(row.spec)
            assert submitted_job is not None
            if (made := self._entry(row, submitted_job, met.get(row.job))) is not None:
                arrivals.append(made)
        self._count_runs(in_period)
        arrivals = _assemble_arrays(arrivals)
        arrivals.sort(key=_by_arrival)
        entries = [
            entry._replace(job=msgspec.structs.replace(entry.job, id=number), number=number)
            for number, (entry, _, _) in enumerate(arrivals, 1)
        ]
        return entries, [recorded for _, recorded, _ in arrivals]

    def _entry(
        self, row: Any, submitted_job: Job, dependency_met: float | None
    ) -> _RecordedEntry | None:
        """Return a task; None: it is left out."""
        if row.task_ended is None:
            self.dropped[NOT_ENDED] += 1
            return None
        if row.started is None or row.ended is None:
            self.dropped[NOT_STARTED] += 1
            return None
        entry = self._site.clusters.get(row.cluster)
        if entry is None:
            self.dropped[NO_CLUSTER] += 1
            return None
        original = submitted_job.with_licences(row.licence_choice)
        ready = max(original.submitted, original.begin or 0.0, dependency_met or 0.0)
        if original.held:
            ready = max(ready, row.dispatched)
        ready = min(ready, row.started)  # clocks differ, and dependencies may be of any end
        run_time = row.elapsed
        if run_time is None:
            run_time = max(row.ended - (row.run_since or row.started), 0.0)
        self._reserved += original.reservation is not None
        simulated = Job(
            id=1,
            submitted=ready,
            estimated=original.time_limit or original.estimated,  # of no heuristic
            time_limit=original.time_limit,
            cpus=max(original.cpus, row.allocated_cpus or 0),
            user=original.user,
            user_class=original.user_class,
            groups=original.groups,
            group=original.group,
            account=None,
            owner_priority=original.owner_priority,
            benchmark=original.benchmark,
            deadline=original.deadline,
            licences=self._leased(original),
            clusters=self._clusters_of(original, row.cluster),
            array=original.array,
        )
        # seconds on a machine of the job's benchmark, as those of a workload
        true_run_time = run_time * entry.benchmark / original.benchmark
        recorded = RecordedTask(
            row.job, row.task_index, row.cluster, original.submitted, row.started, row.ended
        )
        singly = original.held or "aftercorr" in (original.dependency or "")
        task_id = row.job, row.task_index
        made = WorkloadEntry(simulated, true_run_time, 0, row.cluster, task=task_id)
        return _RecordedEntry(made, recorded, singly)

    def _leased(self, original: Job) -> Mapping[str, int]:
        """Return the licences that metasched leases."""
        if original.licences.keys() <= self._pools:
            return original.licences
        self._unleased += 1
        return {name: n for name, n in original.licences.items() if name in self._pools}

    def _clusters_of(self, original: Job, ran_on: str) -> tuple[str, ...]:
        """Return the clusters that could ever run a job; (): all."""
        key = (original.requirements, original.directory, original.writes, original.user)
        names = self._eligible.get(key)
        if names is None:
            unreserved = msgspec.structs.replace(original, licences={}, licence_choices=())
            names = self._eligible[key] = tuple(
                name
                for name, entry in self._site.clusters.items()
                if (obstacle := find_ineligibility(unreserved, entry, self._site.infos[name]))
                is None
                or obstacle.reason not in PERMANENT_REASONS
            )
        if ran_on not in names:
            names = (*names, ran_on)
        return () if len(names) == len(self._site.clusters) else names

    def _count_runs(self, in_period: Any) -> None:
        """Count the tasks of arrays that have no row of their own: none of them has started."""
        columns = (task_run.c.first_index, task_run.c.last_index, task_run.c.step, task_run.c.ended)
        query = select(*columns).join(job, job.c.id == task_run.c.job).where(in_period)
        for row in self._connection.execute(query):
            cause = NOT_ENDED if row.ended is None else NOT_STARTED
            self.dropped[cause] += run_length((row.first_index, row.last_index, row.step))

    def notes(self) -> Iterator[str]:
        """Yield the differences between the simulation and the record."""
        if self._reserved:
            yield f"{self._reserved} tasks ran in reservations; they are simulated without"
        if self._unleased:
            yield f"{self._unleased} tasks requested licences that metasched does not lease"
