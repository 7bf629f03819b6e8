"""Dispatches whose command may be under way while the cluster is polled."""

from __future__ import annotations

from collections.abc import Iterable

DispatchKey = tuple[int, int]  # (job, dispatch id)


class DispatchesInFlight:
    """Dispatches between the record of their start and the record of their result.

    A listing proves nothing about a dispatch that was in flight at any time since the poll began.
    """

    def __init__(self) -> None:
        self._current: set[DispatchKey] = set()
        self._since_poll: set[DispatchKey] = set()  # in flight at any time since the poll began

    def start(self, dispatches: Iterable[DispatchKey]) -> None:
        """Add dispatches that are about to be written to the worker."""
        started = set(dispatches)
        self._current |= started
        self._since_poll |= started

    def end(self, dispatches: Iterable[DispatchKey]) -> None:
        """Remove dispatches whose results are recorded."""
        self._current.difference_update(dispatches)

    def has(self, dispatch: DispatchKey | None) -> bool:
        """Return whether a dispatch is in flight."""
        return dispatch in self._current

    def __bool__(self) -> bool:
        """Return whether any dispatch is in flight."""
        return bool(self._current)

    def begin_poll(self) -> None:
        """Begin to collect the dispatches that a new listing proves nothing about."""
        self._since_poll = set(self._current)

    def since_poll(self) -> tuple[DispatchKey, ...]:
        """Return the dispatches that were in flight at any time since the poll began."""
        return tuple(sorted(self._since_poll))
