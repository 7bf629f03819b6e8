"""The supervisors of a local cluster's started tasks: launched, watched, and read at their end."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from msgspec import structs

from metasched.adapters import supervisor
from metasched.adapters.local.fork_servers import ForkServers
from metasched.adapters.local.host import grant_access, read_record, require_open_path
from metasched.adapters.local.task_table import LocalTask, TaskTable
from metasched.adapters.local.wakeups import Wakeups
from metasched.model.adapter_errors import AdapterError, Refused, Unreachable
from metasched.model.job import State
from metasched.model.listing import JobStatus

MAX_LAUNCHES = 3  # supervisors that may die before their claim until the task fails
RETRY_DELAY = 1.0  # seconds until the thread retries after a system error (a full disk)

log = logging.getLogger(__name__)


class Supervision:
    """Keeps a supervisor for each started task, and records the task's end.

    Methods are called with the cluster's lock held. They raise OSError and sqlite3.Error.
    """

    def __init__(
        self,
        folder: Path,
        table: TaskTable,
        fork_servers: ForkServers,
        wakeups: Wakeups,
        run_locked: Callable[[Callable[[], None]], None],
    ) -> None:
        """`run_locked` calls a function with the lock held, unless the cluster is closed."""
        self._folder, self._table = folder, table
        self._fork_servers, self._wakeups, self._run_locked = fork_servers, wakeups, run_locked
        self._unsupervised: list[LocalTask] = []  # started, without a watched supervisor
        self._generation = 0  # number of `reset`s; results of earlier requests do not count

    def reset(self) -> None:
        """Forget all tasks and supervisors."""
        self._wakeups.unwatch_all()
        self._generation += 1
        self._unsupervised = []

    def adopt(self, started: Sequence[LocalTask]) -> None:
        """Take over tasks that an earlier process started.

        Their ends are recorded now: a task that was listed as ended must not be listed as running.
        """
        self._unsupervised = [task for task in started if self._needs_supervisor(task)]

    def add(self, tasks: Sequence[LocalTask]) -> None:
        """Add started tasks without a supervisor; the next `supervise` launches them."""
        self._unsupervised += tasks

    def supervise(self) -> None:
        """Launch a supervisor of each started task that has no watched one, or record its end."""
        while self._unsupervised:
            tasks = [task for task in self._unsupervised if self._needs_supervisor(task)]
            self._unsupervised = []
            for account, group in groupby(sorted(tasks, key=self.account_for), self.account_for):
                self._launch_supervisors(account, list(group))

    def account_for(self, task: LocalTask) -> str:
        """Return the account that runs the task's processes; "" for this account."""
        return task.requirements.user if self._fork_servers.site_mode else ""

    # Launches.

    def _launch_supervisors(self, account: str, tasks: list[LocalTask]) -> None:
        """Fork a supervisor for each of these tasks, which have the same owner."""
        for task in tasks:
            task.launch_count += 1
            task.in_request = True
            if self._fork_servers.site_mode:
                # After `spec` is written: from now on the owner may place links in the folder.
                grant_access(self._table.folder_of(task), task.requirements.uid)
        fork_server = self._fork_servers.server_of(account)
        folders = [self._table.folder_of(task) for task in tasks]

        def launch() -> Callable[[], None]:
            try:
                if self._fork_servers.site_mode:
                    require_open_path(self._folder)
                return partial(self._watch_launched, tasks, fork_server.fork(folders))
            except (OSError, AdapterError) as error:
                if not self._fork_servers.site_mode:
                    raise  # of this account: retry; an owner's fork server may fail on purpose
                log.warning("%s: no supervisor for %s: %s", self._folder, account, error)
                passes = isinstance(error, Refused) and error.retryable
                if passes or isinstance(error, Unreachable):  # no launch has been tried
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
                self._wakeups.watch(task, pid, start)
        self._unsupervised += [task for task in tasks if task.supervisor_fd is None]

    def _execute_request(self, account: str, request: Callable[[], Callable[[], None]]) -> None:
        """Execute a request to a fork server and, with the lock, the function that it returns.

        In site mode the account's thread does so, without the lock while it waits.
        """
        if not self._fork_servers.site_mode:
            request()()
            return
        generation = self._generation

        def execute() -> None:
            finish = request()
            self._run_locked(lambda: finish() if generation == self._generation else None)

        self._fork_servers.submit(account, execute)

    # Claims and ends.

    def _needs_supervisor(self, task: LocalTask) -> bool:
        """Update a started task from its folder alone; return True if it needs a supervisor."""
        if task.status.ended is not None or task.supervisor_fd is not None or task.in_request:
            return False
        folder = self._table.folder_of(task)
        claim = read_record(folder, "claim")
        if claim is None:
            if task.launch_count < MAX_LAUNCHES:
                return True
            message = f"no supervisor can be started: see {self._folder / 'supervisor.log'}"
            supervisor.claim(str(folder), f"state=node_fail\nreason={message}\n")
            claim = read_record(folder, "claim") or {}
        if "state" in claim:  # claimed by an adapter, perhaps of an earlier process
            status = _unstarted_status(task.status, State(claim["state"]), claim["reason"])
            self._finish(task, status)
            return False
        self.update_from_claim(task)
        same_boot = claim.get("boot") == supervisor.boot_id()
        if same_boot and self._wakeups.watch(task, int(claim["pid"]), int(claim["start"])):
            return False
        end_record = read_record(folder, "ended")  # written before the supervisor exits
        if end_record:
            self._finish(task, _ended_status(task.status, end_record))
        elif same_boot:
            self._sweep(task)
        else:
            self._finish_lost(task, "the host was restarted")
        return False

    def update_from_claim(self, task: LocalTask) -> None:
        """Set a task to running if a supervisor has claimed it."""
        if task.status.started is not None:
            return
        claim = read_record(self._table.folder_of(task), "claim")
        if claim is not None and "pid" in claim:
            task.status = structs.replace(
                task.status,
                state=State.RUNNING,
                started=float(claim["time"]),
                node=socket.gethostname(),
                manager_reason="",
            )

    def cancel_unstarted(self, task: LocalTask) -> bool:
        """End a task unless it has started; return whether it had not.

        A supervisor may be about to start the task: the first claim of the folder decides.
        """
        claim = "state=cancelled\nreason=\n"
        if task.launch_decided is not None and not supervisor.claim(
            str(self._table.folder_of(task)), claim
        ):
            return False
        self._finish(task, _unstarted_status(task.status, State.CANCELLED, ""))
        return True

    def _sweep(self, task: LocalTask) -> None:
        """Kill the processes that a dead supervisor left, then record the end."""
        task.in_request = True
        account, folders = self.account_for(task), [self._table.folder_of(task)]
        fork_server = self._fork_servers.server_of(account)

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
            self._finish(task, status)

    def _finish(self, task: LocalTask, status: JobStatus) -> None:
        """Set the final status of a task."""
        self._table.finish(task, status)
        self._wakeups.unwatch(task)


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
        manager_reason=end_record["reason"],
    )
