"""Profile for any DRMAA system: submission, status and control by DRMAA alone.

DRMAA cannot list jobs. Submitted tasks are logged in the cluster's folder, and a poll queries the
status of each task that has not ended. Such a cluster therefore proves no absence and knows no
jobs of other users. Its number of processors is declared by the site.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec
from msgspec import structs

from metasched.adapters.base import Submission, Withdrawal
from metasched.adapters.drmaa.job_script import build_job_script
from metasched.adapters.drmaa.session import DrmaaSession, JobExit
from metasched.adapters.known_jobs import KnownJobs
from metasched.adapters.single_submissions import submit_each
from metasched.model.adapter_errors import Refused
from metasched.model.cluster import Cluster, ClusterInfo, ManagerLicences, NodeCapacity, Partition
from metasched.model.job import Job, State
from metasched.model.listing import JobStatus, Listing

DEFAULT_PARTITION = "drmaa"  # partition of jobs that request none

_HELD_STATES = {"system_on_hold", "user_on_hold", "user_system_on_hold"}
_WAITING_STATES = _HELD_STATES | {"queued_active"}
_STATES = {
    **dict.fromkeys(_WAITING_STATES, State.PENDING),
    "running": State.RUNNING,
    "system_suspended": State.SUSPENDED,
    "user_suspended": State.SUSPENDED,
    "user_system_suspended": State.SUSPENDED,
    "undetermined": State.UNKNOWN,
}


@dataclass(frozen=True, kw_only=True)
class NativeTemplates:
    """Templates of the native specification, joined in this order. An empty template adds nothing.

    Placeholders are `{seconds}`, `{minutes}` and `{clock}` (H:MM:SS) of the time limit, `{cpus}`,
    `{tag}`, `{account}`, `{partition}` and `{licences}`. The last is a comma-separated list of
    `licence`, filled with `{licence}` and `{count}` for each. ValueError for other placeholders.
    """

    always: str = ""
    time: str = ""
    cpus: str = ""
    tag: str = ""
    account: str = ""
    partition: str = ""
    licences: str = ""
    licence: str = "{licence}={count}"

    def __post_init__(self) -> None:
        values = self._values(Job(id=1, submitted=0.0, estimated=1.0, time_limit=1.0), "")
        for name, template in asdict(self).items():
            sample = _licence_values("a", 1) if name == "licence" else values
            try:
                template.format(**sample)
            except (KeyError, IndexError, ValueError):
                placeholders = ", ".join(f"{{{key}}}" for key in sample)
                raise ValueError(
                    f"native {name} is {template!r}; it may hold {placeholders}"
                ) from None

    def fill(self, job: Job, tag: str, options: tuple[str, ...]) -> str:
        """Return the native specification of a task. Refused if a request has no template."""
        requested = {
            "time": job.time_limit is not None,
            "cpus": job.cpus > 1,
            "account": job.account is not None,
            "partition": job.partition is not None,
            "licences": bool(job.licences),
            "tag": bool(self.tag),
            "always": bool(self.always),
        }
        unsupported = (job.gres, job.exclusive, job.qos, job.constraint, job.nodes not in (None, 1))
        if any(unsupported):
            raise Refused("this cluster accepts no gres, exclusive, qos, constraint or nodes")
        parts = []
        for name, template in asdict(self).items():
            if requested.get(name):
                if not template:
                    raise Refused(f"this cluster has no native template for {name}")
                parts.append(template.format(**self._values(job, tag)))
        return " ".join([*parts, *options])

    def _values(self, job: Job, tag: str) -> dict[str, object]:
        seconds = math.ceil(job.time_limit or 0)
        minutes, rest = divmod(seconds, 60)
        licences = (
            self.licence.format(**_licence_values(*tokens)) for tokens in job.licences.items()
        )
        return {
            "seconds": seconds,
            "minutes": math.ceil(seconds / 60),
            "clock": f"{minutes // 60}:{minutes % 60:02}:{rest:02}",
            "cpus": job.cpus,
            "tag": tag,
            "account": job.account,
            "partition": job.partition,
            "licences": ",".join(licences),
        }


def _licence_values(name: str, count: int) -> dict[str, object]:
    return {"licence": name, "count": count}


class _TaskRecord(msgspec.Struct, frozen=True):
    """The last known status of a task, in a journal file."""

    tag: str
    task: int
    cpus: int
    time_limit: float  # seconds
    native_id: str | None = None  # None until the submission is answered
    state: State = State.PENDING
    started: float | None = None  # epoch seconds
    ended: float | None = None  # epoch seconds
    exit_code: int | None = None
    signal: int | None = None
    killed: bool = False  # metasched requested its end
    held: bool = False  # it was held then, so it never started
    licences: Mapping[str, int] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DeclaredResources:
    """Resources declared by the site, since DRMAA reports none."""

    cpus: int
    partitions: Sequence[str] = ()  # names that a job may request
    licences: Mapping[str, int] = field(default_factory=dict)  # copies counted by the manager


def _journal(folder: Path, instance: str) -> Path:
    return folder / f"tasks-{instance}"


class GenericDrmaa:
    """A DRMAA system with declared resources and templates for requests outside DRMAA."""

    def __init__(
        self,
        cluster: Cluster,
        session: DrmaaSession,
        templates: NativeTemplates,
        declared: DeclaredResources,
        keep_seconds: float,
        instance: str,
        folder: Path,
    ) -> None:
        self._cluster, self._session, self._templates = cluster, session, templates
        self._declared, self._keep_seconds = declared, keep_seconds
        self._scripts = folder / "scripts"
        self._folder, self._journal = folder, _journal(folder, instance)
        self._tasks: dict[tuple[str, int], _TaskRecord] = {}
        self._read_journal(self._journal)

    def add_former_instances(self, names: frozenset[str]) -> None:
        """Follow the tasks of former instances, too; see `Adapter.add_former_instances`."""
        for name in sorted(names):
            self._read_journal(_journal(self._folder, name))
        self._read_journal(self._journal)  # has newer records of the same tasks

    def submit(self, submission: Submission) -> dict[int, str]:
        """Queue each task as a job of its own; its record is on disk before that."""
        job, tag = submission.job, submission.tag

        def submit(index: int) -> str:
            specification = self._templates.fill(job, tag, submission.options)
            script = build_job_script(submission, index, self._cluster.name, {})
            path = self._write_script(script, tag, index)
            time_limit = job.time_limit or job.estimated
            record = _TaskRecord(tag, index, job.cpus, time_limit, licences=job.licences)
            self._store_record(record)
            try:
                native_id = self._session.submit(str(path), specification, f"{tag}.{index}")
            except Refused:
                self._store_record(structs.replace(record, state=State.CANCELLED))
                raise
            self._store_record(structs.replace(record, native_id=native_id))
            return native_id

        return submit_each(submission.indices, submit, {})

    def _write_script(self, script: bytes, tag: str, index: int) -> Path:
        """Write the job script, which all hosts must see. It is removed when the task has ended."""
        self._scripts.mkdir(mode=0o700, exist_ok=True)
        path = self._scripts / f"{tag}.{index}"
        path.write_bytes(script)
        path.chmod(0o700)
        return path

    def withdraw_all(self, withdrawals: Sequence[Withdrawal]) -> None:
        """End tasks; for `only_pending` only tasks that DRMAA reports held after a hold."""
        for withdrawal in withdrawals:
            self._withdraw(withdrawal)

    def _withdraw(self, withdrawal: Withdrawal) -> None:
        for index in withdrawal.native_ids:
            record = self._tasks.get((withdrawal.tag, index))
            if record is None or record.native_id is None or record.ended is not None:
                continue
            if withdrawal.only_pending:
                if self._session.status(record.native_id) not in _WAITING_STATES:
                    continue
                held = self._session.control(record.native_id, "hold")
                if self._session.status(record.native_id) not in _HELD_STATES:
                    if held:
                        self._session.control(record.native_id, "release")
                    continue
            self._store_record(structs.replace(record, killed=True, held=withdrawal.only_pending))
            self._session.control(record.native_id, "terminate")

    def poll(self, _: KnownJobs) -> Listing:
        """Query the status of every task that has not ended, by the native ids in its journal."""
        self._session.open()  # without a session nothing can be submitted
        polled_at = time.time()
        for key, record in list(self._tasks.items()):
            if record.native_id is not None and record.ended is None:
                self._update_record(record, record.native_id)
            elif record.ended is not None and record.ended < polled_at - self._keep_seconds:
                del self._tasks[key]
        submitted = [task for task in self._tasks.values() if task.native_id is not None]
        return Listing(
            taken=polled_at,
            since=polled_at,
            until=polled_at,
            rows=tuple(_job_status(task) for task in submitted),
            info=self._info([task for task in submitted if task.ended is None], polled_at),
        )

    def _info(self, live: Sequence[_TaskRecord], polled_at: float) -> ClusterInfo:
        """Return declared and used resources; `live` are the tasks that have not ended."""
        declared, used_licences = self._declared, Counter[str]()
        running = [task for task in live if task.state in (State.RUNNING, State.SUSPENDED)]
        pending = [task for task in live if task.state is State.PENDING]
        used = sum(task.cpus for task in running)
        for task in running:
            used_licences.update(task.licences)
        ends = ((task.started or polled_at) + task.time_limit for task in running)
        nodes = (NodeCapacity(1, declared.cpus, max(0, declared.cpus - used)),)
        return ClusterInfo(
            cpus=declared.cpus,
            used_cpus=used,
            partitions=tuple(
                Partition(name, nodes, default=name == DEFAULT_PARTITION, max_nodes=1)
                for name in (DEFAULT_PARTITION, *declared.partitions)
            ),
            running_jobs=tuple(
                sorted((end, task.cpus) for end, task in zip(ends, running, strict=True))
            ),
            pending_jobs=len(pending),
            queue_head=(pending[0].cpus, pending[0].time_limit) if pending else None,
            licences={
                name: ManagerLicences(total, used_licences[name])
                for name, total in declared.licences.items()
            },
        )

    def _update_record(self, record: _TaskRecord, native_id: str) -> None:
        """Query the status of a task. A task unknown to DRMAA keeps its data, in state unknown."""
        drmaa_state = self._session.status(native_id)
        now = time.time()
        if drmaa_state in ("done", "failed"):
            self._record_end(record, native_id, now)
        else:
            state = _STATES.get(drmaa_state or "undetermined", State.UNKNOWN)
            has_started = state in (State.RUNNING, State.SUSPENDED)
            started = record.started or (now if has_started else None)
            if (state, started) != (record.state, record.started):
                self._store_record(structs.replace(record, state=state, started=started))

    def _record_end(self, record: _TaskRecord, native_id: str, now: float) -> None:
        """Record the end of a task and remove its script."""
        job_exit = self._session.job_exit(native_id)
        if job_exit is None and not record.held:
            self._store_record(structs.replace(record, state=State.UNKNOWN))
            return
        # DRMAA reports nothing of a job that ended before its start
        job_exit = job_exit or JobExit(None, None, aborted=True)
        signal_number = getattr(signal, job_exit.signal, None) if job_exit.signal else None
        if job_exit.exit_code is not None:
            state = State.COMPLETED if job_exit.exit_code == 0 else State.FAILED
        else:
            state = State.CANCELLED if record.killed else State.FAILED
        started = record.started or (None if record.held and job_exit.aborted else now)
        self._store_record(
            structs.replace(
                record,
                state=state,
                started=started,
                ended=now,
                exit_code=job_exit.exit_code,
                signal=int(signal_number) if signal_number else None,
            )
        )
        (self._scripts / f"{record.tag}.{record.task}").unlink(missing_ok=True)

    def _store_record(self, record: _TaskRecord) -> None:
        """Append a record to the journal, durably."""
        with self._journal.open("a") as file:
            file.write(msgspec.json.encode(record).decode() + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._tasks[(record.tag, record.task)] = record

    def _read_journal(self, path: Path) -> None:
        """Read the records of tasks that have not ended longer than `keep_seconds` ago."""
        oldest = time.time() - self._keep_seconds
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                record = msgspec.json.decode(line, type=_TaskRecord)
            except ValueError:  # cut off by a crash
                continue
            if record.ended is None or record.ended >= oldest:
                self._tasks[record.tag, record.task] = record

    def close(self) -> None:
        self._session.close()


def _job_status(record: _TaskRecord) -> JobStatus:
    return JobStatus(
        tag=record.tag,
        task=record.task,
        native_id=record.native_id or "",
        state=record.state,
        started=record.started,
        ended=record.ended,
        exit_code=record.exit_code,
        signal=record.signal,
    )
