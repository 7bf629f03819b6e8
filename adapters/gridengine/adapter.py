"""Grid Engine: DRMAA to submit and to hold, its own commands where DRMAA falls short.

A task is one job; its name (and account) carries the tag. `qstat` lists what lives, the
accounting what ran and ended. Grid Engine keeps no record at all of a job that is deleted while
it waits: what we delete is written down in the cluster's folder before it is asked for.

What has been found out about Grid Engine, and rests on its word only, is tested in tests/real.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from msgspec import structs

from metasched.adapters.base import Order, Withdrawal
from metasched.adapters.commands import Answer, memory_file, run
from metasched.adapters.drmaa.job_script import script
from metasched.adapters.drmaa.session import Session
from metasched.adapters.errors import Refused, Unreachable
from metasched.adapters.gridengine import cluster_info
from metasched.adapters.gridengine import listing as text
from metasched.adapters.gridengine import submission as batch
from metasched.adapters.gridengine.accounting import Accounting
from metasched.adapters.gridengine.reservation_listing import Kept, Listed, Memory, Rules
from metasched.adapters.gridengine.reservations import Reservations
from metasched.adapters.launcher_client import Launcher
from metasched.model.cluster import Cluster
from metasched.model.job import State
from metasched.model.listing import Listing, Row
from metasched.model.survey import Survey, Window

_BEGUN = (State.RUNNING, State.SUSPENDED)
_IDS_PER_CALL = 500
_REFRESH = 60.0  # seconds between looks at the cell's own configuration
_HOSTS_PER_POLL = 100  # that are asked what they have in all: a command each
_DELETED = re.compile(r"has deleted job (\d+)")
_REGISTERED = re.compile(r"has registered the job (\d+) for deletion")
# What qsub says when the qmaster, or qsub itself, has certainly taken nothing.
_REFUSED = re.compile(
    r"denied|no suitable queues|Unknown option|unknown resource|Invalid |ERROR! |error parsing"
    r"|does not exist|not allowed"
    r"|Unable to run job: (?!.*(timeout|unreachable|communication|reading answer))"
)
_ABSENT = re.compile(r"does not exist|already in deletion|has deleted|has registered")

T = TypeVar("T")
Key = tuple[str, int, str]  # tag, task, and in site mode its owner

_PROGRAMS = {
    "submit": ("qsub",),
    "cancel": ("qdel",),
    "hold": ("qhold", "-h", "u"),
    "release": ("qrls", "-h", "u"),
}
_SUBMITTED = re.compile(r"^Your job (\d+) ", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class CellSettings:
    """What a site says of its cell; see `DrmaaOptions`."""

    bin_dir: str | None
    parallel_environment: str
    memory: str | None
    default_time: float
    timeout: float
    settle: float
    keep: float


@dataclass(frozen=True)
class _Cell:
    """The cell's own configuration at the time `read` (monotonic)."""

    read: float
    limits: Mapping[str, text.Limits]
    known: Mapping[str, text.Complex]
    delay: float
    offset: float  # seconds for which a job keeps its slots after its limit
    tokens: Mapping[str, float]  # consumables of the whole cell


@dataclass(frozen=True)
class _Wish:
    """A deletion: `asked` for at this time, while the job waited `held` (or not).

    `never_began`: the qmaster said that it deleted the job on the spot, so that it never ran. A job
    in a reservation is deleted at its end, after which it cannot begin either; if it runs it is
    killed then, of which Grid Engine keeps no record.
    """

    tag: str
    task: int
    native: str
    asked: float
    held: bool = False
    never_began: bool = False
    owner: str = ""

    @property
    def key(self) -> Key:
        return self.tag, self.task, self.owner


def _within(order: Order, kept: Kept, now: float) -> Order:
    """An order of which the limit is in its reservation: who begins late has what is left."""
    if (left := kept.left(now)) < 1:
        raise Refused(f"advance reservation {kept.id} is over", again=True)
    limit = order.job.time_limit
    return structs.replace(order, job=replace(order.job, time_limit=min(limit or left, left)))


