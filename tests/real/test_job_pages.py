"""Pages of `status`: every row once whatever changes between two pages, and no table is scanned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, delete, event, insert, text, update

from metasched.api.pages import decode_cursor, encode_cursor
from metasched.core.tasks import TaskId
from metasched.core.transitions import FINAL
from metasched.db.job_pages import BEFORE_ALL, TaskFilter, TaskSelector, read_page, read_runs
from metasched.db.queries import Queries
from metasched.db.schema import attempt, content, job, task, task_run
from metasched.db.store import Database
from metasched.db.task_numbers import replace_numbers
from metasched.model.job import State

NOW = 1_000_000.0
USERS, STATES = ("ada", "bob"), (State.QUEUED, State.RUNNING, State.COMPLETED, State.FAILED)
RUN_STATES = (State.QUEUED, State.HELD, State.CANCELLED)
WANTED = (*STATES, *RUN_STATES, State.OUT_OF_MEMORY)
ENDS = (NOW - 20, NOW, NOW + 20)
Run = tuple[int, int, int, State]  # first index, step, number of tasks, state


@dataclass
class StoredTasks:
    """The tasks in a database."""

    connection: Connection
    rows: dict[TaskId, dict[str, Any]] = field(default_factory=dict)

    def clear(self) -> None:
        self.rows.clear()
        for table in (attempt, task_run, task, job, content):
            self.connection.execute(delete(table))
        self.connection.execute(insert(content).values(digest="d", text="{}"))

    def add(
        self,
        id: int,
        size: int,
        user: str,
        states: Sequence[State],
        ended: float,
        runs: Sequence[Run] = (),
    ) -> None:
        values = {"id": id, "user": user, "name": "n", "submitted": NOW + id % 3, "priority": 5}
        texts = {
            "priority_parts": "[]",
            "spec": "{}",
            "script": "d",
            "environment": "d",
            "payload": "{}",
        }
        self.connection.execute(insert(job).values(**values, **texts))
        for index in range(size):
            state = states[index % len(states)]
            end = ended if state in FINAL else None
            row = {"job": id, "task_index": index, "state": state, "ended": end, "user": user}
            rest = {
                "reason": "",
                "held": False,
                "attempts": 1,
                "moves": 0,
                "ignore_rejections_until": 0,
            }
            self.connection.execute(insert(task).values(**row, **rest))
            self.connection.execute(
                insert(attempt).values(
                    job=id,
                    task_index=index,
                    number=1,
                    dispatch_id=1,
                    cluster="left" if index % 2 else "right",
                    state=_attempt_state(index),
                    dispatched=NOW,
                    manager_reason="",
                    node="",
                    rejected=False,
                    restarts=0,
                    has_started=False,
                    fence="",
                    revoking=False,
                    revoked=False,
                    lease_expired=False,
                )
            )
            self.rows[id, index] = {**row, "submitted": values["submitted"]}
        for first, step, number, state in runs:
            indices = range(size + first, size + first + step * number, step)
            if any((id, index) in self.rows for index in indices):
                continue
            row = {"state": state, "ended": ended if state in FINAL else None, "user": user}
            run = {"job": id, "first_index": indices[0], "last_index": indices[-1], "step": step}
            self.connection.execute(insert(task_run).values(**run, **row, reason=""))
            for index in indices:
                self.rows[id, index] = {**row, "submitted": values["submitted"], "run": indices}

    def split(self, id: int, indices: range) -> None:
        """Give the tasks of a run rows of their own."""
        is_run = (task_run.c.job == id) & (task_run.c.first_index == indices[0])
        self.connection.execute(delete(task_run).where(is_run))
        for index in indices:
            row = self.rows[id, index]
            row["run"] = None  # it has no attempt
            values = {name: row[name] for name in ("state", "ended", "user")}
            rest = {"job": id, "task_index": index, "reason": "", "held": False}
            self.connection.execute(
                insert(task).values(
                    **values, **rest, attempts=0, moves=0, ignore_rejections_until=0
                )
            )

    def set_state(self, id: TaskId, state: State, ended: float) -> None:
        values = {"state": state, "ended": ended if state in FINAL else None}
        if (run := self.rows[id].get("run")) is not None:
            self.split(id[0], run)
        is_task = (task.c.job == id[0]) & (task.c.task_index == id[1])
        self.connection.execute(update(task).where(is_task).values(values))
        self.rows[id] |= values

    def matching(self, wanted: TaskFilter) -> set[TaskId]:
        """Return the tasks that pass a filter."""
        return {id for id, row in self.rows.items() if _passes(wanted, id, row)}


def _attempt_state(index: int) -> State:
    return State.COMPLETED if index % 3 else State.OUT_OF_MEMORY


def _passes(wanted: TaskFilter, id: TaskId, row: dict[str, Any]) -> bool:
    ended = row["ended"]
    has_attempt = row["state"] != State.QUEUED and "run" not in row
    cluster = ("left" if id[1] % 2 else "right") if has_attempt else None
    states = {row["state"]}
    if has_attempt and row["state"] == State.FAILED and id[1] % 3 == 0:
        states.add(State.OUT_OF_MEMORY)  # of its attempt
    return all(
        (
            wanted.named is None or id in wanted.named or (id[0], None) in wanted.named,
            wanted.user in (None, row["user"]),
            not wanted.states or not states.isdisjoint(wanted.states),
            wanted.since is None or row["submitted"] >= wanted.since,
            wanted.ended_since is None or ended is None or ended >= wanted.ended_since,
            not wanted.only_open or ended is None,
            wanted.cluster in (None, cluster),
        )
    )


@pytest.fixture
def stored(database: Database) -> Iterator[StoredTasks]:
    engine = database.open()
    with engine.connect() as connection:
        yield StoredTasks(connection)
    engine.dispose()


ids = st.integers(1, 12)
selectors = st.tuples(ids, st.none() | st.integers(0, 4))
filters = st.builds(
    TaskFilter,
    named=st.none() | st.lists(selectors, max_size=5),
    user=st.none() | st.sampled_from(USERS),
    states=st.lists(st.sampled_from(WANTED), max_size=2),
    since=st.none() | st.just(NOW + 1),
    ended_since=st.none() | st.just(NOW),
    only_open=st.booleans(),
    cluster=st.none() | st.just("left"),
)
new_runs = st.tuples(
    *(st.integers(0, 6), st.integers(1, 3), st.integers(1, 4), st.sampled_from(RUN_STATES))
)
new_jobs = st.tuples(
    *(st.integers(1, 4), st.sampled_from(USERS)),
    *(st.lists(st.sampled_from(STATES), min_size=1, max_size=3), st.sampled_from(ENDS)),
    st.just(()) | st.lists(new_runs, max_size=3),
)
changes = st.one_of(
    st.tuples(st.just("add"), new_jobs),
    st.tuples(st.just("set"), st.integers(0), st.sampled_from(STATES), st.sampled_from(ENDS)),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(new_jobs, max_size=6),
    filters,
    st.integers(1, 5),
    st.integers(1, 6),
    st.lists(changes, max_size=12),
    st.booleans(),
)
def test_every_row_is_on_one_page_whatever_changes(
    stored: StoredTasks,
    jobs: list[Any],
    wanted: TaskFilter,
    limit: int,
    examined: int,
    between: list[Any],
    fold: bool,
) -> None:
    stored.clear()
    for id, new_job in enumerate(jobs, 1):
        stored.add(id, *new_job)
    always = ever = stored.matching(wanted)
    runs = read_runs(stored.connection, wanted)
    in_runs = {(run.row["job"], index) for run in runs for index in run.indices}
    assert in_runs == {id for id in always if stored.rows[id].get("run") is not None}
    listed: list[TaskId] = []
    after: TaskId | None = BEFORE_ALL
    pending = list(between)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("metasched.db.job_pages.MAX_EXAMINED", examined)
        patch.setattr("metasched.db.job_pages.SELECTORS_PER_QUERY", 2)
        while after is not None:
            page = read_page(stored.connection, wanted, after, min(limit, examined), fold=fold)
            assert len(page.rows) <= limit
            for row in page.rows:
                indices = row.get("folded", (row["task_index"],))
                assert row["task_index"] == indices[0]
                assert len(indices) == 1 or (fold and row["ended"] is None)
                listed += [(row["job"], index) for index in indices]
            assert page.next_after is None or page.next_after > after
            after = page.next_after
            if after is not None:  # as a client sends it back
                assert decode_cursor(encode_cursor(*after), 2) == after
            for change in pending[:2]:
                _apply(stored, change)
                now = stored.matching(wanted)
                always, ever = always & now, ever | now
            del pending[:2]
    assert listed == sorted(set(listed))
    assert always <= set(listed) <= ever


def test_waiting_tasks_of_an_array_have_one_row_where_they_are_folded(stored: StoredTasks) -> None:
    stored.clear()
    stored.add(1, 2, "ada", [State.RUNNING], NOW, [(0, 1, 100_000, State.QUEUED)])
    stored.add(2, 1, "ada", [State.RUNNING], NOW, [(2, 2, 3, State.CANCELLED)])
    page = read_page(stored.connection, TaskFilter(), BEFORE_ALL, 7, fold=True)
    keys = [(row["job"], row.get("folded", row["task_index"])) for row in page.rows]
    assert keys == [(1, 0), (1, 1), (1, range(2, 100_002)), (2, 0), (2, 3), (2, 5), (2, 7)]


def _apply(stored: StoredTasks, change: tuple[Any, ...]) -> None:
    if change[0] == "add":
        stored.add(max((id for id, _ in stored.rows), default=0) + 1, *change[1])
    elif stored.rows:
        tasks = sorted(stored.rows)
        stored.set_state(tasks[change[1] % len(tasks)], *change[2:])


LISTINGS = {
    "own jobs": TaskFilter(user="ada", ended_since=NOW),
    "all users": TaskFilter(ended_since=NOW),
    "own jobs, --all": TaskFilter(user="ada"),
    "all users, --all": TaskFilter(),
    "--state failed": TaskFilter(user="ada", states=["failed"], ended_since=NOW),
    "--state running": TaskFilter(user="ada", states=["running"], ended_since=NOW),
    "--state failed --all": TaskFilter(user="ada", states=["failed"]),
    "--state OOM": TaskFilter(user="ada", states=["out_of_memory"], ended_since=NOW),
    "of all by OOM": TaskFilter(states=["out_of_memory"], ended_since=NOW),
    "--since": TaskFilter(user="ada", since=NOW, ended_since=NOW),
    "named jobs": TaskFilter([(17_000, None), (18_000, None)]),
    "named tasks": TaskFilter([(17_000, 0), (18_000, 0), (19_000, None)]),
    "cancel --user": TaskFilter(user="ada", only_open=True),
    "cancel --cluster": TaskFilter(cluster="left", only_open=True),
    "by reason": TaskFilter(user="ada", reason="priority", ended_since=NOW),
    "of all by reason": TaskFilter(reason="priority", ended_since=NOW),
    "of all by reason, also ended": TaskFilter(reason="priority"),
    "of all by state": TaskFilter(states=["running"], ended_since=NOW),
    "of all by cluster": TaskFilter(cluster="right", ended_since=NOW),
    "by licence": TaskFilter(user="ada", licence="matlab", ended_since=NOW),
}


MANY_JOBS = """
WITH RECURSIVE number(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM number WHERE id < 20000)
INSERT INTO job
    (id, "user", name, submitted, priority, priority_parts, spec, script, environment, payload)
