"""`local`: a small, durable resource manager for processes of this host.

The manager is a folder. The process that holds the folder's lock schedules; jobs continue without
it.

- `queue.db` (SQLite) stores submissions and the final status of their tasks (`QueueStore`).
- `jobs/<native id>/` records the decision to start a task. A supervisor claims the folder, runs
  the task and records its end there (see `supervisor.py`). The folder is removed once the end is
  in the database. A folder without a claim may be given to another supervisor at any time.
- `lock` admits one process; `supervisor.log` is empty unless a supervisor failed.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from msgspec import structs

from metasched.adapters.base import Adapter, Capabilities, ManagerState, Submission, Withdrawal
from metasched.adapters.launcher_client import LauncherClient, remaining_seconds, uid_of
from metasched.adapters.local.host import FORK_SERVER_TIMEOUT, require_open_path
from metasched.adapters.local.options import LocalOptions
from metasched.adapters.local.policy_host import traits_of
from metasched.adapters.local.queue_store import NewSubmission, QueueStore, Requirements
from metasched.adapters.local.scheduler import LocalScheduler
from metasched.adapters.local.spec import shared_header
from metasched.adapters.local.task_table import MEMORY_RESOURCE, LocalTask, TaskTable
from metasched.model.adapter_errors import Refused, Unreachable
from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.host_lists import expand_hosts, find_host
from metasched.model.job import State
from metasched.model.listing import JobStatus, Listing, PolicyExclusions
from metasched.model.manager_options import (
    APPEND,
    EXCLUDE,
    NICE,
    NODELIST,
    SIGNAL,
    SIGNAL_AT_DEFAULT,
    UNLIMITED,
    ManagerOptions,
)
from metasched.model.survey import ReservationSpec, Survey

__all__ = ["Local", "LocalOptions"]

PARTITION_NAME = "local"
NICE_PER_PRIORITY = 100  # --nice that weighs as much as a step of priority
ENDS_AT_ONCE = 10_000  # in a listing after a cursor: a reply of about 3 MB
ALL_ENDS = 2**62
NO_LIMIT_REASON = "no time limit, and reservations come"  # of a job that starts after all of them


class Local(Adapter):
    """This host as a cluster with a single partition, `local`.

    The first call opens the folder and takes its lock; it raises Unreachable while another process
    holds the lock. `submit` of a tag that is queued already returns the existing ids. Accounts,
    partitions, QOS and constraints are ignored.
    """

    Options = LocalOptions
    poll_interval: ClassVar[float] = 1.0
    settle = 0.0  # this process itself queues tasks, under the lock
    chunk: ClassVar[int] = 200
    concurrent_owners: ClassVar[bool] = True
    launcher_verbs: ClassVar[tuple[str, ...]] = ("supervise",)
    options: LocalOptions

    def __init__(
        self,
        cluster: Cluster,
        options: LocalOptions,
        instance: str,
        folder: Path,
        launcher: LauncherClient | None = None,
    ) -> None:
        super().__init__(cluster, options, instance, folder, launcher)
        self._lock = threading.Lock()
        self._scheduler: LocalScheduler | None = None  # None: closed
        self._resources = ExitStack()  # of the scheduler
        self._cursor: str | None = None  # see `resume_after`

    @cached_property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """The capabilities; the first look may wait until a policy has been imported."""
        return self.capabilities_for(self.options)

    @classmethod
    def capabilities_for(cls, options: LocalOptions) -> Capabilities:
        return Capabilities(
            gres=bool(options.gres),
            memory=options.memory is not None,
            reservations=traits_of(options.policy).keeps_windows,
            limits_every_job=options.max_time is not None,
            job_options=(SIGNAL, SIGNAL_AT_DEFAULT, APPEND, NICE, NODELIST, EXCLUDE, UNLIMITED),
            local_policy=options.policy,
            orders_by_priority=True,
            on_daemon_host=True,
        )

    @property
    def exclusions(self) -> PolicyExclusions | None:
        scheduler = self._scheduler
        return None if scheduler is None else scheduler.exclusions

    def submit(self, submission: Submission) -> dict[int, str]:
        with self._open_scheduler() as scheduler:
            native_ids = scheduler.table.native_ids(submission.tag)
        if not native_ids:
            # without the lock: it may wait for a directory of the user's
            requirements = self._requirements_of(submission)
            if submission.reservation:
                requirements = self._with_reservation(requirements, submission.reservation)
            kill_wait = self.options.kill_wait
            with self._open_scheduler() as scheduler:
                scheduler.submit(
                    NewSubmission(
                        submission.tag,
                        shared_header(submission, self.cluster.name, requirements, kill_wait),
                        submission.payload.script.encode(errors="surrogateescape"),
                        submission.indices,
                        requirements,
                    )
                )
                native_ids = scheduler.table.native_ids(submission.tag)
        elif not set(submission.indices) <= native_ids.keys():
            raise Refused(f"tag {submission.tag} is in use for other tasks")
        return {index: native_ids[index] for index in submission.indices}

    def withdraw(self, withdrawal: Withdrawal) -> None:
        with self._open_scheduler() as scheduler:
            cancellation = scheduler.withdraw(
                withdrawal.tag, withdrawal.native_ids, withdrawal.only_pending
            )
        if cancellation is None:
            return
        try:
            cancellation.result(remaining_seconds(FORK_SERVER_TIMEOUT))  # without the lock
        except OSError as error:
            cancellation.cancel()
            raise Unreachable(f"tasks of {withdrawal.tag}: {error}") from None

    def resume_after(self, cursor: str | None) -> None:
        self._cursor = cursor

    def poll(self) -> Listing:
        with self._open_scheduler() as scheduler:
            if self.launcher is not None:
                require_open_path(self.folder)
            now = time.time()
            scheduler.refresh(now - self.options.keep)
            table = scheduler.table
            # saves ends: a task is listed either as open or as ended
            ends = table.ends_after(*self._position(table))
            waiting = (task for task in table.queue if not task.requirements.reservation)
            queue_head = next(waiting, None)
            open_tasks = self._open_tasks(scheduler, queue_head, now)
            return Listing(
                taken=now,
                since=max(table.first_opened, now - self.options.keep),
                until=now,
                rows=(
                    *(() if ends.more else open_tasks),
                    *(status for status in ends.statuses if table.is_own(status.tag)),
                ),
                info=self._cluster_info(scheduler, queue_head, now),
                cursor="" if self._cursor is None else f"{table.first_opened!r}:{ends.last}",
                partial=ends.more,
            )

    def _open_tasks(
        self, scheduler: LocalScheduler, queue_head: LocalTask | None, now: float
    ) -> Iterator[JobStatus]:
        """Yield the listed statuses of open tasks; queued ones have a reason and their start."""
        planned_starts = scheduler.planned_starts
        unlimited_room = scheduler.windows.unlimited_room(now)
        for task in scheduler.table.tasks.values():
            if not task.is_own:
                continue
            needs, reason = task.requirements, ""
            if needs.limit is None and needs.cpus > unlimited_room:
                reason = NO_LIMIT_REASON
            elif task is queue_head:
                reason = "Resources"
            planned_start = planned_starts.get(task.native_id)
            if reason or planned_start is not None:
                yield _pending_status(task, reason, planned_start, now)
            else:
                yield task.status

    def inspect(self) -> ManagerState:
        return ManagerState(cpus=self.options.cpus, partitions=(PARTITION_NAME,))

    def _position(self, table: TaskTable) -> tuple[int, int]:
        """Return the number of the end after which to list, and how many to list.

        A cursor of another database, which was deleted, counts as the beginning.
        """
        if self._cursor is None:
            return 0, ALL_ENDS
        created, _, number = self._cursor.partition(":")
        is_known = created == repr(table.first_opened) and number.isdecimal()
        return (int(number) if is_known else 0), ENDS_AT_ONCE

    def update_licence_demand(self, rho: Mapping[str, float]) -> None:
        with self._open_scheduler() as scheduler:
            scheduler.update_licence_demand(rho)

    def close(self) -> None:
        with self._lock:
            scheduler, self._scheduler = self._scheduler, None
            if scheduler is None:
                return
            resources = self._resources
            scheduler.stop()
        scheduler.join()
        with resources, suppress(OSError, sqlite3.Error):  # the folders record unsaved ends
            if not scheduler.reload_needed:
                scheduler.table.save_ended()

    # Opening: the lock, the database, tasks that are running already, the thread.

    @contextmanager
    def _open_scheduler(self) -> Iterator[LocalScheduler]:
        """Hold the lock, with the folder open; convert system errors to Unreachable."""
        with self._lock:
            try:
                scheduler = self._scheduler or self._open()
                if scheduler.reload_needed:
                    scheduler.load()
                yield scheduler
            except (OSError, sqlite3.Error) as error:
                if self._scheduler is not None:
                    self._scheduler.reload_needed = True
                raise Unreachable(f"{self.folder}: {error}") from error

    def _open(self) -> LocalScheduler:
        with ExitStack() as stack:
            stack.enter_context(self._folder_lock())
            if not os.path.exists(f"/proc/self/task/{threading.get_native_id()}/children"):
                raise OSError("this kernel does not list children (CONFIG_PROC_CHILDREN)")
            (self.folder / "jobs").mkdir(exist_ok=True)
            store = QueueStore(self.folder / "queue.db")
            stack.callback(store.close)
            if self.launcher is not None:
                self._grant_user_access()
            scheduler = LocalScheduler(
                self.folder, self.options, self.instances, self.launcher, store, self._lock
            )
            stack.callback(scheduler.close)
            scheduler.load()
            self._resources, self._scheduler = stack.pop_all(), scheduler
        scheduler.start()
        return scheduler

    @contextmanager
    def _folder_lock(self) -> Iterator[None]:
        """Hold the folder's lock. Raises Unreachable if another process holds it."""
        with open(self.folder / "lock", "a+") as lock_file:
            try:
                fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock_file.seek(0)
                raise Unreachable(
                    f"{self.folder} is in use by process {lock_file.read() or '?'}; "
                    "only one process at a time may use a local cluster"
                ) from None
            lock_file.truncate(0)
            lock_file.write(str(os.getpid()))
            lock_file.flush()
            yield

    def _grant_user_access(self) -> None:
        """Let the owners of jobs reach the jobs' folders, but no file on the way to them."""
        for path in self.folder.iterdir():
            if path.is_file():
                path.chmod(0o600)  # it may have been created in personal mode
        self.folder.chmod(0o711)
        (self.folder / "jobs").chmod(0o755)
        if not os.path.exists("/proc/1/stat"):
            raise OSError(
                "/proc hides other accounts' processes (hidepid); add this account to its gid"
            )

    # Submissions.

    def _requirements_of(self, submission: Submission) -> Requirements:
        """Return the resources of each task. Raises Refused if this cluster can never run it."""
        job, payload, options = submission.job, submission.payload, self.options
        if submission.options:
            options_text = " ".join(submission.options)
            raise Refused(f"native options {options_text!r}: a local cluster takes none")
        if job.nodes is not None and job.nodes > 1:
            raise Refused(f"{job.nodes} nodes requested; a local cluster has 1")
        requested = job.manager_options or ManagerOptions()
        if find_host(socket.gethostname(), expand_hosts(requested.exclude)) is not None:
            raise Refused(f"node {socket.gethostname()} is excluded; a local cluster has no other")
        counts = dict(job.gres)
        memory = job.memory or (job.memory_per_cpu or 0) * job.cpus
        if memory and options.memory is not None:
            counts[MEMORY_RESOURCE] = memory
        if job.cpus > options.cpus:
            raise Refused(f"{job.cpus} cpus requested; the cluster has {options.cpus}")
        totals = {MEMORY_RESOURCE: options.memory, **options.gres}
        for name, amount in counts.items():
            total = totals.get(name) or 0
            if amount > total:
                raise Refused(f"{amount} {name} requested; the cluster has {total}")
        limit = options.max_time if job.time_limit is None else job.time_limit
        if options.max_time is not None and limit is not None and limit > options.max_time:
            raise Refused(f"{limit:g} s requested; the cluster's limit is {options.max_time:g} s")
        if self.launcher is not None:
            self.launcher.check_access(job.user, payload.directory)
        elif not os.path.isdir(payload.directory):
            raise Refused(f"directory {payload.directory!r} does not exist")
        _check_payload(submission, check_host=self.launcher is None)
        return Requirements(
            cpus=options.cpus if job.exclusive else job.cpus,
            counts=counts,
            estimated=job.time_limit or min(options.default_time, limit or math.inf),
            limit=limit,
            key=(submission.waits_since or job.submitted)
            - options.age * (submission.priority - 1 - requested.nice / NICE_PER_PRIORITY),
            priority=submission.priority,
            deadline=job.deadline,
            user=job.user,
            uid=0 if self.launcher is None else uid_of(job.user),
            licences=tuple(submission.leased_licences),
        )

    def _with_reservation(self, requirements: Requirements, name: str) -> Requirements:
        """Return the resources of a task that runs in a reservation. Raises Refused."""
        with self._open_scheduler() as scheduler:
            limit = scheduler.windows.cut_limit(name, requirements)
        return structs.replace(
            requirements,
            limit=limit,
            estimated=min(requirements.estimated, limit),
            reservation=name,
        )

    # Reservations.

    def survey(self) -> Survey:
        with self._open_scheduler() as scheduler:
            return scheduler.windows.survey(self.instance)

    def reserve(self, spec: ReservationSpec) -> None:
        with self._open_scheduler() as scheduler:
            scheduler.reserve(spec)

    def delete_reservation(self, name: str) -> None:
        with self._open_scheduler() as scheduler:
            scheduler.delete_reservation(name)

    # Listings.

    def _cluster_info(
        self, scheduler: LocalScheduler, queue_head: LocalTask | None, now: float
    ) -> ClusterInfo:
        table, windows = scheduler.table, scheduler.windows
        options, use = self.options, windows.use(now)
        free_cpus = max(table.free_cpus - use.idle_cpus, 0)
        nodes = NodeCapacity(
            count=1,
            cpus=options.cpus,
            free_cpus=free_cpus,
            memory=options.memory,
            free_memory=table.free_resources.get(MEMORY_RESOURCE),
            gres=dict(options.gres),
            free_gres={name: table.free_resources[name] for name in options.gres},
        )
        partition = Partition(
            PARTITION_NAME,
            (nodes,),
            default=True,
            max_time=options.max_time,
            default_time=options.default_time,
            max_nodes=1,
            named_nodes=Partition.name_nodes([(socket.gethostname(), nodes)]),
        )
        started = table.started.values()
        foreign = (task.requirements for task in table.queue if not task.is_own)
        head = None if queue_head is None else queue_head.requirements
        return ClusterInfo(
            cpus=options.cpus,
            used_cpus=options.cpus - (free_cpus if use.idle_cpus else table.free_cpus),
            partitions=(partition,),
            running_jobs=tuple(
                sorted((windows.released(t, now), t.requirements.cpus) for t in started)
            ),
            owed_by_others=sum(needs.cpus * needs.estimated for needs in foreign),
            pending_jobs=len(table.queue),
            queue_head=None if head is None else (head.cpus, head.estimated),
            upcoming_windows=windows.upcoming(use),
            in_order=scheduler.in_order,
            hosts=socket.gethostname(),
        )


