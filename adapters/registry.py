"""Adapters by name: those that installed packages register."""

from __future__ import annotations

from importlib.metadata import entry_points

from metasched.adapters.base import Adapter

GROUP = "metasched.adapters"


def adapter_class(name: str) -> type[Adapter]:
    """The adapter registered under a name. KeyError if there is none."""
    found = entry_points(group=GROUP, name=name)
    if not found:
        raise KeyError(name)
    loaded: type[Adapter] = next(iter(found)).load()
    return loaded