SELECT id, CASE WHEN id % 9 = 0 THEN 'ada' ELSE 'bob' END, 'n', 1000000.0 + id % 3, 5,
    '[]', '{}', 'd', 'd', '{}' FROM number
"""
THEIR_TASKS = """
INSERT INTO task (job, task_index, state, reason, held, attempts, moves,
    ignore_rejections_until, ended, "user")
SELECT id, 0, CASE WHEN id % 50 = 0 THEN 'queued' ELSE 'failed' END, '', false, 1, 0, 0,
    CASE WHEN id % 50 = 0 THEN NULL WHEN id % 20 = 0 THEN 1000020.0 ELSE id END, "user" FROM job
"""
THEIR_ATTEMPTS = """
INSERT INTO attempt
    (job, task_index, number, dispatch_id, cluster, state, dispatched, manager_reason, node,
    rejected, restarts, has_started, fence, revoking, revoked, lease_expired)
SELECT job, task_index, 1, 1, 'left', 'completed', 1000000.0, '', '', false, 0, false, '',
    false, false, false FROM task
"""
THEIR_RUNS = """
INSERT INTO task_run (job, first_index, last_index, step, state, reason, ended, "user")
SELECT job, 10, 20, 2, CASE WHEN ended IS NULL THEN 'held' ELSE 'cancelled' END, '', ended, "user"
FROM task
"""


@pytest.fixture
def many_tasks(database: Database) -> Iterator[Engine]:
    """Tasks of which most ended long ago, and statistics as PostgreSQL collects them."""
    engine = database.open()
    with engine.begin() as connection:
        connection.execute(insert(content).values(digest="d", text="{}"))
        for statement in (MANY_JOBS, THEIR_TASKS, THEIR_ATTEMPTS, THEIR_RUNS):
            connection.execute(text(statement))
    if engine.dialect.name == "postgresql":
        with engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("ANALYZE"))
    yield engine
    engine.dispose()


def _explain(cursor: Any, dialect: str, statement: str, parameters: Any) -> list[str]:
    """Return the parts of the plan of a statement that read a whole table or index."""
    if dialect == "sqlite":
        cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
        steps = [str(row[3]) for row in cursor.fetchall()]
        return [step for step in steps if step.startswith("SCAN") and step.split()[1] in TABLES]
    cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
    [[[plan]]] = cursor.fetchall()
    return list(_full_scans(plan["Plan"]))


def _full_scans(node: dict[str, Any]) -> Iterator[str]:
    """Yield the scans without a condition in a part of a plan of PostgreSQL."""
    kind, scanned = node["Node Type"], node.get("Relation Name", node.get("Index Name"))
    reads_index = "Index" in kind and "Index Cond" in node
    if scanned in TABLES and not reads_index and kind != "Bitmap Heap Scan":
        yield f"{kind} of {scanned}"
    if kind == "Bitmap Index Scan" and not reads_index:
        yield f"{kind} of {scanned}"
    for part in node.get("Plans", ()):
        yield from _full_scans(part)


TABLES = ("task", "task_run", "job", "attempt")


def test_no_query_of_status_scans_a_table(many_tasks: Engine) -> None:
    """A scan reads a whole table, or a whole index."""
    dialect, queries = many_tasks.dialect.name, Queries(many_tasks)
    scans: list[str] = []

    def add_scans(_: object, cursor: Any, statement: str, parameters: Any, *_more: object) -> None:
        if "set_config" not in statement:
            scans.extend(_explain(cursor, dialect, statement, parameters))

    def scans_of(query: Callable[[], object]) -> list[str]:
        scans.clear()
        event.listen(many_tasks, "before_cursor_execute", add_scans)
        query()
        event.remove(many_tasks, "before_cursor_execute", add_scans)
        return list(scans)

    with many_tasks.connect() as connection:
        cursor = connection.connection.cursor()
        assert _explain(cursor, dialect, "SELECT * FROM task WHERE state = 'running'", ())
        assert _explain(cursor, dialect, "SELECT job FROM task ORDER BY job", ())
    for name, task_filter in LISTINGS.items():
        assert scans_of(partial(queries.status_page, task_filter, (10_000, 0), 100)) == [], name
    for selector in ((17_000, None), (17_000, 0)):
        assert scans_of(partial(queries.missing_jobs, [selector], "ada")) == []
    assert scans_of(partial(queries.owners, [17])) == []


def test_a_page_that_compares_many_rows_may_be_empty(stored: StoredTasks) -> None:
    stored.clear()
    for id in range(1, 9):
        stored.add(id, 1, "ada", [State.FAILED if id == 8 else State.COMPLETED], NOW)
    task_filter = TaskFilter(user="ada", states=["failed"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("metasched.db.job_pages.MAX_EXAMINED", 5)
        first = read_page(stored.connection, task_filter, BEFORE_ALL, 5)
        assert (first.rows, first.next_after) == ([], (5, 0))
        second = read_page(stored.connection, task_filter, first.next_after or BEFORE_ALL, 5)
    assert [row["job"] for row in second.rows] == [8]
    assert second.next_after is None
    assert read_page(stored.connection, replace(task_filter, user="bob")).rows == []


def test_filters_by_reason_and_licence(stored: StoredTasks) -> None:
    stored.clear()
    documents = {
        1: '{"licences":{"matlab":2}}',
        2: '{"licences":{"ansys":1},"licence_choices":[{"ansys":1},{"matlab":1}]}',
        3: '{"licences":{"ansys":1},"gres":{"matlab":1}}',
        4: '{"licences":{}}',
    }
    for id, document in documents.items():
        stored.add(id, 1, "ada", [State.QUEUED], NOW)
        values = {"spec": document, "modified_spec": documents[1] if id == 4 else None}
        stored.connection.execute(update(job).where(job.c.id == id).values(values))
        reason = {1: "priority", 2: "manager:Resources", 3: "manager_x"}.get(id, "manager:QOS")
        stored.connection.execute(update(task).where(task.c.job == id).values(reason=reason))

    def jobs(wanted: TaskFilter) -> list[int]:
        return [row["job"] for row in read_page(stored.connection, wanted).rows]

    assert jobs(TaskFilter(licence="matlab")) == [1, 2, 4]
    assert jobs(TaskFilter(licence="ansys")) == [2, 3]
    assert jobs(TaskFilter(licence='mat"lab')) == []
    assert jobs(TaskFilter(reason="priority")) == [1]
    assert jobs(TaskFilter(reason="manager:")) == [2, 4]
    assert jobs(TaskFilter(reason="manager:QOS", licence="matlab")) == [4]
    # tasks in runs: two that wait, two that were cancelled
    stored.add(5, 0, "ada", [], NOW, [(0, 1, 2, State.QUEUED), (4, 1, 2, State.CANCELLED)])
    waits = (task_run.c.job == 5) & task_run.c.ended.is_(None)
    stored.connection.execute(update(task_run).where(waits).values(reason="priority"))
    assert jobs(TaskFilter(reason="priority")) == [1, 5, 5]
    assert jobs(TaskFilter(reason="priority", ended_since=NOW - 1)) == [1, 5, 5]
    assert jobs(TaskFilter(states=["cancelled"])) == [5, 5]
    assert jobs(TaskFilter(states=["running"])) == []


def test_numbers_of_tasks_of_arrays(stored: StoredTasks) -> None:
    """A job precedes a number; tasks of other users and of arrays before `first_id` have none."""
    stored.clear()
    arrays = {90: "1-9", 100: "2,5-9:2", 104: None, 110: "0-4", 120: None}
    for id, array in arrays.items():
        stored.add(id, 1, "bob" if id == 110 else "ada", [State.QUEUED], NOW)
        stored.connection.execute(update(job).where(job.c.id == id).values(array=array))

    def replaced(*selectors: TaskSelector, visible_to: str | None = "ada") -> list[TaskSelector]:
        return replace_numbers(stored.connection, selectors, 100, visible_to)

    asked = [(id, None) for id in (91, 100, 101, 103, 104, 105, 109, 112, 115, 121)]
    tasks = {101: (100, 5), 103: (100, 9)}
    assert replaced(*asked) == [tasks.get(id, (id, None)) for id, _ in asked]
    tasks[112] = (110, 2)
    assert replaced(*asked, visible_to=None) == [tasks.get(id, (id, None)) for id, _ in asked]
    assert replaced((102, None), (102, 0), (101, None), (102, None)) == [
        *((100, 7), (102, 0), (100, 5), (100, 7))
    ]
