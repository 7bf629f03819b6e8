"""A Grid Engine cell: submission by DRMAA, everything else by Grid Engine's own commands.

Each task is a job; its name and account string carry the tag. `qstat` lists live jobs, the
accounting file reports ended jobs. Behaviour of Grid Engine that this relies on is tested in
tests/real.
"""

from __future__ import annotations

import os
import pwd
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from metasched.adapters.base import ManagerState, Submission, Withdrawal
from metasched.adapters.drmaa.job_script import build_job_script
from metasched.adapters.drmaa.session import DrmaaSession
from metasched.adapters.gridengine import listing
from metasched.adapters.gridengine.accounting import AccountingFile
from metasched.adapters.gridengine.cell_files import cell_folder
from metasched.adapters.gridengine.cluster_info import CellDemand, cluster_info, listed_queue
from metasched.adapters.gridengine.commands import CellCommands
from metasched.adapters.gridengine.foreign_use import ForeignUseFile
from metasched.adapters.gridengine.renamed_jobs import clock_lead, identify, key_of_ended
from metasched.adapters.gridengine.reservation_listing import (
    AdvanceReservation,
    CellListing,
    MemoryConsumable,
    SchedulingRules,
)
from metasched.adapters.gridengine.reservations import GridEngineReservations
from metasched.adapters.gridengine.set_aside import SetAsideJobs
from metasched.adapters.gridengine.submission import (
    judge_denial,
    native_specification,
    parse_answer,
)
from metasched.adapters.gridengine.withdrawals import Deletion, DeletionLog, JobDeletion
from metasched.adapters.known_jobs import KnownJobs
from metasched.adapters.launcher_client import LauncherClient
from metasched.adapters.manager_uptime import ManagerUptime
from metasched.adapters.single_submissions import submit_each
from metasched.model.adapter_errors import Refused
from metasched.model.cluster import Cluster
from metasched.model.foreign_use import UseAnswer, UseQuery
from metasched.model.host_lists import compress_hosts, find_host
from metasched.model.job import State
from metasched.model.listing import JobStatus, Listing
from metasched.model.survey import ReservationSpec, Survey
from metasched.processes.commands import memory_file

_STARTED_STATES = (State.RUNNING, State.SUSPENDED)
_CONFIGURATION_MAX_AGE = 60.0  # seconds until the cell's configuration is read again
_HOSTS_PER_POLL = 100  # hosts whose total consumables are queried, with a command each


@dataclass(frozen=True, kw_only=True)
class CellSettings:
    """Settings of the site for its cell; see `DrmaaOptions`."""

    bin_dir: str | None
    parallel_environment: str
    memory: str | None
    default_time: float
    timeout: float
    settle: float
    keep: float


@dataclass(frozen=True)
class _CellConfiguration:
    """The cell's own configuration."""

    read_at: float  # monotonic seconds
    limits: Mapping[str, listing.QueueLimits]  # by queue
    complexes: Mapping[str, listing.ComplexAttribute]  # by name
    accounting_delay: float  # seconds until the qmaster writes an ended job
    duration_offset: float  # seconds for which a job keeps its slots after its limit
    global_totals: Mapping[str, float]  # consumables of the whole cell


def _limit_to_reservation(
    submission: Submission, reservation: AdvanceReservation, now: float
) -> Submission:
    """Cut the time limit to the remaining time of the reservation."""
    if (remaining := reservation.remaining_seconds(now)) < 1:
        raise Refused(f"advance reservation {reservation.id} is over", retryable=True, scope="job")
    time_limit = min(submission.job.time_limit or remaining, remaining)
    return structs.replace(submission, job=structs.replace(submission.job, time_limit=time_limit))


def _deletion_log(folder: Path, instance: str) -> Path:
    return folder / f"deleted-{instance}"


