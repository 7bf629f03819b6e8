"""What is free of each cluster over time, for reservations to come. Pure.

Free is what jobs by their limits, others' reservations and ours leave, as the managers told when
they were asked last. A manager that chooses nodes by itself tells of amounts only
(`reservation_life.Pool`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from math import inf

from metasched.carts.carts import Carts
from metasched.carts.node_assignment import Need
from metasched.carts.relocation import BEGINS, Places, Taken
from metasched.core.licences.queue import Licences
from metasched.core.reservations.events import ReservationAsked
from metasched.model.cluster import Cluster
from metasched.model.reservation import OPEN, Reservation, Stage, name_of
from metasched.model.survey import Span, Survey


class Availability:
    """What each cluster has told last, and what the reservations that are `known` leave of it."""

    def __init__(self, known: Mapping[int, Reservation], licences: Licences) -> None:
        self._known, self._licences = known, licences
        self._clusters: dict[str, Cluster] = {}
        self._instance = ""
        self.surveys: dict[str, Survey] = {}

    def configure(self, instance: str, clusters: Mapping[str, Cluster]) -> None:
        """Nothing is known of any manager."""
        self._instance, self._clusters, self.surveys = instance, dict(clusters), {}

    def open_on(self, cluster: str) -> list[Reservation]:
        return [r for r in self._known.values() if r.cluster == cluster and r.state in OPEN]

    def surveyed_at(self, cluster: str) -> float:
        """When the last survey of a cluster was begun; 0: there is none."""
        survey = self.surveys.get(cluster)
        return 0.0 if survey is None else survey.taken

    def guard(self, cluster: str) -> float:
        """Seconds for which jobs of a cluster that binds late may hold nodes after their limits."""
        described, survey = self._clusters.get(cluster), self.surveys.get(cluster)
        if described is None or not described.binds_late:
            return 0.0
        told = None if survey is None else survey.guard
        return described.guard if told is None else told

    def by_node(self, cluster: str) -> bool:
        """Whether a cluster promises nodes; else it promises processors."""
        return cluster not in self.surveys or not self.surveys[cluster].pools

    def cpus(self, cluster: str) -> int:
        """Processors that each node of a cluster has, or each unit of what it promises, at least.

        Its survey must be known.
        """
        survey = self.surveys[cluster]
        sizes = [use.cpus for use in survey.nodes] + [pool.cpus for pool in survey.pools]
        return min(sizes, default=1)

    def largest(self, clusters: Iterable[str], by_node: bool) -> tuple[int, str]:
        """The most that one of the clusters could ever promise, and which."""
        sizes = []
        for name in clusters:
            if (survey := self.surveys.get(name)) is not None:
                kinds = [len(u.nodes) * (1 if by_node else u.cpus) for u in survey.nodes]
                pools = [0 if by_node else pool.size * pool.cpus for pool in survey.pools]
                sizes.append((sum(kinds) + max(pools, default=0), name))
        return max(sizes, default=(0, ""))

    def needs(self, cluster: str) -> list[Need]:
        """What has not begun may move; what has begun is taken account of by `taken`."""
        return [
            Need(r.id, r.start, r.until, r.size, r.nodes)
            for r in self.open_on(cluster)
            if r.state is not Stage.ACTIVE
        ]

    def down(self, one: Reservation) -> list[str]:
        """Its nodes that are not up; none as long as that is not known."""
        survey = self.surveys.get(one.cluster)
        if survey is None:
            return []
        name = name_of(self._instance, one.id)
        chosen = {node for held in survey.held if held.name == name for node in held.nodes}
        return [node for node in one.placed or sorted(chosen) if node not in survey.up]

    def taken(
        self, cluster: str, now: float, but: int | None = None, guard: float | None = None
    ) -> dict[str, list[Span]]:
        """When each node that is up is taken by what cannot move: not by the reservation `but`.

        Jobs in a reservation of ours are no obstacle to that reservation. All may hold a node for
        `guard` seconds longer; None: as the cluster's jobs may.
        """
        survey = self.surveys[cluster]
        more = self.guard(cluster) if guard is None else guard
        ours: dict[str, list[Reservation]] = {}
        for one in self.open_on(cluster):
            for node in one.placed:
                ours.setdefault(node, []).append(one)
        taken = {}
        for use in survey.nodes:
            for node in use.nodes if use.up else ():
                spans = [
                    (max(start, now), end + more) for start, end in use.spans if end + more > now
                ]
                for one in ours.get(node, ()):
                    spans = list(_without(spans, one.start, one.until))
                spans += [
                    (max(one.start, now), one.until)
                    for one in ours.get(node, ())
                    if one.state is Stage.ACTIVE and one.until > now and one.id != but
                ]
                taken[node] = spans
        return taken

    def places(self, cluster: str, now: float) -> Places | None:
        """The pools of a cluster, and which of ours could be in another one.

        None where all is one: what is in the way there its manager alone can tell.
        """
        survey = self.surveys[cluster]
        if len(survey.pools) < 2:
            return None
        pools = {pool.nodes[0]: pool for pool in survey.pools}
        pool_of = {node: name for name, pool in pools.items() for node in pool.nodes}
        uses = {name: list(pool.uses) for name, pool in pools.items()}
        kept = {held.name: held for held in survey.held}
        fixed, movable = [], {}
        for need in self.needs(cluster):
            held = kept.get(name_of(self._instance, need.id))
            if held is None:  # it may be any that the manager chooses
                fixed.append(Taken(need.start, need.end, dict.fromkeys(pools, need.size)))
                continue
            name = pool_of.get(held.nodes[0] if len(held.nodes) == 1 else "", "")
            use = (held.start, held.end, need.size)
            if use in uses.get(name, ()) and held.start > now + BEGINS:
                uses[name].remove(use)
                movable[need.id] = Taken(held.start, held.end, {name: need.size})
        fixed += [
            Taken(start, end, {name: many}) for name in uses for start, end, many in uses[name]
        ]
        sizes = {name: pool.size for name, pool in pools.items()}
        return Places(sizes, fixed, movable, lambda name: name)

    def carts_for(
        self, event: ReservationAsked, cluster: str, together: bool = False
    ) -> list[Carts]:
        """What is free of a cluster while all licences that are asked for are free as well.

        Empty if one cannot be used there. `together` as in `carts`.
        """
        survey = self.surveys.get(cluster)
        if survey is None or self._licences.barred(event.licences, cluster) is not None:
            return []
        end, late = max(event.until, event.request.deadline) + event.let_run, survey.guard or 0.0
        lacking = [
            (start, min(stop, end))
            for start, stop in self._licences.lacking(event.licences, event.time, late)
            if start < end
        ]
        found = self.carts(cluster, event.time, together)
        for carts in found:
            for start, stop in merged(lacking):
                _close(carts, start, stop)
        return found

    def carts(self, cluster: str, now: float, together: bool = False) -> list[Carts]:
        """What is free of a cluster over time: its nodes, or the processors of each of its pools.

        Empty if it has told of none that is up. `together`: of all its pools.
        """
        survey = self.surveys.get(cluster)
        if survey is None:
            return []
        if survey.pools:
            kept = {held.name for held in survey.held}
            new = [n for n in self.needs(cluster) if name_of(self._instance, n.id) not in kept]
            # which pool the manager chooses is not known before it has
            others = [(need.start, need.end, need.size) for need in new]
            if together:
                uses = [use for pool in survey.pools for use in pool.uses]
                return [_left(sum(pool.size for pool in survey.pools), [*uses, *others], now)]
            return [_left(pool.size, [*pool.uses, *others], now) for pool in survey.pools]
        if not (taken := self.taken(cluster, now)):
            return []
        jobs = [(*span, 1) for spans in taken.values() for span in merged(spans)]
        ours = [(need.start, need.end, need.size) for need in self.needs(cluster)]
        return [_left(len(taken), [*jobs, *ours], now)]


def _left(capacity: int, uses: Iterable[tuple[float, float, int]], now: float) -> Carts:
    """What is left of so many from now on."""
    carts = Carts(capacity, now)
    for start, end, amount in uses:
        if end > (begin := max(start, now)):
            # what failed leaves less than was promised: nothing more is, then
            size = min(amount, carts.free(begin, end))
            if size:
                carts.reserve(begin, end, size)
    return carts


def _close(carts: Carts, start: float, end: float) -> None:
    """Take all that is free in [start, end)."""
    for (begin, free), (stop, _) in pairwise([*carts.slots(), (inf, 0)]):
        low, high = max(begin, start), min(stop, end)
        if free and low < high:
            carts.reserve(low, high, free)


def _without(spans: Iterable[Span], start: float, end: float) -> Iterator[Span]:
    """What of the spans lies outside [start, end)."""
    for begin, stop in spans:
        if begin < min(stop, start):
            yield begin, min(stop, start)
        if max(begin, end) < stop:
            yield max(begin, end), stop


def merged(spans: Iterable[Span]) -> Iterator[Span]:
    """The spans as disjoint ones, in order."""
    last: Span = (-inf, -inf)
    for start, end in sorted(spans):
        if start > last[1]:
            if last[1] > -inf:
                yield last
            last = (start, end)
        else:
            last = (last[0], max(last[1], end))
    if last[1] > -inf:
        yield last
