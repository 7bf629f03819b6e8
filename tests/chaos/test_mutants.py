"""Harnesses find restored defects, and nothing in the unchanged code."""

from __future__ import annotations

import pytest
from rich.console import Console

from tests.chaos.mutants.__main__ import run
from tests.chaos.mutants.mutant import FOLDER, read_mutant

# a cheap harness; `make chaos` searches for all defects
QUICK = ("overrun-not-ended",)
TRIALS = 10


@pytest.mark.slow("searches for a defect in up to ten trials of a property test")
@pytest.mark.parametrize("name", QUICK)
def test_a_restored_defect_is_found(name: str) -> None:
    mutant = read_mutant(FOLDER / f"{name}.patch")
    [result] = run([mutant], seed=1, trials=TRIALS, console=Console(stderr=True))
    assert result.found, result
    assert result.clean, result
    assert result.control_trials >= result.trials
