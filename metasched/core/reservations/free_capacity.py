"""What a cluster has free over time by its last survey, kept as reservations change. Pure.

Only the first query after a survey looks at all reservations. Others do where less is free than is
reserved, as after the failure of a node. Times are seconds since the epoch.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence

from metasched.carts.carts import Carts
from metasched.carts.node_assignment import merge_spans
from metasched.core.reservations.index import may_still_move
from metasched.model.reservation import OPEN_STATES, Reservation, ReservationState
from metasched.model.survey import Span, Survey

Use = tuple[float, float, int]  # start, end, units


class HeldNodes:
    """When a cluster's manager keeps which nodes for open reservations; no survey changes it."""

    def __init__(self, reservations: Iterable[Reservation]) -> None:
        self._windows: dict[str, list[tuple[float, float, int]]] = {}  # start, end, id; by node
        self._active: dict[str, dict[int, Span]] = {}  # of those that have begun, by node
        for reservation in reservations:
            self._enter(reservation)

    def update(self, before: Reservation | None, after: Reservation) -> None:
        """Take over a new version of a reservation. O(log n) for each of its nodes."""
        if before is not None and _facts(before) == _facts(after):
            return
        if before is not None:
            self._leave(before)
        self._enter(after)

    def windows_on(self, node: str) -> Sequence[tuple[float, float, int]]:
        """Return start, end and id of the reservations of a node, in order."""
        return self._windows.get(node, ())

    def active_on(self, node: str) -> Iterable[Span]:
        """Return the windows of a node that have begun."""
        return self._active.get(node, {}).values()

    def _enter(self, reservation: Reservation) -> None:
        for node in _nodes_of(reservation):
            window = (reservation.start, reservation.until)
            insort(self._windows.setdefault(node, []), (*window, reservation.id))
            if reservation.state is ReservationState.ACTIVE:
                self._active.setdefault(node, {})[reservation.id] = window

    def _leave(self, reservation: Reservation) -> None:
        entry = (reservation.start, reservation.until, reservation.id)
        for node in _nodes_of(reservation):
            windows = self._windows[node]
            del windows[bisect_left(windows, entry)]
            self._active.get(node, {}).pop(reservation.id, None)


