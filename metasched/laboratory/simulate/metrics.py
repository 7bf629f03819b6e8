"""Figures of a schedule: of the whole run, per cluster, and over time. Times in seconds.

Common figures follow Feitelson's definitions, with bounded slowdown at tau = 10 s; figures defined
in the papers name their source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from metasched.laboratory.simulate.engine import Schedule, ScheduledJob
from metasched.model.reservation import ReservationState

TAU = 10.0  # seconds: the shortest run time in bounded slowdown


def bounded_slowdown(scheduled: ScheduledJob) -> float:
    """Return max(1, (wait + run) / max(run, TAU))."""
    run_time = scheduled.run_time
    return max(1.0, (scheduled.wait + run_time) / max(run_time, TAU))


def slowdown(scheduled: ScheduledJob) -> float:
    """Return (wait + run) / run; 1 + wait for a job with run time 0."""
    run_time = scheduled.run_time
    return scheduled.flow / run_time if run_time > 0 else 1.0 + scheduled.wait


def tardiness(scheduled: ScheduledJob) -> float:
    """Return the seconds from the deadline to the end; 0 if in time or without a deadline."""
    deadline = scheduled.job.deadline
    return 0.0 if deadline is None else max(0.0, scheduled.end - deadline)


def mean(values: Iterable[float]) -> float:
    """Return the mean; 0 if there are no values."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0


def summary(
    schedule: Schedule, policy: str, wall_seconds: float, cpu_seconds: float = 0.0
) -> dict[str, Any]:
    """Return the figures of `metasched simulate --json`; the run took these seconds."""
    jobs, clusters = schedule.jobs, schedule.clusters
    span = makespan(jobs)
    work_by_cluster: list[float] = [0.0] * len(clusters)
    jobs_by_cluster: list[list[ScheduledJob]] = [[] for _ in clusters]
    for scheduled in jobs:
        job = scheduled.entry.job
        work_by_cluster[scheduled.cluster] += scheduled.cpus * job.estimated * job.benchmark
        jobs_by_cluster[scheduled.cluster].append(scheduled)
    total_work = sum(work_by_cluster)
    overall = _figures(schedule, sum(c.cpus for c in clusters), span)
    return {
        "policy": policy,
        "jobs": overall["jobs"],
        "makespan": span,
        **{name: value for name, value in overall.items() if name not in ("jobs", "longest_wait")},
        "load_share": {
            c.name: cluster_work / total_work if total_work else 0.0
            for c, cluster_work in zip(clusters, work_by_cluster, strict=True)
        },
        "wall_seconds": wall_seconds,
        "cpu_seconds": cpu_seconds,
        "jobs_per_second": len(jobs) / wall_seconds if wall_seconds > 0 else 0.0,
        "longest_wait": overall["longest_wait"],
        "moves": sum([scheduled.moves for scheduled in jobs]),
        "pulls": schedule.pulls,
        "pulls_started_at_once": schedule.pulls_started,
        "dropped": schedule.dropped,
        **({"reservations": reservation_figures(schedule)} if schedule.reservations else {}),
        "clusters": {
            c.name: overall
            if len(clusters) == 1
            else _figures(schedule._replace(jobs=tuple(cluster_jobs)), c.cpus, span)
            for c, cluster_jobs in zip(clusters, jobs_by_cluster, strict=True)
        },
    }


def reservation_figures(schedule: Schedule) -> dict[str, Any]:
    """Return the figures of reservations, and the waits of the jobs that have none.

    A promise is kept if its job started with the window, or its processors were there without a
    job. `moved` were granted for later than the first wish.
    """
    results = schedule.reservations
    granted = [result for result in results if result.granted]
    late = [result.delay for result in granted if result.delay]
    inside = {result.job for result in granted}
    waits = [scheduled.wait for scheduled in schedule.jobs if scheduled.job.id not in inside]
    return {
        "requested": len(results),
        "accepted": len(granted),
        "refused": len(results) - len(granted),
        "moved": sum(result.moved for result in granted),
        "kept": sum(result.kept for result in granted),
        "late": len(late),
        "never_there": sum(result.delay is None for result in granted),
        "broken": sum(result.state is ReservationState.BROKEN for result in granted),
        "refused_share": 1 - len(granted) / len(results),
        "kept_share": mean(result.kept for result in granted),
        "mean_shift": mean(
            result.start - max(result.request.ready, result.request.submitted) for result in granted
        ),
        "mean_delay": mean(late),
        "reserved_cpu_seconds": sum(
            result.request.cpus * (result.end - result.start) for result in granted
        ),
        "mean_wait_of_others": mean(waits),
        "longest_wait_of_others": max(waits, default=0.0),
    }


