"""`local`: a small, durable resource manager on this host, for real processes.

Its folder is the manager: whoever holds the folder's lock schedules, and jobs go on without it.

- `queue.db` (SQLite) holds what was submitted and how it ended.
- `jobs/<native id>/` is the decision to start that task. A supervisor (`supervisor.py` tells the
  life of this folder) claims it, runs it and leaves its end there; it is removed once the end is
  in the database. A folder without a claim may be handed to another supervisor at any time.
- `lock` lets one process in; `supervisor.log` is empty unless something went wrong.

So a crash between any two steps is harmless: `_look` finds out from the folder alone where a
started task stands. Queued tasks start in the order of `submitted - age*(priority - 1)`, chosen
by a policy of `policies/local/queueing.py` in a thread that sleeps until something happens.
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
from metasched.adapters.base import Adapter, Capabilities, Order, Withdrawal, task_variables
from metasched.adapters.errors import AdapterError, Refused, Unreachable
from metasched.adapters.launcher_client import Launcher, uid_of
from metasched.adapters.local.host import Nursery, read_record, share, spec_field
from metasched.model.arrays import parse_array
from metasched.model.cluster import Cluster, Facts, Nodes, Partition
from metasched.model.job import State
from metasched.model.listing import Listing, Row
from metasched.model.output_paths import filled, first_node
from metasched.model.tags import parse_tag
from metasched.policies.local import registry as named
from metasched.policies.local.queueing import Free, Policy, Running, Waiting

PARTITION = "local"
MEMORY = "MiB of memory"  # its name among the counted resources, no name of a gres
LAUNCHES = 3  # how often a supervisor may die before its claim until the task is given up
RETRY = 1.0  # seconds after an error of the system (a full disk) until the thread tries again
SAVE_DELAY = 0.2  # seconds of quiet until the ends of jobs are written to the database,
SAVE_MOST = 200  # or that many of them: a disk takes milliseconds for each transaction

SCHEMA = """
CREATE TABLE IF NOT EXISTS opened (first REAL NOT NULL, boot TEXT NOT NULL);  -- the last boot
CREATE TABLE IF NOT EXISTS orders (
    tag TEXT PRIMARY KEY, head BLOB NOT NULL, script BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS tasks (
    native INTEGER PRIMARY KEY AUTOINCREMENT,  -- so that no id is ever used twice
    tag TEXT NOT NULL, task INTEGER NOT NULL, needs TEXT NOT NULL,
    ended REAL, row TEXT,  -- both once it has ended
    UNIQUE (tag, task)
);
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Keys of `[[cluster]]` for `local`. ValueError if a number makes no sense.

    `cpus` processors (more than the host has, if you like), `memory` MiB (None: not counted,
    but a job over what it asked for is still ended), `gres` counts, `kill_wait` seconds between
    SIGTERM and SIGKILL, `keep` seconds that ended jobs stay listed, `max_time` seconds that any
    job may run, `default_time` seconds that a job without a limit is planned to take, `age`
    seconds of waiting that one step of priority is worth.
    """

    cpus: int
    memory: int | None = None
    gres: Mapping[str, int] = field(default_factory=dict)
    policy: str = named.DEFAULT
    kill_wait: float = 5.0
    keep: float = 86400.0
    max_time: float | None = None
    default_time: float = 3600.0
    age: float = 14400.0

    def __post_init__(self) -> None:
        for name, count in {"cpus": self.cpus, "memory": self.memory, **self.gres}.items():
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}; it must be 1 or more")
        named.make(self.policy)
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


class _Each(msgspec.Struct, frozen=True):
    """What of an order differs from task to task: its id and range, paths with patterns."""

    job: int
    array: str | None
    output: str
    error: str | None


class _Needs(msgspec.Struct, frozen=True):
    """What one task needs of the cluster, and its place in the queue: smaller is earlier."""

    cpus: int
    counts: dict[str, int]
    estimated: float
    limit: float | None
    key: float
    priority: int = 1
    deadline: float | None = None
    user: str = ""
    uid: int = 0  # of that account, in site mode
    licences: tuple[str, ...] = ()  # leased of the site's


@dataclass(slots=True, eq=False)
class _Task:
    native: int
    needs: _Needs
    row: Row
    ours: bool  # of this instance
    launched: float | None = None  # when it was decided to start it
    launches: int = 0
    devices: dict[str, list[int]] = field(default_factory=dict)
    watch: int | None = None  # pidfd of its supervisor
    waiting: Waiting = field(init=False)

    def __post_init__(self) -> None:
        needs = self.needs
        # the aged key is the time from which it waits: priorities count as waiting does
        self.waiting = Waiting(
            self.native,
            needs.cpus,
            needs.estimated,
            needs.counts,
            since=needs.key,
            deadline=needs.deadline,
            priority=needs.priority,
            user=needs.user,
            licences=needs.licences,
        )

    @property
    def place(self) -> tuple[float, int]:
        return self.needs.key, self.native

    @property
    def running(self) -> Running:
        begun = self.row.started or self.launched or 0.0
        needs = self.needs
        return Running(
            self.native, needs.cpus, begun + needs.estimated, needs.counts, user=needs.user
        )


class Local(Adapter):
    """This host as a cluster with one partition, `local`.

    Opened by the first call, which takes the folder's lock: Unreachable while another process
    has it. A tag that was submitted before is answered with its first ids and not queued again.
    Accounts, partitions, QOS and constraints mean nothing here and are ignored.
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
        launcher: Launcher | None = None,
    ) -> None:
        super().__init__(cluster, options, instance, folder, launcher)
        self.capabilities = self.able(options)  # type: ignore[misc]
        self._policy: Policy = named.make(options.policy)
        self._lock = threading.Lock()
        self._resources: ExitStack | None = None
        self._rho: Mapping[str, float] = {}
        self._stale = False  # the disk failed us half way: what is in memory may be wrong

    @classmethod
    def able(cls, options: LocalOptions) -> Capabilities:
        return Capabilities(gres=bool(options.gres), memory=options.memory is not None)

    def submit(self, order: Order) -> dict[int, str]:
        with self._entered():
            known = self._tags.get(order.tag)
            if known is not None:
                if not set(order.indices) <= known.keys():
                    raise Refused(f"tag {order.tag} is in use for other tasks")
                return {index: str(known[index].native) for index in order.indices}
            needs = self._needs(order)
            head, script = _head(order, self.cluster.name, needs, self.options), _script(order)
            with self._db:
                self._db.execute("INSERT INTO orders VALUES (?, ?, ?)", (order.tag, head, script))
                tasks = [self._insert(order.tag, index, needs) for index in order.indices]
            self._tags[order.tag] = {task.row.task: task for task in tasks}
            for task in tasks:
                self._tasks[task.native] = task
                insort(self._queue, task, key=lambda t: t.place)
            self._stir()
            return {task.row.task: task.row.native_id for task in tasks}

    def withdraw(self, withdrawal: Withdrawal) -> None:
        with self._entered():
            known = self._tags.get(withdrawal.tag, {})
            for index in withdrawal.natives:
                task = known.get(index)
                if task is not None and task.row.ended is None:
                    self._withdraw(task, withdrawal.unstarted)
            self._save()
            self._stir()

    def poll(self) -> Listing:
        with self._entered():
            now = time.time()
            self._forget(now - self.options.keep)
            for task in self._started.values():
                self._note_claim(task)
            head = self._queue[0] if self._queue else None
            return Listing(
                taken=now,
                since=max(self._born, now - self.options.keep),
                until=now,
                rows=tuple(
                    structs.replace(task.row, word="Resources") if task is head else task.row
                    for task in self._tasks.values()
                    if task.ours
                ),
                facts=self._facts(head),
            )

    def criticality(self, rho: Mapping[str, float]) -> None:
        with self._entered():
            if rho != self._rho:
                self._rho = rho
                self._stir()

    def close(self) -> None:
        with self._lock:
            resources, self._resources = self._resources, None
            if resources is None:
                return
            self._stir()
        self._thread.join()
        with resources, suppress(OSError, sqlite3.Error):  # the folders tell it to the next life
            if not self._stale:
                self._save()

    # Opening: one process, its database, what earlier ones left running, the thread.

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """The lock held and the folder open; what the system refuses becomes Unreachable."""
        with self._lock:
            try:
                if self._resources is None:
                    self._open()
                if self._stale:
                    self._load()
                yield
            except (OSError, sqlite3.Error) as error:
                self._stale = True
                raise Unreachable(f"{self.folder}: {error}") from error

    def _open(self) -> None:
        with ExitStack() as stack:
            lock = stack.enter_context(open(self.folder / "lock", "a+"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise Unreachable(
                    f"{self.folder} is in use by process {lock.read() or '?'}; "
                    "one at a time may hold a local cluster"
                ) from None
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            if not os.path.exists(f"/proc/self/task/{threading.get_native_id()}/children"):
                raise OSError("this kernel does not list children (CONFIG_PROC_CHILDREN)")
            self._jobs = self.folder / "jobs"
            self._jobs.mkdir(exist_ok=True)
            self._connect(stack)
            if self.launcher is not None:
                self._let_users_in()
            self._nurseries: dict[str, Nursery] = {}
            stack.callback(self._close_nurseries)
            self._epoll = stack.enter_context(select.epoll())
            self._bell = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # rung: a first pass
            stack.callback(os.close, self._bell)
            self._epoll.register(self._bell, select.EPOLLIN)
            self._watched: dict[int, _Task] = {}
            stack.callback(self._unwatch_all)
            self._load()
            self._resources = stack.pop_all()
        self._thread = threading.Thread(
            target=self._run, args=(self._resources,), name=f"local {self.folder}", daemon=True
        )
        self._thread.start()

    def _let_users_in(self) -> None:
        """Open the way to the jobs' folders to their owners; what lies on it is closed to them."""
        for path in self.folder.iterdir():
            if path.is_file():
                path.chmod(0o600)  # it may be from before users came this way
        self.folder.chmod(0o711)
        self._jobs.chmod(0o755)
        for folder in self.folder.parents:
            if not folder.stat().st_mode & 0o001:
                raise OSError(f"{folder} is closed to the owners of jobs; chmod o+x")
        if not os.path.exists("/proc/1/stat"):
            raise OSError("/proc hides other accounts' processes (hidepid); give us its gid")

    def _nursery_of(self, task: _Task) -> Nursery:
        owner = self._owner(task)
        if owner not in self._nurseries:
            errors = self.folder / "supervisor.log"
            self._nurseries[owner] = Nursery(errors, self.launcher, owner)
        return self._nurseries[owner]

    def _owner(self, task: _Task) -> str:
        """Whose account acts for a task; "": ours."""
        return "" if self.launcher is None else task.needs.user

    def _close_nurseries(self) -> None:
        for nursery in self._nurseries.values():
            nursery.close()

    def _connect(self, stack: ExitStack) -> None:
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

    def _load(self) -> None:
        """Know again what the disk knows."""
        self._db.rollback()
        self._unwatch_all()
        self._rubbish: list[Path] = []
        self._unsaved: list[_Task] = []
        self._born, boot = self._db.execute("SELECT first, boot FROM opened").fetchone()
        self._tasks: dict[int, _Task] = {}
        self._tags: dict[str, dict[int, _Task]] = {}
        for native, tag, index, needs, row in self._db.execute(
            "SELECT native, tag, task, needs, row FROM tasks ORDER BY native"
        ):
            wanted = msgspec.json.decode(needs, type=_Needs)
            task = _Task(
                native,
                wanted,
                msgspec.json.decode(row, type=Row)
                if row
                else _pending(tag, index, native, wanted.user),
                self._is_ours(tag),
            )
            self._tasks[native] = task
            self._tags.setdefault(tag, {})[index] = task
        self._adopt(same_boot=boot == supervisor.boot_id())
        with self._db:
            self._db.execute("UPDATE opened SET boot = ?", (supervisor.boot_id(),))
        self._stale = False

    def _adopt(self, same_boot: bool) -> None:
        """Sort what is in the database and the folders of jobs into queued and started.

        Of a folder from before a restart of the host only the claim and the end were certainly
        written; without a claim it never began, and nobody is left who could claim it.
        """
        self._free_cpus = self.options.cpus
        self._free = dict(self.options.gres)
        if self.options.memory is not None:
            self._free[MEMORY] = self.options.memory
        self._devices = _devices(self.options.gres)
        self._started: dict[int, _Task] = {}
        self._unattended: list[_Task] = []
        for folder in self._jobs.iterdir():
            task = self._tasks.get(int(folder.name)) if folder.name.isdecimal() else None
            decided = (folder / ("spec" if same_boot else "claim")).exists()
            if task is None or task.row.ended is not None or not decided:
                self._rubbish.append(folder)
                continue
            if same_boot:
                spec = supervisor.Spec((folder / "spec").read_bytes())
                task.devices = msgspec.json.decode(spec.devices, type=dict[str, list[int]])
            task.launched = time.time()
            self._take(task)
            self._unattended.append(task)
        self._discard()
        self._queue = sorted(
            (t for t in self._tasks.values() if t.row.ended is None and t.launched is None),
            key=lambda t: t.place,
        )
        # what an earlier life may have told as ended is told as running by none after it
        self._unattended = [task for task in self._unattended if self._look(task)]

    # What is asked for.

    def _needs(self, order: Order) -> _Needs:
        """Refused if this cluster can never run it."""
        job, payload, options = order.job, order.payload, self.options
        if order.options:
            raise Refused(f"native options {' '.join(order.options)!r}: a local cluster has none")
        if job.nodes is not None and job.nodes > 1:
            raise Refused(f"{job.nodes} nodes asked for; a local cluster is one")
        counts = dict(job.gres)
        memory = job.memory or (job.memory_per_cpu or 0) * job.cpus
        if memory and options.memory is not None:
            counts[MEMORY] = memory
        if job.cpus > options.cpus:
            raise Refused(f"{job.cpus} cpus asked for; the cluster has {options.cpus}")
        has = {MEMORY: options.memory, **options.gres}
        for name, need in counts.items():
            if need > (has.get(name) or 0):
                raise Refused(f"{need} {name} asked for; the cluster has {has.get(name) or 0}")
        limit = options.max_time if job.time_limit is None else job.time_limit
        if options.max_time is not None and limit is not None and limit > options.max_time:
            raise Refused(f"{limit:g} s asked for; the cluster's limit is {options.max_time:g} s")
        if self.launcher is not None:
            self.launcher.enter(job.user, payload.directory)
        elif not os.path.isdir(payload.directory):
            raise Refused(f"directory {payload.directory!r} does not exist")
        _check_texts(order, look=self.launcher is None)
        return _Needs(
            cpus=options.cpus if job.exclusive else job.cpus,
            counts=counts,
            estimated=job.time_limit or min(options.default_time, limit or math.inf),
            limit=limit,
            key=job.submitted - options.age * (order.priority - 1),
            priority=order.priority,
            deadline=job.deadline,
            user=job.user,
            uid=0 if self.launcher is None else uid_of(job.user),
            licences=order.leased,
        )

    def _insert(self, tag: str, index: int, needs: _Needs) -> _Task:
        native = self._db.execute(
            "INSERT INTO tasks (tag, task, needs) VALUES (?, ?, ?)",
            (tag, index, msgspec.json.encode(needs).decode()),
        ).lastrowid
        assert native is not None
        return _Task(native, needs, _pending(tag, index, native, needs.user), self._is_ours(tag))

    def _withdraw(self, task: _Task, unstarted: bool) -> None:
        folder = self._folder_of(task)
        # A supervisor may be on its way: whoever claims the folder first decides.
        if task.launched is None or supervisor.claim(str(folder), "state=cancelled\nword=\n"):
            self._finish(task, _unbegun(task.row, State.CANCELLED, ""))
        elif not unstarted:
            try:
                self._nursery_of(task).cancel(folder)
            except OSError as error:
                raise Unreachable(f"task {task.native}: {error}") from None

    # What is so.

    def _is_ours(self, tag: str) -> bool:
        return parse_tag(tag, self.instance) is not None

    def _facts(self, head: _Task | None) -> Facts:
        options = self.options
        nodes = Nodes(
            count=1,
            cpus=options.cpus,
            free_cpus=max(self._free_cpus, 0),
            memory=options.memory,
            free_memory=self._free.get(MEMORY),
            gres=dict(options.gres),
            free_gres={name: self._free[name] for name in options.gres},
        )
        partition = Partition(
            PARTITION,
            (nodes,),
            default=True,
            max_time=options.max_time,
            default_time=options.default_time,
            max_nodes=1,
        )
        return Facts(
            cpus=options.cpus,
            used=options.cpus - self._free_cpus,
            partitions=(partition,),
            running=tuple(sorted((t.running.end, t.needs.cpus) for t in self._started.values())),
            owed=sum(t.needs.cpus * t.needs.estimated for t in self._queue if not t.ours),
            pending=len(self._queue),
            head=None if head is None else (head.needs.cpus, head.needs.estimated),
        )

    def _note_claim(self, task: _Task) -> None:
        if task.row.started is not None:
            return
        claim = read_record(self._folder_of(task), "claim")
        if claim is not None and "pid" in claim:
            task.row = structs.replace(
                task.row,
                state=State.RUNNING,
                started=float(claim["time"]),
                node=socket.gethostname(),
                word="",
            )

    def _forget(self, before: float) -> None:
        old = [t for t in self._tasks.values() if t.row.ended is not None and t.row.ended < before]
        if not old:
            return
        self._save()
        with self._db:
            self._db.executemany("DELETE FROM tasks WHERE native = ?", [(t.native,) for t in old])
        for task in old:
            del self._tasks[task.native]
            del self._tags[task.row.tag][task.row.task]
            if not self._tags[task.row.tag]:
                del self._tags[task.row.tag]

    # The thread: what has ended is settled, what can start is started.

    def _stir(self) -> None:
        os.eventfd_write(self._bell, 1)

    def _run(self, mine: ExitStack) -> None:
        while True:
            ready = self._epoll.poll(SAVE_DELAY if self._unsaved else None)
            with self._lock:
                if self._resources is not mine:
                    return
                try:
                    if self._stale:
                        self._load()
                    for descriptor, _ in ready:
                        if descriptor == self._bell:
                            os.eventfd_read(self._bell)
                        elif descriptor in self._watched:
                            self._unattended.append(self._unwatch(descriptor))
                    self._attend()
                    self._schedule()
                    self._attend()
                    if not ready or len(self._unsaved) > SAVE_MOST:
                        self._save()
                    continue
                except (OSError, sqlite3.Error):
                    log.exception("%s: will be tried again", self.folder)
                    self._stale = True
                    self._stir()
            time.sleep(RETRY)

    def _schedule(self) -> None:
        """Decide what starts now; the decision is a job's folder with its `spec`."""
        if not self._queue or self._free_cpus <= 0:
            return
        now = time.time()
        chosen = self._policy.starts(
            now,
            [task.waiting for task in self._queue],
            [task.running for task in self._started.values()],
            Free(self._free_cpus, self._free, rho=self._rho),
        )
        for native, _ in chosen:
            task = self._tasks[native]
            task.devices = {
                name: self._devices[name][:count]
                for name, count in task.needs.counts.items()
                if name in self._devices
            }
            self._write_spec(task)
            task.launched = now
            self._take(task)
            self._unattended.append(task)
            self._queue.remove(task)

    def _write_spec(self, task: _Task) -> None:
        head, script = self._db.execute(
            "SELECT head, script FROM orders WHERE tag = ?", (task.row.tag,)
        ).fetchone()
        each, _, shared = head.partition(b"\0")
        own = _own(msgspec.json.decode(each, type=_Each), task.row.task)
        if gpus := sorted(i for devices in task.devices.values() for i in devices):
            own.append(
                spec_field("environment", f"CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))}")
            )
        own.append(b"devices=" + msgspec.json.encode(task.devices))
        folder = self._folder_of(task)
        folder.mkdir(mode=0o700, exist_ok=True)
        draft = folder / "spec.draft"
        draft.write_bytes(b"\0".join([shared, *own]) + b"\0\0" + script)
        if self.launcher is not None:
            draft.chmod(0o644)
        draft.rename(folder / "spec")

    def _attend(self) -> None:
        """Give every started task that is not watched a supervisor to watch, or its end."""
        while self._unattended:
            unclaimed = [task for task in self._unattended if self._look(task)]
            self._unattended = unclaimed
            if not unclaimed:
                return
            for _, some in groupby(sorted(unclaimed, key=self._owner), key=self._owner):
                self._launch(list(some))
            self._unattended = [task for task in unclaimed if task.watch is None]

    def _launch(self, tasks: list[_Task]) -> None:
        """Fork a supervisor for each of some tasks of one user."""
        for task in tasks:
            task.launches += 1
            if self.launcher is not None:
                # Not before its `spec` is there: we write no more where the owner may lay links.
                share(self._folder_of(task), task.needs.uid)
        try:
            born = self._nursery_of(tasks[0]).fork([self._folder_of(task) for task in tasks])
        except Unreachable as error:
            raise OSError(error.reason) from None
        except (OSError, Refused) as error:
            if self.launcher is None:
                raise  # ours to mend; a user's nursery may be against us, and is given up
            log.warning("%s: no supervisor for %s: %s", self.folder, tasks[0].needs.user, error)
            return
        for task, (pid, start) in zip(tasks, born, strict=True):
            self._watch(task, pid, start)

    def _look(self, task: _Task) -> bool:
        """Where a started task stands, from its folder alone; True if it needs a supervisor."""
        if task.row.ended is not None or task.watch is not None:
            return False
        folder = self._folder_of(task)
        claim = read_record(folder, "claim")
        if claim is None:
            if task.launches < LAUNCHES:
                return True
            word = f"no supervisor can be started: see {self.folder / 'supervisor.log'}"
            supervisor.claim(str(folder), f"state=node_fail\nword={word}\n")
            claim = read_record(folder, "claim") or {}
        if "state" in claim:  # we claimed it ourselves, perhaps in an earlier life
            self._finish(task, _unbegun(task.row, State(claim["state"]), claim["word"]))
            return False
        self._note_claim(task)
        same_boot = claim.get("boot") == supervisor.boot_id()
        if same_boot and self._watch(task, int(claim["pid"]), int(claim["start"])):
            return False
        end = read_record(folder, "ended")  # it is written before the supervisor leaves
        if not end:
            self._finish(task, self._lost(task, same_boot))
        else:
            self._finish(task, _ended(task.row, end))
        return False

    def _lost(self, task: _Task, same_boot: bool) -> Row:
        """Its supervisor died without a word: kill what is left of the job."""
        if same_boot:
            try:
                self._nursery_of(task).sweep(self._folder_of(task))
            except (OSError, AdapterError):
                log.exception("%s: what task %s left may still run", self.folder, task.native)
        word = "its supervisor was killed" if same_boot else "the host was restarted"
        return structs.replace(task.row, state=State.NODE_FAIL, ended=time.time(), word=word)

    def _finish(self, task: _Task, row: Row) -> None:
        """Note an end and give back what the task held.

        It may be saved later: until then the task's folder would tell the same to another life.
        """
        task.row = row
        self._unsaved.append(task)
        if task.launched is None:
            self._queue.remove(task)
        else:
            self._give_back(task)

    def _save(self) -> None:
        """Write the ends to the database, and only then remove the folders that told them."""
        if not self._unsaved:
            return
        with self._db:
            for task in self._unsaved:
                self._db.execute(
                    "UPDATE tasks SET ended = ?, row = ? WHERE native = ?",
                    (task.row.ended, msgspec.json.encode(task.row).decode(), task.native),
                )
                if all(other.row.ended for other in self._tags[task.row.tag].values()):
                    self._db.execute("DELETE FROM orders WHERE tag = ?", (task.row.tag,))
        self._rubbish += [self._folder_of(t) for t in self._unsaved if t.launched is not None]
        self._unsaved.clear()
        self._discard()

    def _discard(self) -> None:
        """Remove folders of which the database knows all that matters."""
        for folder in self._rubbish:
            # In one step, or a late supervisor could claim a folder that has lost its claim.
            gone = folder.with_suffix(".gone")
            with suppress(FileNotFoundError):
                folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        self._rubbish.clear()

    # Resources and watches.

    def _folder_of(self, task: _Task) -> Path:
        return self._jobs / str(task.native)

    def _take(self, task: _Task) -> None:
        self._started[task.native] = task
        self._free_cpus -= task.needs.cpus
        for name, amount in task.needs.counts.items():
            self._free[name] = self._free.get(name, 0) - amount
        for name, devices in task.devices.items():
            self._devices[name] = [d for d in self._devices.get(name, []) if d not in devices]

    def _give_back(self, task: _Task) -> None:
        del self._started[task.native]
        self._free_cpus += task.needs.cpus
        for name, amount in task.needs.counts.items():
            self._free[name] += amount
        for name, devices in task.devices.items():
            self._devices[name] = sorted([*self._devices[name], *devices])
        if task.watch is not None:
            self._unwatch(task.watch)

    def _watch(self, task: _Task, pid: int, start: int) -> bool:
        """Have the thread woken when that process ends; False if it is gone already."""
        descriptor = supervisor.process_handle(pid, start)
        if descriptor is None:
            return False
        task.watch = descriptor
        self._watched[descriptor] = task
        self._epoll.register(descriptor, select.EPOLLIN)
        return True

    def _unwatch(self, descriptor: int) -> _Task:
        task = self._watched.pop(descriptor)
        task.watch = None
        self._epoll.unregister(descriptor)
        os.close(descriptor)
        return task

    def _unwatch_all(self) -> None:
        for descriptor in list(self._watched):
            self._unwatch(descriptor)


def _pending(tag: str, index: int, native: int, owner: str) -> Row:
    return Row(tag, index, str(native), State.PENDING, word="Priority", owner=owner)


def _devices(gres: Mapping[str, int]) -> dict[str, list[int]]:
    """The indices of the GPUs of each kind ("gpu", "gpu:a100"), counted through all kinds."""
    indices: dict[str, list[int]] = {}
    first = 0
    for name, count in gres.items():
        if name.partition(":")[0] == "gpu":
            indices[name] = list(range(first, first + count))
            first += count
    return indices


def _head(order: Order, cluster: str, needs: _Needs, options: LocalOptions) -> bytes:
    """What the tasks of an order share: an `_Each`, then fields of `spec`."""
    job, payload = order.job, order.payload
    each = _Each(job.id, job.array, payload.output, payload.error)
    environment = order.environment(order.indices[0], cluster)
    environment["METASCHED_CPUS"] = str(needs.cpus)
    fields = [msgspec.json.encode(each)]
    fields += [spec_field("argument", text) for text in payload.arguments]
    fields += [spec_field("environment", f"{name}={text}") for name, text in environment.items()]
    fields.append(spec_field("directory", payload.directory))
    fields.append(spec_field("umask", str(payload.umask)))
    if needs.limit is not None:
        fields.append(spec_field("limit", repr(needs.limit)))
    memory = job.memory or (job.memory_per_cpu or 0) * job.cpus
    if memory:
        fields.append(spec_field("memory", str(memory)))
    fields.append(spec_field("kill_wait", repr(options.kill_wait)))
    return b"\0".join(fields)


def _own(each: _Each, index: int) -> list[bytes]:
    """The fields of `spec` that are a task's own; they come last, and the last one counts."""
    array = None if each.array is None else parse_array(each.array)
    variables = task_variables(each.job, array, index)
    fields = [spec_field("environment", f"{name}={value}") for name, value in variables.items()]
    node = first_node(socket.gethostname())
    for stream, path in (("output", each.output), ("error", each.error)):
        if path is not None:
            fields.append(spec_field(stream, filled(path, index, node)))
    return fields


def _script(order: Order) -> bytes:
    return order.payload.script.encode(errors="surrogateescape")


def _check_texts(order: Order, look: bool) -> None:
    """Refused if the kernel could never execute this payload; `look`: as this account sees it."""
    payload = order.payload
    first = payload.script.partition("\n")[0]
    if not first.startswith("#!"):
        raise Refused('the script does not begin with "#!" and an interpreter')
    interpreter = re.split("[ \t]", first[2:].strip(" \t"), maxsplit=1)[0]
    path = os.path.join(payload.directory, interpreter)
    there = not look or (os.path.isfile(path) and os.access(path, os.X_OK))
    if not (interpreter and there):
        raise Refused(f"the script's interpreter {interpreter!r} does not exist on this host")
    texts = [*payload.arguments, payload.output, payload.error or ""]
    if any("\0" in text for text in texts):
        raise Refused("a NUL character in an argument, a path or the environment")


def _unbegun(row: Row, state: State, word: str) -> Row:
    return structs.replace(row, state=state, ended=time.time(), word=word)


def _ended(row: Row, end: Mapping[str, str]) -> Row:
    return structs.replace(
        row,
        state=State(end["state"]),
        ended=float(end["time"]),
        exit_code=int(end["exit_code"]) if "exit_code" in end else None,
        signal=int(end["signal"]) if "signal" in end else None,
        cpu_seconds=float(end["cpu_seconds"]),
        max_memory=int(end["max_memory"]),
        word=end["word"],
    )
