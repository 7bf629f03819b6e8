"""Grid Engine: DRMAA to submit and to hold, its own commands where DRMAA falls short.

A task is one job; its name (and account) carries the tag. `qstat` lists what lives, the
accounting what ran and ended. Grid Engine keeps no record at all of a job that is deleted while
it waits: what we delete is written down in the cluster's folder before it is asked for.

What has been found out about Grid Engine, and rests on its word only, is tested in tests/real.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import structs

from metasched.adapters.base import Submission, Withdrawal
from metasched.adapters.commands import CommandResult, memory_file, run_command
from metasched.adapters.drmaa.job_script import build_job_script
from metasched.adapters.drmaa.session import DrmaaSession
from metasched.adapters.errors import Refused, Unreachable
from metasched.adapters.gridengine import cluster_info
from metasched.adapters.gridengine import listing as text
from metasched.adapters.gridengine import submission as batch
from metasched.adapters.gridengine.accounting import AccountingFile
from metasched.adapters.gridengine.reservation_listing import (
    AdvanceReservation,
    CellListing,
    MemoryConsumable,
    SchedulingRules,
)
from metasched.adapters.gridengine.reservations import GridEngineReservations
from metasched.adapters.launcher_client import LauncherClient
from metasched.model.cluster import Cluster
from metasched.model.job import State
from metasched.model.listing import JobStatus, Listing
from metasched.model.stored_names import STORED_FIELDS
from metasched.model.survey import ReservationSpec, Survey

_STARTED_STATES = (State.RUNNING, State.SUSPENDED)
_IDS_PER_CALL = 500
_CONFIGURATION_MAX_AGE = 60.0  # seconds between looks at the cell's own configuration
_HOSTS_PER_POLL = 100  # that are asked what they have in all: a command each
_DELETED_MESSAGE = re.compile(r"has deleted job (\d+)")
_REGISTERED_MESSAGE = re.compile(r"has registered the job (\d+) for deletion")
# What qsub says when the qmaster, or qsub itself, has certainly taken nothing.
_REJECTION_MESSAGE = re.compile(
    r"denied|no suitable queues|Unknown option|unknown resource|Invalid |ERROR! |error parsing"
    r"|does not exist|not allowed"
    r"|Unable to run job: (?!.*(timeout|unreachable|communication|reading answer))"
)
_ALREADY_GONE_MESSAGE = re.compile(r"does not exist|already in deletion|has deleted|has registered")

T = TypeVar("T")
TaskKey = tuple[str, int, str]  # tag, task, and in site mode its owner

_COMMANDS = {
    "submit": ("qsub",),
    "cancel": ("qdel",),
    "hold": ("qhold", "-h", "u"),
    "release": ("qrls", "-h", "u"),
}
_SUBMITTED_MESSAGE = re.compile(r"^Your job (\d+) ", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class CellSettings:
    """What a site says of its cell; see `DrmaaOptions`."""

    bin_dir: str | None
    parallel_environment: str
    memory: str | None
    default_time: float
    timeout: float
    settle: float
    keep: float


@dataclass(frozen=True)
class _CellConfiguration:
    """The cell's own configuration at the time `read` (monotonic)."""

    read_at: float
    limits: Mapping[str, text.QueueLimits]
    complexes: Mapping[str, text.ComplexAttribute]
    accounting_delay: float
    duration_offset: float  # seconds for which a job keeps its slots after its limit
    global_totals: Mapping[str, float]  # consumables of the whole cell


class _Deletion(msgspec.Struct, rename=STORED_FIELDS["_Deletion"], frozen=True):
    """A deletion: `asked` for at this time, while the job waited `held` (or not).

    `never_began`: the qmaster said that it deleted the job on the spot, so that it never ran. A job
    in a reservation is deleted at its end, after which it cannot begin either; if it runs it is
    killed then, of which Grid Engine keeps no record.
    """

    tag: str
    task: int
    native_id: str
    requested_at: float
    held: bool = False
    never_started: bool = False
    owner: str = ""

    @property
    def key(self) -> TaskKey:
        return self.tag, self.task, self.owner