def _check_payload(submission: Submission, check_host: bool) -> None:
    """Raise Refused if the kernel could never execute this payload.

    With `check_host`, also if this account cannot execute the script's interpreter.
    """
    payload = submission.payload
    first_line = payload.script.partition("\n")[0]
    if not first_line.startswith("#!"):
        raise Refused('the script does not start with "#!" and an interpreter')
    interpreter = re.split("[ \t]", first_line[2:].strip(" \t"), maxsplit=1)[0]
    path = os.path.join(payload.directory, interpreter)
    exists = not check_host or (os.path.isfile(path) and os.access(path, os.X_OK))
    if not (interpreter and exists):
        raise Refused(f"the script's interpreter {interpreter!r} does not exist on this host")
    texts = [*payload.arguments, payload.output, payload.error or ""]
    if any("\0" in text for text in texts):
        raise Refused("a NUL character in an argument, a path or the environment")


def _pending_status(
    task: LocalTask, reason: str, planned_start: float | None, now: float
) -> JobStatus:
    """Return the listed status of a task; only a queued task has an expected start, to come."""
    if task.status.state is not State.PENDING or task.launch_decided is not None:
        return task.status
    return structs.replace(
        task.status,
        manager_reason=reason or task.status.manager_reason,
        expected=planned_start if planned_start is not None and planned_start > now else None,
    )
