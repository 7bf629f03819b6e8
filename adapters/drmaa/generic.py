"""Any DRMAA system by DRMAA alone: what it was told to run, and how each of these fares.

DRMAA cannot list. What is submitted is written down in the cluster's folder, and a poll asks the
library about each task that has not ended. Hence such a cluster proves no absence, knows nothing
of other people's jobs, and has as many processors as the site says.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from metasched.adapters.base import Order, Withdrawal
from metasched.adapters.drmaa.job_script import script
from metasched.adapters.drmaa.session import Ended, Session
from metasched.adapters.errors import Refused, Unreachable
from metasched.model.cluster import Cluster, Copies, Facts, Nodes, Partition
from metasched.model.job import Job, State
from metasched.model.listing import Listing, Row

QUEUE = "drmaa"  # the partition of jobs that ask for none

_WAITS = {"queued_active", "system_on_hold", "user_on_hold", "user_system_on_hold"}
_STATES = {
    **dict.fromkeys(_WAITS, State.PENDING),
    "running": State.RUNNING,
    "system_suspended": State.SUSPENDED,
    "user_suspended": State.SUSPENDED,
    "user_system_suspended": State.SUSPENDED,
    "undetermined": State.UNKNOWN,
}


@dataclass(frozen=True, kw_only=True)
class Templates:
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
            sample = _licence("a", 1) if name == "licence" else values
            try:
                template.format(**sample)
            except (KeyError, IndexError, ValueError):
                known = ", ".join(f"{{{key}}}" for key in sample)
                raise ValueError(f"native {name} is {template!r}; it may hold {known}") from None

    def fill(self, job: Job, tag: str, options: tuple[str, ...]) -> str:
        """The native specification of a task. Refused if something asked for cannot be said."""
        wishes = {
            "time": job.time_limit is not None,
            "cpus": job.cpus > 1,
            "account": job.account is not None,
            "partition": job.partition is not None,
            "licences": bool(job.licences),
            "tag": bool(self.tag),
            "always": bool(self.always),
        }
        unsaid = (job.gres, job.exclusive, job.qos, job.constraint, job.nodes not in (None, 1))
        if any(unsaid):
            raise Refused("this cluster takes no gres, exclusive, qos, constraint or nodes")
        words = []
        for name, template in asdict(self).items():
            if wishes.get(name):
                if not template:
                    raise Refused(f"this cluster has no native template for {name}")
                words.append(template.format(**self._values(job, tag)))
        return " ".join([*words, *options])

    def _values(self, job: Job, tag: str) -> dict[str, object]:
        seconds = math.ceil(job.time_limit or 0)
        minutes, rest = divmod(seconds, 60)
        licences = (self.licence.format(**_licence(*item)) for item in job.licences.items())
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


def _licence(name: str, count: int) -> dict[str, object]:
    return {"licence": name, "count": count}


@dataclass(frozen=True)
class _Task:
    """One task as it was last known; `native` None while its submission has no answer."""

    tag: str
    task: int
    cpus: int
    limit: float
    native: str | None = None
    state: State = State.PENDING
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    killed: bool = False  # we asked for its end,
    held: bool = False  # which came while a hold kept it from beginning
    licences: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the site says that there is, since DRMAA does not.

    Processors, the names of partitions that a job may ask for, and how many the manager counts of
    which licences.
    """

    cpus: int
    partitions: Sequence[str] = ()
    licences: Mapping[str, int] = field(default_factory=dict)