def _limit_to_reservation(
    submission: Submission, reservation: AdvanceReservation, now: float
) -> Submission:
    """An order of which the limit is in its reservation: who begins late has what is left."""
    if (remaining := reservation.remaining_seconds(now)) < 1:
        raise Refused(f"advance reservation {reservation.id} is over", retryable=True)
    limit = submission.job.time_limit
    return structs.replace(
        submission, job=replace(submission.job, time_limit=min(limit or remaining, remaining))
    )


class GridEngine:
    """One Grid Engine cell."""

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
        self._launcher = launcher
        self._instance = instance
        self._user = pwd.getpwuid(os.geteuid()).pw_name
        self._environment = {
            **{name: value for name, value in os.environ.items() if name.startswith("SGE_")},
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
        }
        cell_folder = Path(os.environ.get("SGE_ROOT", "/"), os.environ.get("SGE_CELL", "default"))
        self._accounting = AccountingFile(cell_folder / "common" / "accounting", f":ms-{instance}-")
        self._deletions = _DeletionLog(folder / f"deleted-{instance}", settings.keep)
        self._reservations = GridEngineReservations(
            self._run, self._user, instance, settings.parallel_environment
        )
        self._cached_configuration: _CellConfiguration | None = None
        self._live_statuses: dict[
            TaskKey, JobStatus
        ] = {}  # the last word of qstat on each that has no end yet
        self._missing_since: dict[TaskKey, float] = {}  # when qstat first lacked it
        self._accounting_lines: dict[TaskKey, text.AccountingLine] = {}
        self._host_totals: dict[str, Mapping[str, float]] = {}  # of each host, the oldest first
        self._listing_times: deque[float] = deque()  # times of past listings by qstat

    def submit(self, submission: Submission) -> dict[int, str]:
        """Queue each task as a job of its own, in the order of the indices.

        A refusal after some were taken is Unreachable: these are found by the tag, the others
        proved absent.
        """
        settings, native_ids = self._settings, dict[int, str]()
        reservation = (
            self._reservations.find(submission.reservation) if submission.reservation else None
        )
        for index in submission.indices:
            try:
                specification = batch.native_specification(
                    submission
                    if reservation is None
                    else _limit_to_reservation(submission, reservation, time.time()),
                    index,
                    settings.parallel_environment,
                    settings.memory,
                    self._configuration().complexes,
                    reservation,
                )
                wrapper = build_job_script(
                    submission, index, self._cluster.name, text.EXIT_CODE_OF_SIGNAL
                )
                native_ids[index] = self._submit_task(submission, index, specification, wrapper)
                if reservation is not None:
                    owner = submission.job.user if self._launcher else ""
                    deletion = _Deletion(
                        submission.tag, index, native_ids[index], reservation.end, True, owner=owner
                    )
                    self._deletions.add([deletion])
            except Refused as refusal:
                if not native_ids:
                    raise
                accepted = f"{len(native_ids)} of {len(submission.indices)} tasks were taken"
                raise Unreachable(f"{accepted}, then: {refusal.reason}") from None
        return native_ids

    def _submit_task(
        self, submission: Submission, index: int, specification: str, wrapper: bytes
    ) -> str:
        """One job, by DRMAA or, as one session is one account's, by the owner's qsub."""
        name = text.job_name(submission.tag, index)
        if self._launcher is None:
            with memory_file(wrapper) as file:
                return self._session.submit(f"/proc/self/fd/{file}", specification, name)
        arguments = ("-N", name, "-wd", "/", "-o", "/dev/null", "-j", "y", *specification.split())
        with memory_file(wrapper) as file:
            answer = self._launcher.run(
                submission.job.user,
                "submit",
                arguments,
                self._settings.timeout,
                directory=submission.payload.directory,
                stdin=file,
            )
        if submitted := _SUBMITTED_MESSAGE.search(answer.stdout):
            return submitted[1]
        if answer.exit_code and _REJECTION_MESSAGE.search(answer.stderr):
            raise Refused(answer.error_message)
        raise Unreachable(f"qsub: {answer.error_message}")

    def withdraw_all(self, withdrawals: Sequence[Withdrawal]) -> None:
        """End tasks, chosen by their tag in a listing of this moment, never by native id alone.

        For `unstarted`: hold, look again, delete what waits and is held. A hold changes the
        job's version, and the qmaster throws away orders to start an older version.
        """
        matching = self._find_jobs(withdrawals)
        user = withdrawals[0].user
        if not withdrawals[0].only_pending:
            self._delete(user, matching, held=False)
            return
        waiting = {job.id for job in matching.values() if job.is_waiting and "R" not in job.state}
        if not waiting:
            return
        hold_answers = [self._run_as_owner(user, "hold", ids) for ids in _id_lists(waiting)]
        jobs_after_hold = {
            key: job for key, job in self._find_jobs(withdrawals).items() if job.id in waiting
        }
        held = {
            key: job for key, job in jobs_after_hold.items() if job.is_waiting and "h" in job.state
        }
        self._delete(user, held, held=True)
        started = [job.id for job in jobs_after_hold.values() if not job.is_waiting]
        for ids in _id_lists(started):
            self._run_as_owner(user, "release", ids)
        if any(job.is_waiting and "h" not in job.state for job in jobs_after_hold.values()):
            complaints = "; ".join(
                answer.error_message for answer in hold_answers if answer.exit_code != 0
            )
            raise Unreachable(f"qhold: {complaints or 'not held'}")

    def _find_jobs(self, withdrawals: Sequence[Withdrawal]) -> dict[TaskKey, text.QstatJob]:
        """Our jobs that carry one of these tags, live, and are asked for."""
        user = self._user if self._launcher is None else withdrawals[0].user
        owner = "" if self._launcher is None else user
        requested = {
            (withdrawal.tag, index, owner)
            for withdrawal in withdrawals
            for index in withdrawal.native_ids
        }
        return {
            key: job
            for key, job in self._own_jobs(self._list_jobs(user)).items()
            if key in requested
        }

    def _task_key(self, name: str, owner: str) -> TaskKey | None:
        """What a job is of ours by its name and owner; None if it is not."""
        tag_and_index = text.parse_job_name(name, self._instance)
        if tag_and_index is None:
            return None
        if self._launcher is not None:
            return *tag_and_index, owner
        return (*tag_and_index, "") if owner == self._user else None

    def _own_jobs(self, jobs: Iterable[text.QstatJob]) -> dict[TaskKey, text.QstatJob]:
        keyed = ((self._task_key(job.name, job.owner), job) for job in jobs)
        return {key: job for key, job in keyed if key is not None}

    def _delete(self, user: str, jobs: Mapping[TaskKey, text.QstatJob], held: bool) -> None:
        deletions = [
            _Deletion(tag, task, job.id, time.time(), held and job.is_waiting, owner=owner)
            for (tag, task, owner), job in jobs.items()
        ]
        self._deletions.add(
            deletion for deletion in deletions if not self._deletions.covers(deletion)
        )
        for start in range(0, len(deletions), _IDS_PER_CALL):
            batch = deletions[start : start + _IDS_PER_CALL]
            answer = self._run_as_owner(
                user, "cancel", ",".join(deletion.native_id for deletion in batch)
            )
            message = f"{answer.stdout}\n{answer.stderr}".strip()
            deleted = set(_DELETED_MESSAGE.findall(message))
            self._deletions.add(
                [
                    replace(deletion, never_started=True, requested_at=time.time())
                    for deletion in batch
                    if deletion.native_id in deleted
                ]
            )
            errors = [
                line
                for line in message.splitlines()
                if line and not _ALREADY_GONE_MESSAGE.search(line)
            ]
            if errors:
                raise Unreachable(f"qdel: {'; '.join(errors)[:500]}")

    def poll(self) -> Listing:
        """Three commands and what the accounting has grown by, whatever the number of jobs.

        While there are reservations some more (`Reservations.seen`).

        The accounting is read after qstat: a job that ended in between is in one of them.
        """
        listed_at = time.time()
        configuration = self._configuration()
        listed_jobs = self._list_jobs("*")
        if self._launcher is None:
            # What cannot be sent to does not answer. Now, since it may hang if the qmaster does.
            self._session.open()
        hosts, global_licences = self._query(
            lambda xml: (
                text.parse_hosts(xml),
                text.parse_global_licences(xml, configuration.global_totals),
            ),
            *("qhost", "-xml", "-q", "-F"),
        )
        try:
            accounting_lines = self._accounting.read_new()
        except ValueError as error:
            raise Unreachable(f"the accounting cannot be read: {error}") from None
        for line in accounting_lines:
            key = self._task_key(line.name, line.owner)
            if key is not None and line.started:
                self._accounting_lines[key] = line
        totals = self._refresh_totals([host.name for host in hosts], configuration.complexes)
        unreserved = self._reservations.unreserved(
            CellListing(listed_jobs, hosts, listed_at, self._scheduling_rules(totals))
        )
        lag = configuration.accounting_delay + self._settings.settle
        own_jobs = self._own_jobs(listed_jobs)
        rows = self._task_statuses(own_jobs, listed_at, lag)
        info = cluster_info.cluster_info(
            listed_jobs,
            unreserved.hosts,
            configuration.limits,
            totals,
            self._settings.memory,
            {job.id for job in own_jobs.values()},
            listed_at,
            self._settings.default_time,
            unreserved.awaiting,
        )
        return Listing(
            taken=listed_at,
            since=self._proves_absence_since(listed_at),
            until=self._proves_absence_until(listed_at, lag),
            rows=tuple(rows),
            info=structs.replace(
                info, licences=global_licences, upcoming_windows=unreserved.coming
            ),
        )

    def survey(self) -> Survey:
        return self._reservations.survey(self._list_cell("*"))

    def reserve(self, spec: ReservationSpec) -> None:
        listing = self._list_cell(spec.user)
        self._reservations.reserve(spec, replace(listing, listed_at=time.time()))

    def unreserve(self, name: str) -> None:
        self._reservations.unreserve(name, self._list_jobs("*"))

    def _task_statuses(
        self, own_jobs: Mapping[TaskKey, text.QstatJob], listed_at: float, lag: float
    ) -> list[JobStatus]:
        """Each task once: its end if that is known, else what qstat says or said last."""
        self._drop_expired(listed_at)
        ended = {}
        for key, line in self._accounting_lines.items():
            job = own_jobs.get(key)
            requeued = job is not None and (job.is_waiting or "R" in job.state)
            killed = self._deletions.explains_end(key, line.ended)
            status = None if requeued else text.ended_status(line, *key[:2], killed=killed)
            if status is not None:
                previous = self._live_statuses.get(key)
                started_before = (
                    previous.started
                    if previous and previous.native_id == status.native_id
                    else None
                )
                # execd and qmaster disagree by a second on when it began; keep what was told
                started = min(started_before or status.started or 0, status.ended or 0)
                ended[key] = structs.replace(status, started=started, owner=key[2])
        live = {}
        for key, job in own_jobs.items():
            if key not in ended:
                live[key] = structs.replace(text.live_status(job, *key[:2]), owner=key[2])
                self._missing_since.pop(key, None)
        for key, status in self._live_statuses.items():
            if key in own_jobs or key in ended:
                continue
            missing_since = self._missing_since.setdefault(key, listed_at)
            if listed_at - missing_since <= lag and not self._deletions.proves_gone(
                key, listed_at, lag
            ):
                live[key] = status
        self._missing_since = {
            key: missing_since for key, missing_since in self._missing_since.items() if key in live
        }
        for key, deletion in self._deletions.items():
            if (
                key not in own_jobs
                and key not in ended
                and self._deletions.proves_gone(key, listed_at, lag)
            ):
                previous, last_line = self._live_statuses.get(key), self._accounting_lines.get(key)
                last_known = last_line or previous  # if it was queued again
                killed = (
                    previous is not None
                    and previous.state in _STARTED_STATES
                    and not deletion.never_started
                )
                ended[key] = JobStatus(
                    tag=deletion.tag,
                    task=deletion.task,
                    native_id=deletion.native_id,
                    state=State.TIMEOUT if killed else State.CANCELLED,
                    started=last_known.started if last_known else None,
                    ended=deletion.requested_at,
                    manager_reason="its reservation ended" if killed else "deleted while it waited",
                    owner=deletion.owner,
                )
        self._live_statuses = live | {
            ended_key: self._live_statuses[ended_key]
            for ended_key in ended
            if ended_key in self._live_statuses
        }
        return [*live.values(), *ended.values()]

    def _drop_expired(self, listed_at: float) -> None:
        oldest = listed_at - self._settings.keep
        for key in [
            expired_key
            for expired_key, line in self._accounting_lines.items()
            if line.ended < oldest
        ]:
            del self._accounting_lines[key]
            self._live_statuses.pop(key, None)
        for key in self._deletions.drop_before(oldest):
            self._live_statuses.pop(key, None)

    def _proves_absence_since(self, listed_at: float) -> float:
        since = self._accounting.since
        return listed_at if since is None else max(since, listed_at - self._settings.keep)

    def _proves_absence_until(self, listed_at: float, lag: float) -> float:
        """The last listing by qstat whose endings the accounting must hold by now.

        What had reached the qmaster by then was in that listing (and is told for as long as it
        has no end), or had ended, and its end is written after `lag` seconds.
        """
        self._listing_times.append(listed_at)
        while len(self._listing_times) > 1 and self._listing_times[1] <= listed_at - lag:
            self._listing_times.popleft()
        first = self._listing_times[0]
        return first - self._settings.settle if first <= listed_at - lag else 0.0

    def _configuration(self) -> _CellConfiguration:
        if (
            self._cached_configuration is None
            or time.monotonic() - self._cached_configuration.read_at > _CONFIGURATION_MAX_AGE
        ):
            complexes = self._query(text.parse_complexes, "qconf", "-sc")
            global_host = self._run("qconf", "-se", "global")  # a cell may have none
            self._cached_configuration = _CellConfiguration(
                read_at=time.monotonic(),
                limits=self._query(text.parse_queue_limits, "qconf", "-sq", "*"),
                complexes=complexes,
                accounting_delay=self._query(text.parse_accounting_delay, "qconf", "-sconf"),
                duration_offset=self._query(text.parse_duration_offset, "qconf", "-ssconf"),
                global_totals=text.parse_host_totals(global_host.stdout, complexes)
                if global_host.exit_code == 0
                else {},
            )
        return self._cached_configuration

    def _refresh_totals(
        self, hosts: Sequence[str], complexes: Mapping[str, text.ComplexAttribute]
    ) -> Mapping[str, Mapping[str, float]]:
        """What each host has in all, as far as asked: the new ones first, else the oldest again."""
        for removed_host in self._host_totals.keys() - set(hosts):
            del self._host_totals[removed_host]
        new = [host for host in hosts if host not in self._host_totals]
        for host in new[:_HOSTS_PER_POLL] or [*self._host_totals][:1]:
            self._host_totals.pop(host, None)
            self._host_totals[host] = self._query(
                lambda answer_text: text.parse_host_totals(answer_text, complexes),
                "qconf",
                "-se",
                host,
            )
        return self._host_totals

    def _list_cell(self, user: str) -> CellListing:
        """The jobs of a user; where memory counts all hosts are asked what they have of it."""
        listed_at = time.time()
        jobs, hosts = self._list_jobs(user), self._list_hosts()
        names, complexes = [host.name for host in hosts], self._configuration().complexes
        while self._memory_consumable and not self._host_totals.keys() >= {*names}:
            self._refresh_totals(names, complexes)
        return CellListing(jobs, hosts, listed_at, self._scheduling_rules(self._host_totals))

    @property
    def _memory_consumable(self) -> str:
        """The consumable that counts memory for each slot, if any does."""
        complexes = self._configuration().complexes
        name = self._settings.memory or ""
        return name if name in complexes and complexes[name].consumable == "YES" else ""

    def _scheduling_rules(self, totals: Mapping[str, Mapping[str, float]]) -> SchedulingRules:
        configuration, memory = self._configuration(), MemoryConsumable()
        if name := self._memory_consumable:
            host_memory = {
                host: host_totals[name]
                for host, host_totals in totals.items()
                if name in host_totals
            }
            queue_limits = [
                queue.memory[name]
                for queue in configuration.limits.values()
                if name in queue.memory
            ]
            lowest_limit = min(queue_limits, default=None)
            memory = MemoryConsumable(
                name, configuration.complexes[name].default_amount, host_memory, lowest_limit
            )
        consumables = {
            token: configuration.complexes[token] for token in configuration.global_totals
        }
        return SchedulingRules(
            memory, consumables, configuration.limits, configuration.duration_offset
        )

    def _list_jobs(self, user: str) -> list[text.QstatJob]:
        return self._query(text.parse_jobs, "qstat", "-xml", "-r", "-u", user)

    def _list_hosts(self) -> list[text.ExecutionHost]:
        return self._query(text.parse_hosts, "qhost", "-xml", "-q", "-F")

    def _query(self, parse: Callable[[str], T], program: str, *arguments: str) -> T:
        answer = self._run(program, *arguments)
        if answer.exit_code != 0:
            raise Unreachable(f"{program}: {answer.error_message}")
        try:
            return parse(answer.stdout)
        except (ValueError, KeyError) as error:
            raise Unreachable(f"{program}: the answer cannot be read: {error}") from None

    def _run_as_owner(self, user: str, verb: str, ids: str) -> CommandResult:
        """The answer of a command that changes jobs, given as their owner."""
        if self._launcher is None:
            return self._run(*_COMMANDS[verb], ids)
        return self._launcher.run(user, verb, (ids,), self._settings.timeout)

    def _run(self, program: str, *arguments: str) -> CommandResult:
        folder = self._settings.bin_dir
        path = os.path.join(folder, program) if folder else program
        return run_command([path, *arguments], self._environment, self._settings.timeout)

    def close(self) -> None:
        self._accounting.close()
        self._session.close()


