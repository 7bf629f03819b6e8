"""The adapter of a Slurm cluster, on top of an access by commands or by pyslurm.

A task is a Slurm job, or a task of an array where several tasks are submitted together. Its
comment (or wckey, or name) carries the tag. Slurm 22.05 forgets pending tasks of an array at once
when they are cancelled, without a record. So a withdrawal holds a task first, which gives it a
record of its own. The core infers tasks that other users cancel (`Reconciler`).

Undocumented behaviour of Slurm that this code relies on is tested in tests/real.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from msgspec import structs

from metasched.adapters.base import (
    CHANGE_VERBS,
    Adapter,
    Capabilities,
    ManagerState,
    Submission,
    Withdrawal,
    least_clock_lead,
)
from metasched.adapters.known_jobs import KnownJobs
from metasched.adapters.launcher_client import LauncherClient, uid_of, user_name_of
from metasched.adapters.single_submissions import submit_each
from metasched.adapters.slurm import listing, statuses
from metasched.adapters.slurm.access import SlurmAccess, SlurmOptions
from metasched.adapters.slurm.access_choice import AccessChoice
from metasched.adapters.slurm.accounting import SlurmAccounting
from metasched.adapters.slurm.associations import AssociationReader
from metasched.adapters.slurm.cluster_info import build_cluster_info, build_queue
from metasched.adapters.slurm.commands import SlurmCommands
from metasched.adapters.slurm.foreign_use import SlurmForeignUse
from metasched.adapters.slurm.job_usage import JobRecord, match_usage
from metasched.adapters.slurm.launch_failures import LaunchFailures
from metasched.adapters.slurm.listing_horizon import ListingHorizon
from metasched.adapters.slurm.node_reservations import NodeReservations
from metasched.adapters.slurm.processor_reservations import ProcessorReservations
from metasched.adapters.slurm.submission import can_be_array
from metasched.model.adapter_errors import Refused, Unreachable
from metasched.model.cluster import Cluster, ClusterInfo, ManagerLicences
from metasched.model.fair_share import ShareTree
from metasched.model.foreign_use import UseAnswer, UseQuery
from metasched.model.host_lists import compress_hosts, expand_hosts
from metasched.model.job import Job
from metasched.model.job_usage import EndedRun, RunUsage
from metasched.model.listing import (
    AccountingAnswer,
    JobTerms,
    ListedQueue,
    Listing,
    MissingTask,
)
from metasched.model.manager_options import ALL_OPTIONS
from metasched.model.survey import ReservationSpec, Survey

__all__ = ["Slurm", "SlurmOptions"]

_CORE_SELECT_TYPES = ("select/cons_tres", "select/cons_res")
_FEDERATION_QUERY_INTERVAL = 600.0  # seconds
_MAX_FEDERATED_ID = 2**32 - 1  # such ids hold the number of their cluster from bit 26 on
_LICENCE_QUERY_INTERVAL = 60.0  # seconds between queries while a cluster counts no licences


class Slurm(Adapter):
    """One Slurm cluster, through the commands or the pyslurm of its own release."""

    Options: ClassVar[type[Any]] = SlurmOptions
    # pyslurm reads scripts in the encoding of the locale
    environment: ClassVar[Mapping[str, str]] = {"PYTHONUTF8": "1"}
    chunk: ClassVar[int] = 200  # a single call as an array; a few seconds as single jobs
    concurrent_owners: ClassVar[bool] = True
    launcher_verbs: ClassVar[tuple[str, ...]] = CHANGE_VERBS
    capabilities: ClassVar[Capabilities] = Capabilities(
        gres=True,
        memory=True,
        licences=True,
        limit_granularity=60.0,
        estimates_starts=True,
        reservations=True,
        reserves_for_accounts=True,
        reserves_named_nodes=True,
        sets_slurm_variables=True,
        job_options=ALL_OPTIONS,
        local_policy="easy",
        takes_sbatch_options=True,
        has_slurm_commands=True,
        needs_accounting=True,
    )

    def __init__(
        self,
        cluster: Cluster,
        options: SlurmOptions,
        instance: str,
        folder: Path,
        launcher: LauncherClient | None = None,
    ) -> None:
        super().__init__(cluster, options, instance, folder, launcher)
        self._settings, self.settle = options, options.settle
        self._cluster_info: ClusterInfo | None = None  # of the last poll
        self._horizon, self._launch_failures = ListingHorizon(), LaunchFailures()
        self._manager_licences: Mapping[str, ManagerLicences] = {}
        self._next_licence_query = 0.0
        self._is_federated, self._next_federation_query = False, 0.0
        self._max_array_size: int | None = None
        self._hosts: tuple[frozenset[str], str] = frozenset(), ""  # nodes, and their list
        # the only access to accounting and to reservations
        commands = SlurmCommands(options, cluster.name)
        # user id that owns all jobs; None in site mode, where jobs have owners of their own
        self._user = os.geteuid() if launcher is None else None
        self._access_choice = AccessChoice(options, cluster.name, self._user)
        self._accounting = SlurmAccounting(
            commands, options.tag_field, self._user, options.trust_completions
        )
        self._sees_all_jobs = False  # at the last check
        self._associations = AssociationReader(commands)
        self._commands, self._foreign_use = commands, SlurmForeignUse(commands, options.settle)
        self.capabilities = self.capabilities_for(options)  # type: ignore[misc]
        by_node = options.reservation_unit == "node"
        self._reservations = (NodeReservations if by_node else ProcessorReservations)(
            commands, instance
        )

    @classmethod
    def capabilities_for(cls, options: SlurmOptions) -> Capabilities:
        return replace(cls.capabilities, reserves_named_nodes=options.reservation_unit == "node")

    @classmethod
    def configuration_warnings(
        cls, options: SlurmOptions, environment: Mapping[str, str], site_mode: bool
    ) -> list[tuple[str, str]]:
        if options.reservation_unit == "node":
            return []
        select = SlurmCommands(options, "").controller().select
        if select in _CORE_SELECT_TYPES:
            return []
        fix = f'write reservation_unit = "node", or set its SelectType={_CORE_SELECT_TYPES[0]}'
        return [(f"it runs {select}, which reserves no processors", fix)]

    @property
    def access(self) -> str:
        return self._access_choice.name

    @property
    def _access(self) -> SlurmAccess:
        """The access to use for now. Raises Unreachable if there is none."""
        return self._access_choice.access()

    def submit(self, submission: Submission) -> dict[int, str]:
        """Queue tasks as an array where possible, each other task as a job of its own.

        Raises PartlySubmitted if the time of the call is nearly over, or if a task is rejected or
        gets no answer after others were accepted.
        """
        self._check_size(submission.job)
        submission = self._without_unknown_nodes(submission)
        if submission.reservation:
            name = self._reservations.current_name(submission.reservation)
            submission = structs.replace(submission, reservation=name)
        access = self._access_as(submission.job.user)
        array_indices = self._array_indices(access, submission)
        native_ids: dict[int, str] = {}
        if array_indices:
            array_id = access.submit_array(submission, array_indices)
            native_ids = {index: f"{array_id}_{index}" for index in array_indices}
        single = [index for index in submission.indices if index not in native_ids]
        return submit_each(single, lambda index: access.submit(submission, index), native_ids)

    def _without_unknown_nodes(self, submission: Submission) -> Submission:
        """Exclude only nodes of this cluster: Slurm refuses a list with another name."""
        job, info = submission.job, self._cluster_info
        if info is None or job.manager_options is None or not job.manager_options.exclude:
            return submission
        names = expand_hosts(job.manager_options.exclude)
        known_nodes = compress_hosts([node for name in names if (node := info.find_node(name))])
        options = structs.replace(job.manager_options, exclude=known_nodes)
        return structs.replace(submission, job=structs.replace(job, manager_options=options))

    def _array_indices(self, access: SlurmAccess, submission: Submission) -> list[int]:
        """Return the indices to submit as an array: those that can be its task ids."""
        if submission.job.array is None or len(submission.indices) < 2:
            return []
        if not can_be_array(submission):
            return []
        if self._max_array_size is None:
            self._max_array_size = access.controller().array_size
        indices = [index for index in submission.indices if index < self._max_array_size]
        return indices if len(indices) > 1 else []

    def _access_as(self, user: str) -> SlurmAccess:
        """Return the access for changes to a user's jobs: in site mode, commands as that user."""
        if self.launcher is None:
            return self._access
        return SlurmCommands(self._settings, self.cluster.name, self.launcher, user)

    def _check_size(self, job: Job) -> None:
        """Raise Refused for a job that exceeds its partition; Slurm would keep it pending."""
        partition = self._cluster_info.partition(job.partition) if self._cluster_info else None
        if partition is None:
            return
        total_cpus = sum(nodes.count * nodes.cpus for nodes in partition.nodes)
        if job.cpus > total_cpus:
            raise Refused(f"partition {partition.name} has {total_cpus} processors, not {job.cpus}")

    def withdraw(self, withdrawal: Withdrawal) -> None:
        self.withdraw_all([withdrawal])

    def withdraw_all(self, withdrawals: Sequence[Withdrawal]) -> None:
        """End tasks, selected by their tag in a new listing, never by native id alone.

        `scancel --state=PENDING` tests the state and then kills, so a job may start in between.
        With `only_pending` therefore: hold the jobs, list them again, and cancel those that are
        pending and held, since these can no longer start.
        """
        access = self._access_as(withdrawals[0].user)
        active = self._find_tasks(access, withdrawals)
        if not withdrawals[0].only_pending:
            array_tasks = [line.id for line in active if "_" in line.id and line.state == "PENDING"]
            self._hold(access, array_tasks)
            access.cancel([line.id for line in active])
            return
        pending = {line.id for line in active if line.state == "PENDING" and line.restarts == "0"}
        if not pending:
            return
        hold_error = self._hold(access, pending)
        lines = self._find_tasks(access, withdrawals, split_arrays=True)
        lines = [line for line in lines if line.id in pending]
        # Slurm "holds" running jobs, too; a job that may be requeued must not stay held.
        started = {line.id for line in lines if line.state != "PENDING" or line.restarts != "0"}
        held = [line.id for line in lines if line.id not in started and line.priority == "0"]
        access.cancel(held)
        access.release(started)
        if len(held) + len(started) < len(lines):
            raise Unreachable(f"hold: {hold_error or 'some jobs are not held'}")

    def _hold(self, access: SlurmAccess, ids: Iterable[str]) -> str:
        """Hold jobs, with a record for each task of an array; return Slurm's error message."""
        errors = [access.hold(group) for group in listing.separate_arrays(ids) if group]
        return "; ".join(filter(None, errors))

    def _find_tasks(
        self, access: SlurmAccess, withdrawals: Sequence[Withdrawal], split_arrays: bool = False
    ) -> list[listing.QueueLine]:
        """List the tasks of the withdrawals that have not ended, a line each.

        A job without its tag is such a task if this listing shows that it is the known job.
        """
        requested = {
            (withdrawal.tag, index) for withdrawal in withdrawals for index in withdrawal.native_ids
        }
        known = KnownJobs(
            {}, [structs.replace(job, owner="") for item in withdrawals for job in item.jobs]
        )
        known_ids = statuses.KnownIds(known.by_id)
        user = os.geteuid() if self.launcher is None else uid_of(withdrawals[0].user)
        ids = [
            native
            for withdrawal in withdrawals
            for native in withdrawal.native_ids.values()
            if native
        ]
        query_ids = ids if len(ids) == len(requested) else ()
        listed = access.jobs(ids=query_ids, user=user, split_arrays=split_arrays)
        lines: dict[str, listing.QueueLine] = {}  # by native id of a task
        tagged, untagged = [], []
        for line in listed.lines:
            if line.user != str(user) or not listing.is_active(line):
                continue
            marks = listing.parse_mark(line.tag, line.id)
            tagged += [statuses.claim(line, native, *key) for key, native in marks.items()]
            unmarked = set(known_ids.of_record(line.id)).difference(marks.values())
            untagged += [statuses.claim(line, native) for native in unmarked]
            lines |= {native: line._replace(id=native) for native in (*marks.values(), *unmarked)}
        is_new = any(job.submitted is None for job in known.by_id.values())
        clock_lead = self._clock_lead(access) if is_new and untagged else 0.0
        rows = known.identify(tagged, untagged, clock_lead).rows
        return [lines[row.native_id] for row in rows if (row.tag, row.task) in requested]

    def poll(self) -> Listing:
        """List the cluster in four calls, whatever the number of jobs.

        There is a call more if Slurm counts licences, another when jobs end that may not have
        begun, another while reservations are upcoming, three while processors are reserved, and at
        times a call for the federation of a cluster with slurmdbd. The boot time is read after the
        listing: after a restart of the controller in between, the listing proves less, never more.
        In site mode a check before the listing and another after it must find that the controller
        hides no jobs.
        """
        access = self._access
        if self._user is None and not self._sees_all_jobs:
            self._check_privacy(access.controller())
        taken_at = time.time()
        queue = access.jobs(known=self.known_jobs.by_id)
        listed_at = time.monotonic()
        node_lines = access.nodes()
        asked_at = time.time()
        controller = access.controller()
        clock_lead = least_clock_lead(controller.now, asked_at, time.time())
        if self._user is None:
            self._check_privacy(controller)
        now = time.monotonic()
        since, up_since = self._horizon.update(controller, listed_at, now)
        clock_offset = time.time() - now  # epoch seconds minus the local monotonic clock
        try:
            info, pending = self._summarise(queue.lines, node_lines, taken_at)
        except ValueError:
            readable = [line for line in queue.lines if statuses.is_readable(line)]
            try:
                info, pending = self._summarise(readable, node_lines, taken_at)
            except ValueError as error:
                raise Unreachable(f"the listing cannot be read: {error}") from None
        self._judge_launches(queue.lines, controller)
        tasks = statuses.job_statuses(
            *(queue, self.instances, self._user, self.known_jobs.by_id),
            self._launch_failures.verdict,
            self._unanswered_since(clock_lead),
        )
        if self._user is None:
            uids = {row.owner for part in tasks for row in part}
            names = {uid: uid and user_name_of(int(uid)) for uid in uids}
            tagged, untagged, set_aside = tasks
            tasks = statuses.JobStatuses(
                [structs.replace(row, owner=names[row.owner]) for row in tagged],
                [structs.replace(row, owner=names[row.owner]) for row in untagged],
                [structs.replace(row, owner=names[row.owner]) for row in set_aside],
            )
        accounting = self._accounting.describe_lookup(controller, access.name == SlurmCommands.name)
        self._cluster_info = structs.replace(
            info,
            accounting_source=accounting,
            use_source="sacct" if controller.slurmdbd else "",
            licences=self._query_licences(),
            associations=self._associations.current(controller),
            max_native_id=self._max_native_id(controller),
            in_order=controller.in_order,
            manager_name=controller.cluster,
            hosts=self._node_names(node_lines),
        )
        self._max_array_size = controller.array_size
        return Listing(
            taken=taken_at,
            since=clock_offset + since,
            until=taken_at,
            rows=tuple(tasks.tagged),
            info=self._cluster_info,
            up_since=clock_offset + up_since,
            quarantined=tuple(tasks.set_aside),
            queue=pending,
            untagged=tuple(tasks.untagged),
            clock_lead=clock_lead,
            terms=self._terms(access, queue.lines) if self.new_jobs else {},
        )

    def _unanswered_since(self, clock_lead: float) -> dict[str, float]:
        """Return `KnownJobs.unanswered_since` by the owners as `job_statuses` names them."""
        since = self.known_jobs.unanswered_since(clock_lead)
        if self._user is not None:
            return since
        by_uid = {}
        for owner, earliest in since.items():
            with suppress(Refused):  # without an account, no job can be listed as its own
                by_uid[str(uid_of(owner))] = earliest
        return by_uid

    def _judge_launches(
        self, lines: Sequence[listing.QueueLine], controller: listing.ControllerInfo
    ) -> None:
        """Judge the jobs of this instance that may not have begun."""
        unjudged = [
            line
            for line in self._launch_failures.unjudged(lines)
            if line.id in self.known_jobs.by_id or statuses.is_own(line, self.instances, self._user)
        ]
        if unjudged:
            accounts = {controller.slurm_user, controller.slurmd_user}
            self._launch_failures.judge(unjudged, self._commands.drains(), accounts, controller.now)

    def inspect(self) -> ManagerState:
        state = super().inspect()
        clock_lead = self._clock_lead(self._commands)
        major, minor = self._commands.release_version()
        return structs.replace(state, release=f"{major:02}.{minor:02}", clock_lead=clock_lead)

    @staticmethod
    def _clock_lead(access: SlurmAccess) -> float:
        asked_at, reported = time.time(), access.controller().now
        return least_clock_lead(reported, asked_at, time.time())

    def _terms(
        self, access: SlurmAccess, lines: Sequence[listing.QueueLine]
    ) -> dict[str, JobTerms]:
        """Return the terms of jobs that are listed for the first time.

        Accounts cost a call more. So they are queried if they were sent, and of some jobs only.
        """
        terms = dict(statuses.job_terms(lines, self.new_jobs, {}))
        arrays = {id.partition("_")[0] for id in terms if self.new_jobs[id] is not None}
        if not arrays:
            return terms
        accounts = self._commands.accounts(sorted(arrays)[: listing.IDS_PER_CALL])
        return dict(statuses.job_terms(lines, self.new_jobs, accounts))

    def _summarise(
        self,
        lines: Sequence[listing.QueueLine],
        node_lines: Sequence[listing.SinfoRecord],
        taken_at: float,
    ) -> tuple[ClusterInfo, ListedQueue]:
        """Return load, free nodes, upcoming reservations, and the queue. Raises ValueError."""
        own_ids = {
            line.id
            for line in lines
            if statuses.is_own(line, self.instances, self._user) or line.id in self.known_jobs.by_id
        }
        nodes = self._reservations.available_nodes(lines, node_lines, taken_at)
        info = build_cluster_info(lines, nodes, taken_at, own_ids)
        windows = self._reservations.upcoming(lines, nodes, taken_at)
        pending = build_queue(lines, nodes, info.partitions, taken_at, own_ids)
        return structs.replace(info, upcoming_windows=windows), pending

    def _node_names(self, node_lines: Sequence[listing.SinfoRecord]) -> str:
        """Return the names of all nodes in a list; it is kept, since they seldom change."""
        names = frozenset(line.name for line in node_lines)
        if names != self._hosts[0]:
            self._hosts = names, compress_hosts(names)
        return self._hosts[1]

    def _query_licences(self) -> Mapping[str, ManagerLicences]:
        """Return the licences that Slurm counts; while there are none, query at intervals."""
        now = time.monotonic()
        if self._manager_licences or now >= self._next_licence_query:
            self._manager_licences = self._access.licences()
            self._next_licence_query = now + _LICENCE_QUERY_INTERVAL
        return self._manager_licences

    def _check_privacy(self, controller: listing.ControllerInfo) -> None:
        """Raise Unreachable if a listing would hide the jobs of users: it would prove nothing."""
        self._sees_all_jobs = False
        uid = os.geteuid()
        if controller.hides_jobs and uid not in (0, controller.slurm_user):
            user = user_name_of(uid)
            if not self._commands.lists_all_jobs_to(user):
                raise Unreachable(
                    f"PrivateData=jobs hides users' jobs from {user}; run `sacctmgr modify user "
                    f"{user} set adminlevel=operator`, or drop it from slurm.conf"
                )
        self._sees_all_jobs = True

    def _max_native_id(self, controller: listing.ControllerInfo) -> int | None:
        now = time.monotonic()
        if controller.slurmdbd and now >= self._next_federation_query:
            with suppress(Unreachable):  # the last answer stands
                self._is_federated = self._commands.is_federated()
            self._next_federation_query = now + _FEDERATION_QUERY_INTERVAL
        return _MAX_FEDERATED_ID if self._is_federated else controller.max_job_id

    def query_accounting(self, missing: Sequence[MissingTask]) -> AccountingAnswer:
        return self._accounting.query(missing)

    def query_foreign_use(self, query: UseQuery) -> UseAnswer:
        return self._foreign_use.query(query)

    def query_usage(self, ended: Sequence[EndedRun]) -> Mapping[int, RunUsage]:
        jobs: dict[str, JobRecord] = {}
        for ids in listing.comma_lists(sorted({run.native_id for run in ended})):
            jobs |= self._commands.usage(ids)
        return match_usage(ended, jobs, self._user_id)

    def _user_id(self, user: str) -> str:
        """Return the user id of a job's owner in Slurm; "" if it has no account."""
        if self._user is not None:
            return str(self._user)
        try:
            return str(uid_of(user))
        except Refused:
            return ""

    def read_shares(self) -> ShareTree:
        controller = self._commands.controller()
        if not controller.slurmdbd:
            raise Refused("it has no slurmdbd, which keeps the shares")
        return self._commands.shares(controller.cluster)

    def survey(self) -> Survey:
        taken_at = time.time()
        jobs, node_lines = self._access.jobs(), self._access.nodes()
        try:
            if jobs.unreadable:
                raise ValueError(jobs.unreadable)
            return self._reservations.survey(jobs.lines, node_lines, taken_at)
        except ValueError as error:
            raise Unreachable(f"the listing cannot be read: {error}") from None

    def reserve(self, spec: ReservationSpec) -> None:
        self._reservations.reserve(spec)

    def delete_reservation(self, name: str) -> None:
        self._reservations.delete(name)
