"""Paths of public traces that are not part of the project."""

from __future__ import annotations

import os
from pathlib import Path

from tests.conftest import require

ROOT = Path(__file__).parents[2]


def folder() -> Path:
    return Path(os.environ.get("METASCHED_TRACES", ROOT.parent / "shared" / "traces"))


def trace(name: str) -> Path:
    """Return the file of a trace. Skip or fail the test if it is missing (see `require`)."""
    path = folder() / name
    if not os.access(path, os.R_OK):
        require("traces", f"{path} is not there for us; METASCHED_TRACES names another folder")
    return path
