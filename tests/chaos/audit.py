"""What must hold after every fault: nothing lost, nothing twice, no orphan, all counters right."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metasched.core import Core
from metasched.db.ledger import Ledger
from metasched.db.sqlite import Sqlite
from metasched.model import State, parse_tag
from metasched.transitions import FINAL, LIVE, UNSTARTED
from tests.chaos.stream import Stream, named

# The tags of all that a manager has, queued or running, at this moment.
Natives = Callable[[], Iterable[str]]
_BAD_ENDS = {State.FAILED, State.TIMEOUT, State.REJECTED, State.CANCELLED}


@dataclass
class Verdict:
    """What was found; all but `waiting` and `ended` are empty if all is well."""

    jobs: int = 0
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # orphans, counters, stories, ends
    waiting: list[str] = field(default_factory=list)  # not begun, open, with a reason
    ended: list[str] = field(default_factory=list)  # by the fault, and told so

    @property
    def well(self) -> bool:
        return not (self.lost or self.duplicated or self.wrong)

    def __str__(self) -> str:
        return (
            f"{self.jobs} jobs; lost {self.lost}, duplicated {self.duplicated}, "
            f"wrong {self.wrong[:10]}, waiting {self.waiting[:10]}"
        )


def audit(
    database: Path, stream: Stream, natives: Iterable[Natives] = (), may_fail: bool = False
) -> Verdict:
    """Look at a database at rest, at what has begun, and at what the managers hold.

    `may_fail`: the fault may end what its manager has, begun or not (a node that dies, an id that
    is given twice), which must be told as such an end.
    """
    found = Verdict()
    ledger = Ledger(Sqlite(database).open())
    try:
        rows = {
            named({**row, "task": row["task_index"] if row["array"] else None}): row
            for row in ledger.status()
        }
        found.jobs = len(rows)
        _promises(found, rows, stream, may_fail)
        found.wrong += _replayed(ledger, database)
        tags = [tag for of in natives for tag in of()]
        found.wrong += _orphans(database, ledger.instance(0.0), tags, may_fail)
    finally:
        ledger.close()
    return found


def _promises(
    found: Verdict, rows: dict[str, dict[str, Any]], stream: Stream, may_fail: bool
) -> None:
    began = stream.began()
    found.wrong += [f"{name} began and is not stored" for name in began.keys() - rows.keys()]
    for name, promise in stream.promises.items():
        row, times = rows.get(name), began[name]
        if row is None:
            if promise.accepted is not None:
                found.lost.append(f"{name}: accepted as job {promise.accepted} and not stored")
            continue
        told = f"{name} (job {row['job']}, {row['state']}, {row['reason'] or 'no reason'})"
        asked = promise.cancelled or promise.refused
        if times > 1 + promise.again:
            found.duplicated.append(f"{told} began {times} times")
        elif promise.refused and times:
            found.wrong.append(f"{told} began, though its manager refused it")
        elif times == 0 and row["state"] not in FINAL:
            found.waiting.append(told)
            if not row["reason"] and row["state"] not in LIVE:
                found.wrong.append(f"{told} waits without a reason")
        elif may_fail and row["state"] in _BAD_ENDS and not asked:
            found.ended.append(told)
        elif times == 0 and not asked:
            found.lost.append(f"{told} ended and never began")
        elif row["state"] in _BAD_ENDS and not asked:
            found.wrong.append(f"{told}: its payload did not fail")


def _replayed(ledger: Ledger, database: Path) -> list[str]:
    """The recorded events, stepped through a fresh core, against what the tables say now."""
    core, wrong = Core(), []
    told = []
    for event in ledger.events():
        for line in core.step(event).changes:
            told.append((line.job, line.index, line.attempt, line.event, line.after, line.cause))
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as reading:
        stored = reading.execute(
            'SELECT job, task_index, attempt, what, "after", cause FROM change ORDER BY id'
        ).fetchall()
        tasks = reading.execute(
            "SELECT task.job, task.task_index, task.state, attempt.number, attempt.cluster, "
            "attempt.sending, attempt.native_id, job.priority FROM task "
            "JOIN job ON job.id = task.job LEFT JOIN attempt ON attempt.job = task.job "
            "AND attempt.task_index = task.task_index AND attempt.number = task.attempts "
            f"AND attempt.state IN ({', '.join(repr(str(s)) for s in sorted(LIVE))}) "
            "WHERE task.ended IS NULL"
        ).fetchall()
    if told != stored:
        differ = next(
            (a, b) for a, b in zip([*told, None], [*stored, None], strict=False) if a != b
        )
        wrong.append(f"the story replays differently: {differ[0]} instead of {differ[1]}")
    again = {
        (
            *(task.job.id, task.index, task.state),
            *((a.number, a.cluster, a.sending, a.native_id) if a else (None,) * 4),
            task.priority,
        )
        for task in core.tasks.values()
        for a in [task.attempt]
    }
    wrong += [f"replayed and stored state differ: {task}" for task in again ^ set(tasks)]
    waiting = Counter(
        (cluster, priority)
        for *_, state, _n, cluster, _s, _id, priority in tasks
        if state in UNSTARTED
    )
    for cluster in core.clusters:
        counts = core.dispatch.count(cluster.name)
        recount = [
            sum(n for (name, p), n in waiting.items() if name == cluster.name and p > place)
            for place in range(len(counts))
        ]
        if counts != recount:
            wrong.append(f"{cluster.name}: jobs counted by priority {counts}, really {recount}")
    return wrong


def _orphans(database: Path, instance: str, tags: list[str], forgets: bool) -> list[str]:
    """What a manager holds of ours that the database does not believe to be alive.

    A manager that `forgets` may go on listing as running what it had told to have ended.
    """
    told = " OR started IS NOT NULL" if forgets else ""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as reading:
        live = set(
            reading.execute(
                "SELECT job, sending FROM attempt WHERE state IN "
                f"({', '.join(repr(str(s)) for s in sorted(LIVE))}){told}"
            )
        )
    return [
        f"{tag} is in its manager and not live in the database"
        for tag in tags
        if (key := parse_tag(tag, instance)) is not None and key not in live
    ]
