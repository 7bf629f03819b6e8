"""The ledger: one method, one transaction, one fact. Written from one thread only.

A life of the daemon begins with `restore`, which counts it; every transaction begins with a look
whether that life is still the last. It locks the count meanwhile, so that whoever writes has its
turn alone, whatever the database.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import structs
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError

from metasched.core.events import (
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
from metasched.core.scheduler import Core
from metasched.core.tasks import Intent, Past, Task
from metasched.core.transitions import Event
from metasched.db import leases, reservations
from metasched.db import recovery as restoring
from metasched.db.bulk_rows import insert_rows
from metasched.db.cluster_info import changed
from metasched.db.job_rows import (
    _UPDATE_ATTEMPT,
    _UPDATE_PAST,
    _UPDATE_TASK,
    _attempt_row,
    _bound,
    _task_row,
)
from metasched.db.pruning import prune_some, turn
from metasched.db.queries import Reading
from metasched.db.schema import (
    attempt,
    change,
    checkpoint,
    cluster,
    content,
    dependency,
    digest,
    drain,
    epoch,
    event,
    instance,
    job,
    task,
    token,
)
from metasched.db.store import Busy, Seat, StorageFailed, StorageUncertain, StoreError, words
from metasched.model.cluster import Facts
from metasched.model.dependencies import Fate, Target, parse_dependency
from metasched.model.job import Job, Payload

_OPENING = (Event.SEND, Event.RESTART, Event.ADOPT)  # with these a task gets a new attempt

CHECKPOINT_AFTER = 50_000  # events since the last one, at the next start


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What is kept of a new job beside the core's own view of it: texts by digest."""

    job: Job
    script: str
    environment: str
    payload: Payload  # its script and environment are empty: they are in the texts


def encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class Ledger(Reading):
    """All that must outlive the daemon. StorageFailed from any method: nothing stored."""

    def __init__(self, engine: Engine, seat: Seat | None = None) -> None:
        super().__init__(engine)
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
                run(insert(drain), structs.asdict(what))
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
        told = msgspec.to_builtins(structs.replace(what, facts=None))
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

    def told(self, id: int, now: float) -> None:
        """The owner of a reservation that is broken has been told so."""
        with self._writing() as writing:
            reservations.told(writing, id, now)

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
            known = restoring.read(connection, window)
            last = run(select(func.max(checkpoint.c.event))).scalar() or 0
            due = self._next_event - last > CHECKPOINT_AFTER
            self._checkpoint = known.packed() if due else None
            into.restore(**structs.asdict(known))

    def fate(self, target: Target) -> Fate | None:
        """What has become of a job or a task that another is to depend on; None: there is none."""
        with self._transaction() as connection:
            found = restoring.fate(connection, target)
        return found if found.size else None

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
