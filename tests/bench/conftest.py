"""Fixtures of the benchmarks: `record`, and a daemon as in the end-to-end tests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import pytest

from tests.bench.figures import (
    FILE,
    Conditions,
    Figure,
    current_conditions,
    format_figure,
    store_figures,
)
from tests.e2e.conftest import running, shared, site

__all__ = ["conditions", "record", "running", "shared", "site"]


@dataclass
class Record:
    """Stores and prints the figures of a test."""

    test: str  # file::function[parameters]
    conditions: Conditions
    capsys: pytest.CaptureFixture[str]
    figures: list[Figure] = field(default_factory=list)  # stored by this test so far

    def __call__(
        self,
        name: str,
        figure: float,
        unit: str,
        *,
        peers: Mapping[str, float] | None = None,
        target: str = "",
    ) -> None:
        """Store a figure; peers, by name, have the same unit and were measured in the same run."""
        now = msgspec.structs.replace(self.conditions, load=round(os.getloadavg()[0], 1))
        recorded = Figure(self.test, name, figure, unit, dict(peers or {}), target, now)
        self.figures.append(recorded)
        store_figures(FILE, self.test, self.figures)
        comparison = ", ".join(
            f"{peer} {format_figure(of, unit)}" for peer, of in recorded.peers.items()
        )
        with self.capsys.disabled():
            print(
                f"\n{name}: {format_figure(figure, unit)}"
                + (f" ({comparison})" if comparison else "")
            )


@pytest.fixture(scope="session")
def conditions() -> Conditions:
    return current_conditions()


@pytest.fixture
def record(
    request: pytest.FixtureRequest, conditions: Conditions, capsys: pytest.CaptureFixture[str]
) -> Record:
    """Return the recorder, which a benchmark calls with each figure that it measures."""
    return Record(f"{request.path.name}::{request.node.name}", conditions, capsys)
