"""The ledger: one method, one transaction, one fact. Written from one thread only.

A life of the daemon begins with `restore`, which counts it; every transaction begins with a look
whether that life is still the last. It locks the count meanwhile, so that whoever writes has its
turn alone, whatever the database.
"""

from __future__ import annotations

import hashlib
import secrets
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError

from metasched.arrays import folded, parse_array
from metasched.books import ENDED_KEPT
from metasched.core import Core
from metasched.db import leases, reservations
from metasched.db.alike import insert_rows
from metasched.db.facts import applied, changed
from metasched.db.schema import (
    attempt,
    change,
    checkpoint,
    cluster,
    content,
    dependency,
    drain,
    epoch,
    event,
    instance,
    job,
    task,
    token,
)
from metasched.db.store import Busy, Seat, StoreError, words
from metasched.db.upkeep import prune_some, turn
from metasched.dependencies import Fate, Target, parse_dependency
from metasched.events import (
    Again,
    Booted,
    ClockSet,
    CoreEvent,
    Drained,
    Modified,
    Outcome,
    Resumed,
    Seen,
    Submitted,
)
from metasched.licence_pools import Lease, LicenceCount, Lingering
from metasched.model import Facts, Job, Payload, State
from metasched.reservation_life import Reservation
from metasched.tasks import Attempt, Ended, Intent, Past, Task
from metasched.transitions import LIVE, Event

KINDS: dict[str, type[CoreEvent]] = {k.__name__.lower(): k for k in get_args(CoreEvent)}
_ATTEMPT = [c.name for c in attempt.c if c.name not in ("job", "task_index")]
_OF_TASK = and_(task.c.job == attempt.c.job, task.c.task_index == attempt.c.task_index)
_CHANGED = [c for c in _ATTEMPT if c != "number"]
_OPENING = (Event.SEND, Event.RESTART, Event.ADOPT)  # with these a task gets a new attempt


CHECKPOINT_AFTER = 50_000  # events since the last one, at the next start


class StorageFailed(Exception):
    """The database does not answer, or did not take a transaction: nothing of it is stored."""


