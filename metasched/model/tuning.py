"""What self-optimisation stores: the state of a tuned classification, and its changes. Pure."""

from __future__ import annotations

import msgspec


class TuningState(msgspec.Struct, frozen=True):
    """The configuration in force and its evidence, as stored after each submission."""

    parameter: str  # key of `[self_optimising]`
    configuration: tuple[float, ...]
    # classified items with their classes, oldest first: see `TunableStrategy.item`
    history: tuple[tuple[tuple[float, ...], int], ...] = ()


class TuningChange(msgspec.Struct, frozen=True):
    """A change of a configuration by the submission of a job, or by a start with another policy."""

    parameter: str
    before: tuple[float, ...]
    after: tuple[float, ...]  # (): no longer tuned
    # of the observed distribution of classes from the target; None: changed by a start
    distance: float | None = None
    # distance, had the history been classified by the new configuration
    expected: float | None = None
