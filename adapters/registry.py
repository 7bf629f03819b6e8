"""Adapters by name, as registered by installed packages."""

from __future__ import annotations

from importlib.metadata import entry_points

from metasched.adapters.base import Adapter

ADAPTER_GROUP = "metasched.adapters"


def adapter_class(name: str) -> type[Adapter]:
    """Return the adapter registered under a name. KeyError if there is none."""
    registered = entry_points(group=ADAPTER_GROUP, name=name)
    if not registered:
        raise KeyError(name)
    adapter_type: type[Adapter] = next(iter(registered)).load()
    return adapter_type
