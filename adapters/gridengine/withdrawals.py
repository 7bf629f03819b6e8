"""Withdrawal of tasks: hold, check and delete jobs, and a log of the requested deletions.

Grid Engine keeps no record of a job that is deleted while it waits. Each deletion is therefore
logged in the cluster's folder before it is requested.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import structs

from metasched.adapters.base import Withdrawal
from metasched.adapters.gridengine.commands import IDS_PER_COMMAND, CellCommands, id_lists
from metasched.adapters.gridengine.listing import OwnJobs, QstatJob, TaskKey
from metasched.adapters.gridengine.renamed_jobs import identify
from metasched.adapters.known_jobs import KnownJobs
from metasched.model.adapter_errors import Unreachable

_DELETED_MESSAGE = re.compile(r"has deleted job (\d+)")
_ALREADY_GONE_MESSAGE = re.compile(r"does not exist|already in deletion|has deleted|has registered")


class Deletion(msgspec.Struct, frozen=True):
    """A requested deletion of a job.

    A job in a reservation is deleted by Grid Engine at the reservation's end. If it runs then it is
    killed, and Grid Engine keeps no record of that.
    """

    tag: str
    task: int
    native_id: str
    requested_at: float  # epoch seconds
    held: bool = False  # the job was waiting under a hold, so it cannot start
    never_started: bool = False  # the qmaster confirmed that it deleted a waiting job
    owner: str = ""  # in site mode

    @property
    def key(self) -> TaskKey:
        return self.tag, self.task, self.owner


class DeletionLog:
    """A file of requested deletions, a JSON object per line; the last line of a task counts.

    Thread-safe.
    """

    def __init__(self, path: Path, keep: float) -> None:
        self._path, self._keep = path, keep
        self._lock = threading.Lock()
        self._by_task: dict[TaskKey, Deletion] = {}
        if path.exists():
            self.read(path)
            self._write("w", self._by_task.values())

    def read(self, path: Path) -> None:
        """Add the deletions of a file, if it exists, without those older than `keep`."""
        oldest = time.time() - self._keep
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                deletion = msgspec.json.decode(line, type=Deletion)
            except ValueError:  # cut off by a crash
                continue
            if deletion.requested_at >= oldest:
                self._by_task[deletion.key] = deletion

    def add(self, deletions: Iterable[Deletion]) -> None:
        """Append deletions."""
        added = list(deletions)
        with self._lock:
            self._write("a", added)
            self._by_task |= {deletion.key: deletion for deletion in added}

    def _write(self, mode: str, deletions: Iterable[Deletion]) -> None:
        with self._path.open(mode) as file:
            for deletion in deletions:
                file.write(msgspec.json.encode(deletion).decode() + "\n")

    def explains_end(self, key: TaskKey, ended: float) -> bool:
        """Return whether a requested deletion caused the end of a task at this time."""
        deletion = self._by_task.get(key)
        return deletion is not None and deletion.requested_at <= ended + 1

    def covers(self, repeated: Deletion) -> bool:
        """Return whether the log already proves as much as a repeated deletion would.

        The first request counts: the job may have ended by it while the second was being made. A
        held job stays unable to start, whatever happens to a second deletion.
        """
        deletion = self._by_task.get(repeated.key)
        if deletion is None or deletion.native_id != repeated.native_id:
            return False
        return deletion.held or not repeated.held

    def distrust(self, started: Iterable[TaskKey]) -> None:
        """Log that the deletions of tasks that have started are no proof of their end."""
        logged = [deletion for key in started if (deletion := self._by_task.get(key))]
        distrusted = [
            structs.replace(deletion, held=False, never_started=False)
            for deletion in logged
            if deletion.held or deletion.never_started
        ]
        if distrusted:
            self.add(distrusted)

    def drop_before(self, oldest: float) -> list[TaskKey]:
        """Drop deletions requested before `oldest`; return their tasks."""
        with self._lock:
            old = [key for key, deletion in self._by_task.items() if deletion.requested_at < oldest]
            for key in old:
                del self._by_task[key]
        return old

    def items(self) -> Iterable[tuple[TaskKey, Deletion]]:
        """Return the deletions by task."""
        with self._lock:
            return list(self._by_task.items())

    def proves_gone(self, key: TaskKey, now: float, lag: float) -> bool:
        """Return whether a task missing from listings has certainly ended without a start.

        Proof is the qmaster's confirmation. If its answer was lost, a hold is proof once the
        accounting has had `lag` seconds to report a start.
        """
        deletion = self._by_task.get(key)
        if deletion is None:
            return False
        return deletion.never_started or (deletion.held and now - deletion.requested_at > lag)


class JobDeletion:
    """Deletes the jobs of withdrawn tasks."""

    def __init__(self, commands: CellCommands, own_jobs: OwnJobs, deletions: DeletionLog) -> None:
        self._commands, self._own_jobs, self._deletions = commands, own_jobs, deletions

    def withdraw_all(self, withdrawals: Sequence[Withdrawal]) -> None:
        """End tasks of a user, found by tag in a new listing, never by native id alone.

        For `only_pending`: hold the jobs, list again, delete the jobs that wait under the hold.
        This excludes a start: a hold changes a job's version, and the qmaster discards orders to
        start an older version.
        """
        matching = self._find(withdrawals)
        user = withdrawals[0].user
        if not withdrawals[0].only_pending:
            self._delete(user, matching, held=False)
            return
        waiting = {job.id for job in matching.values() if job.never_started}
        if not waiting:
            return
        answers = [
            self._commands.run_as_owner(user, "hold", ids) for ids in id_lists(list(waiting))
        ]
        after_hold = {key: job for key, job in self._find(withdrawals).items() if job.id in waiting}
        still_waiting = {key: job for key, job in after_hold.items() if job.never_started}
        held = {key: job for key, job in still_waiting.items() if "h" in job.state}
        self._delete(user, held, held=True)
        started = [job.id for job in after_hold.values() if not job.never_started]
        for ids in id_lists(started):
            self._commands.run_as_owner(user, "release", ids)
        if len(held) < len(still_waiting):
            messages = "; ".join(a.error_message for a in answers if a.exit_code != 0)
            raise Unreachable(f"qhold: {messages or 'not held'}")

    def _find(self, withdrawals: Sequence[Withdrawal]) -> dict[TaskKey, QstatJob]:
        """List the live jobs of withdrawn tasks.

        A renamed job is one if this listing shows that it is the known job.
        """
        user = self._own_jobs.user or withdrawals[0].user
        owner = "" if self._own_jobs.user else user
        requested = {(w.tag, index, owner) for w in withdrawals for index in w.native_ids}
        listed = self._commands.list_jobs(user).jobs
        known = KnownJobs(
            {}, [structs.replace(j, owner=owner) for w in withdrawals for j in w.jobs]
        )
        jobs, _, _ = identify(self._commands, self._own_jobs, listed, known)
        return {key: job for key, job in jobs.items() if key in requested}

    def _delete(self, user: str, jobs: Mapping[TaskKey, QstatJob], held: bool) -> None:
        self._deletions.distrust(key for key, job in jobs.items() if job.was_rescheduled)
        deletions = [
            Deletion(tag, task, job.id, time.time(), held, owner=owner)
            for (tag, task, owner), job in jobs.items()
        ]
        self._deletions.add(d for d in deletions if not self._deletions.covers(d))
        # qdel removes a rescheduled job at once, too, though its former run may not have ended
        never_started = {job.id for job in jobs.values() if job.never_started}
        for start in range(0, len(deletions), IDS_PER_COMMAND):
            batch = deletions[start : start + IDS_PER_COMMAND]
            ids = ",".join(deletion.native_id for deletion in batch)
            answer = self._commands.run_as_owner(user, "cancel", ids)
            message = f"{answer.stdout}\n{answer.stderr}".strip()
            confirmed = never_started.intersection(_DELETED_MESSAGE.findall(message))
            self._deletions.add(
                structs.replace(deletion, never_started=True, requested_at=time.time())
                for deletion in batch
                if deletion.native_id in confirmed
            )
            lines = [line for line in message.splitlines() if line]
            if errors := [line for line in lines if not _ALREADY_GONE_MESSAGE.search(line)]:
                raise Unreachable(f"qdel: {'; '.join(errors)[:500]}")