class StorageUncertain(StorageFailed):
    """The database was gone before it said whether it took a transaction."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What is kept of a new job beside the core's own view of it: texts by digest."""

    job: Job
    script: str
    environment: str
    payload: Payload  # its script and environment are empty: they are in the texts


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a core is restored from: the arguments of `Core.restore`."""

    tasks: list[Task]
    last_sendings: dict[int, int]
    facts: dict[str, Facts]
    margins: list[Job]
    drains: list[Drained]
    ended: dict[tuple[int, int], Ended] = field(default_factory=dict)
    fates: dict[int, list[Fate]] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)
    lingering: list[Lingering] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    past_us: dict[str, dict[str, LicenceCount]] = field(default_factory=dict)
    reservations: list[Reservation] = field(default_factory=list)

    def packed(self) -> bytes:
        return zlib.compress(msgspec.msgpack.encode(self), 1)

    @staticmethod
    def unpacked(data: bytes) -> Known:
        return msgspec.msgpack.decode(zlib.decompress(data), type=Known)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class Ledger:
    """All that must outlive the daemon. StorageFailed from any method: nothing stored."""

    def __init__(self, engine: Engine, seat: Seat | None = None) -> None:
        self._engine = engine
        self._seat = seat or Seat(engine)
        self._connection = self._seat.connection
        self._epoch = 0  # of this life; 0: it has not begun
        self._next_event = self._next_job = self._next_reservation = 0
        self._facts: dict[str, Facts] = {}  # the last ones stored, of which the next are news
        self._lasting: dict[str, str] = {}
        self._checkpoint: bytes | None = None  # goes with the next start

    def close(self) -> None:
        self._connection.close()
        self._engine.dispose()

    def reach(self) -> None:
        """Before a life: see that the database is there, and that no other daemon is active on it.

        Busy if one is. Takes seconds if the database is away; may be called from any thread.
        """
        try:
            self._seat.renew()
        except Busy:
            raise
        except StoreError as error:
            raise StorageFailed(str(error)) from error

    def look(self) -> None:
        """See that the database is there and this life its last."""
        with self._transaction():
            if not self._seat.held or self._lives() != self._epoch:
                raise StorageFailed("another daemon may be active on it")

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """A transaction on the connection by which is written."""
        ending = False
        try:
            with self._connection.begin():
                yield self._connection
                ending = True
        except DBAPIError as error:
            if ending and error.connection_invalidated:
                raise StorageUncertain(words(error)) from error
            raise StorageFailed(words(error)) from error

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction of this life, which must be the last, and alone."""
        with self._transaction() as connection:
            if not self._seat.held or turn(connection) != self._epoch:
                raise StorageFailed("another daemon may be active on it")
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except DBAPIError as error:
            raise StorageFailed(words(error)) from error

    def _lives(self) -> int:
        return self._highest(epoch.c.number)

    def _highest(self, column: ColumnElement[int]) -> int:
        return self._connection.execute(select(func.max(column))).scalar() or 0

    # Identity

    def instance(self, now: float) -> str:
        """The random name of this database in every tag; made once."""
        with self._transaction():
            newest = select(instance.c.name).order_by(instance.c.created.desc())
            if (name := self._connection.execute(newest).scalar()) is None:
                name = secrets.token_hex(4)
                self._connection.execute(insert(instance).values(name=name, created=now))
        return name

    def next_job(self) -> int:
        """A job id never given before."""
        self._next_job += 1
        return self._next_job - 1

    def next_reservation(self) -> int:
        """An id of a reservation never given before."""
        self._next_reservation += 1
        return self._next_reservation - 1

    # Writing

    def record(
        self,
        steps: Sequence[tuple[CoreEvent, Outcome]],
        stored: Sequence[Stored] = (),
        texts: Mapping[str, str] | None = None,
    ) -> None:
        """One transaction: the events, the states that followed, new jobs with their texts."""
        with self._writing():
            if stored:
                self._insert_jobs(steps, stored, texts or {})
            self._write(steps)

    def _write(self, steps: Sequence[tuple[CoreEvent, Outcome]]) -> None:
        run = self._connection.execute
        events, changes, facts = [], [], []
        tasks: dict[tuple[int, int], Task] = {}
        new_tasks: set[tuple[int, int]] = set()
        attempts: dict[tuple[int, int, int], dict[str, Any]] = {}
        new_attempts: set[tuple[int, int, int]] = set()
        past: dict[tuple[int, int, int], Past] = {}
        for what, out in steps:
            id, self._next_event = self._next_event, self._next_event + 1
            events.append(
                {
                    "id": id,
                    "time": what.time,
                    "kind": type(what).__name__.lower(),
                    "data": self._encoded(what),
                }
            )
            if isinstance(what, Booted) and self._checkpoint is not None:
                row = {"event": id, "time": what.time, "data": self._checkpoint}
                run(insert(checkpoint), row)
                self._checkpoint = None
            if isinstance(what, Modified):
                self._modify(what, out)
            if isinstance(what, Drained | Resumed):
                run(delete(drain).where(drain.c.cluster == what.cluster))
            if isinstance(what, Drained):
                run(insert(drain), vars(what))
            if isinstance(what, Seen) and what.facts is not None:
                kept = encode(what.facts.lasting)
                if self._lasting.get(what.cluster) != kept:
                    facts.append({"name": what.cluster, "facts": kept, "time": what.time})
                    self._lasting[what.cluster] = kept
            for line in out.changes:
                key = (line.job, line.index)
                if line.before is None and line.event is None:
                    new_tasks.add(key)
                if line.event in _OPENING:
                    new_attempts.add((*key, line.attempt))
                changes.append(
                    {
                        "event": id,
                        "time": what.time,
                        "job": line.job,
                        "task_index": line.index,
                        "attempt": line.attempt,
                        "what": line.event,
                        "before": line.before,
                        "after": line.after,
                        "cluster": line.cluster,
                        "reason": line.reason,
                        "cause": line.cause,
                    }
                )
            tasks |= out.tasks
            for owner, ended in out.closed:
                attempts[owner.job.id, owner.index, ended.number] = _attempt_row(owner, ended)
                past.pop((owner.job.id, owner.index, ended.sending), None)  # told since
            past |= out.past
            for key, owner in out.tasks.items():
                if owner.attempt is not None:
                    past.pop((*key, owner.attempt.sending), None)  # it goes on
        for key, owner in tasks.items():
            if owner.attempt is not None:
                attempts[*key, owner.attempt.number] = _attempt_row(owner, owner.attempt)
        run(insert(event), events)
        if rows := [_task_row(t) for key, t in tasks.items() if key in new_tasks]:
            insert_rows(self._connection, task, rows)
        if rows := [_bound(_task_row(t)) for key, t in tasks.items() if key not in new_tasks]:
            run(_UPDATE_TASK, rows)
        # ended attempts first: at no moment may a task have two live ones
        if rows := [_bound(row) for key, row in attempts.items() if key not in new_attempts]:
            run(_UPDATE_ATTEMPT, rows)
        if rows := [row for key, row in attempts.items() if key in new_attempts]:
            run(insert(attempt), rows)
        if rows := [
            _bound(
                {"job": job, "task_index": index, "sending": sending}
                | {"begun": sent.began, "revoked": sent.revoked}
                | {"intent": Intent.REQUEUE if sent.requeued else None}
            )
            for (job, index, sending), sent in past.items()
        ]:
            run(_UPDATE_PAST, rows)
        for what, out in steps:  # in turn: a window is checked against the total of its moment
            if isinstance(what, ClockSet):
                leases.clock_set(self._connection, what)
            leases.write(self._connection, out)
            reservations.write(self._connection, [out])
        insert_rows(self._connection, change, changes)
        for row in facts:
            if not run(update(cluster).where(cluster.c.name == row["name"]).values(row)).rowcount:
                run(insert(cluster), row)

    def _encoded(self, what: CoreEvent) -> str:
        """An event as it is stored; of facts what is new since the cluster's last ones."""
        if not isinstance(what, Seen) or what.facts is None:
            return encode(what)
        before, self._facts[what.cluster] = self._facts.get(what.cluster), what.facts
        if before is None:
            return encode(what)
        told = msgspec.to_builtins(replace(what, facts=None))
        return encode({**told, "changed": changed(before, what.facts)})

    def _insert_jobs(
        self,
        steps: Sequence[tuple[CoreEvent, Outcome]],
        stored: Sequence[Stored],
        texts: Mapping[str, str],
    ) -> None:
        run = self._connection.execute
        known = set(
            run(select(content.c.digest).where(content.c.digest.in_(list(texts)))).scalars()
        )
        if rows := [{"digest": d, "text": t} for d, t in texts.items() if d not in known]:
            run(insert(content), rows)
        outcomes = {what.job.id: out for what, out in steps if isinstance(what, Submitted)}
        run(
            insert(job),
            [
                {
                    "id": new.job.id,
                    "user": new.job.user,
                    "name": new.job.name,
                    "submitted": new.job.submitted,
                    "margin": new.job.margin,
                    "array": new.job.array,
                    "priority": next(iter(outcomes[new.job.id].tasks.values())).priority,
                    "parts": encode([part._asdict() for part in outcomes[new.job.id].parts]),
                    "job": encode(new.job),
                    "script": new.script,
                    "environment": new.environment,
                    "payload": encode(new.payload),
                }
                for new in stored
            ],
        )
        waits = {s.job.id: parse_dependency(s.job.dependency) for s in stored if s.job.dependency}
        if targets := [
            {"job": id, "target": target}
            for id, on in waits.items()
            for target in sorted({target.job for target in on.targets})
        ]:
            run(insert(dependency), targets)

    def _modify(self, what: Modified, out: Outcome) -> None:
        """A job as it is sent from now on, beside what was submitted."""
        changed = next(iter(out.tasks.values()))
        self._connection.execute(
            update(job)
            .where(job.c.id == what.job.id)
            .values(
                changed=encode(what.job),
                name=what.job.name,
                priority=changed.priority,
                parts=encode([part._asdict() for part in out.parts]),
            )
        )

    def add_token(self, user: str, secret: str, now: float, expires: float) -> int:
        """Keep the hash of a user's token; its id."""
        with self._writing() as connection:
            id = self._highest(token.c.id) + 1
            row = {"id": id, "user": user, "digest": digest(secret)}
            connection.execute(insert(token).values(**row, created=now, expires=expires))
        return id

    def revoke_token(self, id: int, now: float) -> None:
        """End a token; one that was revoked stays so."""
        query = update(token).where(token.c.id == id, token.c.revoked.is_(None))
        with self._writing() as connection:
            connection.execute(query.values(revoked=now))

    # Reading back what the core needs

    def restore(self, into: Core, window: int) -> None:
        """Begin a life: nothing that earlier ones still write is taken.

        Gives a fresh core its open tasks, leases, its clusters' last facts, the last margins.
        """
        self._facts.clear()  # also those of a transaction that failed
        self._lasting.clear()
        with self._transaction() as connection:
            run = connection.execute
            self._epoch = turn(connection) + 1
            run(update(epoch).values(number=self._epoch))
            self._next_event = self._highest(event.c.id) + 1
            self._next_job = self._highest(job.c.id) + 1
            self._next_reservation = reservations.highest(connection) + 1
            tasks = list(self._open_tasks())
            sendings = run(
                select(attempt.c.job, func.max(attempt.c.sending))
                # of all their tasks: no tag may come twice
                .where(attempt.c.job.in_(select(task.c.job).where(task.c.ended.is_(None))))
                .group_by(attempt.c.job)
            )
            margins = run(
                select(job.c.job).where(job.c.margin >= 0).order_by(job.c.id.desc()).limit(window)
            ).scalars()
            known = Known(
                tasks=tasks,
                last_sendings={row[0]: row[1] for row in sendings},
                facts={
                    row.name: msgspec.json.decode(row.facts, type=Facts)
                    for row in run(select(cluster))
                },
                margins=[msgspec.json.decode(text, type=Job) for text in margins][::-1],
                drains=[Drained(**row) for row in run(select(drain)).mappings()],
                ended=self._ended_tasks(),
                # what was sent before waits for none any more
                fates=self._fates({t.job.id: t.job for t in tasks if not t.attempts}.values()),
                leases=leases.live(self._connection),
                lingering=leases.lingering(self._connection),
                totals=leases.totals(self._connection),
                past_us=leases.past_us(self._connection),
                reservations=reservations.live(self._connection),
            )
            last = run(select(func.max(checkpoint.c.event))).scalar() or 0
            due = self._next_event - last > CHECKPOINT_AFTER
            self._checkpoint = known.packed() if due else None
            into.restore(**vars(known))

    def _ended_tasks(self) -> dict[tuple[int, int], Ended]:
        """The last tasks that have ended, oldest first."""
        run = self._connection.execute
        last = select(task).order_by(task.c.ended.desc()).where(task.c.ended.is_not(None))
        rows = run(last.limit(ENDED_KEPT)).all()
        past: dict[tuple[int, int], dict[int, Past]] = {}
        if rows:
            oldest = rows[-1].ended
            of = attempt.c
            for row in run(
                select(
                    *(of.job, of.task_index, of.sending),
                    *(of.cluster, of.begun, of.fence, of.revoked, of.intent),
                )
                .join(task, _OF_TASK)
                .where(task.c.ended >= oldest)
                .order_by(of.number)
            ):
                sent = past.setdefault((row.job, row.task_index), {})
                sent[row.sending] = _past_of(row)
        return {
            (row.job, row.task_index): Ended(
                State(row.state), row.attempts, past.get((row.job, row.task_index), {})
            )
            for row in reversed(rows)
        }

    def fate(self, target: Target) -> Fate | None:
        """What has become of a job or a task that another is to depend on; None: there is none."""
        with self._transaction():
            found = self._fate(target)
        return found if found.size else None

    def _fates(self, jobs: Iterable[Job]) -> dict[int, list[Fate]]:
        """What has become of the targets of each job that depends on some."""
        targets = {j.id: parse_dependency(j.dependency).targets for j in jobs if j.dependency}
        found = {t: self._fate(t) for t in dict.fromkeys(t for of in targets.values() for t in of)}
        return {id: [found[target] for target in of] for id, of in targets.items()}

    def _fate(self, target: Target) -> Fate:
        query = (
            select(task.c.task_index, task.c.state, task.c.ended, attempt.c.started, job.c.array)
            .join(job, job.c.id == task.c.job)
            .outerjoin(  # the attempt with which it ended, if it was with a manager then
                attempt,
                and_(
                    _OF_TASK,
                    attempt.c.number == task.c.attempts,
                    attempt.c.ended == task.c.ended,
                ),
            )
            .where(task.c.job == target.job)
            .order_by(task.c.task_index)
        )
        if target.index is not None:
            query = query.where(task.c.task_index == target.index)
        rows = self._connection.execute(query).all()
        ended = [row for row in rows if row.ended is not None]
        return Fate(
            target,
            len(rows),
            array=any(row.array is not None for row in rows),
            ok=folded(row.task_index for row in ended if row.state == State.COMPLETED),
            bad=folded(row.task_index for row in ended if row.state != State.COMPLETED),
            begun=max((row.started or row.ended for row in ended), default=0.0),
        )

    def reservation(self, id: int) -> Reservation | None:
        """A reservation, however long ago it was over; None: there is none."""
        with self._reading() as reading:
            return reservations.one(reading, id)

    def reservations(self, since: float) -> list[Reservation]:
        """Those that are open, or were so after `since` (epoch seconds), by their start."""
        with self._reading() as reading:
            return reservations.listed(reading, since)

    def untold(self, since: float) -> list[Reservation]:
        """Those that broke after `since` (epoch seconds), and whose owners have not been told."""
        with self._reading() as reading:
            return reservations.untold(reading, since)

    def told(self, id: int, now: float) -> None:
        """The owner of a reservation that is broken has been told so."""
        with self._writing() as writing:
            reservations.told(writing, id, now)

    def indices(self, id: int) -> tuple[int, ...]:
        """The indices of an array; none of a job that is no array."""
        stored = self.of_job(id)
        return parse_array(stored["array"]).indices if stored and stored["array"] else ()

    def owner(self, id: int) -> str | None:
        """The user whose job it is; None: there is none."""
        stored = self.of_job(id)
        return stored["user"] if stored else None

    def _open_tasks(self) -> Iterator[Task]:
        run = self._connection.execute
        jobs: dict[int, Job] = {}
        refused: dict[tuple[int, int], set[str]] = {}
        past: dict[tuple[int, int], dict[int, Past]] = {}
        earlier = (
            select(attempt, task.c.forgiven)
            .join(task, _OF_TASK)
            .where(task.c.ended.is_(None), attempt.c.state.not_in(sorted(LIVE)))
            .order_by(attempt.c.number)
        )
        for row in run(earlier):
            key = (row.job, row.task_index)
            past.setdefault(key, {})[row.sending] = _past_of(row)
            if row.refused and row.number > row.forgiven:
                refused.setdefault(key, set()).add(row.cluster)
        rows = run(
            select(task, job.c.priority, func.coalesce(job.c.changed, job.c.job).label("spec"))
            .join(job, job.c.id == task.c.job)
            .where(task.c.ended.is_(None))
            .order_by(task.c.job, task.c.task_index)
        ).all()
        live = {
            (row.job, row.task_index): row
            for row in run(select(attempt).where(attempt.c.state.in_(sorted(LIVE))))
        }
        for row in rows:
            if row.job not in jobs:
                jobs[row.job] = msgspec.json.decode(row.spec, type=Job)
            key = (row.job, row.task_index)
            found = live.get(key)
            if found is not None:
                past.get(key, {}).pop(found.sending, None)
            yield Task(
                jobs[row.job],
                row.task_index,
                row.priority,
                key=0.0,
                state=State(row.state),
                reason=row.reason,
                held=row.held,
                attempts=row.attempts,
                moves=row.moves,
                target=row.target,
                attempt=_attempt_of(found) if found is not None else None,
                refused=refused.get(key, set()),
                forgiven=row.forgiven,
                past=past.get(key, {}),
            )

    def events(self, since: int = 0) -> Iterator[CoreEvent]:
        """The recorded events in order: what `core.replay` needs.

        `since` is the first one, or one at which the daemon started: what is stored of facts is
        relative to earlier ones of the same life.
        """
        with self._reading() as reading:
            yield from events(reading, since)

    def payloads(self, jobs: Iterable[int]) -> dict[int, Payload]:
        """What jobs run, with their texts, by job."""
        if not (wanted := set(jobs)):
            return {}
        with self._transaction() as connection:
            run = connection.execute
            kept = run(
                select(job.c.id, job.c.payload, job.c.script, job.c.environment).where(
                    job.c.id.in_(wanted)
                )
            ).all()
            digests = {text for row in kept for text in (row.script, row.environment)}
            texts = dict(
                run(
                    select(content.c.digest, content.c.text).where(content.c.digest.in_(digests))
                ).all()
            )
        environments = {row.environment for row in kept}
        decoded = {text: msgspec.json.decode(texts[text]) for text in environments}
        return {
            row.id: msgspec.convert(
                msgspec.json.decode(row.payload)
                | {"script": texts[row.script], "environment": decoded[row.environment]},
                Payload,
            )
            for row in kept
        }

    # Keeping it small

    def prune(self, before: float) -> bool:
        """Forget some of what ended before a time (epoch seconds); False: nothing is left.

        One small transaction: call it until it answers False, and let others work in between.
        """
        with self._writing() as connection:
            return any(prune_some(connection, before).values())

    # Reading for people

    def status(
        self,
        jobs: Iterable[tuple[int, int | None]] | None = None,
        user: str | None = None,
        states: Sequence[str] = (),
        since: float | None = None,
        ended_since: float | None = None,
    ) -> list[dict[str, Any]]:
        """Rows of `status --json` (times in epoch seconds), by job and task.

        `jobs` are (job, index or None for all); `since` keeps what was submitted after it,
        `ended_since` open tasks and those that ended after it. May be called from any thread.
        """
        where: list[ColumnElement[bool]] = []
        if user is not None:
            where.append(job.c.user == user)
        if states:
            where.append(task.c.state.in_(list(states)))
        if since is not None:
            where.append(job.c.submitted >= since)
        if ended_since is not None:
            where.append(or_(task.c.ended.is_(None), task.c.ended >= ended_since))
        query = _STATUS.where(*where)
        with self._reading() as reading:
            if jobs is None:
                return [dict(row) for row in reading.execute(query).mappings()]
            wanted = set(jobs)
            return [
                dict(row)
                for ids in _some(sorted({id for id, _ in wanted}))
                for row in reading.execute(query.where(task.c.job.in_(ids))).mappings()
                if (row.job, None) in wanted or (row.job, row.task_index) in wanted
            ]

    def unknown(self, jobs: Iterable[tuple[int, int | None]]) -> list[str]:
        """Those of `jobs` that were never stored, as the user writes them."""
        wanted = sorted(set(jobs), key=lambda pair: (pair[0], pair[1] is not None, pair[1]))
        stored: set[tuple[int, int | None]] = set()
        with self._reading() as reading:
            for ids in _some(sorted({id for id, _ in wanted})):
                query = select(task.c.job, task.c.task_index).where(task.c.job.in_(ids))
                for row in reading.execute(query):
                    stored |= {(row.job, None), (row.job, row.task_index)}
        return [
            str(id) if index is None else f"{id}_{index}"
            for id, index in wanted
            if (id, index) not in stored
        ]

    def asked(self, id: int) -> tuple[Job, int]:
        """A job as it is asked for now, and its priority."""
        with self._reading() as reading:
            query = select(func.coalesce(job.c.changed, job.c.job), job.c.priority)
            spec, priority = reading.execute(query.where(job.c.id == id)).one()
        return msgspec.json.decode(spec, type=Job), priority

    def ended(self, id: int, indices: Iterable[int]) -> tuple[tuple[Again, ...], int]:
        """Those of a job's tasks that have ended, and the highest sending of the job."""
        wanted = set(indices)
        with self._reading() as reading:
            rows = reading.execute(
                select(task).where(task.c.job == id, task.c.ended.is_not(None))
            ).all()
            last = select(func.max(attempt.c.sending)).where(attempt.c.job == id)
            sending = reading.execute(last).scalar() or 0
        again = (
            Again(row.task_index, State(row.state), row.attempts)
            for row in rows
            if row.task_index in wanted
        )
        return tuple(again), sending

    def token_user(self, secret: str, now: float) -> str | None:
        """Whose a token is, if it is good at that time."""
        query = select(token.c.user).where(
            token.c.digest == digest(secret), token.c.expires > now, token.c.revoked.is_(None)
        )
        with self._reading() as reading:
            return reading.execute(query).scalar()

    def tokens(self, user: str | None = None) -> list[dict[str, Any]]:
        """Everybody's tokens, or one user's, without their hashes."""
        shown = [column for column in token.c if column.name != "digest"]
        query = select(*shown).order_by(token.c.id)
        if user is not None:
            query = query.where(token.c.user == user)
        with self._reading() as reading:
            return [dict(row) for row in reading.execute(query).mappings()]

    def owners(self, jobs: Iterable[int]) -> set[str]:
        """The users to whom these jobs belong."""
        found: set[str] = set()
        with self._reading() as reading:
            for ids in _some(sorted(set(jobs))):
                query = select(job.c.user).distinct().where(job.c.id.in_(ids))
                found.update(reading.execute(query).scalars())
        return found

    def story(self, id: int, index: int | None = None) -> list[dict[str, Any]]:
        """Every change of a job's tasks (of one of them), oldest first."""
        of_task = [] if index is None else [change.c.task_index == index]
        with self._reading() as reading:
            rows = reading.execute(
                select(change, job.c.array)
                .join(job, job.c.id == change.c.job)
                .where(change.c.job == id, *of_task)
                .order_by(change.c.id)
            )
            return [dict(row) for row in rows.mappings()]

    def nodes(self, id: int, index: int) -> list[str]:
        """Where the attempts of a task ran, in the manager's words, oldest first."""
        query = (
            select(attempt.c.node)
            .where(attempt.c.job == id, attempt.c.task_index == index)
            .order_by(attempt.c.number)
        )
        with self._reading() as reading:
            return list(reading.execute(query).scalars())

    def of_job(self, id: int) -> dict[str, Any] | None:
        """One job's stored row, or None."""
        with self._reading() as reading:
            row = reading.execute(select(job).where(job.c.id == id)).mappings().first()
            return dict(row) if row is not None else None


