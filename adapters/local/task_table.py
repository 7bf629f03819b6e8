"""The tasks of a local cluster: queued, started and ended, and the resources of the started.

The folder of a started task alone shows its state, so a crash between any two steps is harmless.
"""

from __future__ import annotations

import shutil
import socket
import time
from bisect import insort
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from metasched.adapters import supervisor
from metasched.adapters.local.options import LocalOptions
from metasched.adapters.local.queue_store import (
    NewSubmission,
    QueueStore,
    Requirements,
    StoredEnds,
)
from metasched.adapters.local.spec import gpu_indices
from metasched.model.job import State
from metasched.model.listing import JobStatus
from metasched.model.tags import parse_tag
from metasched.policies.local.queueing import RunningJob, WaitingJob

FORGOTTEN_AT_ONCE = 1000  # ended tasks that a poll deletes
MEMORY_RESOURCE = "MiB of memory"  # memory among the counted resources; never the name of a gres


@dataclass(slots=True, eq=False)
class LocalTask:
    """A task in the queue or running, or an end that is not in the database yet."""

    native_id: int
    requirements: Requirements
    status: JobStatus
    is_own: bool  # submitted by this or a former instance
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


class TaskTable:
    """The open tasks, in memory and in the database. Methods raise OSError and sqlite3.Error.

    A task that has ended is in the database alone, once its end is saved.
    """

    def __init__(
        self, folder: Path, options: LocalOptions, instances: frozenset[str], store: QueueStore
    ) -> None:
        self._folder, self._options, self._instances = folder, options, instances
        self._store = store
        self.queue: list[LocalTask] = []  # in the order of `queue_key`
        self.started: dict[int, LocalTask] = {}  # started and not ended, by native id
        self.hosts = (socket.gethostname(),)

    def load(self) -> list[LocalTask]:
        """Rebuild the table from the database and the jobs' folders; return the started tasks."""
        self._obsolete_folders: list[Path] = []
        self._unsaved: list[LocalTask] = []  # ended, but not in the database
        self.first_opened, last_boot = self._store.opened()
        self.tasks: dict[int, LocalTask] = {}
        self._tasks_by_tag: dict[str, dict[int, LocalTask]] = {}
        for stored in self._store.open_tasks():
            task = self._new_task(stored.native_id, stored.tag, stored.task, stored.requirements)
            self.tasks[task.native_id] = task
            self._tasks_by_tag.setdefault(stored.tag, {})[stored.task] = task
        return self._recover_tasks(same_boot=last_boot == supervisor.boot_id())

    def _recover_tasks(self, same_boot: bool) -> list[LocalTask]:
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
        started = []
        for folder in (self._folder / "jobs").iterdir():
            task = self.tasks.get(int(folder.name)) if folder.name.isdecimal() else None
            start_decided = (folder / ("spec" if same_boot else "claim")).exists()
            if task is None or not start_decided:
                self._obsolete_folders.append(folder)
                continue
            if same_boot:
                spec = supervisor.TaskSpec((folder / "spec").read_bytes())
                task.devices = msgspec.json.decode(spec.devices, type=dict[str, list[int]])
            task.launch_decided = time.time()
            self._allocate(task)
            started.append(task)
        self._remove_obsolete()
        self.queue = sorted(
            (t for t in self.tasks.values() if t.launch_decided is None), key=lambda t: t.queue_key
        )
        return started

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
        return LocalTask(native_id, requirements, status, self.is_own(tag))

    def is_own(self, tag: str) -> bool:
        """Return whether this or a former instance submitted the tasks of a tag."""
        return parse_tag(tag, self._instances) is not None

    def folder_of(self, task: LocalTask) -> Path:
        return self._folder / "jobs" / str(task.native_id)

    # Submissions.

    def native_ids(self, tag: str) -> dict[int, str]:
        """Return the native ids of a submission's tasks by index; empty if it is unknown."""
        return self._store.native_ids(tag)

    def insert(self, submission: NewSubmission) -> None:
        """Store and queue the tasks of a new submission."""
        native_ids = self._store.insert(submission)
        tasks = self._tasks_by_tag[submission.tag] = {}
        for index, native_id in zip(submission.indices, native_ids, strict=True):
            task = self._new_task(native_id, submission.tag, index, submission.requirements)
            tasks[index] = self.tasks[native_id] = task
            insort(self.queue, task, key=lambda t: t.queue_key)

    def unfinished_tasks(self, tag: str, indices: Iterable[int]) -> list[LocalTask]:
        """Return those tasks of a submission that have not ended."""
        tasks = self._tasks_by_tag.get(tag, {})
        return [
            task for index in indices if (task := tasks.get(index)) and task.status.ended is None
        ]

    # Starts and ends.

    def choose_devices(self, task: LocalTask) -> dict[str, list[int]]:
        """Return free GPUs for a queued task: indices by gres."""
        return {
            name: self._free_devices[name][:count]
            for name, count in task.requirements.counts.items()
            if name in self._free_devices
        }

    def start(self, task: LocalTask, now: float) -> None:
        """Move a task whose `spec` is written from the queue to the started tasks."""
        task.launch_decided = now
        self._allocate(task)
        self.queue.remove(task)

    def finish(self, task: LocalTask, status: JobStatus) -> None:
        """Set the final status of a task and release its resources.

        The status may be saved later: until then the task's folder records the same end.
        """
        task.status = status
        self._unsaved.append(task)
        if task.launch_decided is None:
            self.queue.remove(task)
        else:
            self._release(task)

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

    # The database.

    @property
    def unsaved_count(self) -> int:
        """Number of ends that are not in the database yet."""
        return len(self._unsaved)

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
        for task in self._unsaved:
            del self.tasks[task.native_id]
            del self._tasks_by_tag[task.status.tag][task.status.task]
        for tag in ended_tags:
            del self._tasks_by_tag[tag]
        started = [task for task in self._unsaved if task.launch_decided is not None]
        self._obsolete_folders += [self.folder_of(task) for task in started]
        self._unsaved.clear()
        self._remove_obsolete()

    def _remove_obsolete(self) -> None:
        """Remove the folders of tasks whose end, or whose absence, is in the database."""
        for folder in self._obsolete_folders:
            # A single rename: a late supervisor could claim a folder that has lost its claim.
            renamed = folder.with_suffix(".gone")
            with suppress(FileNotFoundError):
                folder.rename(renamed)
            shutil.rmtree(renamed, ignore_errors=True)
        self._obsolete_folders.clear()

    def ends_after(self, number: int, limit: int) -> StoredEnds:
        """Return ends of the database; see `QueueStore.ends_after`."""
        self.save_ended()
        return self._store.ends_after(number, limit)

    def forget_ended(self, before: float) -> None:
        """Delete tasks that ended before a time (epoch seconds), a portion at a time."""
        self._store.delete_ended(before, FORGOTTEN_AT_ONCE)