class FreeCapacity:
    """Free nodes or processors of a cluster between two of its surveys."""

    def __init__(
        self,
        survey: Survey,
        held: HeldNodes,
        open_reservations: Callable[[], list[Reservation]],
        name_of: Callable[[int], str],
        guard: float,
    ) -> None:
        """`name_of` returns the name of a reservation at the manager.

        Jobs may hold nodes for `guard` seconds after their limits.
        """
        self._survey, self._open, self._name_of, self._guard = (
            survey,
            open_reservations,
            name_of,
            guard,
        )
        self._reported = {entry.name for entry in survey.reservations}
        self._jobs = {  # and others' reservations, by node
            node: group.spans for group in survey.nodes if group.up for node in group.nodes
        }
        self._held = held
        self._nodes: list[Carts] | None = None  # or pools; None: to be built
        self._together: list[Carts] | None = None  # over all pools; None: to be built
        self._counted: dict[str, list[Span]] = {}  # by node; what `_nodes` counts besides `_use`

    # Changes

    def update(self, before: Reservation | None, after: Reservation) -> None:
        """Take over a new version of a reservation after `held`. O(log n) for each of its nodes."""
        if before is not None and _facts(before) == _facts(after):
            return
        for carts_list in (self._nodes or (), self._together or ()):
            released = [] if before is None else self._use(before)
            self._recount(carts_list, released, self._use(after))
        if self._nodes is not None and self._jobs:
            nodes = {*after.bound_nodes, *(() if before is None else before.bound_nodes)}
            self._recount_nodes(nodes & self._jobs.keys())

    def _use(self, reservation: Reservation) -> list[Use]:
        """Return what a reservation takes of each pool, or of all nodes, until it begins.

        Once its manager has chosen the pool, the survey has it.
        """
        in_survey = self._survey.pools and self._name_of(reservation.id) in self._reported
        if in_survey or not may_still_move(reservation):
            return []
        return [(reservation.start, reservation.until, reservation.size)]

    def _recount_nodes(self, nodes: Iterable[str]) -> None:
        """Count what jobs and active reservations have of nodes."""
        carts_list = self._nodes or []
        for node in nodes:
            spans = list(merge_spans(self._busy_on(node, carts_list[0].origin, self._guard)))
            released = [(*span, 1) for span in self._counted[node]]
            self._counted[node] = spans
            self._recount(carts_list, released, [(*span, 1) for span in spans])

    def _recount(
        self, carts_list: Iterable[Carts], released: Iterable[Use], reserved: Iterable[Use]
    ) -> None:
        """Change the uses that are counted; if they do not fit, build all anew when needed."""
        try:
            for carts in carts_list:
                for start, end, size in released:
                    if end > carts.origin:
                        carts.release(start, end, size)
                for start, end, size in reserved:
                    if end > carts.origin:
                        carts.reserve(max(start, carts.origin), end, size)
        except ValueError:
            self._nodes = self._together = None

    # Queries

    def busy_spans(self, now: float, guard: float | None = None) -> dict[str, list[Span]]:
        """Return when each node that is up is taken by what cannot move.

        Jobs inside a reservation of metasched are no obstacle to it. `guard` (seconds) replaces
        that of the cluster.
        """
        overrun = self._guard if guard is None else guard
        return {node: self._busy_on(node, now, overrun) for node in self._jobs}

    def _busy_on(self, node: str, now: float, overrun: float) -> list[Span]:
        spans = [
            (max(start, now), end + overrun)
            for start, end in self._jobs[node]
            if end + overrun > now
        ]
        latest = max((end for _, end in spans), default=now)
        for start, until, _ in self._held.windows_on(node):
            if start >= latest:
                break
            spans = list(_subtract(spans, start, until))
        spans += [
            (max(start, now), until) for start, until in self._held.active_on(node) if until > now
        ]
        return spans

    def carts(self, now: float, together: bool = False) -> list[Carts]:
        """Return the free capacity over time, to be changed by the caller.

        Of the nodes, or one `Carts` per pool; `together`: one over all pools. Empty if no node is
        known to be up.
        """
        known = self._together if together else self._nodes
        if known is None or (known and now < known[0].origin):
            known = self._build(now, together)
        for carts in known:
            carts.prune(now)
        return [carts.copy() for carts in known]

    def _build(self, now: float, together: bool) -> list[Carts]:
        """Return the free capacity from `now` on; it is kept if all uses fit."""
        reserved = [use for reservation in self._open() for use in self._use(reservation)]
        pools, spans = self._survey.pools, dict[str, list[Span]]()
        if pools and together:
            uses = [use for pool in pools for use in pool.uses]
            capacities = [(sum(pool.size for pool in pools), [*uses, *reserved])]
        elif pools:
            capacities = [(pool.size, [*pool.uses, *reserved]) for pool in pools]
        else:
            busy = self.busy_spans(now)
            spans = {node: list(merge_spans(node_spans)) for node, node_spans in busy.items()}
            jobs = [(*span, 1) for node_spans in spans.values() for span in node_spans]
            capacities = [(len(busy), [*jobs, *reserved])] if busy else []
        built = []
        for capacity, uses in capacities:
            clipped = [(max(start, now), end, size) for start, end, size in uses if end > now]
            try:
                built.append(Carts.of(capacity, clipped, now))
            except ValueError:  # after a failure less may be free than is reserved
                return [_partly_reserved(size, uses, now) for size, uses in capacities]
        if together and pools:
            self._together = built
        else:
            self._nodes, self._counted = built, spans
        return built


def _facts(reservation: Reservation) -> tuple[object, ...]:
    """Return all on which the free capacity depends."""
    return (
        may_still_move(reservation),
        reservation.state in OPEN_STATES,
        reservation.start,
        reservation.until,
        reservation.size,
        reservation.bound_nodes,
    )


def _nodes_of(reservation: Reservation) -> Iterable[str]:
    """Return the nodes that the manager keeps for a reservation; none if it is over."""
    return reservation.bound_nodes if reservation.state in OPEN_STATES else ()


def _partly_reserved(capacity: int, uses: Iterable[Use], now: float) -> Carts:
    """Return `capacity` units from now on, less what is free of each use in turn."""
    carts = Carts(capacity, now)
    for start, end, amount in uses:
        if end > now and (size := min(amount, carts.free(max(start, now), end))):
            carts.reserve(max(start, now), end, size)
    return carts


def _subtract(spans: Iterable[Span], start: float, end: float) -> Iterator[Span]:
    """Yield the parts of the spans outside [start, end)."""
    for begin, stop in spans:
        if begin < min(stop, start):
            yield begin, min(stop, start)
        if max(begin, end) < stop:
            yield max(begin, end), stop
