"""Free capacity of each cluster over time, for new reservations. Pure.

Free is what jobs (by their limits), others' reservations and metasched's own leave, by each
manager's last survey. A manager that chooses nodes itself reports amounts only
(`model.survey.ProcessorPool`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import inf

from metasched.carts.carts import Carts
from metasched.carts.node_assignment import NodeDemand, merge_spans
from metasched.carts.relocation import NO_MOVE_BEFORE_START, PoolMap, SlotUse
from metasched.core.licences.queue import LicenceQueue
from metasched.core.reservations.events import ReservationRequested
from metasched.core.reservations.free_capacity import FreeCapacity, HeldNodes
from metasched.core.reservations.index import ReservationIndex, demand_of, may_still_move
from metasched.model.cluster import Cluster
from metasched.model.reservation import Reservation, manager_name
from metasched.model.survey import Span, Survey


class Availability:
    """What each cluster has free over time: its last survey minus the open reservations."""

    def __init__(self, reservations: ReservationIndex, licences: LicenceQueue) -> None:
        self._licences = licences
        self.open_on, self.assigned_on = reservations.open_on, reservations.assigned_on
        self.first_start_on = reservations.first_start_on
        self.clusters: dict[str, Cluster] = {}
        self.instance = ""
        self.surveys: dict[str, Survey] = {}  # the last of each cluster, see `record_survey`
        self._usable_nodes: dict[str, frozenset[str]] = {}  # by cluster
        # nodes of metasched's reservations by cluster and name at the manager
        self._reported_nodes: dict[str, dict[str, set[str]]] = {}
        self._held_nodes: dict[str, HeldNodes] = {}  # by cluster, since its first survey
        self._capacities: dict[str, FreeCapacity] = {}  # by cluster

    def configure(self, instance: str, clusters: Mapping[str, Cluster]) -> None:
        """Set the clusters and forget all surveys."""
        self.instance, self.clusters, self.surveys = instance, dict(clusters), {}
        self._usable_nodes, self._reported_nodes = {}, {}
        self._held_nodes, self._capacities = {}, {}

    def record_survey(self, cluster: str, survey: Survey) -> None:
        """Take over the survey of a cluster; the one before is forgotten."""
        reported: dict[str, set[str]] = {}
        for entry in survey.reservations:
            reported.setdefault(entry.name, set()).update(entry.nodes)
        self.surveys[cluster] = survey
        self._usable_nodes[cluster] = survey.usable_nodes
        self._reported_nodes[cluster] = reported
        if cluster not in self._held_nodes:
            self._held_nodes[cluster] = HeldNodes(self.open_on(cluster))
        self._capacities[cluster] = FreeCapacity(
            survey,
            self._held_nodes[cluster],
            lambda: self.open_on(cluster),
            lambda id: manager_name(self.instance, id),
            self.guard(cluster),
        )

    def update(self, before: Reservation | None, after: Reservation) -> None:
        """Take over a new version of a reservation; None: there was none before."""
        if after.cluster in self._capacities:
            self._held_nodes[after.cluster].update(before, after)
            self._capacities[after.cluster].update(before, after)

    def surveyed_at(self, cluster: str) -> float:
        """Return when the last survey of a cluster was begun; 0: there is none."""
        survey = self.surveys.get(cluster)
        return 0.0 if survey is None else survey.observed

    def guard(self, cluster: str) -> float:
        """Return for how many seconds jobs of a late-binding cluster may outlast their limits."""
        settings, survey = self.clusters.get(cluster), self.surveys.get(cluster)
        if settings is None or not settings.binds_late:
            return 0.0
        reported = None if survey is None else survey.guard
        return settings.guard if reported is None else reported

    def reserves_nodes(self, cluster: str) -> bool:
        """Return whether a cluster reserves nodes; else it reserves processors."""
        return cluster not in self.surveys or not self.surveys[cluster].pools

    def cpus_per_unit(self, cluster: str) -> int:
        """Return the least processors per node, or per unit that the cluster reserves.

        The cluster must have been surveyed.
        """
        survey = self.surveys[cluster]
        sizes = [group.cpus for group in survey.nodes] + [pool.cpus for pool in survey.pools]
        return min(sizes, default=1)

    def largest_capacity(self, clusters: Iterable[str], by_node: bool) -> tuple[int, str]:
        """Return the most units that any of the clusters could ever reserve, and its name."""
        sizes = []
        for name in clusters:
            if (survey := self.surveys.get(name)) is not None:
                node_sizes = [len(g.nodes) * (1 if by_node else g.cpus) for g in survey.nodes]
                pool_sizes = [0 if by_node else pool.size * pool.cpus for pool in survey.pools]
                sizes.append((sum(node_sizes) + max(pool_sizes, default=0), name))
        return max(sizes, default=(0, ""))

    def needs(self, cluster: str) -> list[NodeDemand]:
        """Return the demands of open reservations that are not active, and may still move."""
        return [demand_of(r) for r in self.open_on(cluster) if may_still_move(r)]

    def down_nodes(self, reservation: Reservation) -> list[str]:
        """Return the nodes of a reservation that are not up; empty while unknown."""
        if reservation.cluster not in self.surveys:
            return []
        nodes: Iterable[str] = reservation.bound_nodes
        if not nodes:
            name = manager_name(self.instance, reservation.id)
            nodes = sorted(self._reported_nodes[reservation.cluster].get(name, ()))
        usable = self._usable_nodes[reservation.cluster]
        return [node for node in nodes if node not in usable]

    def busy_spans(
        self, cluster: str, now: float, guard: float | None = None
    ) -> dict[str, list[Span]]:
        """Return when each node that is up is taken by what cannot move.

        Jobs inside a reservation of metasched are no obstacle to it. Jobs may hold a node for
        `guard` seconds longer; None: the cluster's value.
        """
        return self._capacities[cluster].busy_spans(now, guard)

    def pool_map(self, cluster: str, now: float) -> PoolMap | None:
        """Return the pools of a cluster, with the reservations that could move to another pool.

        None if there is only one pool: only the manager knows its obstacles.
        """
        survey = self.surveys[cluster]
        if len(survey.pools) < 2:
            return None
        pools = {pool.nodes[0]: pool for pool in survey.pools}
        pool_of = {node: name for name, pool in pools.items() for node in pool.nodes}
        uses = {name: list(pool.uses) for name, pool in pools.items()}
        reported = {entry.name: entry for entry in survey.reservations}
        fixed, movable = [], {}
        for demand in self.needs(cluster):
            entry = reported.get(manager_name(self.instance, demand.id))
            if entry is None:  # in whichever pool the manager chooses
                fixed.append(SlotUse(demand.start, demand.end, dict.fromkeys(pools, demand.size)))
                continue
            name = pool_of.get(entry.nodes[0] if len(entry.nodes) == 1 else "", "")
            use = (entry.start, entry.end, demand.size)
            if use in uses.get(name, ()) and entry.start > now + NO_MOVE_BEFORE_START:
                uses[name].remove(use)
                movable[demand.id] = SlotUse(entry.start, entry.end, {name: demand.size})
        fixed += [
            SlotUse(start, end, {name: count}) for name in uses for start, end, count in uses[name]
        ]
        sizes = {name: pool.size for name, pool in pools.items()}
        return PoolMap(sizes, fixed, movable, lambda name: name)

    def carts_for(
        self, event: ReservationRequested, cluster: str, together: bool = False
    ) -> list[Carts]:
        """Return the free capacity of a cluster while all requested licences are free as well.

        Empty if a licence cannot be used there. `together` as in `carts`.
        """
        survey = self.surveys.get(cluster)
        if survey is None or self._licences.first_unusable(event.licences, cluster) is not None:
            return []
        end = max(event.horizon, event.request.deadline) + event.let_run
        spans = self._licences.lookahead.unavailable_spans(
            event.licences, event.time, survey.guard or 0.0, event.calendar_limits
        )
        unavailable = [(start, min(stop, end)) for start, stop in spans if start < end]
        carts_list = self.carts(cluster, event.time, together)
        for carts in carts_list:
            for start, stop in merge_spans(unavailable):
                _block(carts, start, stop)
        return carts_list

    def carts(self, cluster: str, now: float, together: bool = False) -> list[Carts]:
        """Return the free capacity of a cluster over time: its nodes, or one `Carts` per pool.

        Empty if no node is known to be up. `together`: one `Carts` over all pools.
        """
        return self._capacities[cluster].carts(now, together) if cluster in self.surveys else []


def _block(carts: Carts, start: float, end: float) -> None:
    """Reserve all that is free in [start, end)."""
    for (begin, free), (stop, _) in pairwise([*carts.slots(), (inf, 0)]):
        low, high = max(begin, start), min(stop, end)
        if free and low < high:
            carts.reserve(low, high, free)
