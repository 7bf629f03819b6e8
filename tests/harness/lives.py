"""Lives of the core: its events as they are stored, and what it decides in each step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, get_args

import msgspec

from metasched.core.events import CoreEvent
from metasched.core.recovered_state import RecoveredState
from metasched.core.scheduler import Core
from tests.harness.decisions import DecisionLines

_TYPES: Final[dict[str, type]] = {
    kind.__name__: kind for kind in (*get_args(CoreEvent), RecoveredState)
}


class Step(msgspec.Struct, frozen=True, array_like=True):
    """An event, or the state from which the core of a restarted daemon is restored."""

    kind: str  # name of its class
    data: msgspec.Raw

    @classmethod
    def of(cls, event: CoreEvent | RecoveredState) -> Step:
        """Encode an event or a state at once: the core goes on changing the tasks in it."""
        return cls(type(event).__name__, msgspec.Raw(msgspec.msgpack.encode(event)))

    def decode(self) -> CoreEvent | RecoveredState:
        """Return the event or state. Raises ValidationError if it lacks fields that it needs now.

        A field that its class does not have any more is ignored, see `lost_fields`.
        """
        if self.kind not in _TYPES:
            raise msgspec.ValidationError(f"the core has no event {self.kind}")
        decoded: CoreEvent | RecoveredState = msgspec.msgpack.decode(
            self.data, type=_TYPES[self.kind]
        )
        return decoded

    def lost_fields(self) -> list[str]:
        """Return the stored fields that `decode` ignores."""
        now = msgspec.msgpack.encode(self.decode())
        return sorted(_lost(msgspec.msgpack.decode(self.data), msgspec.msgpack.decode(now)))


def _lost(stored: Any, now: Any) -> set[str]:
    """Return the keys of stored mappings that the same mappings lack now."""
    lost = set[str]()
    if isinstance(stored, dict) and isinstance(now, dict):
        lost |= {str(key) for key in stored.keys() - now.keys()}
        pairs = [(stored[key], now[key]) for key in stored.keys() & now.keys()]
    elif isinstance(stored, list) and isinstance(now, list):
        pairs = list(zip(stored, now, strict=False))
    else:
        return lost
    return lost.union(*(_lost(*pair) for pair in pairs))


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a core from its first event on."""

    name: str
    remainder_minimum: int  # of its core
    steps: list[Step]

    def decide(self) -> Iterator[tuple[CoreEvent, list[str]]]:
        """Yield each event, and what a core decides on it."""
        core, lines = Core(self.remainder_minimum), DecisionLines()
        for step in self.steps:
            event = step.decode()
            if isinstance(event, RecoveredState):
                core = Core(self.remainder_minimum)
                core.restore(event)
                continue
            try:
                outcome = core.step(event)
            except Exception as error:  # after another decision, what follows may be impossible
                yield event, [f"raised {type(error).__name__}: {error}"]
                return
            yield event, lines.of(outcome)


def hash_of(decisions: Iterable[Sequence[str]]) -> str:
    """Return the SHA-256 of the decisions of a life."""
    digest = hashlib.sha256()
    for number, lines in enumerate(decisions, 1):
        digest.update("\n".join((f"event {number}", *lines, "")).encode())
    return digest.hexdigest()
