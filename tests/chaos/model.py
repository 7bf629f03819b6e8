"""Trials of a simulated manager that stands still, with the real worker and core; they resume."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from tests.harness.standing_manager import trial

STORED_EVERY = 100  # trials


class Sums(msgspec.Struct):
    """The sums over the trials that are done."""

    trials: int = 0
    uncertain: int = 0  # dispatches without an answer
    repeated: int = 0  # dispatches that were made again
    bad: list[str] = msgspec.field(default_factory=list)  # seeds of trials that lost or doubled
    seconds: float = 0.0


def run(seed: int, trials: int, notes: Path, fresh: bool) -> int:
    """Run the trials that have no stored result; print the sums. Return 1 if any trial was bad."""
    notes.mkdir(exist_ok=True)
    path = notes / f"model-{seed}-{trials}.json"
    if fresh:
        path.unlink(missing_ok=True)
    sums = msgspec.json.decode(path.read_bytes(), type=Sums) if path.exists() else Sums()
    while sums.trials < trials:
        begun = time.monotonic()
        for number in range(sums.trials, min(sums.trials + STORED_EVERY, trials)):
            verdict = trial(f"{seed}/{number}")
            sums.uncertain += verdict.uncertain
            sums.repeated += verdict.repeated
            if verdict.doubled or verdict.lost:
                sums.bad.append(f"{seed}/{number}")
            sums.trials += 1
        sums.seconds += time.monotonic() - begun
        path.write_bytes(msgspec.json.encode(sums))
    print(
        f"{sums.trials} trials in {sums.seconds:.0f} s: {sums.uncertain} dispatches without an "
        f"answer, {sums.repeated} made again, {len(sums.bad)} trials lost or doubled a task"
        + "".join(f"; {bad}" for bad in sums.bad[:10])
    )
    return 1 if sums.bad else 0
