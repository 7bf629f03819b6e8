"""When a job would start that is submitted now, and which smaller request would start sooner.

The answers are look-ups in the probes of the last forecast: nothing is computed for a request.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from metasched.core.cluster_view import limit_on
from metasched.core.tasks import Task
from metasched.daemon.forecaster import TaskEstimate
from metasched.daemon.service import SchedulerService
from metasched.forecast.estimates import StartEstimate
from metasched.model.job import Job
from metasched.model.units import iso

MIN_GAIN = 60.0  # least gain in seconds of a smaller request that is named
MIN_SHARE = 0.1  # the same as a share of the wait


def start_if_submitted(
    service: SchedulerService, job: Job, clusters: Iterable[str]
) -> StartEstimate | None:
    """Return when a job (of an array, its first task) would start behind all others, or None.

    `clusters` are those on which it may start. None if it is unknown on any of them, or if more
    than processors decide: licences of the site, a hold, a dependency, a begin time, a reservation.
    """
    core, now = service.core, time.time()
    if job.held or job.dependency is not None or job.reservation is not None:
        return None
    if (job.begin or 0.0) > now or (core.leases_licences and any(job.licence_requests)):
        return None
    starts = list[StartEstimate]()
    for name in clusters:
        view = core.state.views[name]
        start = service.forecaster.probe(name, job.cpus, limit_on(job, view))
        if start is None:
            return None
        starts.append(start)
    if not starts:
        return None
    first = min(starts, key=lambda start: start.median)
    return StartEstimate(*(max(moment, now) for moment in first))


def eligible_clusters(service: SchedulerService, task: Task) -> list[str]:
    """Return the clusters on which a task may be placed now."""
    assessed = service.core.assess_clusters(task)
    return [verdict.cluster for verdict in assessed if verdict.obstacle is None]


def deadline_warning(job: Job, start: StartEstimate | None) -> str | None:
    """Warn if the queues leave a job no time before its deadline."""
    if start is None or job.deadline is None or job.deadline <= job.submitted:
        return None
    limit = job.time_limit or job.estimated
    if start.early + limit <= job.deadline:
        return None
    return (
        f"the deadline {iso(job.deadline)} can hardly be met: with a probability of 90% the queues "
        f"let the job start after {iso(start.early)}, and it may run for {limit / 60:g} min; "
        "ask for less"
    )


def smaller_requests(service: SchedulerService, task: Task, estimate: TaskEstimate | None) -> str:
    """Describe the smallest changes that let a waiting task start sooner, in a sentence.

    Each is a new job of fewer processors or a shorter limit, behind all others: modified in its
    place, the task starts no later. For a job with licences of the site it is a job with another
    licence: probes take none, and a smaller job waits for the same tokens. "" if none is known.
    """
    if estimate is None:
        return ""
    licences = sorted({name for request in task.job.licence_requests for name in request})
    needs_tokens = service.core.leases_licences and bool(licences)
    now, start = time.time(), estimate.start.median
    latest = start - max(MIN_GAIN, MIN_SHARE * (start - now))
    names = [estimate.cluster] if estimate.cluster else eligible_clusters(service, task)
    texts = list[str]()
    for name in names:
        cpus, limit = task.job.cpus, limit_on(task.job, service.core.state.views[name])
        if needs_tokens:
            probed = service.forecaster.probe(name, cpus, limit)
            if probed is not None and probed.median <= latest:
                other = f"with a licence other than {' or '.join(licences)} that has free tokens"
                texts.append(f"{other} on {name} at {iso(max(probed.median, now))}")
            continue
        probes = service.forecaster.probes(name)
        sizes = sorted({probe.cpus for probe in probes if probe.cpus < cpus}, reverse=True)
        limits = sorted({probe.limit for probe in probes if probe.limit < limit}, reverse=True)
        requests = (
            [(size, limit, f"with {size} processors") for size in sizes],
            [(cpus, seconds, f"with a limit of {seconds / 60:g} min") for seconds in limits],
        )
        for smaller in requests:  # from the nearest to the present request
            for size, seconds, text in smaller:
                probed = service.forecaster.probe(name, size, seconds)
                if probed is not None and probed.median <= latest:
                    texts.append(f"{text} on {name} at {iso(max(probed.median, now))}")
                    break
    return f" A new job would start sooner {'; or '.join(texts)}." if texts else ""