class GridEngine:
    """One Grid Engine cell."""

    def __init__(
        self,
        cluster: Cluster,
        session: Session,
        settings: CellSettings,
        instance: str,
        folder: Path,
        launcher: Launcher | None = None,
    ) -> None:
        self._cluster, self._session, self._settings = cluster, session, settings
        self._launcher = launcher
        self._instance = instance
        self._user = pwd.getpwuid(os.geteuid()).pw_name
        self._environment = {
            **{name: value for name, value in os.environ.items() if name.startswith("SGE_")},
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
        }
        cell = Path(os.environ.get("SGE_ROOT", "/"), os.environ.get("SGE_CELL", "default"))
        self._accounting = Accounting(cell / "common" / "accounting", f":ms-{instance}-")
        self._wishes = _Wishes(folder / f"deleted-{instance}", settings.keep)
        self._reservations = Reservations(
            self._run, self._user, instance, settings.parallel_environment
        )
        self._cell: _Cell | None = None
        self._live: dict[Key, Row] = {}  # the last word of qstat on each that has no end yet
        self._gone: dict[Key, float] = {}  # when qstat first lacked it
        self._records: dict[Key, text.Record] = {}
        self._totals: dict[str, Mapping[str, float]] = {}  # of each host, the oldest first
        self._looks: deque[float] = deque()  # times of past listings by qstat

    def submit(self, order: Order) -> dict[int, str]:
        """Queue each task as a job of its own, in the order of the indices.

        A refusal after some were taken is Unreachable: these are found by the tag, the others
        proved absent.
        """
        settings, natives = self._settings, dict[int, str]()
        within = self._reservations.find(order.reservation) if order.reservation else None
        for index in order.indices:
            try:
                native = batch.native(
                    order if within is None else _within(order, within, time.time()),
                    index,
                    settings.parallel_environment,
                    settings.memory,
                    self._configuration().known,
                    within,
                )
                wrapper = script(order, index, self._cluster.name, text.HIDDEN_CODES)
                natives[index] = self._queue(order, index, native, wrapper)
                if within is not None:
                    owner = order.job.user if self._launcher else ""
                    end = _Wish(order.tag, index, natives[index], within.end, True, owner=owner)
                    self._wishes.add([end])
            except Refused as refusal:
                if not natives:
                    raise
                taken = f"{len(natives)} of {len(order.indices)} tasks were taken"
                raise Unreachable(f"{taken}, then: {refusal.reason}") from None
        return natives

    def _queue(self, order: Order, index: int, native: str, wrapper: bytes) -> str:
        """One job, by DRMAA or, as one session is one account's, by the owner's qsub."""
        name = text.mark(order.tag, index)
        if self._launcher is None:
            with memory_file(wrapper) as file:
                return self._session.submit(f"/proc/self/fd/{file}", native, name)
        words = ("-N", name, "-wd", "/", "-o", "/dev/null", "-j", "y", *native.split())
        with memory_file(wrapper) as file:
            answer = self._launcher.run(
                order.job.user,
                "submit",
                words,
                self._settings.timeout,
                directory=order.payload.directory,
                stdin=file,
            )
        if found := _SUBMITTED.search(answer.out):
            return found[1]
        if answer.code and _REFUSED.search(answer.err):
            raise Refused(answer.complaint)
        raise Unreachable(f"qsub: {answer.complaint}")

    def withdraw_all(self, withdrawals: Sequence[Withdrawal]) -> None:
        """End tasks, chosen by their tag in a listing of this moment, never by native id alone.

        For `unstarted`: hold, look again, delete what waits and is held. A hold changes the
        job's version, and the qmaster throws away orders to start an older version.
        """
        found = self._find(withdrawals)
        user = withdrawals[0].user
        if not withdrawals[0].unstarted:
            self._delete(user, found, held=False)
            return
        waiting = {job.id for job in found.values() if job.waits and "R" not in job.state}
        if not waiting:
            return
        answers = [self._act(user, "hold", ids) for ids in _joined(waiting)]
        after = {key: job for key, job in self._find(withdrawals).items() if job.id in waiting}
        held = {k: job for k, job in after.items() if job.waits and "h" in job.state}
        self._delete(user, held, held=True)
        begun = [job.id for job in after.values() if not job.waits]
        for ids in _joined(begun):
            self._act(user, "release", ids)
        if any(job.waits and "h" not in job.state for job in after.values()):
            said = "; ".join(answer.complaint for answer in answers if answer.code != 0)
            raise Unreachable(f"qhold: {said or 'not held'}")

    def _find(self, withdrawals: Sequence[Withdrawal]) -> dict[Key, text.Job]:
        """Our jobs that carry one of these tags, live, and are asked for."""
        user = self._user if self._launcher is None else withdrawals[0].user
        owner = "" if self._launcher is None else user
        wanted = {(one.tag, index, owner) for one in withdrawals for index in one.natives}
        return {k: job for k, job in self._ours(self._qstat(user)).items() if k in wanted}

    def _key(self, name: str, owner: str) -> Key | None:
        """What a job is of ours by its name and owner; None if it is not."""
        mark = text.read_mark(name, self._instance)
        if mark is None:
            return None
        if self._launcher is not None:
            return *mark, owner
        return (*mark, "") if owner == self._user else None

    def _ours(self, jobs: Iterable[text.Job]) -> dict[Key, text.Job]:
        keyed = ((self._key(job.name, job.owner), job) for job in jobs)
        return {key: job for key, job in keyed if key is not None}

    def _delete(self, user: str, jobs: Mapping[Key, text.Job], held: bool) -> None:
        wishes = [
            _Wish(tag, task, job.id, time.time(), held and job.waits, owner=owner)
            for (tag, task, owner), job in jobs.items()
        ]
        self._wishes.add(wish for wish in wishes if not self._wishes.stands(wish))
        for start in range(0, len(wishes), _IDS_PER_CALL):
            some = wishes[start : start + _IDS_PER_CALL]
            answer = self._act(user, "cancel", ",".join(wish.native for wish in some))
            said = f"{answer.out}\n{answer.err}".strip()
            deleted = set(_DELETED.findall(said))
            self._wishes.add(
                [
                    replace(wish, never_began=True, asked=time.time())
                    for wish in some
                    if wish.native in deleted
                ]
            )
            others = [line for line in said.splitlines() if line and not _ABSENT.search(line)]
            if others:
                raise Unreachable(f"qdel: {'; '.join(others)[:500]}")

    def poll(self) -> Listing:
        """Three commands and what the accounting has grown by, whatever the number of jobs.

        While there are reservations some more (`Reservations.seen`).

        The accounting is read after qstat: a job that ended in between is in one of them.
        """
        taken = time.time()
        cell = self._configuration()
        listed = self._qstat("*")
        if self._launcher is None:
            # What cannot be sent to does not answer. Now, since it may hang if the qmaster does.
            self._session.open()
        hosts, tokens = self._read(
            lambda xml: (text.hosts(xml), text.tokens(xml, cell.tokens)),
            *("qhost", "-xml", "-q", "-F"),
        )
        try:
            news = self._accounting.news()
        except ValueError as error:
            raise Unreachable(f"the accounting cannot be read: {error}") from None
        for record in news:
            key = self._key(record.name, record.owner)
            if key is not None and record.started:
                self._records[key] = record
        totals = self._totals_of([host.name for host in hosts], cell.known)
        seen = self._reservations.seen(Listed(listed, hosts, taken, self._rules(totals)))
        lag = cell.delay + self._settings.settle
        ours = self._ours(listed)
        rows = self._rows(ours, taken, lag)
        facts = cluster_info.facts(
            listed,
            seen.hosts,
            cell.limits,
            totals,
            self._settings.memory,
            {job.id for job in ours.values()},
            taken,
            self._settings.default_time,
            seen.awaiting,
        )
        return Listing(
            taken=taken,
            since=self._since(taken),
            until=self._until(taken, lag),
            rows=tuple(rows),
            facts=structs.replace(facts, licences=tokens, coming=seen.coming),
        )

    def survey(self) -> Survey:
        return self._reservations.survey(self._listed("*"))

    def reserve(self, window: Window) -> None:
        listed = self._listed(window.user)
        self._reservations.reserve(window, replace(listed, taken=time.time()))

    def unreserve(self, name: str) -> None:
        self._reservations.unreserve(name, self._qstat("*"))

    def _rows(self, ours: Mapping[Key, text.Job], taken: float, lag: float) -> list[Row]:
        """Each task once: its end if that is known, else what qstat says or said last."""
        self._forget(taken)
        ended = {}
        for key, record in self._records.items():
            job = ours.get(key)
            again = job is not None and (job.waits or "R" in job.state)
            killed = self._wishes.killed(key, record.ended)
            row = None if again else text.ended_row(record, *key[:2], killed=killed)
            if row is not None:
                before = self._live.get(key)
                began = before.started if before and before.native_id == row.native_id else None
                # execd and qmaster disagree by a second on when it began; keep what was told
                started = min(began or row.started or 0, row.ended or 0)
                ended[key] = structs.replace(row, started=started, owner=key[2])
        live = {}
        for key, job in ours.items():
            if key not in ended:
                live[key] = structs.replace(text.live_row(job, *key[:2]), owner=key[2])
                self._gone.pop(key, None)
        for key, row in self._live.items():
            if key in ours or key in ended:
                continue
            gone = self._gone.setdefault(key, taken)
            if taken - gone <= lag and not self._wishes.fulfilled(key, taken, lag):
                live[key] = row
        self._gone = {key: gone for key, gone in self._gone.items() if key in live}
        for key, wish in self._wishes.items():
            if key not in ours and key not in ended and self._wishes.fulfilled(key, taken, lag):
                before, earlier = self._live.get(key), self._records.get(key)
                ran = earlier or before  # if it was queued again
                killed = before is not None and before.state in _BEGUN and not wish.never_began
                ended[key] = Row(
                    tag=wish.tag,
                    task=wish.task,
                    native_id=wish.native,
                    state=State.TIMEOUT if killed else State.CANCELLED,
                    started=ran.started if ran else None,
                    ended=wish.asked,
                    word="its reservation ended" if killed else "deleted while it waited",
                    owner=wish.owner,
                )
        self._live = live | {k: self._live[k] for k in ended if k in self._live}
        return [*live.values(), *ended.values()]

    def _forget(self, taken: float) -> None:
        oldest = taken - self._settings.keep
        for key in [k for k, record in self._records.items() if record.ended < oldest]:
            del self._records[key]
            self._live.pop(key, None)
        for key in self._wishes.forget(oldest):
            self._live.pop(key, None)

    def _since(self, taken: float) -> float:
        since = self._accounting.since
        return taken if since is None else max(since, taken - self._settings.keep)

    def _until(self, taken: float, lag: float) -> float:
        """The last listing by qstat whose endings the accounting must hold by now.

        What had reached the qmaster by then was in that listing (and is told for as long as it
        has no end), or had ended, and its end is written after `lag` seconds.
        """
        self._looks.append(taken)
        while len(self._looks) > 1 and self._looks[1] <= taken - lag:
            self._looks.popleft()
        first = self._looks[0]
        return first - self._settings.settle if first <= taken - lag else 0.0

    def _configuration(self) -> _Cell:
        if self._cell is None or time.monotonic() - self._cell.read > _REFRESH:
            known = self._read(text.complexes, "qconf", "-sc")
            everywhere = self._run("qconf", "-se", "global")  # a cell may have none
            self._cell = _Cell(
                read=time.monotonic(),
                limits=self._read(text.queues, "qconf", "-sq", "*"),
                known=known,
                delay=self._read(text.accounting_delay, "qconf", "-sconf"),
                offset=self._read(text.duration_offset, "qconf", "-ssconf"),
                tokens=text.totals(everywhere.out, known) if everywhere.code == 0 else {},
            )
        return self._cell

    def _totals_of(
        self, hosts: Sequence[str], known: Mapping[str, text.Complex]
    ) -> Mapping[str, Mapping[str, float]]:
        """What each host has in all, as far as asked: the new ones first, else the oldest again."""
        for gone in self._totals.keys() - set(hosts):
            del self._totals[gone]
        new = [host for host in hosts if host not in self._totals]
        for host in new[:_HOSTS_PER_POLL] or [*self._totals][:1]:
            self._totals.pop(host, None)
            self._totals[host] = self._read(
                lambda said: text.totals(said, known), "qconf", "-se", host
            )
        return self._totals

    def _listed(self, user: str) -> Listed:
        """The jobs of a user; where memory counts all hosts are asked what they have of it."""
        taken = time.time()
        jobs, hosts = self._qstat(user), self._hosts()
        names, known = [host.name for host in hosts], self._configuration().known
        while self._memory and not self._totals.keys() >= {*names}:
            self._totals_of(names, known)
        return Listed(jobs, hosts, taken, self._rules(self._totals))

    @property
    def _memory(self) -> str:
        """The consumable that counts memory for each slot, if any does."""
        known = self._configuration().known
        name = self._settings.memory or ""
        return name if name in known and known[name].consumable == "YES" else ""

    def _rules(self, totals: Mapping[str, Mapping[str, float]]) -> Rules:
        cell, memory = self._configuration(), Memory()
        if name := self._memory:
            has = {host: had[name] for host, had in totals.items() if name in had}
            given = [queue.memory[name] for queue in cell.limits.values() if name in queue.memory]
            most = min(given, default=None)
            memory = Memory(name, cell.known[name].unasked, has, most)
        tokens = {token: cell.known[token] for token in cell.tokens}
        return Rules(memory, tokens, cell.limits, cell.offset)

    def _qstat(self, user: str) -> list[text.Job]:
        return self._read(text.jobs, "qstat", "-xml", "-r", "-u", user)

    def _hosts(self) -> list[text.Host]:
        return self._read(text.hosts, "qhost", "-xml", "-q", "-F")

    def _read(self, parse: Callable[[str], T], program: str, *arguments: str) -> T:
        answer = self._run(program, *arguments)
        if answer.code != 0:
            raise Unreachable(f"{program}: {answer.complaint}")
        try:
            return parse(answer.out)
        except (ValueError, KeyError) as error:
            raise Unreachable(f"{program}: the answer cannot be read: {error}") from None

    def _act(self, user: str, verb: str, ids: str) -> Answer:
        """The answer of a command that changes jobs, given as their owner."""
        if self._launcher is None:
            return self._run(*_PROGRAMS[verb], ids)
        return self._launcher.run(user, verb, (ids,), self._settings.timeout)

    def _run(self, program: str, *arguments: str) -> Answer:
        folder = self._settings.bin_dir
        path = os.path.join(folder, program) if folder else program
        return run([path, *arguments], self._environment, self._settings.timeout)

    def close(self) -> None:
        self._accounting.close()
        self._session.close()


