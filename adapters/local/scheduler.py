"""The queue of a local cluster, its running tasks, and the thread that starts and ends them.

Queued tasks are ordered by `submitted - age*(priority - 1)`. A policy of `policies/local` chooses
the tasks to start, in a thread that sleeps until an event. The folder of a started task alone shows
its state, so a crash between any two steps is harmless.
"""

from __future__ import annotations

import logging
import os
import select
import shutil
import socket
import sqlite3
import threading
import time
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path

import msgspec
from msgspec import structs

from metasched.adapters import supervisor
from metasched.adapters.errors import AdapterError, Unreachable
from metasched.adapters.launcher_client import LauncherClient
from metasched.adapters.local.host import ForkServer, grant_access, read_record
from metasched.adapters.local.options import LocalOptions
from metasched.adapters.local.queue_store import QueueStore, Requirements
from metasched.adapters.local.spec import gpu_indices, task_spec
from metasched.model.job import State
from metasched.model.listing import JobStatus
from metasched.model.tags import parse_tag
from metasched.policies.local.queueing import FreeResources, LocalPolicy, RunningJob, WaitingJob
from metasched.policies.local.registry import make_policy

MEMORY_RESOURCE = "MiB of memory"  # memory among the counted resources; never the name of a gres
MAX_LAUNCHES = 3  # supervisors that may die before their claim until the task fails
RETRY_DELAY = 1.0  # seconds until the thread retries after a system error (a full disk)
# A disk takes milliseconds for each transaction, so the ends of jobs are saved in batches:
SAVE_DELAY = 0.2  # seconds without an event
MAX_UNSAVED = 200  # jobs

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class LocalTask:
    """A task in the queue, running, or ended within `keep` seconds."""

    native_id: int
    requirements: Requirements
    status: JobStatus
    is_own: bool  # submitted by this instance
    launch_decided: float | None = None  # epoch seconds of the decision to start it
    launch_count: int = 0  # supervisors forked for it
    devices: dict[str, list[int]] = field(default_factory=dict)  # GPU indices by gres
    supervisor_fd: int | None = None  # pidfd of its supervisor
    in_request: bool = False  # a fork server is starting its supervisor, or sweeping
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


