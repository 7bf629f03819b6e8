"""A cluster of four nodes for tests of the reservation book, and surveys of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metasched.core.reservations.events import SurveyReceived
from metasched.model.cluster import Cluster
from metasched.model.reservation import Reservation, manager_name
from metasched.model.survey import ManagerReservation, NodeUsage, Span, Survey

INSTANCE = "i"
CLUSTER = Cluster(name="alpha", adapter="slurm", supports_reservations=True)
NODES = tuple(f"n{number}" for number in range(1, 5))


def survey(
    now: float,
    down: frozenset[str],
    reservations: Iterable[Reservation],
    jobs: Mapping[str, tuple[Span, ...]] | None = None,
) -> SurveyReceived:
    """Return a survey in which the manager has all reservations that it confirmed.

    `jobs` has the spans of jobs by node.
    """
    usage = tuple(
        NodeUsage((node,), 4, node not in down, (jobs or {}).get(node, ())) for node in NODES
    )
    held = tuple(
        ManagerReservation(manager_name(INSTANCE, r.id), r.start, r.end, r.bound_nodes)
        for r in reservations
        if r.known_to_manager
    )
    return SurveyReceived(now, CLUSTER.name, Survey(now, usage, held))
