"""Golden decisions: another decision needs another `DECISION_VERSION`; another text does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metasched.core.scheduler import DECISION_VERSION
from metasched.core.state import SchedulerState
from metasched.core.tasks import Task
from metasched.core.transitions import TaskEvent
from metasched.model.daily_use import UseSums
from metasched.model.job import Job
from metasched.policies.dispatch import LoadOrdering
from tests.harness import golden_decisions, golden_lives
from tests.harness.decisions import INPUTS, TEXTS, described
from tests.harness.golden_decisions import FOLDER, LIVES, SUMMARY, GoldenError, StoredLife
from tests.harness.lives import Life

ROOT = Path(__file__).parents[2]
FEW = 30  # lives


@pytest.fixture(scope="module")
def lives() -> list[StoredLife]:
    return golden_decisions.read()[1]


@pytest.fixture
def folder(tmp_path: Path, lives: list[StoredLife]) -> Path:
    """A folder with few of the stored lives."""
    return stored(lives[:FEW], tmp_path / "golden")


def stored(lives: list[StoredLife], folder: Path) -> Path:
    folder.mkdir()
    golden_decisions.store(lives, folder)
    return folder


def contents(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in (LIVES, SUMMARY)]


@pytest.fixture
def changed_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task goes to the cluster that is not chosen, if two are eligible."""
    choose = LoadOrdering.choose

    def choose_another(
        ordering: LoadOrdering, job: Job, priority: int, eligible: Collection[str] | None = None
    ) -> str:
        choice = choose(ordering, job, priority, eligible)
        names = ordering.clusters if eligible is None else eligible
        return next((name for name in names if name != choice), choice)

    monkeypatch.setattr(LoadOrdering, "choose", choose_another)


def run(hash_seed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow("each replays 205 lives in a process")
@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_core_decides_as_stored(hash_seed: str) -> None:
    completed = run(hash_seed, "-m", "tests.harness.golden_decisions")
    if completed.returncode:
        pytest.fail(completed.stderr, pytrace=False)
    assert f"{len(golden_lives.SEEDS) + len(golden_lives.SIMULATIONS)} lives" in completed.stdout


@pytest.mark.usefixtures("changed_decision")
def test_a_changed_decision_is_reported(folder: Path) -> None:
    with pytest.raises(GoldenError) as raised:
        golden_decisions.compare(folder)
    report = str(raised.value)
    assert f"of {FEW} lives are decided otherwise than by DECISION_VERSION" in report
    assert "- action Dispatch job=" in report
    assert "+ action Dispatch job=" in report
    assert "raise DECISION_VERSION in metasched/core/scheduler.py and run" in report


def test_a_changed_text_is_not_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = SchedulerState.record_change
    texts: list[str] = []

    def record_otherwise(
        state: SchedulerState, task: Task, event: TaskEvent | None, before: Any, cause: str
    ) -> None:
        texts.append(cause)
        record(state, task, event, before, f"in other words, {cause}")

    monkeypatch.setattr(SchedulerState, "record_change", record_otherwise)
    golden_decisions.compare(folder)
    assert len(texts) > FEW


def test_a_raised_version_needs_new_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden_decisions, "DECISION_VERSION", DECISION_VERSION + 1)
    with pytest.raises(GoldenError, match=f"the core has {DECISION_VERSION + 1}; run .* --write"):
        golden_decisions.compare(folder)


@pytest.mark.usefixtures("changed_decision")
def test_a_changed_decision_is_not_stored_within_a_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(folder)
    monkeypatch.setattr(golden_lives, "draw_lives", list)
    with pytest.raises(GoldenError, match="raise DECISION_VERSION"):
        golden_decisions.write(folder)
    assert contents(folder) == before


