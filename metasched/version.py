"""The version and the commit of this code.

Both are read once, at the import: a daemon reports the code that it was started from.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Final

from metasched.checkout import commit_of

CHECKOUT: Final = Path(__file__).resolve().parents[1]  # unless metasched is installed
_COMMIT_FILE = Path(__file__).with_name("COMMIT")  # in wheels and sdists, by the build hook

VERSION: Final = importlib.metadata.version("metasched")
COMMIT: Final = (
    (_COMMIT_FILE.read_text().strip() or None) if _COMMIT_FILE.exists() else commit_of(CHECKOUT)
)  # None: unknown, as in a source archive


def release_name(version: str, commit: str | None) -> str:
    """Return both for messages, such as `1.0.0 (commit 5d41402ab)`."""
    return version if commit is None else f"{version} (commit {commit})"


RELEASE: Final = release_name(VERSION, COMMIT)