def _figures(schedule: Schedule, cpus: int, span: float) -> dict[str, Any]:
    """Return the figures of a run, or of the jobs of a cluster, on this number of processors."""
    waits, flows, slowdowns, bounded_slowdowns, tardinesses = [], [], [], [], []
    for scheduled in schedule.jobs:  # `slowdown` and the others, inlined for speed
        job = scheduled.entry.job
        wait, flow = scheduled.start - job.submitted, scheduled.end - job.submitted
        run_time = scheduled.end - scheduled.start
        if scheduled.suspended_runs:
            wait, run_time = scheduled.wait, scheduled.run_time
        waits.append(wait)
        flows.append(flow)
        slowdowns.append(flow / run_time if run_time > 0 else 1.0 + wait)
        bounded_slowdowns.append(
            max(1.0, (wait + run_time) / (run_time if run_time > TAU else TAU))
        )
        if job.deadline is not None:
            tardinesses.append(max(0.0, scheduled.end - job.deadline))
    return {
        "jobs": len(waits),
        "mean_wait": mean(waits),
        "mean_flow": mean(flows),
        "mean_slowdown": mean(slowdowns),
        "mean_bounded_slowdown": mean(bounded_slowdowns),
        "utilisation": _utilisation(schedule.jobs, cpus, span),
        "missed_deadlines": mean([seconds > 0 for seconds in tardinesses]),
        "mean_tardiness": mean(tardinesses),
        "licence_usage": licence_usage(schedule),
        "longest_wait": max(waits, default=0.0),
    }


def makespan(jobs: Sequence[ScheduledJob]) -> float:
    """Return the seconds from the first submission to the last ending."""
    if not jobs:
        return 0.0
    return max(scheduled.end for scheduled in jobs) - min(
        scheduled.job.submitted for scheduled in jobs
    )


def _utilisation(jobs: Sequence[ScheduledJob], cpus: int, span: float) -> float:
    """Return used / available processor seconds between first submission and last ending."""
    used_seconds = sum(
        sum([(run.end - run.start) * run.cpus for run in scheduled.suspended_runs])
        if scheduled.suspended_runs
        else (scheduled.end - scheduled.start) * scheduled.cpus
        for scheduled in jobs
    )
    return used_seconds / (cpus * span) if span > 0 else 0.0


class UsageSample(NamedTuple):
    """Usage of clusters from `time` on; the field names are the columns of `--over-time`."""

    time: float  # seconds from the trace's origin
    used: float  # processors
    running: float  # jobs
    waiting: float  # jobs
    licences: float  # copies in use


