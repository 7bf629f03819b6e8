"""Choice of the cluster of a reservation: minimum completion time, or clusters in a fixed order.

Source: Kurowski et al. 2011, section 4.4.2. Draws come from a seeded generator only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol

from metasched.model.reservation_request import Offer


class ClusterChooser(Protocol):
    """The interface of a choice among the clusters that can hold a reservation."""

    def choose(self, offers: Mapping[str, Offer], deadline: float) -> str:
        """Return the chosen cluster; `offers` must not be empty and may end past the `deadline`."""
        ...


class MinimumCompletionTime:
    """Choose the best offer: for a given size and duration, the earliest start.

    Ties are drawn at random: with ties to the first cluster, all requests with a fixed start would
    be placed as by `ResourcePriority`.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = Random(seed)

    def choose(self, offers: Mapping[str, Offer], deadline: float) -> str:
        best_rank = min(offer.rank for offer in offers.values())
        return self._rng.choice([name for name, offer in offers.items() if offer.rank == best_rank])


class ResourcePriority:
    """Choose the first cluster of a fixed order that meets the deadline, else the best offer.

    Groups reservations on few clusters, so that batch jobs on other clusters are not disturbed.
    ValueError if a cluster is named twice.
    """

    def __init__(self, order: Sequence[str]) -> None:
        if len(set(order)) < len(order):
            raise ValueError(f"a cluster is named twice in {', '.join(order)}")
        self._position = {name: position for position, name in enumerate(order)}

    def choose(self, offers: Mapping[str, Offer], deadline: float) -> str:
        last = len(self._position)
        in_time = [name for name, offer in offers.items() if offer.end <= deadline]
        if in_time:
            return min(in_time, key=lambda name: (self._position.get(name, last), name))
        return min(
            offers, key=lambda name: (offers[name].rank, self._position.get(name, last), name)
        )