@pytest.mark.usefixtures("changed_decision")
def test_a_changed_decision_is_stored_with_a_raised_version(
    folder: Path, lives: list[StoredLife], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(golden_decisions, "DECISION_VERSION", DECISION_VERSION + 1)
    monkeypatch.setattr(golden_lives, "draw_lives", lambda: [each.life for each in lives[:FEW]])
    assert golden_decisions.write(folder).startswith(f"{FEW} lives written, ")
    assert golden_decisions.compare(folder).startswith(f"{FEW} lives, ")


def test_renamed_fields_are_stored_if_all_hashes_remain(
    tmp_path: Path, lives: list[StoredLife], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that cannot be read are replaced by the same events, but not by others."""
    first, second = lives[:2]
    unreadable = msgspec.structs.replace(
        first, life=msgspec.structs.replace(first.life, steps=with_other_fields(first.life))
    )
    folder = stored([unreadable], tmp_path / "golden")
    before = contents(folder)
    with pytest.raises(GoldenError, match="event 1 cannot be read"):
        golden_decisions.compare(folder)
    monkeypatch.setattr(golden_lives, "draw_lives", lambda: [second.life])
    with pytest.raises(GoldenError, match="cannot be read, and the lives drawn anew"):
        golden_decisions.write(folder)
    assert contents(folder) == before
    monkeypatch.setattr(golden_lives, "draw_lives", lambda: [first.life])
    assert golden_decisions.write(folder) == "1 lives written, 1 with the same hash as before"
    golden_decisions.compare(folder)


def with_other_fields(life: Life) -> list[Any]:
    renamed = {"moment": 1.0, "other": 2}
    first = msgspec.structs.replace(
        life.steps[0], data=msgspec.Raw(msgspec.msgpack.encode(renamed))
    )
    return [first, *life.steps[1:]]


def test_a_lost_optional_field_is_no_other_decision(
    tmp_path: Path, lives: list[StoredLife]
) -> None:
    """Its default decides otherwise, but the core does not."""
    folder = stored([with_renamed_limits(each) for each in lives[:FEW]], tmp_path / "golden")
    with pytest.raises(GoldenError, match=r"has no TIME_LIMIT any more\); a stored field or"):
        golden_decisions.compare(folder)


def with_renamed_limits(stored: StoredLife) -> StoredLife:
    steps = [
        msgspec.structs.replace(
            step, data=msgspec.Raw(bytes(step.data).replace(b"\xaatime_limit", b"\xaaTIME_LIMIT"))
        )
        for step in stored.life.steps
    ]
    return msgspec.structs.replace(stored, life=msgspec.structs.replace(stored.life, steps=steps))


def test_an_unknown_event_cannot_be_read(tmp_path: Path, lives: list[StoredLife]) -> None:
    first = lives[0]
    unknown = msgspec.structs.replace(first.life.steps[0], kind="Renamed")
    life = msgspec.structs.replace(first.life, steps=[unknown, *first.life.steps[1:]])
    folder = stored([msgspec.structs.replace(first, life=life)], tmp_path / "golden")
    with pytest.raises(GoldenError, match=r"1 cannot be read \(the core has no event Renamed"):
        golden_decisions.compare(folder)


def test_a_version_is_never_lowered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a raise, a run with `--write` and a lowering would store other decisions."""
    before = contents(folder)
    monkeypatch.setattr(golden_decisions, "DECISION_VERSION", DECISION_VERSION - 1)
    monkeypatch.setattr(golden_lives, "draw_lives", list)
    for function in (golden_decisions.compare, golden_decisions.write):
        with pytest.raises(GoldenError, match="a version is never lowered"):
            function(folder)
    assert contents(folder) == before


def test_files_of_two_runs_are_refused(folder: Path) -> None:
    shutil.copy(FOLDER / SUMMARY, folder)
    with pytest.raises(GoldenError, match=r"of different runs; run .* --write"):
        golden_decisions.compare(folder)


@pytest.mark.parametrize("name", [LIVES, SUMMARY])
def test_a_damaged_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"damaged")
    with pytest.raises(GoldenError, match=name):
        golden_decisions.compare(folder)


def test_a_life_is_drawn_by_its_seed_alone() -> None:
    """Neither the hash seed of Python nor modules that are loaded change it."""
    script = (
        "import hashlib, sys, msgspec; {loaded}; "
        "from tests.property.seeded_lives import draw_life; "
        "print(hashlib.sha256(msgspec.msgpack.encode(draw_life(3))).hexdigest())"
    )
    printed = [
        run(hash_seed, "-c", script.format(loaded=loaded))
        for hash_seed, loaded in (("1", "pass"), ("2", "import tests.property.test_queueing"))
    ]
    assert [completed.returncode for completed in printed] == [0, 0], printed[0].stderr
    assert printed[0].stdout == printed[1].stdout != ""


def test_the_life_of_another_seed_is_another(lives: list[StoredLife]) -> None:
    hashes = {each.hash.sha256 for each in lives}
    assert len(hashes) == len(lives)


@pytest.mark.parametrize("kind", [*TEXTS, *INPUTS], ids=lambda kind: kind.__name__)
def test_left_out_fields_exist(kind: type) -> None:
    names = TEXTS.get(kind, frozenset()) | INPUTS.get(kind, frozenset())
    assert names <= kind.__annotations__.keys()


def test_values_are_described_alike() -> None:
    assert described(6.0) == described(6) == "6"
    assert described(0.1 + 0.2) == "0.3"
    assert described(-0.0) == "0"
    assert described(frozenset({"b", "a"})) == "{a, b}"
    assert described({"b": 1, "a": (1, None)}) == "{a: (1, None), b: 1}"
    assert described("two words") == "'two words'"


def test_a_figure_that_is_rounded_to_its_default_makes_no_difference() -> None:
    assert described(UseSums(elapsed=-1e-9)) == described(UseSums()) == "UseSums"


def test_unset_fields_make_no_difference() -> None:
    task = Task(Job(id=1, submitted=0.0, estimated=1.0), 0, 1, 0.0, reason="licence_busy")
    assert described(task) == (
        "Task priority=1 queue_key=0 reason=licence_busy classified_priority=1"
    )