def usage_over_time(jobs: Iterable[ScheduledJob]) -> list[UsageSample]:
    """Return a sample for each time at which the usage changes.

    A job that was moved counts on the cluster where it ran. A suspended job is waiting.
    """
    changes: dict[float, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for scheduled in jobs:
        copies = sum(scheduled.job.licences.values())
        changes[scheduled.job.submitted][2] += 1
        for run in scheduled.runs:
            for change, direction in ((changes[run.start], 1), (changes[run.end], -1)):
                change[0] += direction * run.cpus
                change[1] += direction
                change[2] -= direction
                change[3] += direction * copies
        changes[scheduled.end][2] -= 1
    state = [0, 0, 0, 0]
    samples = []
    for time in sorted(changes):
        state = [value + delta for value, delta in zip(state, changes[time], strict=True)]
        samples.append(UsageSample(time, *state))
    return samples


def average_usage(
    samples: Sequence[UsageSample], first: float, last: float, count: int
) -> list[UsageSample]:
    """Return means over `count` equal intervals from `first` to `last` seconds, at their starts.

    Usage before the first sample is 0.
    """
    if last <= first:
        return []
    width = (last - first) / count
    sums = [[0.0] * 4 for _ in range(count)]
    for sample, next_sample in zip(samples, [*samples[1:], None], strict=True):
        end = min(last if next_sample is None else next_sample.time, last)
        time = max(sample.time, first)
        while time < end:
            interval = min(int((time - first) / width), count - 1)
            interval_end = (
                end if interval == count - 1 else min(end, first + (interval + 1) * width)
            )
            if interval_end <= time:  # rounding at the border: continue with the next interval
                interval, interval_end = interval + 1, min(end, first + (interval + 2) * width)
            for column, value in enumerate(sample[1:]):
                sums[interval][column] += value * (interval_end - time)
            time = interval_end
    return [
        UsageSample(first + interval * width, *(total / width for total in totals))
        for interval, totals in enumerate(sums)
    ]


# Figures defined in the papers.


def licence_usage(schedule: Schedule) -> float:
    """Return copies in use / min(copies, requested), at each instant the mean over licences.

    Pasquali 2008, §4.3. Requested: by waiting and running jobs. The mean over time is that of the
    instants with requests, and at each of them that of the requested licences. Each cluster has its
    own copies, unless they are pooled. 0 without licences.
    """
    pooled = {pool.name: pool.total or 0 for pool in schedule.pools}
    units: dict[tuple[int | None, str], int] = {}  # copies, by cluster (None: pooled) and licence
    requests: dict[tuple[int | None, str], list[tuple[ScheduledJob, int]]] = defaultdict(list)
    for scheduled in schedule.jobs:
        for name, count in scheduled.job.licences.items():
            cluster = None if name in pooled else scheduled.cluster
            requests[cluster, name].append((scheduled, count))
            units[cluster, name] = (
                pooled[name] if cluster is None else schedule.clusters[cluster].licences[name]
            )
    return _mean_usage([_Requests(units[key], jobs) for key, jobs in requests.items()])


def system_usage(schedule: Schedule) -> float:
    """Return busy / min(available, requested by jobs in the system), mean over time.

    Pasquali 2008, §4.1: machines, if no machine is shared between jobs; else processors.
    """
    jobs = schedule.jobs
    if all(c.machines and not c.shared for c in schedule.clusters):
        machines = sum(len(c.machines) for c in schedule.clusters)
        return _mean_usage([_Requests(machines, [(scheduled, 1) for scheduled in jobs])])
    cpus = sum(c.cpus for c in schedule.clusters)
    return _mean_usage([_Requests(cpus, [(scheduled, scheduled.cpus) for scheduled in jobs])])


class _Requests(NamedTuple):
    """The jobs that request a resource, and their amounts."""

    units: int  # of the resource
    jobs: Sequence[tuple[ScheduledJob, int]]


def _mean_usage(resources: Sequence[_Requests]) -> float:
    """Return the mean over time of the mean of used / min(units, requested) over resources.

    Only requested resources count, and only times with a requested resource.
    """
    changes: list[tuple[float, int, int, int]] = []  # time, resource, used, requested
    for index, resource in enumerate(resources):
        for scheduled, amount in resource.jobs:
            changes.append((scheduled.job.submitted, index, 0, amount))
            changes.append((scheduled.end, index, 0, -amount))
            for run in scheduled.runs:
                changes.append((run.start, index, amount, 0))
                changes.append((run.end, index, -amount, 0))
    changes.sort()
    used, requested, usage = ([0] * len(resources), [0] * len(resources), [0.0] * len(resources))
    total = weight = previous_time = 0.0
    active = 0  # resources with requests
    for time, index, used_change, requested_change in changes:
        if active and time > previous_time:
            total += (time - previous_time) * sum(usage) / active
            weight += time - previous_time
        previous_time = time
        active -= requested[index] > 0
        used[index] += used_change
        requested[index] += requested_change
        active += requested[index] > 0
        least = min(resources[index].units, requested[index])
        usage[index] = used[index] / least if least > 0 else 0.0
    return total / weight if weight else 0.0


def input_transfer(schedule: Schedule) -> float:
    """Return the mean seconds to bring the input of a job to the machine of its first run.

    Over jobs with input on clusters of machines. Transfers do not delay a simulated job.
    """
    return mean(
        schedule.clusters[scheduled.cluster].transfer_seconds(
            scheduled.entry.inputs, scheduled.runs[0].machine
        )
        for scheduled in schedule.jobs
        if scheduled.entry.inputs and schedule.clusters[scheduled.cluster].machines
    )


def slowdown_without_deadline(schedule: Schedule) -> float:
    """Return the mean slowdown of jobs without a deadline. Pasquali 2008, §4.3."""
    return mean(
        slowdown(scheduled) for scheduled in schedule.jobs if scheduled.job.deadline is None
    )