class Generic:
    """One DRMAA system; its sizes, and templates for what DRMAA has no words for."""

    def __init__(
        self,
        cluster: Cluster,
        session: Session,
        templates: Templates,
        sizes: Sizes,
        keep: float,
        instance: str,
        folder: Path,
    ) -> None:
        self._cluster, self._session, self._templates = cluster, session, templates
        self._sizes, self._keep = sizes, keep
        self._scripts = folder / "scripts"
        self._journal = folder / f"tasks-{instance}"
        self._tasks = {(task.tag, task.task): task for task in self._read(time.time() - keep)}

    def submit(self, order: Order) -> dict[int, str]:
        """Queue each task as a job of its own; its intent is on disk before that."""
        natives: dict[int, str] = {}
        for index in order.indices:
            native = self._templates.fill(order.job, order.tag, order.options)
            path = self._store(script(order, index, self._cluster.name, {}), order.tag, index)
            limit = order.job.time_limit or order.job.estimated
            task = _Task(order.tag, index, order.job.cpus, limit, licences=order.job.licences)
            self._note(task)
            try:
                natives[index] = self._session.submit(str(path), native, f"{order.tag}.{index}")
            except Refused as refusal:
                self._note(replace(task, state=State.CANCELLED))
                if not natives:
                    raise
                taken = f"{len(natives)} of {len(order.indices)} tasks were taken"
                raise Unreachable(f"{taken}, then: {refusal.reason}") from None
            self._note(replace(task, native=natives[index]))
        return natives

    def _store(self, wrapper: bytes, tag: str, index: int) -> Path:
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
        for index in withdrawal.natives:
            task = self._tasks.get((withdrawal.tag, index))
            if task is None or task.native is None or task.ended is not None:
                continue
            if withdrawal.unstarted:
                if self._session.status(task.native) not in _WAITS:
                    continue
                held = self._session.control(task.native, "hold")
                if self._session.status(task.native) not in _WAITS - {"queued_active"}:
                    if held:
                        self._session.control(task.native, "release")
                    continue
            self._note(replace(task, killed=True, held=withdrawal.unstarted))
            self._session.control(task.native, "terminate")

    def poll(self) -> Listing:
        self._session.open()  # what cannot be sent to does not answer
        taken = time.time()
        for key, task in list(self._tasks.items()):
            if task.native is not None and task.ended is None:
                self._look(task, task.native)
            elif task.ended is not None and task.ended < taken - self._keep:
                del self._tasks[key]
        live = [t for t in self._tasks.values() if t.native is not None and t.ended is None]
        runs = [t for t in live if t.state in (State.RUNNING, State.SUSPENDED)]
        waits = [t for t in live if t.state is State.PENDING]
        used = sum(task.cpus for task in runs)
        sizes, taken_copies = self._sizes, Counter[str]()
        for task in runs:
            taken_copies.update(task.licences)
        nodes = (Nodes(1, sizes.cpus, max(0, sizes.cpus - used)),)
        return Listing(
            taken=taken,
            since=taken,
            until=taken,
            rows=tuple(_row(task) for task in self._tasks.values() if task.native is not None),
            facts=Facts(
                cpus=sizes.cpus,
                used=used,
                partitions=tuple(
                    Partition(name, nodes, default=name == QUEUE, max_nodes=1)
                    for name in (QUEUE, *sizes.partitions)
                ),
                running=tuple(sorted(((t.started or taken) + t.limit, t.cpus) for t in runs)),
                pending=len(waits),
                head=(waits[0].cpus, waits[0].limit) if waits else None,
                licences={n: Copies(c, taken_copies[n]) for n, c in sizes.licences.items()},
            ),
        )

    def _look(self, task: _Task, native: str) -> None:
        """Ask how one task fares. What DRMAA no longer knows keeps its last word, as unknown."""
        said = self._session.status(native)
        now = time.time()
        if said in ("done", "failed"):
            self._end(task, native, now)
        else:
            state = _STATES.get(said or "undetermined", State.UNKNOWN)
            begun = state in (State.RUNNING, State.SUSPENDED)
            started = task.started or (now if begun else None)
            if (state, started) != (task.state, task.started):
                self._note(replace(task, state=state, started=started))

    def _end(self, task: _Task, native: str, now: float) -> None:
        end = self._session.ended(native)
        if end is None and not task.held:
            self._note(replace(task, state=State.UNKNOWN))
            return
        # Of a job that ended before it began there is nothing to tell.
        end = end or Ended(None, None, aborted=True)
        number = getattr(signal, end.signal, None) if end.signal else None
        if end.exit_code is not None:
            state = State.COMPLETED if end.exit_code == 0 else State.FAILED
        else:
            state = State.CANCELLED if task.killed else State.FAILED
        began = task.started or (None if task.held and end.aborted else now)
        ran = replace(task, state=state, started=began, ended=now, exit_code=end.exit_code)
        self._note(replace(ran, signal=int(number) if number else None))
        (self._scripts / f"{task.tag}.{task.task}").unlink(missing_ok=True)

    def _note(self, task: _Task) -> None:
        with self._journal.open("a") as file:
            file.write(json.dumps(asdict(task)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._tasks[(task.tag, task.task)] = task

    def _read(self, oldest: float) -> Iterator[_Task]:
        if not self._journal.exists():
            return
        for line in self._journal.read_text().splitlines():
            try:
                found = json.loads(line)
                task = _Task(**{**found, "state": State(found["state"])})
            except (ValueError, TypeError, KeyError):  # the last line of one that was killed
                continue
            if task.ended is None or task.ended >= oldest:
                yield task

    def close(self) -> None:
        self._session.close()


def _row(task: _Task) -> Row:
    return Row(
        tag=task.tag,
        task=task.task,
        native_id=task.native or "",
        state=task.state,
        started=task.started,
        ended=task.ended,
        exit_code=task.exit_code,
        signal=task.signal,
    )
