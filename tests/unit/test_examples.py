"""Examples of the documents: each prints its stored output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_its_stored_output(example: Path) -> None:
    done = subprocess.run(
        [sys.executable, example], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == example.with_suffix(".out").read_text()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3
