"""Recorded answers of several Slurm releases to the same queries in the same state."""

from __future__ import annotations

import json
import re

import pytest

from tests.harness.slurm_recordings import RECORDED, check

FILES = sorted(RECORDED.glob("slurm-*.json"))


@pytest.mark.parametrize("name", [file.stem for file in FILES])
def test_recorded_answers_are_read_as_what_the_cluster_was(name: str) -> None:
    check(json.loads((RECORDED / f"{name}.json").read_text()), 0)


def test_each_supported_release_is_there() -> None:
    releases = [re.findall(r"\d+\.\d+", file.stem)[0] for file in FILES]
    assert releases == ["22.05", "24.11", "26.05"]
