"""The commit of a checkout of metasched, read from its .git without running git."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

DIGITS: Final = 9  # of a short commit
MAX_BYTES: Final = 1 << 12  # of HEAD, a reference or a path
MAX_LARGE_BYTES: Final = 1 << 24  # of packed-refs and pyproject.toml
MAX_LINKS: Final = 5  # symbolic references in a row, as in git

_PROJECT = re.compile(rb'^name = "metasched"$', re.MULTILINE)
_HASH = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REFERENCE = re.compile(rb"refs(?:/(?!\.)[^/\x00-\x20\x7f~^:?*\[\\]+)+")  # without ..


def commit_of(checkout: Path) -> str | None:
    """Return the short commit of a checkout of metasched.

    None if the folder is something else, such as the site-packages of another repository, or if
    its .git names no commit.
    """
    try:
        if not _PROJECT.search(_read(checkout, b"pyproject.toml", MAX_LARGE_BYTES) or b""):
            return None
        folder = checkout / ".git"
        link = _read(checkout, b".git") or b""
        if link.startswith(b"gitdir: "):  # of a worktree or a submodule
            folder = checkout / os.fsdecode(link.removeprefix(b"gitdir: ").rstrip(b"\n"))
        link = _read(folder, b"commondir") or b"."
        common = folder / os.fsdecode(link.rstrip(b"\n"))  # of all worktrees
        value = _read(folder, b"HEAD")
        for _ in range(MAX_LINKS):
            value = (value or b"").rstrip()
            if _HASH.fullmatch(value):
                return value[:DIGITS].decode()
            name = value.removeprefix(b"ref:").lstrip()
            if name == value or not _REFERENCE.fullmatch(name):
                return None
            value = _read(common, name)
            if value is None:
                value = _packed_reference(common, name)
    except (OSError, ValueError):  # ValueError: a path with a null byte
        pass
    return None


def _packed_reference(common: Path, name: bytes) -> bytes | None:
    packed = _read(common, b"packed-refs", MAX_LARGE_BYTES) or b""
    found = re.search(rb"^([0-9a-f]+) " + re.escape(name) + rb"$", packed, re.MULTILINE)
    return None if found is None else found[1]


def _read(folder: Path, name: bytes, limit: int = MAX_BYTES) -> bytes | None:
    """Return the start of a regular file; None if the folder has none of this name.

    A symbolic link that leaves the folder is not followed.
    """
    path = Path(os.path.realpath(folder / os.fsdecode(name)))
    if not (path.is_relative_to(os.path.realpath(folder)) and path.is_file()):
        return None
    with path.open("rb") as file:
        return file.read(limit)
