"""The thread of a local cluster that starts queued tasks and records ends.

Queued tasks are ordered by `submitted - age*(priority - 1)`. A policy of `policies/local` chooses
the tasks to start, in a thread that sleeps until an event.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path

from msgspec import structs

from metasched.adapters import supervisor
from metasched.adapters.launcher_client import LauncherClient
from metasched.adapters.local.fork_servers import ForkServers
from metasched.adapters.local.options import LocalOptions
from metasched.adapters.local.policy_host import PolicyExcluded, PolicyHost
from metasched.adapters.local.queue_store import NewSubmission, QueueStore
from metasched.adapters.local.spec import task_spec
from metasched.adapters.local.supervision import RETRY_DELAY, Supervision
from metasched.adapters.local.task_table import LocalTask, TaskTable
from metasched.adapters.local.wakeups import Wakeups
from metasched.adapters.local.windows import LocalWindows
from metasched.model.listing import PolicyExclusions
from metasched.model.survey import ReservationSpec
from metasched.policies.local.exclusion import MAX_ASKED
from metasched.policies.local.orders import FCFS
from metasched.policies.local.queueing import (
    FreeResources,
    LocalPolicy,
    RunningJob,
    WaitingJob,
)
from metasched.policies.local.registry import POLICIES, keeps_order, make_policy

# A disk takes milliseconds for each transaction, so the ends of jobs are saved in batches:
SAVE_DELAY = 0.2  # seconds without an event
MAX_UNSAVED = 200  # jobs
WARNING_INTERVAL = 60.0  # seconds between two warnings about the policy
MAX_SLEEP = 60.0  # seconds while there are windows: the clock may be set

log = logging.getLogger(__name__)


class LocalScheduler:
    """The tasks of a local cluster and their thread; methods are called with `lock` held.

    Methods raise OSError and sqlite3.Error. After such an error set `reload_needed`: the state in
    memory may be wrong, and `load` rebuilds it.
    """

    def __init__(
        self,
        folder: Path,
        options: LocalOptions,
        instances: frozenset[str],
        launcher: LauncherClient | None,
        store: QueueStore,
        lock: threading.Lock,
    ) -> None:
        self.reload_needed = False
        self.table = TaskTable(folder, options, instances, store)
        self._folder, self._launcher, self._store, self._lock = folder, launcher, store, lock
        self.windows = LocalWindows(self.table, store, options.cpus, options.kill_wait)
        self._policy_name = options.policy
        is_foreign = options.policy not in POLICIES
        self._policy_host = PolicyHost(options.policy) if is_foreign else None
        self.exclusions = PolicyExclusions(0, False, "")
        self._decided = 0.0  # epoch seconds at which the last decisions began
        self._warned_at = -WARNING_INTERVAL  # monotonic seconds
        self._rho: Mapping[str, float] = {}
        self.planned_starts: Mapping[int, float] = {}  # epoch seconds, by native id
        self._stopped = False
        self._wakeups = Wakeups()
        self._fork_servers = ForkServers(folder / "supervisor.log", launcher)
        self._supervision = Supervision(
            folder, self.table, self._fork_servers, self._wakeups, self._run_locked
        )
        self._thread = threading.Thread(target=self._run, name=f"local {folder}", daemon=True)

    @property
    def in_order(self) -> bool:
        """Whether the policy lets no task overtake another."""
        if self._policy_host is not None:
            return self._policy_host.in_order
        return keeps_order(self._policy_name)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Make the thread end; call `join` without the lock afterwards."""
        self._stopped = True
        self._wakeups.wake()

    def join(self) -> None:
        self._thread.join()

    def close(self) -> None:
        """Release all resources; the thread has ended or was never started."""
        self._wakeups.close()
        self._fork_servers.close()
        if self._policy_host is not None:
            self._policy_host.close()

    def load(self) -> None:
        """Rebuild the state in memory from the database and the jobs' folders."""
        self._store.rollback()
        self._supervision.reset()
        self._supervision.adopt(self.table.load())
        self.windows.load()
        self._store.set_boot(supervisor.boot_id())
        self.reload_needed = False

    # Changes on behalf of the adapter.

    def reserve(self, spec: ReservationSpec) -> None:
        """Keep a window. Raises Refused."""
        self.windows.reserve(spec)
        self._wakeups.wake()

    def delete_reservation(self, name: str) -> None:
        """Keep a window no more. Raises Refused while jobs are in it."""
        self.windows.delete(name)
        self._wakeups.wake()

    def submit(self, submission: NewSubmission) -> None:
        """Store and queue the tasks of a new submission."""
        self.table.insert(submission)
        self._wakeups.wake()

    def withdraw(self, tag: str, indices: Iterable[int], only_pending: bool) -> Future[None] | None:
        """End tasks; with `only_pending` only tasks that have not started.

        In site mode, wait for the result without the lock: then the supervisors of started tasks
        are signalled, or it raises OSError.
        """
        open_tasks = self.table.unfinished_tasks(tag, indices)
        started = [task for task in open_tasks if not self._supervision.cancel_unstarted(task)]
        self.table.save_ended()
        self._wakeups.wake()
        if only_pending or not started:
            return None
        account = self._supervision.account_for(started[0])
        return self._fork_servers.cancel(account, map(self.table.folder_of, started), tag)

    def update_licence_demand(self, rho: Mapping[str, float]) -> None:
        if rho != self._rho:
            self._rho = rho
            self._wakeups.wake()

    def refresh(self, keep_since: float) -> None:
        """Update started tasks from their claims; forget tasks that ended before `keep_since`."""
        self.table.forget_ended(keep_since)
        for task in self.table.started.values():
            self._supervision.update_from_claim(task)

    # The thread: it records ends and starts queued tasks.

    def _run(self) -> None:
        while True:
            ready = self._wakeups.wait(self._patience())
            self._prepare_policy()  # a process is created, so calls do not wait for it
            with self._lock:
                if self._stopped:
                    return
                try:
                    if self.reload_needed:
                        self.load()
                    self._supervision.add(self._wakeups.take_unsupervised(ready))
                    self._supervision.supervise()
                    self._decide_starts()
                    self._supervision.supervise()
                    if not ready or self.table.unsaved_count > MAX_UNSAVED:
                        self.table.save_ended()
                    continue
                except Exception:  # whatever it is: without this thread nothing starts or ends
                    log.exception("%s: retrying in %g s", self._folder, RETRY_DELAY)
                    self.reload_needed = True
                    self._wakeups.wake()
            time.sleep(RETRY_DELAY)

    def _prepare_policy(self) -> None:
        """Start the process of the policy if there has to be one."""
        if self._policy_host is None or self._stopped:
            return
        if (descriptor := self._policy_host.prepare()) is not None:
            with suppress(OSError):  # of a full table: the thread wakes at the deadline
                self._wakeups.watch_once(descriptor)

    def _patience(self) -> float | None:
        """Return for how many seconds the thread may sleep without an event; None: for ever."""
        if self.table.unsaved_count:
            return SAVE_DELAY
        with self._lock:  # a window may have begun since the last decisions: they took a while
            change = self.windows.next_change(self._decided)
        patience = math.inf if change is None else min(change - time.time(), MAX_SLEEP)
        if self._policy_host is not None and (due := self._policy_host.due) is not None:
            patience = min(patience, due - time.monotonic())
        return None if patience == math.inf else max(patience, 0.0)

    def _run_locked(self, function: Callable[[], None]) -> None:
        """Call a function of another thread with the lock, unless the scheduler is stopped."""
        with self._lock:
            if self._stopped:
                return
            try:
                function()
            except (OSError, sqlite3.Error):
                log.exception("%s: loading it again", self._folder)
                self.reload_needed = True
            self._wakeups.wake()

    @cached_property
    def _policy(self) -> LocalPolicy:
        """The policy. The default imports numpy: 6 MB that a cluster without jobs does not need."""
        return self._policy_host or make_policy(self._policy_name)

    def _decide_starts(self) -> None:
        """Decide which tasks start now; record each decision as a job folder with a `spec`."""
        table, self._decided = self.table, time.time()
        if not table.queue:
            return
        if self.windows:
            self._start_in_windows(self._decided)
        if self._policy_host is not None and self._policy_host.is_first_start:
            return
        now = self._decided
        try:
            policy = self._policy
            now = time.time()  # the policy may have been imported
            if self.windows and not getattr(policy, "keeps_windows", False):
                raise PolicyExcluded("it keeps no reserved windows, and there are some")
            planned_starts = getattr(policy, "planned_starts", None)
            if table.free_cpus <= 0 and planned_starts is None:
                return
            starts = self._choose_starts(policy, now)
            self.planned_starts = {} if planned_starts is None else planned_starts()
            if self.exclusions.excluded:
                self.exclusions = structs.replace(self.exclusions, excluded=False)
        except Exception as error:  # it may be of another package
            self._note_exclusion(error)
            self.planned_starts = {}  # those of an earlier pass hold no more
            starts = self._choose_starts(FCFS(), now)
        for task in starts:
            self._start(task, now)

    def _note_exclusion(self, error: Exception) -> None:
        """Count a pass that the policy does not decide; log it once in `WARNING_INTERVAL`."""
        is_expected = isinstance(error, PolicyExcluded)
        reason = str(error) if is_expected else f"{type(error).__name__}: {error}"
        self.exclusions = PolicyExclusions(self.exclusions.passes + 1, True, reason)
        now = time.monotonic()
        if now - self._warned_at >= WARNING_INTERVAL:
            self._warned_at = now
            message = "%s: policy %s is excluded, FCFS decides: %s"
            cause = None if is_expected else error
            log.warning(message, self._folder, self._policy_name, reason, exc_info=cause)

    def _start_in_windows(self, now: float) -> None:
        """Start tasks in their windows that are open, in the order of the queue."""
        table, windows = self.table, self.windows
        use = windows.use(now)
        for task in [task for task in table.queue if task.requirements.reservation]:
            needs = task.requirements
            name, cpus = needs.reservation, needs.cpus
            free = table.free_resources
            has_resources = all(free.get(key, n) >= n for key, n in needs.counts.items())
            has_cpus = cpus <= min(use.room(name), table.free_cpus)
            if has_cpus and has_resources and windows.has_time(task, now):
                use.start(name, cpus)
                self._start(task, now, windows.limit_in_window(task, now))

    def _start(self, task: LocalTask, now: float, limit: float | None = None) -> None:
        """Record the decision to start a task; `limit` in seconds replaces its own."""
        task.devices = self.table.choose_devices(task)
        self._write_spec(task, limit)
        self.table.start(task, now)
        self._supervision.add([task])

    def _choose_starts(self, policy: LocalPolicy, now: float) -> list[LocalTask]:
        """Return the tasks that a policy starts. ValueError if they do not wait, or do not fit."""
        table = self.table
        unreserved = (task for task in table.queue if not task.requirements.reservation)
        depth = MAX_ASKED if policy is self._policy_host else None
        queue = list(islice(unreserved, depth))
        waiting = {task.native_id: task for task in queue}
        free_cpus, free = table.free_cpus, dict(table.free_resources)
        starts = []
        for native_id, _ in policy.choose_starts(now, *self._policy_input(queue, now)):
            if (task := waiting.pop(native_id, None)) is None:
                raise ValueError(f"it starts {native_id}, which does not wait")
            free_cpus -= task.requirements.cpus
            counts = task.requirements.counts
            for name in counts.keys() & free.keys():  # others are unlimited
                free[name] -= counts[name]
            if free_cpus < 0 or any(free[name] < 0 for name in counts.keys() & free.keys()):
                raise ValueError(f"it starts {native_id}, for which there is no room")
            starts.append(task)
        return starts

    def _policy_input(
        self, queue: Sequence[LocalTask], now: float
    ) -> tuple[list[WaitingJob], list[RunningJob], FreeResources]:
        """Return the queue, the running tasks and the free resources for a policy.

        To a policy windows are whole, and the tasks in them do not exist.
        """
        table, windows = self.table, self.windows
        started = table.started.values()
        free = FreeResources(table.free_cpus, table.free_resources, rho=self._rho)
        if not windows:
            return [task.waiting for task in queue], [task.running for task in started], free
        use = windows.use(now)
        return (
            [windows.waiting(task) for task in queue],
            [windows.running(t) for t in started if t.requirements.reservation not in use.held],
            free._replace(cpus=free.cpus + use.held_cpus, windows=windows.for_policy(use)),
        )

    def _write_spec(self, task: LocalTask, limit: float | None) -> None:
        header, script = self._store.submission(task.status.tag)
        folder = self.table.folder_of(task)
        folder.mkdir(mode=0o700, exist_ok=True)
        draft = folder / "spec.draft"
        index, devices = task.status.task, task.devices
        spec = task_spec(header, script, index, task.native_id, devices, limit)
        draft.write_bytes(spec)
        if self._launcher is not None:
            draft.chmod(0o644)
        draft.rename(folder / "spec")