class _DeletionLog:
    """Deletions that we asked for, in a file: one JSON line each, the last of a task counts."""

    def __init__(self, path: Path, keep: float) -> None:
        self._path = path
        self._by_task: dict[TaskKey, _Deletion] = {}
        oldest = time.time() - keep
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    deletion = msgspec.json.decode(line, type=_Deletion)
                except ValueError:  # the last line of one that was killed
                    continue
                if deletion.requested_at >= oldest:
                    self._by_task[deletion.key] = deletion
            self._write("w", self._by_task.values())

    def add(self, deletions: Iterable[_Deletion]) -> None:
        added = list(deletions)
        self._write("a", added)
        self._by_task |= {deletion.key: deletion for deletion in added}

    def _write(self, mode: str, deletions: Iterable[_Deletion]) -> None:
        with self._path.open(mode) as file:
            for deletion in deletions:
                file.write(msgspec.json.encode(deletion).decode() + "\n")

    def explains_end(self, key: TaskKey, ended: float) -> bool:
        """Whether the end of a task at this time is what was asked for."""
        deletion = self._by_task.get(key)
        return deletion is not None and deletion.requested_at <= ended + 1

    def covers(self, repeated: _Deletion) -> bool:
        """Whether nothing that was to end before can begin since; `again` would be less certain."""
        deletion = self._by_task.get(repeated.key)
        if deletion is None or deletion.native_id != repeated.native_id:
            return False
        return deletion.held and deletion.requested_at <= repeated.requested_at

    def drop_before(self, oldest: float) -> list[TaskKey]:
        """Drop what was asked for before `oldest`; the tasks."""
        old = [key for key, deletion in self._by_task.items() if deletion.requested_at < oldest]
        for key in old:
            del self._by_task[key]
        return old

    def items(self) -> Iterable[tuple[TaskKey, _Deletion]]:
        return self._by_task.items()

    def proves_gone(self, key: TaskKey, now: float, lag: float) -> bool:
        """Whether the task is certainly gone without having begun, if no listing has it.

        The qmaster's word, or, where its answer was lost, a hold under which nothing begins: the
        accounting has had the time to say otherwise.
        """
        deletion = self._by_task.get(key)
        if deletion is None:
            return False
        return deletion.never_started or (deletion.held and now - deletion.requested_at > lag)


def _id_lists(ids: Iterable[str]) -> Iterable[str]:
    """The ids as comma-separated lists, none too long for a command line."""
    all_ids = list(ids)
    for start in range(0, len(all_ids), _IDS_PER_CALL):
        yield ",".join(all_ids[start : start + _IDS_PER_CALL])
