"""Where the public traces are that are no part of the project."""

from __future__ import annotations

import os
from pathlib import Path

from tests.conftest import require

ROOT = Path(__file__).parents[2]


def folder() -> Path:
    return Path(os.environ.get("METASCHED_TRACES", ROOT.parent / "shared" / "traces"))


def trace(name: str) -> Path:
    """The file of a trace; the test is skipped, or fails where it must not be, without it."""
    path = folder() / name
    if not os.access(path, os.R_OK):
        require("traces", f"{path} is not there for us; METASCHED_TRACES names another folder")
    return path
