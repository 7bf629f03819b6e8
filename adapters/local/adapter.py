"""`local`: a small, durable resource manager for processes of this host.

The manager is a folder. The process that holds the folder's lock schedules; jobs continue without
it.

- `queue.db` (SQLite) stores submissions and the final status of their tasks.
- `jobs/<native id>/` records the decision to start a task. A supervisor claims the folder, runs
  the task and records its end there (see `supervisor.py`). The folder is removed once the end is
  in the database. A folder without a claim may be given to another supervisor at any time.
- `lock` admits one process; `supervisor.log` is empty unless a supervisor failed.

So a crash between any two steps is harmless: the folder alone shows the state of a started task.
Queued tasks are ordered by `submitted - age*(priority - 1)`. A policy of `policies/local` chooses
the tasks to start, in a thread that sleeps until an event.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import re
import select
import shutil
import socket
import sqlite3
import threading
import time
from bisect import insort
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import ClassVar

import msgspec
from msgspec import structs

from metasched.adapters import supervisor
from metasched.adapters.base import Adapter, Capabilities, Submission, Withdrawal, task_variables
from metasched.adapters.errors import AdapterError, Refused, Unreachable
from metasched.adapters.launcher_client import LauncherClient, uid_of
from metasched.adapters.local.host import ForkServer, grant_access, read_record, spec_field
from metasched.model.arrays import parse_array
from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.job import State
from metasched.model.listing import JobStatus, Listing
from metasched.model.output_paths import expand_task_fields, first_node
from metasched.model.tags import parse_tag
from metasched.policies.local.queueing import FreeResources, LocalPolicy, RunningJob, WaitingJob
from metasched.policies.local.registry import DEFAULT_POLICY, make_policy

PARTITION_NAME = "local"
MEMORY_RESOURCE = "MiB of memory"  # memory among the counted resources; never the name of a gres
MAX_LAUNCHES = 3  # supervisors that may die before their claim until the task fails
RETRY_DELAY = 1.0  # seconds until the thread retries after a system error (a full disk)
# A disk takes milliseconds for each transaction, so the ends of jobs are saved in batches:
SAVE_DELAY = 0.2  # seconds without an event
MAX_UNSAVED = 200  # jobs

SCHEMA = """
CREATE TABLE IF NOT EXISTS opened (first REAL NOT NULL, boot TEXT NOT NULL);  -- the last boot id
CREATE TABLE IF NOT EXISTS orders (
    tag TEXT PRIMARY KEY, head BLOB NOT NULL, script BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS tasks (
    native INTEGER PRIMARY KEY AUTOINCREMENT,  -- no id is ever used twice
    tag TEXT NOT NULL, task INTEGER NOT NULL, needs TEXT NOT NULL,
    ended REAL, row TEXT,  -- both are set when the task ends
    UNIQUE (tag, task)
);
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Keys of `[[cluster]]` for `local`; ValueError names a value out of range."""

    cpus: int  # processors; may exceed those of the host
    memory: int | None = None  # MiB; None: not counted, but a job's own request still limits it
    gres: Mapping[str, int] = field(default_factory=dict)  # generic resources by name
    policy: str = DEFAULT_POLICY
    kill_wait: float = 5.0  # seconds between SIGTERM and SIGKILL
    keep: float = 86400.0  # seconds that ended jobs stay listed
    max_time: float | None = None  # seconds; the longest time limit of a job
    default_time: float = 3600.0  # seconds; the estimate for a job without a time limit
    age: float = 14400.0  # seconds of waiting that weigh as much as one step of priority

    def __post_init__(self) -> None:
        for name, amount in {"cpus": self.cpus, "memory": self.memory, **self.gres}.items():
            if amount is not None and amount < 1:
                raise ValueError(f"{name} is {amount}; it must be 1 or more")
        make_policy(self.policy)
        for name, seconds in (("max_time", self.max_time), ("default_time", self.default_time)):
            if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
                raise ValueError(f"{name} is {seconds}; it must be a positive number of seconds")
        for name, seconds in (
            ("kill_wait", self.kill_wait),
            ("keep", self.keep),
            ("age", self.age),
        ):
            if not (math.isfinite(seconds) and seconds >= 0):
                raise ValueError(f"{name} is {seconds}; it must be 0 or more seconds")


class _TaskTemplate(msgspec.Struct, frozen=True):
    """The parts of a submission from which each task's own fields are made. Stored as JSON."""

    job: int  # id
    array: str | None  # the range as submitted
    output: str  # path, with patterns
    error: str | None  # path, with patterns; None: as `output`


class _Requirements(msgspec.Struct, frozen=True):
    """Resources that one task needs, and its position in the queue. Stored as JSON."""

    cpus: int
    counts: dict[str, int]  # generic resources, and MEMORY_RESOURCE in MiB
    estimated: float  # seconds
    limit: float | None  # seconds
    key: float  # epoch seconds; the queue is in ascending order
    priority: int = 1
    deadline: float | None = None  # epoch seconds
    user: str = ""
    uid: int = 0  # of `user`, in site mode
    licences: tuple[str, ...] = ()  # the site's licences that are leased to the task


@dataclass(slots=True, eq=False)
class _LocalTask:
    """A task in the queue, running, or ended within `keep` seconds."""

    native_id: int
    requirements: _Requirements
    status: JobStatus
    is_own: bool  # submitted by this instance
    launch_decided: float | None = None  # epoch seconds of the decision to start it
    launch_count: int = 0  # supervisors forked for it
    devices: dict[str, list[int]] = field(default_factory=dict)  # GPU indices by gres
    supervisor_fd: int | None = None  # pidfd of its supervisor
    waiting: WaitingJob = field(init=False)

    def __post_init__(self) -> None:
        requirements = self.requirements
        # the key moves the start of the wait back by `age` seconds for each step of priority
        self.waiting = WaitingJob(
            self.native_id,
            requirements.cpus,
            requirements.estimated,
            requirements.counts,
            waiting_since=requirements.key,
            deadline=requirements.deadline,
            priority=requirements.priority,
            user=requirements.user,
            licences=requirements.licences,
        )

    @property
    def queue_key(self) -> tuple[float, int]:
        return self.requirements.key, self.native_id

    @property
    def running(self) -> RunningJob:
        started = self.status.started or self.launch_decided or 0.0
        requirements = self.requirements
        return RunningJob(
            self.native_id,
            requirements.cpus,
            started + requirements.estimated,
            requirements.counts,
            user=requirements.user,
        )


class Local(Adapter):
    """This host as a cluster with one partition, `local`.

    The first call opens the folder and takes its lock; it raises Unreachable while another process
    holds the lock. `submit` of a tag that is queued already returns the existing ids. Accounts,
    partitions, QOS and constraints are ignored.
    """

    Options = LocalOptions
    poll_interval: ClassVar[float] = 1.0
    chunk: ClassVar[int] = 200
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
        self.capabilities = self.capabilities_for(options)  # type: ignore[misc]
        self._policy: LocalPolicy = make_policy(options.policy)
        self._lock = threading.Lock()
        self._open_resources: ExitStack | None = None
        self._rho: Mapping[str, float] = {}
        self._reload_needed = False  # a system error interrupted a change: memory may be wrong

    @classmethod
    def capabilities_for(cls, options: LocalOptions) -> Capabilities:
        return Capabilities(gres=bool(options.gres), memory=options.memory is not None)

    def submit(self, submission: Submission) -> dict[int, str]:
        with self._locked():
            existing = self._tasks_by_tag.get(submission.tag)
            if existing is not None:
                if not set(submission.indices) <= existing.keys():
                    raise Refused(f"tag {submission.tag} is in use for other tasks")
                return {index: str(existing[index].native_id) for index in submission.indices}
            requirements = self._requirements_of(submission)
            header = _shared_header(submission, self.cluster.name, requirements, self.options)
            script = submission.payload.script.encode(errors="surrogateescape")
            with self._db:
                self._db.execute(
                    "INSERT INTO orders VALUES (?, ?, ?)", (submission.tag, header, script)
                )
                tasks = [
                    self._insert_task(submission.tag, index, requirements)
                    for index in submission.indices
                ]
            self._tasks_by_tag[submission.tag] = {task.status.task: task for task in tasks}
            for task in tasks:
                self._tasks[task.native_id] = task
                insort(self._queue, task, key=lambda t: t.queue_key)
            self._wake_thread()
            return {task.status.task: task.status.native_id for task in tasks}

    def withdraw(self, withdrawal: Withdrawal) -> None:
        with self._locked():
            tasks = self._tasks_by_tag.get(withdrawal.tag, {})
            for index in withdrawal.native_ids:
                task = tasks.get(index)
                if task is not None and task.status.ended is None:
                    self._withdraw_task(task, withdrawal.only_pending)
            self._save_ended()
            self._wake_thread()

    def poll(self) -> Listing:
        with self._locked():
            now = time.time()
            self._forget_ended(now - self.options.keep)
            for task in self._started.values():
                self._update_from_claim(task)
            queue_head = self._queue[0] if self._queue else None
            return Listing(
                taken=now,
                since=max(self._first_opened, now - self.options.keep),
                until=now,
                rows=tuple(
                    structs.replace(task.status, manager_reason="Resources")
                    if task is queue_head
                    else task.status
                    for task in self._tasks.values()
                    if task.is_own
                ),
                info=self._cluster_info(queue_head),
            )

    def update_licence_demand(self, rho: Mapping[str, float]) -> None:
        with self._locked():
            if rho != self._rho:
                self._rho = rho
                self._wake_thread()

    def close(self) -> None:
        with self._lock:
            resources, self._open_resources = self._open_resources, None
            if resources is None:
                return
            self._wake_thread()
        self._thread.join()
        with resources, suppress(OSError, sqlite3.Error):  # the folders record unsaved ends
            if not self._reload_needed:
                self._save_ended()

    # Opening: the lock, the database, tasks that are running already, the thread.

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, with the folder open; convert system errors to Unreachable."""
        with self._lock:
            try:
                if self._open_resources is None:
                    self._open()
                if self._reload_needed:
                    self._load_state()
                yield
            except (OSError, sqlite3.Error) as error:
                self._reload_needed = True
                raise Unreachable(f"{self.folder}: {error}") from error

    def _open(self) -> None:
        with ExitStack() as stack:
            lock_file = stack.enter_context(open(self.folder / "lock", "a+"))
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
            if not os.path.exists(f"/proc/self/task/{threading.get_native_id()}/children"):
                raise OSError("this kernel does not list children (CONFIG_PROC_CHILDREN)")
            self._jobs_folder = self.folder / "jobs"
            self._jobs_folder.mkdir(exist_ok=True)
            self._open_database(stack)
            if self.launcher is not None:
                self._grant_user_access()
            self._fork_servers: dict[str, ForkServer] = {}
            stack.callback(self._close_fork_servers)
            self._epoll = stack.enter_context(select.epoll())
            # set, so that the thread makes a first pass at once
            self._wakeup_fd = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            stack.callback(os.close, self._wakeup_fd)
            self._epoll.register(self._wakeup_fd, select.EPOLLIN)
            self._tasks_by_supervisor_fd: dict[int, _LocalTask] = {}
            stack.callback(self._unwatch_all)
            self._load_state()
            self._open_resources = stack.pop_all()
        self._thread = threading.Thread(
            target=self._run_scheduler,
            args=(self._open_resources,),
            name=f"local {self.folder}",
            daemon=True,
        )
        self._thread.start()

    def _grant_user_access(self) -> None:
        """Let the owners of jobs reach the jobs' folders, but no file on the way to them."""
        for path in self.folder.iterdir():
            if path.is_file():
                path.chmod(0o600)  # it may have been created in personal mode
        self.folder.chmod(0o711)
        self._jobs_folder.chmod(0o755)
        for folder in self.folder.parents:
            if not folder.stat().st_mode & 0o001:
                raise OSError(f"{folder} is closed to the owners of jobs; chmod o+x it")
        if not os.path.exists("/proc/1/stat"):
            raise OSError(
                "/proc hides other accounts' processes (hidepid); add this account to its gid"
            )

    def _fork_server_for(self, task: _LocalTask) -> ForkServer:
        account = self._account_for(task)
        if account not in self._fork_servers:
            error_log = self.folder / "supervisor.log"
            self._fork_servers[account] = ForkServer(error_log, self.launcher, account)
        return self._fork_servers[account]

    def _account_for(self, task: _LocalTask) -> str:
        """Return the account that runs the task's processes; "" for this account."""
        return "" if self.launcher is None else task.requirements.user

    def _close_fork_servers(self) -> None:
        for fork_server in self._fork_servers.values():
            fork_server.close()

    def _open_database(self, stack: ExitStack) -> None:
        self._db = sqlite3.connect(self.folder / "queue.db", check_same_thread=False)
        stack.callback(self._db.close)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(SCHEMA)
        with self._db:
            self._db.execute(
                "INSERT INTO opened SELECT ?, '' WHERE NOT EXISTS (SELECT * FROM opened)",
                (time.time(),),
            )

    def _load_state(self) -> None:
        """Rebuild the state in memory from the database and the jobs' folders."""
        self._db.rollback()
        self._unwatch_all()
        self._obsolete_folders: list[Path] = []
        self._unsaved: list[_LocalTask] = []
        self._first_opened, last_boot = self._db.execute(
            "SELECT first, boot FROM opened"
        ).fetchone()
        self._tasks: dict[int, _LocalTask] = {}
        self._tasks_by_tag: dict[str, dict[int, _LocalTask]] = {}
        for native_id, tag, index, requirements_json, status_json in self._db.execute(
            "SELECT native, tag, task, needs, row FROM tasks ORDER BY native"
        ):
            requirements = msgspec.json.decode(requirements_json, type=_Requirements)
            task = _LocalTask(
                native_id,
                requirements,
                msgspec.json.decode(status_json, type=JobStatus)
                if status_json
                else _pending_status(tag, index, native_id, requirements.user),
                self._is_own_tag(tag),
            )
            self._tasks[native_id] = task
            self._tasks_by_tag.setdefault(tag, {})[index] = task
        self._recover_tasks(same_boot=last_boot == supervisor.boot_id())
        with self._db:
            self._db.execute("UPDATE opened SET boot = ?", (supervisor.boot_id(),))
        self._reload_needed = False

    def _recover_tasks(self, same_boot: bool) -> None:
        """Divide the tasks of the database into queued and started, by their folders.

        In a folder from before a restart of the host only the claim and the end were synced to
        disk. A task without a claim never started, and no process is left that could claim it.
        """
        self._free_cpus = self.options.cpus
        self._free_resources = dict(self.options.gres)
        if self.options.memory is not None:
            self._free_resources[MEMORY_RESOURCE] = self.options.memory
        self._free_devices = _gpu_indices(self.options.gres)
        self._started: dict[int, _LocalTask] = {}
        self._unsupervised: list[_LocalTask] = []
        for folder in self._jobs_folder.iterdir():
            task = self._tasks.get(int(folder.name)) if folder.name.isdecimal() else None
            start_decided = (folder / ("spec" if same_boot else "claim")).exists()
            if task is None or task.status.ended is not None or not start_decided:
                self._obsolete_folders.append(folder)
                continue
            if same_boot:
                spec = supervisor.TaskSpec((folder / "spec").read_bytes())
                task.devices = msgspec.json.decode(spec.devices, type=dict[str, list[int]])
            task.launch_decided = time.time()
            self._allocate(task)
            self._unsupervised.append(task)
        self._remove_obsolete()
        self._queue = sorted(
            (
                t
                for t in self._tasks.values()
                if t.status.ended is None and t.launch_decided is None
            ),
            key=lambda t: t.queue_key,
        )
        # now: a task that an earlier process listed as ended must not be listed as running
        self._unsupervised = [task for task in self._unsupervised if self._needs_supervisor(task)]

    # Submissions and withdrawals.

    def _requirements_of(self, submission: Submission) -> _Requirements:
        """Return the resources of each task. Raises Refused if this cluster can never run it."""
        job, payload, options = submission.job, submission.payload, self.options
        if submission.options:
            options_text = " ".join(submission.options)
            raise Refused(f"native options {options_text!r}: a local cluster takes none")
        if job.nodes is not None and job.nodes > 1:
            raise Refused(f"{job.nodes} nodes requested; a local cluster has 1")
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
        return _Requirements(
            cpus=options.cpus if job.exclusive else job.cpus,
            counts=counts,
            estimated=job.time_limit or min(options.default_time, limit or math.inf),
            limit=limit,
            key=job.submitted - options.age * (submission.priority - 1),
            priority=submission.priority,
            deadline=job.deadline,
            user=job.user,
            uid=0 if self.launcher is None else uid_of(job.user),
            licences=submission.leased_licences,
        )

    def _insert_task(self, tag: str, index: int, requirements: _Requirements) -> _LocalTask:
        native_id = self._db.execute(
            "INSERT INTO tasks (tag, task, needs) VALUES (?, ?, ?)",
            (tag, index, msgspec.json.encode(requirements).decode()),
        ).lastrowid
        assert native_id is not None
        return _LocalTask(
            native_id,
            requirements,
            _pending_status(tag, index, native_id, requirements.user),
            self._is_own_tag(tag),
        )

    def _withdraw_task(self, task: _LocalTask, only_pending: bool) -> None:
        folder = self._folder_of(task)
        # A supervisor may be about to start the task: the first claim of the folder decides.
        if task.launch_decided is None or supervisor.claim(str(folder), "state=cancelled\nword=\n"):
            self._finish_task(task, _unstarted_status(task.status, State.CANCELLED, ""))
        elif not only_pending:
            try:
                self._fork_server_for(task).cancel(folder)
            except OSError as error:
                raise Unreachable(f"task {task.native_id}: {error}") from None

    # Listings.

    def _is_own_tag(self, tag: str) -> bool:
        return parse_tag(tag, self.instance) is not None

    def _cluster_info(self, queue_head: _LocalTask | None) -> ClusterInfo:
        options = self.options
        nodes = NodeCapacity(
            count=1,
            cpus=options.cpus,
            free_cpus=max(self._free_cpus, 0),
            memory=options.memory,
            free_memory=self._free_resources.get(MEMORY_RESOURCE),
            gres=dict(options.gres),
            free_gres={name: self._free_resources[name] for name in options.gres},
        )
        partition = Partition(
            PARTITION_NAME,
            (nodes,),
            default=True,
            max_time=options.max_time,
            default_time=options.default_time,
            max_nodes=1,
        )
        return ClusterInfo(
            cpus=options.cpus,
            used_cpus=options.cpus - self._free_cpus,
            partitions=(partition,),
            running_jobs=tuple(
                sorted((t.running.end, t.requirements.cpus) for t in self._started.values())
            ),
            owed_by_others=sum(
                t.requirements.cpus * t.requirements.estimated for t in self._queue if not t.is_own
            ),
            pending_jobs=len(self._queue),
            queue_head=None
            if queue_head is None
            else (queue_head.requirements.cpus, queue_head.requirements.estimated),
        )

    def _update_from_claim(self, task: _LocalTask) -> None:
        if task.status.started is not None:
            return
        claim = read_record(self._folder_of(task), "claim")
        if claim is not None and "pid" in claim:
            task.status = structs.replace(
                task.status,
                state=State.RUNNING,
                started=float(claim["time"]),
                node=socket.gethostname(),
                manager_reason="",
            )

    def _forget_ended(self, before: float) -> None:
        expired = [
            t
            for t in self._tasks.values()
            if t.status.ended is not None and t.status.ended < before
        ]
        if not expired:
            return
        self._save_ended()
        with self._db:
            self._db.executemany(
                "DELETE FROM tasks WHERE native = ?", [(t.native_id,) for t in expired]
            )
        for task in expired:
            del self._tasks[task.native_id]
            del self._tasks_by_tag[task.status.tag][task.status.task]
            if not self._tasks_by_tag[task.status.tag]:
                del self._tasks_by_tag[task.status.tag]

    # The thread: it records ends and starts queued tasks.

    def _wake_thread(self) -> None:
        os.eventfd_write(self._wakeup_fd, 1)

    def _run_scheduler(self, open_resources: ExitStack) -> None:
        while True:
            ready = self._epoll.poll(SAVE_DELAY if self._unsaved else None)
            with self._lock:
                if self._open_resources is not open_resources:
                    return
                try:
                    if self._reload_needed:
                        self._load_state()
                    for descriptor, _ in ready:
                        if descriptor == self._wakeup_fd:
                            os.eventfd_read(self._wakeup_fd)
                        elif descriptor in self._tasks_by_supervisor_fd:
                            self._unsupervised.append(self._unwatch(descriptor))
                    self._supervise_started()
                    self._decide_starts()
                    self._supervise_started()
                    if not ready or len(self._unsaved) > MAX_UNSAVED:
                        self._save_ended()
                    continue
                except (OSError, sqlite3.Error):
                    log.exception("%s: retrying in %g s", self.folder, RETRY_DELAY)
                    self._reload_needed = True
                    self._wake_thread()
            time.sleep(RETRY_DELAY)

    def _decide_starts(self) -> None:
        """Decide which tasks start now; record each decision as a job folder with a `spec`."""
        if not self._queue or self._free_cpus <= 0:
            return
        now = time.time()
        starts = self._policy.choose_starts(
            now,
            [task.waiting for task in self._queue],
            [task.running for task in self._started.values()],
            FreeResources(self._free_cpus, self._free_resources, rho=self._rho),
        )
        for native_id, _ in starts:
            task = self._tasks[native_id]
            task.devices = {
                name: self._free_devices[name][:count]
                for name, count in task.requirements.counts.items()
                if name in self._free_devices
            }
            self._write_spec(task)
            task.launch_decided = now
            self._allocate(task)
            self._unsupervised.append(task)
            self._queue.remove(task)

    def _write_spec(self, task: _LocalTask) -> None:
        header, script = self._db.execute(
            "SELECT head, script FROM orders WHERE tag = ?", (task.status.tag,)
        ).fetchone()
        template, _, shared_fields = header.partition(b"\0")
        task_fields = _task_fields(
            msgspec.json.decode(template, type=_TaskTemplate), task.status.task
        )
        if gpus := sorted(i for devices in task.devices.values() for i in devices):
            task_fields.append(
                spec_field("environment", f"CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))}")
            )
        task_fields.append(b"devices=" + msgspec.json.encode(task.devices))
        folder = self._folder_of(task)
        folder.mkdir(mode=0o700, exist_ok=True)
        draft = folder / "spec.draft"
        draft.write_bytes(b"\0".join([shared_fields, *task_fields]) + b"\0\0" + script)
        if self.launcher is not None:
            draft.chmod(0o644)
        draft.rename(folder / "spec")

    def _supervise_started(self) -> None:
        """For each started task without a watched supervisor, launch one or record the end."""
        while self._unsupervised:
            tasks = [task for task in self._unsupervised if self._needs_supervisor(task)]
            self._unsupervised = tasks
            if not tasks:
                return
            for _, group in groupby(sorted(tasks, key=self._account_for), key=self._account_for):
                self._launch_supervisors(list(group))
            self._unsupervised = [task for task in tasks if task.supervisor_fd is None]

    def _launch_supervisors(self, tasks: list[_LocalTask]) -> None:
        """Fork a supervisor for each of these tasks, which have the same owner."""
        for task in tasks:
            task.launch_count += 1
            if self.launcher is not None:
                # After `spec` is written: from now on the owner may place links in the folder.
                grant_access(self._folder_of(task), task.requirements.uid)
        folders = [self._folder_of(task) for task in tasks]
        try:
            processes = self._fork_server_for(tasks[0]).fork(folders)
        except Unreachable as error:
            raise OSError(error.reason) from None
        except (OSError, Refused) as error:
            if self.launcher is None:
                raise  # of this account: retry; an owner's fork server may fail on purpose
            user = tasks[0].requirements.user
            log.warning("%s: no supervisor for %s: %s", self.folder, user, error)
            return
        for task, (pid, start) in zip(tasks, processes, strict=True):
            self._watch_supervisor(task, pid, start)

    def _needs_supervisor(self, task: _LocalTask) -> bool:
        """Update a started task from its folder alone; return True if it needs a supervisor."""
        if task.status.ended is not None or task.supervisor_fd is not None:
            return False
        folder = self._folder_of(task)
        claim = read_record(folder, "claim")
        if claim is None:
            if task.launch_count < MAX_LAUNCHES:
                return True
            message = f"no supervisor can be started: see {self.folder / 'supervisor.log'}"
            supervisor.claim(str(folder), f"state=node_fail\nword={message}\n")
            claim = read_record(folder, "claim") or {}
        if "state" in claim:  # claimed by an adapter, perhaps of an earlier process
            status = _unstarted_status(task.status, State(claim["state"]), claim["word"])
            self._finish_task(task, status)
            return False
        self._update_from_claim(task)
        same_boot = claim.get("boot") == supervisor.boot_id()
        if same_boot and self._watch_supervisor(task, int(claim["pid"]), int(claim["start"])):
            return False
        end_record = read_record(folder, "ended")  # written before the supervisor exits
        if not end_record:
            self._finish_task(task, self._lost_status(task, same_boot))
        else:
            self._finish_task(task, _ended_status(task.status, end_record))
        return False

    def _lost_status(self, task: _LocalTask, same_boot: bool) -> JobStatus:
        """Kill the processes that a dead supervisor left; return the task's final status."""
        if same_boot:
            try:
                self._fork_server_for(task).sweep(self._folder_of(task))
            except (OSError, AdapterError):
                log.exception("%s: processes of task %s may still run", self.folder, task.native_id)
        message = "its supervisor was killed" if same_boot else "the host was restarted"
        return structs.replace(
            task.status, state=State.NODE_FAIL, ended=time.time(), manager_reason=message
        )

    def _finish_task(self, task: _LocalTask, status: JobStatus) -> None:
        """Set the final status of a task and release its resources.

        The status may be saved later: until then the task's folder records the same end.
        """
        task.status = status
        self._unsaved.append(task)
        if task.launch_decided is None:
            self._queue.remove(task)
        else:
            self._release(task)

    def _save_ended(self) -> None:
        """Write the ends to the database, and only then remove the folders that record them."""
        if not self._unsaved:
            return
        with self._db:
            for task in self._unsaved:
                self._db.execute(
                    "UPDATE tasks SET ended = ?, row = ? WHERE native = ?",
                    (task.status.ended, msgspec.json.encode(task.status).decode(), task.native_id),
                )
                tag = task.status.tag
                if all(sibling.status.ended for sibling in self._tasks_by_tag[tag].values()):
                    self._db.execute("DELETE FROM orders WHERE tag = ?", (tag,))
        self._obsolete_folders += [
            self._folder_of(t) for t in self._unsaved if t.launch_decided is not None
        ]
        self._unsaved.clear()
        self._remove_obsolete()

    def _remove_obsolete(self) -> None:
        """Remove the folders of tasks whose end, or whose absence, is in the database."""
        for folder in self._obsolete_folders:
            # In one step: a late supervisor could claim a folder that has lost its claim.
            renamed = folder.with_suffix(".gone")
            with suppress(FileNotFoundError):
                folder.rename(renamed)
            shutil.rmtree(renamed, ignore_errors=True)
        self._obsolete_folders.clear()

    # Resources and supervisors.

    def _folder_of(self, task: _LocalTask) -> Path:
        return self._jobs_folder / str(task.native_id)

    def _allocate(self, task: _LocalTask) -> None:
        self._started[task.native_id] = task
        self._free_cpus -= task.requirements.cpus
        for name, amount in task.requirements.counts.items():
            self._free_resources[name] = self._free_resources.get(name, 0) - amount
        for name, devices in task.devices.items():
            self._free_devices[name] = [
                d for d in self._free_devices.get(name, []) if d not in devices
            ]

    def _release(self, task: _LocalTask) -> None:
        del self._started[task.native_id]
        self._free_cpus += task.requirements.cpus
        for name, amount in task.requirements.counts.items():
            self._free_resources[name] += amount
        for name, devices in task.devices.items():
            self._free_devices[name] = sorted([*self._free_devices[name], *devices])
        if task.supervisor_fd is not None:
            self._unwatch(task.supervisor_fd)

    def _watch_supervisor(self, task: _LocalTask, pid: int, start: int) -> bool:
        """Wake the thread when that process ends; return False if it has ended already."""
        descriptor = supervisor.open_pidfd(pid, start)
        if descriptor is None:
            return False
        task.supervisor_fd = descriptor
        self._tasks_by_supervisor_fd[descriptor] = task
        self._epoll.register(descriptor, select.EPOLLIN)
        return True

    def _unwatch(self, descriptor: int) -> _LocalTask:
        task = self._tasks_by_supervisor_fd.pop(descriptor)
        task.supervisor_fd = None
        self._epoll.unregister(descriptor)
        os.close(descriptor)
        return task

    def _unwatch_all(self) -> None:
        for descriptor in list(self._tasks_by_supervisor_fd):
            self._unwatch(descriptor)


def _pending_status(tag: str, index: int, native_id: int, owner: str) -> JobStatus:
    return JobStatus(
        tag, index, str(native_id), State.PENDING, manager_reason="Priority", owner=owner
    )


def _gpu_indices(gres: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the GPU indices of each gres ("gpu", "gpu:a100"), numbered over all of them."""
    indices: dict[str, list[int]] = {}
    first = 0
    for name, count in gres.items():
        if name.partition(":")[0] == "gpu":
            indices[name] = list(range(first, first + count))
            first += count
    return indices


def _shared_header(
    submission: Submission, cluster: str, requirements: _Requirements, options: LocalOptions
) -> bytes:
    """Return the fields that the tasks of a submission share.

    They are a `_TaskTemplate` in JSON, then fields of `spec`.
    """
    job, payload = submission.job, submission.payload
    template = _TaskTemplate(job.id, job.array, payload.output, payload.error)
    environment = submission.environment(submission.indices[0], cluster)
    environment["METASCHED_CPUS"] = str(requirements.cpus)
    fields = [msgspec.json.encode(template)]
    fields += [spec_field("argument", text) for text in payload.arguments]
    fields += [spec_field("environment", f"{name}={text}") for name, text in environment.items()]
    fields.append(spec_field("directory", payload.directory))
    fields.append(spec_field("umask", str(payload.umask)))
    if requirements.limit is not None:
        fields.append(spec_field("limit", repr(requirements.limit)))
    memory = job.memory or (job.memory_per_cpu or 0) * job.cpus
    if memory:
        fields.append(spec_field("memory", str(memory)))
    fields.append(spec_field("kill_wait", repr(options.kill_wait)))
    return b"\0".join(fields)


def _task_fields(template: _TaskTemplate, index: int) -> list[bytes]:
    """Return the task's own fields of `spec`; they come last and override shared fields."""
    array = None if template.array is None else parse_array(template.array)
    variables = task_variables(template.job, array, index)
    fields = [spec_field("environment", f"{name}={value}") for name, value in variables.items()]
    node = first_node(socket.gethostname())
    for stream, path in (("output", template.output), ("error", template.error)):
        if path is not None:
            fields.append(spec_field(stream, expand_task_fields(path, index, node)))
    return fields


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


def _unstarted_status(status: JobStatus, state: State, message: str) -> JobStatus:
    return structs.replace(status, state=state, ended=time.time(), manager_reason=message)


def _ended_status(status: JobStatus, end_record: Mapping[str, str]) -> JobStatus:
    return structs.replace(
        status,
        state=State(end_record["state"]),
        ended=float(end_record["time"]),
        exit_code=int(end_record["exit_code"]) if "exit_code" in end_record else None,
        signal=int(end_record["signal"]) if "signal" in end_record else None,
        cpu_seconds=float(end_record["cpu_seconds"]),
        max_memory=int(end_record["max_memory"]),
        manager_reason=end_record["word"],
    )