class GridEngine:
    """A Grid Engine cell."""

    def __init__(
        self,
        cluster: Cluster,
        session: DrmaaSession,
        settings: CellSettings,
        instance: str,
        folder: Path,
        launcher: LauncherClient | None = None,
    ) -> None:
        self._cluster, self._session, self._settings = cluster, session, settings
        session.judge_denial = judge_denial
        self._launcher = launcher
        user = pwd.getpwuid(os.geteuid()).pw_name
        self._commands = CellCommands(settings.bin_dir, settings.timeout, launcher)
        self._own_jobs = listing.OwnJobs(frozenset({instance}), user if launcher is None else "")
        accounting = cell_folder(os.environ) / "common" / "accounting"
        self._accounting = AccountingFile(accounting, frozenset({instance}))
        self._foreign_use = ForeignUseFile(accounting, settings.settle)
        self._folder = folder
        self._deletions = DeletionLog(_deletion_log(folder, instance), settings.keep)
        self._job_deletion = JobDeletion(self._commands, self._own_jobs, self._deletions)
        self._reservations = GridEngineReservations(
            self._commands, user, instance, settings.parallel_environment
        )
        self._cached_configuration: _CellConfiguration | None = None
        self._live_statuses: dict[listing.TaskKey, JobStatus] = {}  # last status before an end
        self._told_ends: set[listing.TaskKey] = set()  # ends of the accounting in past listings
        self._missing_since: dict[listing.TaskKey, float] = {}  # time of the first qstat without it
        self._accounting_lines: dict[listing.TaskKey, listing.AccountingLine] = {}
        self._set_aside = SetAsideJobs(self._own_jobs, settings.keep)
        self._hosts: frozenset[str] = frozenset()  # names of all hosts, of the last poll
        self._host_totals: dict[str, Mapping[str, float]] = {}  # by host, the oldest first
        self._listing_times: deque[float] = deque()  # of past listings by qstat
        self._uptime = ManagerUptime()
        self._up_since = 0.0  # epoch seconds; last start of the qmaster that was told

    def add_former_instances(self, names: frozenset[str]) -> None:
        """Recognise the jobs of former instances, too; see `Adapter.add_former_instances`."""
        self._own_jobs.instances |= names
        self._accounting.add_instances(names)
        for name in sorted(names):
            self._deletions.read(_deletion_log(self._folder, name))

    def submit(self, submission: Submission) -> dict[int, str]:
        """Queue each task as a job of its own, in the order of the indices.

        Raises PartlySubmitted if the time of the call is nearly over, or if a task is rejected or
        gets no answer after others were accepted.
        """
        settings, name = self._settings, submission.reservation
        reservation = self._reservations.find(name) if name else None

        def submit(index: int) -> str:
            limited = submission
            if reservation is not None:
                limited = _limit_to_reservation(submission, reservation, time.time())
            specification = native_specification(
                limited,
                index,
                settings.parallel_environment,
                settings.memory,
                self._configuration().complexes,
                reservation,
                self._find_node,
            )
            native_id = self._submit_task(limited, index, specification)
            if reservation is not None:
                owner = submission.job.user if self._launcher else ""
                deletion = Deletion(
                    submission.tag, index, native_id, reservation.end, True, owner=owner
                )
                self._deletions.add([deletion])
            return native_id

        return submit_each(submission.indices, submit, {})

    def _find_node(self, name: str) -> str | None:
        """Return the name of a host of the cell; None: it has no such host."""
        return find_host(name, self._hosts) if self._hosts else name

    def _submit_task(self, submission: Submission, index: int, specification: str) -> str:
        """Queue the job of a task; return its native id.

        Uses DRMAA, or in site mode the owner's qsub: a DRMAA session acts as a single account.
        """
        name = listing.job_name(submission.tag, index)
        script = build_job_script(
            submission, index, self._cluster.name, listing.EXIT_CODE_OF_SIGNAL
        )
        if self._launcher is None:
            with memory_file(script) as file:
                return self._session.submit(f"/proc/self/fd/{file}", specification, name)
        arguments = ("-N", name, "-wd", "/", "-o", "/dev/null", "-j", "y", *specification.split())
        with memory_file(script) as file:
            answer = self._launcher.run(
                submission.job.user,
                "submit",
                arguments,
                self._settings.timeout,
                directory=submission.payload.directory,
                stdin=file,
            )
        return parse_answer(answer)

    def withdraw_all(self, withdrawals: Sequence[Withdrawal]) -> None:
        """End tasks; see `JobDeletion.withdraw_all`."""
        self._job_deletion.withdraw_all(withdrawals)

    def poll(self, known: KnownJobs) -> Listing:
        """List the whole cell by four commands and the new lines of the accounting file.

        Reservations need a few more commands (`GridEngineReservations.unreserved`). The accounting
        is read after qstat, so that a job that ends in between is in either of them.
        """
        listed_at = time.time()
        configuration = self._configuration()
        jobs, unreadable = self._commands.list_jobs("*")
        proves_since = self._follow_start(time.monotonic())
        own_jobs, copies, undecided = identify(self._commands, self._own_jobs, jobs, known)
        unreadable += [
            listing.UnreadableJob(
                listing.job_name(row.tag, row.task), self._own_jobs.user or row.owner, row.defect
            )
            for row in undecided
        ]
        if self._launcher is None:
            # Without a session nothing can be submitted. Last, since it may hang with the qmaster.
            self._session.open()
        hosts, global_licences = self._commands.query(
            lambda xml: (
                listing.parse_hosts(xml),
                listing.parse_global_licences(xml, configuration.global_totals),
            ),
            "qhost",
            "-xml",
            "-q",
            "-F",
        )
        self._hosts = frozenset(host.name for host in hosts)
        for line in self._accounting.read_new(known.by_id):
            key = key_of_ended(self._own_jobs, line, known)
            if key is not None and line.started:
                self._accounting_lines[key] = line
                self._set_aside.discard(key)
        totals = self._refresh_totals([host.name for host in hosts], configuration.complexes)
        unreserved = self._reservations.unreserved(
            CellListing(jobs, hosts, listed_at, self._scheduling_rules(totals))
        )
        lag = configuration.accounting_delay + self._settings.settle
        self._set_aside.update(unreadable, self._accounting.unreadable, own_jobs, listed_at, lag)
        statuses = self._task_statuses(own_jobs, listed_at, lag)
        demand = CellDemand(
            jobs,
            listed_at,
            self._settings.default_time,
            own_ids={job.id for job in own_jobs.values()},
            awaiting=unreserved.awaiting,
        )
        info = cluster_info(
            demand, unreserved.hosts, configuration.limits, totals, self._settings.memory
        )
        return Listing(
            taken=listed_at,
            since=max(proves_since, self._proves_absence_since(listed_at)),
            until=self._proves_absence_until(listed_at, lag),
            rows=tuple(statuses),
            up_since=self._up_since,
            info=structs.replace(
                info,
                licences=global_licences,
                hosts=compress_hosts(self._hosts),
                upcoming_windows=unreserved.coming,
                use_source="" if self._accounting.since is None else "accounting file",
            ),
            quarantined=self._set_aside.rows,
            queue=listed_queue(demand),
            untagged=tuple(copies),
        )

    def inspect(self) -> ManagerState:
        """Query the cell by its commands, and in personal mode open a DRMAA session."""
        configuration, listed_at = self._configuration(), time.time()
        jobs = self._commands.list_jobs("*").jobs
        hosts = self._commands.list_hosts()
        if self._launcher is None:
            self._session.open()
        demand = CellDemand(jobs, listed_at, self._settings.default_time)
        info = cluster_info(demand, hosts, configuration.limits, {}, None)
        return ManagerState(
            cpus=info.cpus,
            partitions=tuple(partition.name for partition in info.partitions),
            records="accounting file",
            release=self._commands.query(listing.parse_release, "qstat", "-help"),
            clock_lead=clock_lead(self._commands),
        )

    def query_foreign_use(self, query: UseQuery) -> UseAnswer:
        return self._foreign_use.query(query)

    def survey(self) -> Survey:
        return self._reservations.survey(self._list_cell("*"))

    def reserve(self, spec: ReservationSpec) -> None:
        cell = self._list_cell(spec.user)
        self._reservations.reserve(spec, replace(cell, listed_at=time.time()))

    def unreserve(self, name: str) -> None:
        self._reservations.unreserve(name, self._commands.list_jobs("*").jobs)

    def _task_statuses(
        self, own_jobs: Mapping[listing.TaskKey, listing.QstatJob], listed_at: float, lag: float
    ) -> list[JobStatus]:
        """Return each task once: its end if that is known, else its last status in qstat."""
        self._drop_expired(listed_at)
        self._deletions.distrust(key for key, job in own_jobs.items() if job.was_rescheduled)
        ended = {}
        for key, line in self._accounting_lines.items():
            job = own_jobs.get(key)
            # An older spool that was put back lists a job as waiting that has ended, and may run
            # it. Its end is told first. Then it is listed, so that it is withdrawn.
            is_later = job is not None and (job.is_waiting or (job.started or 0.0) > line.ended)
            is_back = is_later and key in self._told_ends
            requeued = is_back or (job is not None and job.was_rescheduled)
            killed = self._deletions.explains_end(key, line.ended)
            status = None if requeued else listing.ended_status(line, *key[:2], killed=killed)
            if status is not None:
                previous = self._live_statuses.get(key)
                if previous and previous.native_id != status.native_id:
                    previous = None
                # execd and qmaster disagree by a second on the start: the reported start stays
                started = (previous.started if previous else None) or status.started or 0
                started = min(started, status.ended or 0)
                ended[key] = structs.replace(status, started=started, owner=key[2])
        self._told_ends |= ended.keys()
        live = {}
        # a status that is kept beyond a restart would pass for a listing after it
        was_restarted = bool(self._listing_times) and self._up_since > self._listing_times[-1]
        may_be_any = ("", -1, "") in self._set_aside
        for key, job in own_jobs.items():
            if key not in ended:
                previous = self._live_statuses.get(key)
                submitted = job.submitted or (previous.submitted if previous else None)
                status = listing.live_status(job, *key)
                live[key] = structs.replace(status, submitted=submitted)
                self._missing_since.pop(key, None)
        for key, status in self._live_statuses.items():
            if key in own_jobs or key in ended or key in self._set_aside:
                continue
            missing = listed_at - self._missing_since.setdefault(key, listed_at)
            is_gone = not may_be_any and self._deletions.proves_gone(key, listed_at, lag)
            if missing <= lag and not is_gone and not was_restarted:
                live[key] = status
        self._missing_since = {
            key: since for key, since in self._missing_since.items() if key in live
        }
        for key, deletion in self._deletions.items():
            if key in own_jobs or key in ended or key in self._set_aside or may_be_any:
                continue
            if self._deletions.proves_gone(key, listed_at, lag):
                ended[key] = self._deleted_status(key, deletion)
        last_live = self._live_statuses
        remembered = (*ended, *self._set_aside)
        self._live_statuses = live | {key: last_live[key] for key in remembered if key in last_live}
        return [*live.values(), *ended.values()]

    def _deleted_status(self, key: listing.TaskKey, deletion: Deletion) -> JobStatus:
        """Return the end of a deleted task that the accounting does not report."""
        previous = self._live_statuses.get(key)
        started = previous is not None and previous.state in _STARTED_STATES
        killed = started and not deletion.never_started
        last_run = self._accounting_lines.get(key) or previous  # a line if it was requeued
        return JobStatus(
            tag=deletion.tag,
            task=deletion.task,
            native_id=deletion.native_id,
            state=State.TIMEOUT if killed else State.CANCELLED,
            started=last_run.started if last_run else None,
            ended=deletion.requested_at,
            manager_reason="its reservation ended" if killed else "deleted while it waited",
            owner=deletion.owner,
        )

    def _drop_expired(self, listed_at: float) -> None:
        """Drop tasks that ended more than `keep` seconds ago."""
        oldest = listed_at - self._settings.keep
        expired = [key for key, line in self._accounting_lines.items() if line.ended < oldest]
        self._told_ends.difference_update(expired)
        for key in expired:
            del self._accounting_lines[key]
            self._live_statuses.pop(key, None)
        for key in self._deletions.drop_before(oldest):
            self._live_statuses.pop(key, None)

    def _follow_start(self, listed_at: float) -> float:
        """Return since when no restart of the qmaster can have lost a job of its listing.

        A qmaster that is killed, or whose spool is put back, forgets jobs, and may have started
        them before. Only its own answer to qping tells its start on every host, to every account:

        - its pid, heartbeat and messages are in its spool, which other hosts need not see;
        - `act_qmaster` is written at each start, but may be a copy on hosts that share no files;
        - the numbers of jobs begin anew after 9,999,999, and other jobs are not listed for good.

        A shadow master is another process with another start. Without an answer the qmaster may
        have started at this very moment, so the listing proves nothing. `listed_at` is the time of
        the listing by the monotonic clock.
        """
        times = self._commands.qmaster_times()
        now = time.monotonic()
        clock_offset = time.time() - now  # epoch seconds minus the monotonic clock
        if times is None:
            self._uptime.skip(listed_at)
            return clock_offset + now
        self._up_since = clock_offset + self._uptime.update(*times, listed_at, now)
        return self._up_since

    def _proves_absence_since(self, listed_at: float) -> float:
        since = self._accounting.since
        return listed_at if since is None else max(since, listed_at - self._settings.keep)

    def _proves_absence_until(self, listed_at: float, lag: float) -> float:
        """Return the time until which submitted jobs are certainly known, 0 if there is none.

        A job that had reached the qmaster by an earlier listing was in that listing, and is
        reported until its end. Or it had ended, and its end is written after `lag` seconds.
        """
        self._listing_times.append(listed_at)
        while len(self._listing_times) > 1 and self._listing_times[1] <= listed_at - lag:
            self._listing_times.popleft()
        first = self._listing_times[0]
        return first if first <= listed_at - lag else 0.0

    def _configuration(self) -> _CellConfiguration:
        """Return the cell's configuration, read again after a while."""
        cached, now = self._cached_configuration, time.monotonic()
        if cached is not None and now - cached.read_at <= _CONFIGURATION_MAX_AGE:
            return cached
        query = self._commands.query
        complexes = query(listing.parse_complexes, "qconf", "-sc")
        answer = self._commands.run("qconf", "-se", "global")  # fails in a cell without it
        has_global_host = answer.exit_code == 0
        self._cached_configuration = _CellConfiguration(
            read_at=time.monotonic(),
            limits=query(listing.parse_queue_limits, "qconf", "-sq", "*"),
            complexes=complexes,
            accounting_delay=query(listing.parse_accounting_delay, "qconf", "-sconf"),
            duration_offset=query(listing.parse_duration_offset, "qconf", "-ssconf"),
            global_totals=(
                listing.parse_host_totals(answer.stdout, complexes) if has_global_host else {}
            ),
        )
        return self._cached_configuration

    def _refresh_totals(
        self, hosts: Sequence[str], complexes: Mapping[str, listing.ComplexAttribute]
    ) -> Mapping[str, Mapping[str, float]]:
        """Query total consumables of some new hosts, else of the host queried longest ago.

        Return all known totals, by host.
        """
        for removed in self._host_totals.keys() - set(hosts):
            del self._host_totals[removed]
        new = [host for host in hosts if host not in self._host_totals]
        for host in new[:_HOSTS_PER_POLL] or [*self._host_totals][:1]:
            self._host_totals.pop(host, None)
            self._host_totals[host] = self._commands.query(
                lambda answer: listing.parse_host_totals(answer, complexes), "qconf", "-se", host
            )
        return self._host_totals

    def _list_cell(self, user: str) -> CellListing:
        """List the jobs of a user and all hosts, with totals of all hosts if memory is counted."""
        listed_at = time.time()
        jobs, hosts = self._commands.list_jobs(user).jobs, self._commands.list_hosts()
        names, complexes = [host.name for host in hosts], self._configuration().complexes
        while self._memory_consumable and not self._host_totals.keys() >= {*names}:
            self._refresh_totals(names, complexes)
        return CellListing(jobs, hosts, listed_at, self._scheduling_rules(self._host_totals))

    @property
    def _memory_consumable(self) -> str:
        """The consumable that counts memory per slot, or an empty string."""
        complexes = self._configuration().complexes
        name = self._settings.memory or ""
        return name if name in complexes and complexes[name].consumable == "YES" else ""

    def _scheduling_rules(self, totals: Mapping[str, Mapping[str, float]]) -> SchedulingRules:
        configuration, memory = self._configuration(), MemoryConsumable()
        complexes, limits = configuration.complexes, configuration.limits
        if name := self._memory_consumable:
            of_hosts = {host: total[name] for host, total in totals.items() if name in total}
            of_queues = [queue.memory[name] for queue in limits.values() if name in queue.memory]
            lowest_limit = min(of_queues, default=None)
            memory = MemoryConsumable(name, complexes[name].default_amount, of_hosts, lowest_limit)
        consumables = {name: complexes[name] for name in configuration.global_totals}
        return SchedulingRules(memory, consumables, limits, configuration.duration_offset)

    def close(self) -> None:
        self._accounting.close()
        self._foreign_use.close()
        self._session.close()
