"""Any DRMAA system by DRMAA alone: what it was told to run, and how each of these fares.

DRMAA cannot list. What is submitted is written down in the cluster's folder, and a poll asks the
library about each task that has not ended. Hence such a cluster proves no absence, knows nothing
of other people's jobs, and has as many processors as the site says.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec

from metasched.adapters.base import Submission, Withdrawal
from metasched.adapters.drmaa.job_script import build_job_script
from metasched.adapters.drmaa.session import DrmaaSession, JobExit
from metasched.adapters.errors import Refused, Unreachable
from metasched.model.cluster import Cluster, ClusterInfo, ManagerLicences, NodeCapacity, Partition
from metasched.model.job import Job, State
from metasched.model.listing import JobStatus, Listing
from metasched.model.stored_names import STORED_FIELDS

DEFAULT_PARTITION = "drmaa"  # the partition of jobs that ask for none

_WAITING_STATES = {"queued_active", "system_on_hold", "user_on_hold", "user_system_on_hold"}
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
    """Native specifications, put together in this order; an empty one says nothing.

    In them stand `{seconds}`, `{minutes}` and `{clock}` (H:MM:SS) of the time limit, `{cpus}`,
    `{tag}`, `{account}`, `{partition}` and `{licences}`, which are made of `licence`, one for each,
    with `{licence}` and `{count}`, and commas. ValueError if a name in braces is another.
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
        """The native specification of a task. Refused if something asked for cannot be said."""
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
            raise Refused("this cluster takes no gres, exclusive, qos, constraint or nodes")
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
        licences = (self.licence.format(**_licence_values(*item)) for item in job.licences.items())
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


class _TaskRecord(msgspec.Struct, rename=STORED_FIELDS["_TaskRecord"], frozen=True):
    """One task as it was last known; `native` None while its submission has no answer."""

    tag: str
    task: int
    cpus: int
    time_limit: float
    native_id: str | None = None
    state: State = State.PENDING
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    killed: bool = False  # we asked for its end,
    held: bool = False  # which came while a hold kept it from beginning
    licences: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DeclaredResources:
    """What the site says that there is, since DRMAA does not.

    Processors, the names of partitions that a job may ask for, and how many the manager counts of
    which licences.
    """

    cpus: int
    partitions: Sequence[str] = ()
    licences: Mapping[str, int] = field(default_factory=dict)


