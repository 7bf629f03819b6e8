"""A short load in site mode loses and duplicates no task, though the daemon is killed.

`python -m tests.load` is the large form (`make load`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median

import msgspec
import pytest

from tests.conftest import require
from tests.load.model import Model
from tests.load.monitor import Sample
from tests.load.report import PAGE, STORE, Stored, page
from tests.load.run import DAEMON_KILLED, MAX_WAL, UserStarts, run, starved, unbounded
from tests.load.site import LARGE, SMALL, missing

CALM = Sample(0.0, 200.0, 30.0, 40, 20, 10.0, 4.0, 5.0, 0)


@pytest.mark.slow("three accounts submit 150 tasks to all managers; the daemon is killed")
@pytest.mark.root
@pytest.mark.timeout(900)
def test_no_task_is_lost_or_starved(common_folder: Path) -> None:
    if (lacking := missing()) is not None:
        require(*lacking)
    folder = common_folder / "load"
    folder.mkdir(mode=0o711)
    result = run(folder, SMALL, [DAEMON_KILLED], seed="test")
    assert result.violations == []
    assert result.accepted >= SMALL.tasks
    assert result.started + result.cancelled >= result.accepted
    assert [name for name, _ in result.recoveries] == [DAEMON_KILLED.name]


def test_a_starved_user_is_a_violation() -> None:
    fed = [UserStarts(f"u{number}", False, 100, waiting=5) for number in range(3)]
    one_by_one = UserStarts("u9", True, 2, waiting=1)
    all_started = UserStarts("u8", False, 3, waiting=0)
    assert starved([*fed, one_by_one, all_started]) == []
    [line] = starved([*fed, UserStarts("u3", False, 74, waiting=5)])
    assert "u3" in line
    # what he had started before all competed does not help
    competing = [replace(user, competing=50) for user in fed]
    [line] = starved([*competing, UserStarts("u3", False, 900, waiting=5, competing=30)])
    assert "u3 has 30 starts" in line


@pytest.mark.slow("simulates three minutes of the large site")
@pytest.mark.parametrize("seed", ["1", "2"])
def test_starts_are_equal_once_all_users_wait(seed: str) -> None:
    """Who submits first fills the empty queues; his lead is at most that filling, and stays so."""
    cpus = {"alpha": 32, "beta": 32, "cell": 16, "local0": 8, "local1": 8}
    model = Model(LARGE, cpus, seed)
    first = Counter[str]()
    for seconds in model.run():
        if seconds == 60.0:
            first = model.starts.copy()
        elif seconds >= 180.0:
            break
    later = model.starts - first
    share = median(later.values())
    assert len(later) == LARGE.accounts
    assert share > 100
    for user, starts in later.items():
        assert 0.8 * share < starts < 1.1 * share, user
    filling = len(cpus) * LARGE.queue_depth + sum(cpus.values())
    assert max(model.starts.values()) < median(model.starts.values()) + filling
    if seed == "1":  # the user of docs/load.md
        [(user, lead)] = model.starts.most_common(1)
        assert user == "u10"
        assert lead > 1.5 * median(model.starts.values())


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("daemon_memory", 250.0, 330.0), ("worker_files", 50, 80), ("wal", 50.0, 60.0)],
)
def test_growth_after_the_last_submission_is_a_violation(
    name: str, least: float, most: float
) -> None:
    def samples(last: float) -> list[Sample]:
        submitting = [msgspec.structs.replace(CALM, daemon_memory=float(s)) for s in range(20)]
        first = [msgspec.structs.replace(CALM, seconds=20.0 + s) for s in range(20)]
        later = [msgspec.structs.replace(s, seconds=60.0 + i) for i, s in enumerate(first)]
        return [*submitting, *first, *later, msgspec.structs.replace(later[-1], **{name: last})]

    assert unbounded(samples(least), 20.0) == []
    [line] = unbounded(samples(most), 20.0)
    assert name in line


def test_a_large_write_ahead_log_is_a_violation() -> None:
    assert unbounded([msgspec.structs.replace(CALM, wal=MAX_WAL + 1)], 0.0) != []


def test_the_stored_result_is_the_page() -> None:
    stored = msgspec.json.decode(STORE.read_bytes(), type=Stored)
    assert PAGE.read_text() == page(stored)
