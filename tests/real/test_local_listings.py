"""Listings of `local` after a cursor: each end once, also over restarts and upgrades."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from metasched.adapters import worker as worker_process
from metasched.adapters.local import adapter as local_adapter
from metasched.adapters.local.adapter import Local, LocalOptions
from metasched.adapters.local.queue_store import NewSubmission, QueueStore, Requirements
from metasched.adapters.protocol import FIRST_CURSOR, ListingDelta, WorkerCall
from metasched.adapters.worker import AdapterHost
from metasched.model.adapter_errors import Unreachable
from metasched.model.cluster import Cluster
from metasched.model.job import State
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of

INSTANCE = "abc123"
NEEDS = Requirements(cpus=1, counts={}, estimated=60.0, limit=None, key=1.0)


def final_status(job: int, native_id: int, instance: str = INSTANCE) -> JobStatus:
    now = time.time()
    tag = tag_of(instance, job, 1)
    return JobStatus(tag, 0, str(native_id), State.COMPLETED, now - 9, now - 5, exit_code=0)


def end_jobs(folder: Path, jobs: range, instance: str = INSTANCE) -> None:
    """Store tasks that have ended, in the order of `jobs`; no adapter is open."""
    store = QueueStore(folder / "queue.db")
    with closing(store):
        for job in jobs:
            tag = tag_of(instance, job, 1)
            [native_id] = store.insert(NewSubmission(tag, b"", b"", (0,), NEEDS))
            store.save_ended([(native_id, final_status(job, native_id, instance))], [tag])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


class Worker:
    """The worker of a local cluster, as the daemon sees it."""

    def __init__(self, folder: Path, cursor: str | None = FIRST_CURSOR) -> None:
        cluster = Cluster(name="here", adapter="local")
        self.adapter = Local(cluster, LocalOptions(cpus=4), INSTANCE, folder)
        self.host = AdapterHost(self.adapter)
        self.cursor = cursor

    def poll(self, full: bool = False) -> ListingDelta:
        delta = self.host.execute(WorkerCall("poll", full=full, cursor=self.cursor)).delta
        assert delta is not None
        self.cursor = delta.cursor if self.cursor is not None else None
        return delta

    def jobs(self, full: bool = False) -> list[int]:
        """Poll; return the jobs of the listed rows."""
        return [int(row.tag.split("-")[2]) for row in self.poll(full).rows]

    def close(self) -> str | None:
        self.adapter.close()
        return self.cursor


def test_an_end_is_listed_once_also_over_a_restart(folder: Path) -> None:
    end_jobs(folder, range(1, 4))
    worker = Worker(folder)
    first = worker.poll()
    assert (first.full, first.partial, len(first.rows)) == (True, False, 3)
    second = worker.poll()
    assert (second.full, second.rows, second.vanished) == (False, (), ())
    cursor = worker.close()
    end_jobs(folder, range(4, 6))
    restarted = Worker(folder, cursor)
    assert restarted.jobs() == [4, 5]
    assert restarted.jobs(full=True) == []
    restarted.close()


def test_a_daemon_that_has_stored_nothing_gets_the_ends_again(folder: Path) -> None:
    """Its transaction failed, or its database is a restored backup."""
    end_jobs(folder, range(1, 4))
    worker = Worker(folder)
    assert worker.jobs() == [1, 2, 3]
    worker.cursor = FIRST_CURSOR
    assert worker.jobs() == []  # the worker continues where it was
    worker.cursor = FIRST_CURSOR
    assert worker.jobs(full=True) == [1, 2, 3]
    worker.close()


def test_many_ends_are_listed_in_portions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_adapter, "ENDS_AT_ONCE", 3)
    end_jobs(folder, range(1, 8))
    worker = Worker(folder)
    deltas = [worker.poll(full=True), worker.poll(), worker.poll(), worker.poll()]
    assert [(d.full, d.partial, len(d.rows)) for d in deltas] == [
        (False, True, 3),
        (False, True, 3),
        (True, False, 1),
        (False, False, 0),
    ]
    assert [delta.vanished for delta in deltas] == [()] * 4
    # a new whole listing begins at the cursor that the daemon has stored
    worker.cursor = deltas[0].cursor
    assert worker.jobs(full=True) == [4, 5, 6]
    worker.close()


def test_other_instances_move_the_cursor_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_adapter, "ENDS_AT_ONCE", 2)
    end_jobs(folder, range(1, 6), instance="0ther1")
    end_jobs(folder, range(6, 7))
    worker = Worker(folder)
    assert [worker.jobs() for _ in range(4)] == [[], [], [6], []]
    worker.close()


def test_a_daemon_of_the_release_before_gets_whole_listings(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_adapter, "ENDS_AT_ONCE", 2)
    end_jobs(folder, range(1, 6))
    worker = Worker(folder, cursor=None)
    first = worker.poll()
    assert (first.full, first.partial, first.cursor, len(first.rows)) == (True, False, "", 5)
    assert worker.jobs() == []
    assert worker.jobs(full=True) == [1, 2, 3, 4, 5]
    worker.close()


@pytest.mark.parametrize("cursor", ["", "x", "0:5", "nan:2", ":", "1e9:-1"])
def test_an_unknown_cursor_is_the_beginning(folder: Path, cursor: str) -> None:
    end_jobs(folder, range(1, 3))
    worker = Worker(folder, cursor)
    assert worker.jobs() == [1, 2]
    worker.close()


def test_a_cursor_of_a_deleted_database_is_the_beginning(folder: Path) -> None:
    end_jobs(folder, range(1, 4))
    worker = Worker(folder)
    worker.poll()
    cursor = worker.close()
    for path in folder.glob("queue.db*"):
        path.unlink()
    end_jobs(folder, range(11, 16))
    again = Worker(folder, cursor)
    assert again.jobs() == [11, 12, 13, 14, 15]
    again.close()


def test_a_number_that_was_never_given_is_the_beginning(folder: Path) -> None:
    """An older copy of the database was put back."""
    end_jobs(folder, range(1, 3))
    worker = Worker(folder)
    worker.poll()
    created = (worker.close() or "").partition(":")[0]
    again = Worker(folder, f"{created}:17")
    assert again.jobs() == [1, 2]
    again.close()


def test_numbers_are_not_used_twice(folder: Path) -> None:
    end_jobs(folder, range(1, 4))
    store = QueueStore(folder / "queue.db")
    with closing(store):
        last = store.ends_after(0, 10).last
        store.delete_ended(time.time() + 1, 10)
        assert store.ends_after(0, 10).statuses == []
    end_jobs(folder, range(4, 5))
    store = QueueStore(folder / "queue.db")
    with closing(store):
        ends = store.ends_after(0, 10)
        assert ends.last > last
        assert len(ends.statuses) == 1


def test_a_database_of_another_release_is_refused_and_not_changed(folder: Path) -> None:
    path = folder / "queue.db"
    for version in (0, 2):
        with closing(sqlite3.connect(path)) as other:
            other.executescript(
                f"CREATE TABLE IF NOT EXISTS tasks (id INTEGER); PRAGMA user_version = {version}"
            )
        stored = path.read_bytes()
        with pytest.raises(Unreachable) as refused:
            Worker(folder).adapter.poll()
        assert refused.value.reason == (
            f"{folder}: queue.db has tables of another release (version {version}, not 1); "
            "install that release, or move the folder away"
        )
        assert path.read_bytes() == stored


def test_a_second_worker_is_refused_before_it_reads(folder: Path) -> None:
    worker = Worker(folder)
    worker.poll()
    second = Worker(folder)
    with pytest.raises(Unreachable, match="in use by process"):
        second.adapter.poll()
    worker.close()


def end_with_damage(folder: Path, jobs: range) -> list[str]:
    """Store ends with values that cannot be used; return their tags."""
    tags = [tag_of(INSTANCE, job, 1) for job in jobs]
    with closing(QueueStore(folder / "queue.db")) as store:
        for job, tag in zip(jobs, tags, strict=True):
            [native_id] = store.insert(NewSubmission(tag, b"", b"", (0,), NEEDS))
            damaged = msgspec.structs.replace(final_status(job, native_id), started=1e300)
            store.save_ended([(native_id, damaged)], [tag])
    return tags


def test_a_row_that_is_set_aside_stays_so(folder: Path) -> None:
    """It is not listed again, and must not count as absent."""
    tags = end_with_damage(folder, range(1, 2))
    worker = Worker(folder)
    first, second = worker.poll(), worker.poll()
    assert (first.rows, second.rows, second.vanished) == ((), (), ())
    assert [row.tag for row in second.quarantined] == tags
    worker.close()


def test_rows_that_are_set_aside_do_not_fill_a_worker(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "MAX_SET_ASIDE", 3)
    tags = end_with_damage(folder, range(1, 6))
    worker = Worker(folder)
    assert [row.tag for row in worker.poll().quarantined] == tags[2:]
    assert [row.tag for row in worker.poll().quarantined] == tags[2:]
    worker.close()