class GenericDrmaa:
    """One DRMAA system; its sizes, and templates for what DRMAA has no words for."""

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
        self._journal = folder / f"tasks-{instance}"
        self._tasks = {
            (record.tag, record.task): record
            for record in self._read_journal(time.time() - keep_seconds)
        }

    def submit(self, submission: Submission) -> dict[int, str]:
        """Queue each task as a job of its own; its intent is on disk before that."""
        native_ids: dict[int, str] = {}
        for index in submission.indices:
            specification = self._templates.fill(submission.job, submission.tag, submission.options)
            path = self._write_script(
                build_job_script(submission, index, self._cluster.name, {}), submission.tag, index
            )
            limit = submission.job.time_limit or submission.job.estimated
            record = _TaskRecord(
                submission.tag, index, submission.job.cpus, limit, licences=submission.job.licences
            )
            self._store_record(record)
            try:
                native_ids[index] = self._session.submit(
                    str(path), specification, f"{submission.tag}.{index}"
                )
            except Refused as refusal:
                self._store_record(replace(record, state=State.CANCELLED))
                if not native_ids:
                    raise
                accepted = f"{len(native_ids)} of {len(submission.indices)} tasks were taken"
                raise Unreachable(f"{accepted}, then: {refusal.reason}") from None
            self._store_record(replace(record, native_id=native_ids[index]))
        return native_ids

    def _write_script(self, wrapper: bytes, tag: str, index: int) -> Path:
        """The script as a file, which the hosts must see; it goes when the task has ended."""
        self._scripts.mkdir(mode=0o700, exist_ok=True)
        path = self._scripts / f"{tag}.{index}"
        path.write_bytes(wrapper)
        path.chmod(0o700)
        return path

    def withdraw_all(self, withdrawals: Sequence[Withdrawal]) -> None:
        """End tasks; for `unstarted` only those that DRMAA calls held after we held them."""
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
                if self._session.status(record.native_id) not in _WAITING_STATES - {
                    "queued_active"
                }:
                    if held:
                        self._session.control(record.native_id, "release")
                    continue
            self._store_record(replace(record, killed=True, held=withdrawal.only_pending))
            self._session.control(record.native_id, "terminate")

    def poll(self) -> Listing:
        self._session.open()  # what cannot be sent to does not answer
        polled_at = time.time()
        for key, record in list(self._tasks.items()):
            if record.native_id is not None and record.ended is None:
                self._update_record(record, record.native_id)
            elif record.ended is not None and record.ended < polled_at - self._keep_seconds:
                del self._tasks[key]
        live = [
            live_record
            for live_record in self._tasks.values()
            if live_record.native_id is not None and live_record.ended is None
        ]
        running = [
            live_record
            for live_record in live
            if live_record.state in (State.RUNNING, State.SUSPENDED)
        ]
        pending = [live_record for live_record in live if live_record.state is State.PENDING]
        used = sum(record.cpus for record in running)
        declared, used_licences = self._declared, Counter[str]()
        for record in running:
            used_licences.update(record.licences)
        nodes = (NodeCapacity(1, declared.cpus, max(0, declared.cpus - used)),)
        return Listing(
            taken=polled_at,
            since=polled_at,
            until=polled_at,
            rows=tuple(
                _job_status(record)
                for record in self._tasks.values()
                if record.native_id is not None
            ),
            info=ClusterInfo(
                cpus=declared.cpus,
                used_cpus=used,
                partitions=tuple(
                    Partition(name, nodes, default=name == DEFAULT_PARTITION, max_nodes=1)
                    for name in (DEFAULT_PARTITION, *declared.partitions)
                ),
                running_jobs=tuple(
                    sorted(
                        (
                            (live_record.started or polled_at) + live_record.time_limit,
                            live_record.cpus,
                        )
                        for live_record in running
                    )
                ),
                pending_jobs=len(pending),
                queue_head=(pending[0].cpus, pending[0].time_limit) if pending else None,
                licences={
                    licence: ManagerLicences(total, used_licences[licence])
                    for licence, total in declared.licences.items()
                },
            ),
        )

    def _update_record(self, record: _TaskRecord, native_id: str) -> None:
        """Ask how one task fares. What DRMAA no longer knows keeps its last word, as unknown."""
        drmaa_state = self._session.status(native_id)
        now = time.time()
        if drmaa_state in ("done", "failed"):
            self._record_end(record, native_id, now)
        else:
            state = _STATES.get(drmaa_state or "undetermined", State.UNKNOWN)
            has_started = state in (State.RUNNING, State.SUSPENDED)
            started = record.started or (now if has_started else None)
            if (state, started) != (record.state, record.started):
                self._store_record(replace(record, state=state, started=started))

    def _record_end(self, record: _TaskRecord, native_id: str, now: float) -> None:
        job_exit = self._session.job_exit(native_id)
        if job_exit is None and not record.held:
            self._store_record(replace(record, state=State.UNKNOWN))
            return
        # Of a job that ended before it began there is nothing to tell.
        job_exit = job_exit or JobExit(None, None, aborted=True)
        signal_number = getattr(signal, job_exit.signal, None) if job_exit.signal else None
        if job_exit.exit_code is not None:
            state = State.COMPLETED if job_exit.exit_code == 0 else State.FAILED
        else:
            state = State.CANCELLED if record.killed else State.FAILED
        started = record.started or (None if record.held and job_exit.aborted else now)
        ended_record = replace(
            record, state=state, started=started, ended=now, exit_code=job_exit.exit_code
        )
        self._store_record(
            replace(ended_record, signal=int(signal_number) if signal_number else None)
        )
        (self._scripts / f"{record.tag}.{record.task}").unlink(missing_ok=True)

    def _store_record(self, record: _TaskRecord) -> None:
        with self._journal.open("a") as file:
            file.write(msgspec.json.encode(record).decode() + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._tasks[(record.tag, record.task)] = record

    def _read_journal(self, oldest: float) -> Iterator[_TaskRecord]:
        if not self._journal.exists():
            return
        for line in self._journal.read_text().splitlines():
            try:
                record = msgspec.json.decode(line, type=_TaskRecord)
            except ValueError:  # the last line of one that was killed
                continue
            if record.ended is None or record.ended >= oldest:
                yield record

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
