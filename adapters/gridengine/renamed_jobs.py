"""Jobs of a cell that their owners have renamed (`qalter -N`), so that their names show no tag."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from metasched.adapters.base import least_clock_lead
from metasched.adapters.gridengine import listing
from metasched.adapters.gridengine.commands import CellCommands
from metasched.adapters.known_jobs import KnownJobs
from metasched.model.job import State
from metasched.model.listing import JobStatus, QuarantinedRow


def identify(
    commands: CellCommands,
    own_jobs: listing.OwnJobs,
    jobs: Sequence[listing.QstatJob],
    known: KnownJobs,
) -> tuple[dict[listing.TaskKey, listing.QstatJob], list[JobStatus], list[QuarantinedRow]]:
    """Return the jobs of this instance by task, those with the name of another, and undecided ones.

    qstat lists no submission of a running job. So renamed jobs cost up to two commands more.
    """
    renamed = own_jobs.renamed(jobs, known)
    if not renamed:
        return own_jobs.identify(jobs, known, 0.0)
    undated = [job.id for job in renamed if job.submitted is None]
    times = commands.submissions(undated) if undated else {}
    dated = [
        replace(job, submitted=times[job.id]) if job.submitted is None and job.id in times else job
        for job in jobs
    ]
    return own_jobs.identify(dated, known, clock_lead(commands) or 0.0)


def key_of_ended(
    own_jobs: listing.OwnJobs, line: listing.AccountingLine, known: KnownJobs
) -> listing.TaskKey | None:
    """Return the task of a line of the accounting; None if it is not of this instance."""
    key = own_jobs.key(line.name, line.owner)
    if line.id not in known.by_id or own_jobs.user not in ("", line.owner):
        return key
    owner = "" if own_jobs.user else line.owner
    tag, task, _ = key or ("", 0, owner)
    claim = JobStatus(tag, task, line.id, State.UNKNOWN, owner=owner, submitted=line.submitted)
    rows = known.identify([claim], (), 0.0).rows
    return (rows[0].tag, rows[0].task, rows[0].owner) if rows else None


def clock_lead(commands: CellCommands) -> float | None:
    """Return `least_clock_lead` of the qmaster; None if it reports no time."""
    asked_at = time.time()
    if (times := commands.qmaster_times()) is None:
        return None
    return least_clock_lead(times[1], asked_at, time.time())
