"""What the kernel would run a script by: for wrappers, which run it themselves. Pure."""

from __future__ import annotations


def interpreter(script: str) -> list[str]:
    """The command that the kernel would run the script by: at most one argument."""
    first = script.partition("\n")[0]
    if not first.startswith("#!") or not first[2:].strip():
        return ["/bin/sh"]
    return first[2:].strip().split(None, 1)