class _Wishes:
    """Deletions that we asked for, in a file: one JSON line each, the last of a task counts."""

    def __init__(self, path: Path, keep: float) -> None:
        self._path = path
        self._found: dict[Key, _Wish] = {}
        oldest = time.time() - keep
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    wish = _Wish(**json.loads(line))
                except (ValueError, TypeError):  # the last line of one that was killed
                    continue
                if wish.asked >= oldest:
                    self._found[wish.key] = wish
            self._write("w", self._found.values())

    def add(self, wishes: Iterable[_Wish]) -> None:
        some = list(wishes)
        self._write("a", some)
        self._found |= {wish.key: wish for wish in some}

    def _write(self, mode: str, wishes: Iterable[_Wish]) -> None:
        with self._path.open(mode) as file:
            for wish in wishes:
                file.write(json.dumps(asdict(wish)) + "\n")

    def killed(self, key: Key, ended: float) -> bool:
        """Whether the end of a task at this time is what was asked for."""
        wish = self._found.get(key)
        return wish is not None and wish.asked <= ended + 1

    def stands(self, again: _Wish) -> bool:
        """Whether nothing that was to end before can begin since; `again` would be less certain."""
        wish = self._found.get(again.key)
        if wish is None or wish.native != again.native:
            return False
        return wish.held and wish.asked <= again.asked

    def forget(self, oldest: float) -> list[Key]:
        """Drop what was asked for before `oldest`; the tasks."""
        old = [key for key, wish in self._found.items() if wish.asked < oldest]
        for key in old:
            del self._found[key]
        return old

    def items(self) -> Iterable[tuple[Key, _Wish]]:
        return self._found.items()

    def fulfilled(self, key: Key, now: float, lag: float) -> bool:
        """Whether the task is certainly gone without having begun, if no listing has it.

        The qmaster's word, or, where its answer was lost, a hold under which nothing begins: the
        accounting has had the time to say otherwise.
        """
        wish = self._found.get(key)
        if wish is None:
            return False
        return wish.never_began or (wish.held and now - wish.asked > lag)


def _joined(ids: Iterable[str]) -> Iterable[str]:
    """The ids as comma-separated lists, none too long for a command line."""
    some = list(ids)
    for start in range(0, len(some), _IDS_PER_CALL):
        yield ",".join(some[start : start + _IDS_PER_CALL])