class LocalScheduler:
    """The tasks of a local cluster; its methods are called with `lock` held.

    Methods raise OSError and sqlite3.Error. After such an error set `reload_needed`: the state in
    memory may be wrong, and `load` rebuilds it.
    """

    def __init__(
        self,
        folder: Path,
        options: LocalOptions,
        instance: str,
        launcher: LauncherClient | None,
        store: QueueStore,
        lock: threading.Lock,
    ) -> None:
        self.reload_needed = False
        self.queue: list[LocalTask] = []  # in the order of `queue_key`
        self.started: dict[int, LocalTask] = {}  # started and not ended, by native id
        self._folder, self._options, self._instance = folder, options, instance
        self._launcher, self._store, self._lock = launcher, store, lock
        self._policy: LocalPolicy = make_policy(options.policy)
        self._rho: Mapping[str, float] = {}
        self._stopped = False
        self._fork_servers: dict[str, ForkServer] = {}  # by account
        # site mode, by account: the thread that waits for the account's fork server
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._generation = 0  # number of `load`s; results of earlier requests do not count
        self._tasks_by_supervisor_fd: dict[int, LocalTask] = {}
        self._epoll = select.epoll()
        # set, so that the thread makes a first pass at once
        self._wakeup_fd = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wakeup_fd, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name=f"local {folder}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Make the thread end; call `join` without the lock afterwards."""
        self._stopped = True
        self.wake()

    def join(self) -> None:
        self._thread.join()

    def close(self) -> None:
        """Release all resources; the thread has ended or was never started."""
        self._unwatch_all()
        os.close(self._wakeup_fd)
        self._epoll.close()
        for account, fork_server in self._fork_servers.items():
            if self._launcher is None:
                fork_server.close()
            else:  # behind the requests under way
                self._thread_of(account).submit(fork_server.close)
                self._thread_of(account).shutdown(wait=False)

    def wake(self) -> None:
        """Have the thread make a pass."""
        os.eventfd_write(self._wakeup_fd, 1)

    # The state, from the database and the jobs' folders.

    def load(self) -> None:
        """Rebuild the state in memory from the database and the jobs' folders."""
        self._store.rollback()
        self._unwatch_all()
        self._generation += 1
        self._obsolete_folders: list[Path] = []
        self._unsaved: list[LocalTask] = []
        self.first_opened, last_boot = self._store.opened()
        self.tasks: dict[int, LocalTask] = {}
        self._tasks_by_tag: dict[str, dict[int, LocalTask]] = {}
        for stored in self._store.tasks():
            task = self._new_task(stored.native_id, stored.tag, stored.task, stored.requirements)
            if stored.final_status is not None:
                task.status = stored.final_status
            self.tasks[task.native_id] = task
            self._tasks_by_tag.setdefault(stored.tag, {})[stored.task] = task
        self._recover_tasks(same_boot=last_boot == supervisor.boot_id())
        self._store.set_boot(supervisor.boot_id())
        self.reload_needed = False

    def _recover_tasks(self, same_boot: bool) -> None:
        """Divide the tasks of the database into queued and started, by their folders.

        In a folder from before a restart of the host only the claim and the end were synced to
        disk. A task without a claim never started, and no process is left that could claim it.
        """
        self.free_cpus = self._options.cpus
        self.free_resources = dict(self._options.gres)
        if self._options.memory is not None:
            self.free_resources[MEMORY_RESOURCE] = self._options.memory
        self._free_devices = gpu_indices(self._options.gres)
        self.started = {}
        self._unsupervised: list[LocalTask] = []
        for folder in (self._folder / "jobs").iterdir():
            task = self.tasks.get(int(folder.name)) if folder.name.isdecimal() else None
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
        open_tasks = (t for t in self.tasks.values() if t.status.ended is None)
        self.queue = sorted(
            (t for t in open_tasks if t.launch_decided is None), key=lambda t: t.queue_key
        )
        # now: a task that an earlier process listed as ended must not be listed as running
        self._unsupervised = [task for task in self._unsupervised if self._needs_supervisor(task)]

    def _new_task(
        self, native_id: int, tag: str, index: int, requirements: Requirements
    ) -> LocalTask:
        status = JobStatus(
            tag,
            index,
            str(native_id),
            State.PENDING,
            manager_reason="Priority",
            owner=requirements.user,
        )
        is_own = parse_tag(tag, self._instance) is not None
        return LocalTask(native_id, requirements, status, is_own)

    # Changes on behalf of the adapter.

    def native_ids(self, tag: str) -> dict[int, str] | None:
        """Return the native ids of a submission's tasks by index; None if it is unknown."""
        tasks = self._tasks_by_tag.get(tag)
        if tasks is None:
            return None
        return {index: str(task.native_id) for index, task in tasks.items()}

    def submit(
        self,
        tag: str,
        header: bytes,
        script: bytes,
        indices: tuple[int, ...],
        requirements: Requirements,
    ) -> None:
        """Store and queue the tasks of a new submission."""
        native_ids = self._store.insert(tag, header, script, indices, requirements)
        tasks = self._tasks_by_tag[tag] = {}
        for index, native_id in zip(indices, native_ids, strict=True):
            task = self._new_task(native_id, tag, index, requirements)
            tasks[index] = self.tasks[native_id] = task
            insort(self.queue, task, key=lambda t: t.queue_key)
        self.wake()

    def withdraw(self, tag: str, indices: Iterable[int], only_pending: bool) -> Future[None] | None:
        """End tasks; with `only_pending` only tasks that have not started.

        In site mode, wait for the result without the lock: then the supervisors of started tasks
        are signalled, or it raises OSError.
        """
        tasks = self._tasks_by_tag.get(tag, {})
        open_tasks = [
            task for index in indices if (task := tasks.get(index)) and task.status.ended is None
        ]
        started = [task for task in open_tasks if not self._end_unstarted(task)]
        self.save_ended()
        self.wake()
        if only_pending or not started:
            return None
        account = self._account_for(started[0])
        fork_server, folders = self._fork_server_of(account), self._folders_of(started)
        if self._launcher is not None:
            return self._thread_of(account).submit(fork_server.cancel, folders)
        try:
            fork_server.cancel(folders)
        except OSError as error:
            raise Unreachable(f"tasks of {tag}: {error}") from None
        return None

    def _end_unstarted(self, task: LocalTask) -> bool:
        """End a task unless it has started; return whether it had not.

        A supervisor may be about to start the task: the first claim of the folder decides.
        """
        claim = "state=cancelled\nword=\n"
        if task.launch_decided is not None and not supervisor.claim(
            str(self._folder_of(task)), claim
        ):
            return False
        self._finish_task(task, _unstarted_status(task.status, State.CANCELLED, ""))
        return True

    def update_licence_demand(self, rho: Mapping[str, float]) -> None:
        if rho != self._rho:
            self._rho = rho
            self.wake()

    def refresh(self, keep_since: float) -> None:
        """Update started tasks from their claims; forget tasks that ended before `keep_since`."""
        self._forget_ended(keep_since)
        for task in self.started.values():
            self._update_from_claim(task)

    def _forget_ended(self, before: float) -> None:
        ended = (t for t in self.tasks.values() if t.status.ended is not None)
        expired = [t for t in ended if t.status.ended is not None and t.status.ended < before]
        if not expired:
            return
        self.save_ended()
        self._store.delete(task.native_id for task in expired)
        for task in expired:
            tag = task.status.tag
            del self.tasks[task.native_id]
            del self._tasks_by_tag[tag][task.status.task]
            if not self._tasks_by_tag[tag]:
                del self._tasks_by_tag[tag]

    # The thread: it records ends and starts queued tasks.

    def _run(self) -> None:
        while True:
            ready = self._epoll.poll(SAVE_DELAY if self._unsaved else None)
            with self._lock:
                if self._stopped:
                    return
                try:
                    if self.reload_needed:
                        self.load()
                    for descriptor, _ in ready:
                        if descriptor == self._wakeup_fd:
                            os.eventfd_read(self._wakeup_fd)
                        elif descriptor in self._tasks_by_supervisor_fd:
                            self._unsupervised.append(self._unwatch(descriptor))
                    self._supervise_started()
                    self._decide_starts()
                    self._supervise_started()
                    if not ready or len(self._unsaved) > MAX_UNSAVED:
                        self.save_ended()
                    continue
                except (OSError, sqlite3.Error):
                    log.exception("%s: retrying in %g s", self._folder, RETRY_DELAY)
                    self.reload_needed = True
                    self.wake()
            time.sleep(RETRY_DELAY)

    def _decide_starts(self) -> None:
        """Decide which tasks start now; record each decision as a job folder with a `spec`."""
        if not self.queue or self.free_cpus <= 0:
            return
        now = time.time()
        starts = self._policy.choose_starts(
            now,
            [task.waiting for task in self.queue],
            [task.running for task in self.started.values()],
            FreeResources(self.free_cpus, self.free_resources, rho=self._rho),
        )
        for native_id, _ in starts:
            task = self.tasks[native_id]
            task.devices = {
                name: self._free_devices[name][:count]
                for name, count in task.requirements.counts.items()
                if name in self._free_devices
            }
            self._write_spec(task)
            task.launch_decided = now
            self._allocate(task)
            self._unsupervised.append(task)
            self.queue.remove(task)

    def _write_spec(self, task: LocalTask) -> None:
        header, script = self._store.submission(task.status.tag)
        folder = self._folder_of(task)
        folder.mkdir(mode=0o700, exist_ok=True)
        draft = folder / "spec.draft"
        draft.write_bytes(task_spec(header, script, task.status.task, task.devices))
        if self._launcher is not None:
            draft.chmod(0o644)
        draft.rename(folder / "spec")

    def _supervise_started(self) -> None:
        """For each started task without a watched supervisor, launch one or record the end."""
        while self._unsupervised:
            tasks = [task for task in self._unsupervised if self._needs_supervisor(task)]
            self._unsupervised = []
            for account, group in groupby(sorted(tasks, key=self._account_for), self._account_for):
                self._launch_supervisors(account, list(group))

    def _launch_supervisors(self, account: str, tasks: list[LocalTask]) -> None:
        """Fork a supervisor for each of these tasks, which have the same owner."""
        for task in tasks:
            task.launch_count += 1
            task.in_request = True
            if self._launcher is not None:
                # After `spec` is written: from now on the owner may place links in the folder.
                grant_access(self._folder_of(task), task.requirements.uid)
        fork_server, folders = self._fork_server_of(account), self._folders_of(tasks)

        def launch() -> Callable[[], None]:
            try:
                return partial(self._watch_launched, tasks, fork_server.fork(folders))
            except (OSError, AdapterError) as error:
                if self._launcher is None:
                    raise  # of this account: retry; an owner's fork server may fail on purpose
                log.warning("%s: no supervisor for %s: %s", self._folder, account, error)
                if isinstance(error, Unreachable):  # the launcher, which is no fault of the owner
                    time.sleep(RETRY_DELAY)
                    for task in tasks:
                        task.launch_count -= 1
                return partial(self._watch_launched, tasks, [])

        self._execute_request(account, launch)

    def _watch_launched(self, tasks: list[LocalTask], processes: Sequence[tuple[int, int]]) -> None:
        """Watch the supervisors of these tasks, (pid, start) each; [] if none was forked."""
        for task in tasks:
            task.in_request = False
        for task, (pid, start) in zip(tasks, processes, strict=False):
            if task.status.ended is None:
                self._watch_supervisor(task, pid, start)
        self._unsupervised += [task for task in tasks if task.supervisor_fd is None]

    def _execute_request(self, account: str, request: Callable[[], Callable[[], None]]) -> None:
        """Execute a request to a fork server and, with the lock, the function that it returns.

        In site mode the account's thread does so, without the lock while it waits: the user may
        have stopped the fork server.
        """
        if self._launcher is None:
            request()()
        else:
            self._thread_of(account).submit(self._execute_unlocked, self._generation, request)

    def _execute_unlocked(self, generation: int, request: Callable[[], Callable[[], None]]) -> None:
        finish = request()
        with self._lock:
            if self._stopped or generation != self._generation:
                return
            try:
                finish()
            except (OSError, sqlite3.Error):
                log.exception("%s: loading it again", self._folder)
                self.reload_needed = True
            self.wake()

    def _needs_supervisor(self, task: LocalTask) -> bool:
        """Update a started task from its folder alone; return True if it needs a supervisor."""
        if task.status.ended is not None or task.supervisor_fd is not None or task.in_request:
            return False
        folder = self._folder_of(task)
        claim = read_record(folder, "claim")
        if claim is None:
            if task.launch_count < MAX_LAUNCHES:
                return True
            message = f"no supervisor can be started: see {self._folder / 'supervisor.log'}"
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
        if end_record:
            self._finish_task(task, _ended_status(task.status, end_record))
        elif same_boot:
            self._sweep(task)
        else:
            self._finish_lost(task, "the host was restarted")
        return False

    def _update_from_claim(self, task: LocalTask) -> None:
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

    def _sweep(self, task: LocalTask) -> None:
        """Kill the processes that a dead supervisor left, then record the end."""
        task.in_request = True
        account, folders = self._account_for(task), self._folders_of([task])
        fork_server = self._fork_server_of(account)

        def sweep() -> Callable[[], None]:
            try:
                fork_server.sweep(folders)
            except (OSError, AdapterError):
                log.exception(
                    "%s: processes of task %s may still run", self._folder, task.native_id
                )
            return partial(self._finish_lost, task, "its supervisor was killed")

        self._execute_request(account, sweep)

    def _finish_lost(self, task: LocalTask, reason: str) -> None:
        task.in_request = False
        if task.status.ended is None:
            status = structs.replace(
                task.status, state=State.NODE_FAIL, ended=time.time(), manager_reason=reason
            )
            self._finish_task(task, status)

    def _finish_task(self, task: LocalTask, status: JobStatus) -> None:
        """Set the final status of a task and release its resources.

        The status may be saved later: until then the task's folder records the same end.
        """
        task.status = status
        self._unsaved.append(task)
        if task.launch_decided is None:
            self.queue.remove(task)
        else:
            self._release(task)

    def save_ended(self) -> None:
        """Write the ends to the database, and only then remove the folders that record them."""
        if not self._unsaved:
            return
        tags = {task.status.tag for task in self._unsaved}
        ended_tags = [
            tag
            for tag in tags
            if all(task.status.ended for task in self._tasks_by_tag[tag].values())
        ]
        self._store.save_ended([(t.native_id, t.status) for t in self._unsaved], ended_tags)
        started = [task for task in self._unsaved if task.launch_decided is not None]
        self._obsolete_folders += [self._folder_of(task) for task in started]
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

    def _folder_of(self, task: LocalTask) -> Path:
        return self._folder / "jobs" / str(task.native_id)

    def _folders_of(self, tasks: Iterable[LocalTask]) -> list[Path]:
        return [self._folder_of(task) for task in tasks]

    def _allocate(self, task: LocalTask) -> None:
        self.started[task.native_id] = task
        self.free_cpus -= task.requirements.cpus
        for name, amount in task.requirements.counts.items():
            self.free_resources[name] = self.free_resources.get(name, 0) - amount
        for name, devices in task.devices.items():
            self._free_devices[name] = [
                d for d in self._free_devices.get(name, []) if d not in devices
            ]

    def _release(self, task: LocalTask) -> None:
        del self.started[task.native_id]
        self.free_cpus += task.requirements.cpus
        for name, amount in task.requirements.counts.items():
            self.free_resources[name] += amount
        for name, devices in task.devices.items():
            self._free_devices[name] = sorted([*self._free_devices[name], *devices])
        if task.supervisor_fd is not None:
            self._unwatch(task.supervisor_fd)

    def _account_for(self, task: LocalTask) -> str:
        """Return the account that runs the task's processes; "" for this account."""
        return "" if self._launcher is None else task.requirements.user

    def _fork_server_of(self, account: str) -> ForkServer:
        if account not in self._fork_servers:
            error_log = self._folder / "supervisor.log"
            self._fork_servers[account] = ForkServer(error_log, self._launcher, account)
        return self._fork_servers[account]

    def _thread_of(self, account: str) -> ThreadPoolExecutor:
        if account not in self._threads:
            name = f"fork server of {account}"
            self._threads[account] = ThreadPoolExecutor(1, thread_name_prefix=name)
        return self._threads[account]

    def _watch_supervisor(self, task: LocalTask, pid: int, start: int) -> bool:
        """Wake the thread when that process ends; return False if it has ended already."""
        descriptor = supervisor.open_pidfd(pid, start)
        if descriptor is None:
            return False
        task.supervisor_fd = descriptor
        self._tasks_by_supervisor_fd[descriptor] = task
        self._epoll.register(descriptor, select.EPOLLIN)
        return True

    def _unwatch(self, descriptor: int) -> LocalTask:
        task = self._tasks_by_supervisor_fd.pop(descriptor)
        task.supervisor_fd = None
        self._epoll.unregister(descriptor)
        os.close(descriptor)
        return task

    def _unwatch_all(self) -> None:
        for descriptor in list(self._tasks_by_supervisor_fd):
            self._unwatch(descriptor)


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
