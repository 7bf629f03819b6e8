"""Another clock for a process, by libfaketime; waits and timeouts keep the real one."""

from __future__ import annotations

from pathlib import Path

_LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


def missing() -> str | None:
    """Return why libfaketime is not available on this host, or None."""
    return None if _LIBRARIES else "libfaketime not found; apt-get install faketime"


def shifted_by(offset: str) -> dict[str, str]:
    """Return the variables of a process whose clock has an offset, such as `+100s`."""
    return _variables() | {"FAKETIME": offset}


def shifted_as_in(file: Path) -> dict[str, str]:
    """Return the variables of a process whose offset is what `file` contains at that time."""
    return _variables() | {"FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1"}


def _variables() -> dict[str, str]:
    return {"LD_PRELOAD": str(_LIBRARIES[0]), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