def events(reading: Connection, since: int = 0) -> Iterator[CoreEvent]:
    """As `Ledger.events`, by a connection of the caller's."""
    facts: dict[str, Facts] = {}
    stored = select(event).where(event.c.id >= since).order_by(event.c.id)
    # a server sends as many at a time: all at once they may not fit into memory
    for row in reading.execute(stored, execution_options={"yield_per": 1000}):
        kind = KINDS[row.kind]
        if kind is not Seen:
            yield msgspec.json.decode(row.data, type=kind)
            continue
        told = msgspec.json.decode(row.data)
        news = told.pop("changed", None)
        seen = msgspec.convert(told, Seen)
        if news is not None:
            seen = replace(seen, facts=applied(facts[seen.cluster], news))
        if seen.facts is not None:
            facts[seen.cluster] = seen.facts
        yield seen


def _some(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """The ids in portions that every database takes as parameters of one statement."""
    for first in range(0, len(ids), 10_000):
        yield ids[first : first + 10_000]


def _task_row(owner: Task) -> dict[str, Any]:
    return {
        "job": owner.job.id,
        "task_index": owner.index,
        "state": owner.state,
        "reason": owner.reason,
        "held": owner.held,
        "target": owner.target,
        "attempts": owner.attempts,
        "moves": owner.moves,
        "ended": owner.ended,
        "forgiven": owner.forgiven,
    }


def _attempt_row(owner: Task, tried: Attempt) -> dict[str, Any]:
    row = {name: getattr(tried, name) for name in _ATTEMPT}
    return {"job": owner.job.id, "task_index": owner.index, **row}


def _attempt_of(row: Any) -> Attempt:
    fields = {name: getattr(row, name) for name in _ATTEMPT}
    fields["state"] = State(row.state)
    fields["intent"] = Intent(row.intent) if row.intent else None
    return Attempt(**fields)


def _past_of(row: Any) -> Past:
    requeued = row.begun and row.intent == Intent.REQUEUE
    return Past(row.cluster, row.begun, row.fence, row.revoked, requeued)


def _bound(row: dict[str, Any]) -> dict[str, Any]:
    return {f"b_{name}": value for name, value in row.items()}


def _update(table: Any, keys: Sequence[str], columns: Iterable[str]) -> Any:
    return (
        update(table)
        .where(*(table.c[key] == bindparam(f"b_{key}") for key in keys))
        .values({name: bindparam(f"b_{name}") for name in columns})
    )


_UPDATE_TASK = _update(
    task,
    ("job", "task_index"),
    ("state", "reason", "held", "target", "attempts", "moves", "ended", "forgiven"),
)
_UPDATE_ATTEMPT = _update(attempt, ("job", "task_index", "number"), _CHANGED)
# of most that are in the past, the intent stays as it was
_UPDATE_PAST = _update(attempt, ("job", "task_index", "sending"), ("begun", "revoked")).values(
    intent=func.coalesce(bindparam("b_intent"), attempt.c.intent)
)

_STATUS: Select[Any] = (
    select(
        task.c.job,
        job.c.array,
        task.c.task_index,
        job.c.name,
        job.c.user,
        task.c.state,
        task.c.reason,
        job.c.priority,
        attempt.c.cluster,
        attempt.c.native_id,
        job.c.submitted,
        attempt.c.started,
        task.c.ended,
        attempt.c.exit_code,
        attempt.c.signal,
    )
    .join(job, job.c.id == task.c.job)
    .outerjoin(
        attempt,
        and_(
            attempt.c.job == task.c.job,
            attempt.c.task_index == task.c.task_index,
            attempt.c.number == task.c.attempts,
            task.c.state.not_in(["queued", "held", "rejected"]),
        ),
    )
    .order_by(task.c.job, task.c.task_index)
)
