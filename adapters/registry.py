"""Adapters by name: those that installed packages register."""

from __future__ import annotations

from importlib.metadata import entry_points

from metasched.adapters.base import Adapter

ADAPTER_GROUP = "metasched.adapters"


def adapter_class(name: str) -> type[Adapter]:
    """The adapter registered under a name. KeyError if there is none."""
    matching_entry_points = entry_points(group=ADAPTER_GROUP, name=name)
    if not matching_entry_points:
        raise KeyError(name)
    adapter_type: type[Adapter] = next(iter(matching_entry_points)).load()
    return adapter_type
