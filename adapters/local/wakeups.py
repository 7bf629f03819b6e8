"""Events that wake the scheduling thread of a local cluster: calls, and ends of supervisors."""

from __future__ import annotations

import os
import select

from metasched.adapters import supervisor
from metasched.adapters.local.task_table import LocalTask


class Wakeups:
    """An epoll set of pidfds of supervisors, and an eventfd for calls."""

    def __init__(self) -> None:
        self._tasks_by_supervisor_fd: dict[int, LocalTask] = {}
        self._epoll = select.epoll()
        # set, so that the thread makes a first pass at once
        self._wakeup_fd = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wakeup_fd, select.EPOLLIN)

    def close(self) -> None:
        self.unwatch_all()
        os.close(self._wakeup_fd)
        self._epoll.close()

    def wake(self) -> None:
        """Have the thread make a pass."""
        os.eventfd_write(self._wakeup_fd, 1)

    def watch_once(self, descriptor: int) -> None:
        """Have the thread make a pass when a descriptor is readable. Closing it ends that."""
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def wait(self, timeout: float | None) -> list[int]:
        """Sleep for `timeout` seconds at the most; return the descriptors that are ready."""
        return [descriptor for descriptor, _ in self._epoll.poll(timeout)]

    def take_unsupervised(self, ready: list[int]) -> list[LocalTask]:
        """Return the tasks of those ready descriptors whose supervisors ended; watch no more."""
        tasks = []
        for descriptor in ready:
            if descriptor == self._wakeup_fd:
                os.eventfd_read(self._wakeup_fd)
            elif descriptor in self._tasks_by_supervisor_fd:
                task = self._tasks_by_supervisor_fd[descriptor]
                self.unwatch(task)
                tasks.append(task)
        return tasks

    def watch(self, task: LocalTask, pid: int, start: int) -> bool:
        """Wake the thread when that process ends; return False if it has ended already."""
        descriptor = supervisor.open_pidfd(pid, start)
        if descriptor is None:
            return False
        task.supervisor_fd = descriptor
        self._tasks_by_supervisor_fd[descriptor] = task
        self._epoll.register(descriptor, select.EPOLLIN)
        return True

    def unwatch(self, task: LocalTask) -> None:
        """Watch the supervisor of a task no more; without a supervisor, do nothing."""
        descriptor, task.supervisor_fd = task.supervisor_fd, None
        if descriptor is None:
            return
        del self._tasks_by_supervisor_fd[descriptor]
        self._epoll.unregister(descriptor)
        os.close(descriptor)

    def unwatch_all(self) -> None:
        for task in list(self._tasks_by_supervisor_fd.values()):
            self.unwatch(task)
