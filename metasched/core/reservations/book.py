"""All reservations and what is decided about them: events in, changes and actions out. Pure.

A request is decided by amounts of what is free (`availability`), while all licences that it wants
are free as well (`licences`, which keeps them then). Which nodes it has is decided then, and may be
changed until it begins (`node_assignment`): when that admits another, or one fails. A manager that
chooses by itself is told an amount only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf

from msgspec import structs

from metasched.carts.carts import Carts
from metasched.carts.node_assignment import Need, assigned, in_turn
from metasched.core.events import Outcome
from metasched.core.licences.queue import Licences
from metasched.core.reservations.availability import Availability, merged
from metasched.core.reservations.events import (
    Bind,
    LookAround,
    ReservationAsked,
    ReservationBound,
    ReservationCancelled,
    ReservationDeclined,
    ReservationEvent,
    ReservationReleased,
    Surveyed,
    Unbind,
)
from metasched.core.reservations.offers import best, instead
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Reason
from metasched.model.reservation import OPEN, OVER, Reservation, Stage, Turn, id_of, turned
from metasched.model.reservation_request import Offer, Request
from metasched.policies.eligible import Unfit
from metasched.policies.late_binding import Promises
from metasched.policies.policy import Policy
from metasched.policies.reservation_choice import Chooser, MinimumCompletionTime, ResourcePriority

TRIES = 5  # refusals of its manager, one at once after the other, after which a request is broken
# Likewise of what was promised before, the rest one at each survey: a controller that has just
# started refuses everything until it has heard from its nodes
PROMISED_TRIES = TRIES + 12
ANSWERED_IN = 20.0  # seconds in which one that begins at once must be bound
FRESH = 60.0  # seconds for which a survey may be decided by
_AHEAD = 365 * 86400.0  # seconds for which another window is looked for
_NO_OTHER = "cannot be used, and no other node is free"


class ReservationBook:
    """The reservations that are open, or that a manager may still know."""

    def __init__(self, licences: Licences) -> None:
        self.known: dict[int, Reservation] = {}
        self.free = Availability(self.known, licences)
        self._instance = ""
        self._chooser: Chooser = MinimumCompletionTime()
        self._unplaced: set[int] = set()  # refused: to be placed anew by the next survey
        self._clusters: dict[str, Cluster] = {}
        self._chosen: set[int] = set()  # of those that bind late: whose nodes have been chosen
        self._looked: dict[int, float] = {}  # likewise: when a survey was asked for to choose them
        self._run_out: set[int] = set()  # whose jobs must be gone: `run_out` has told

    def restore(self, reservations: Iterable[Reservation]) -> None:
        """Take over what is stored, before `booted`."""
        self.known.update((one.id, one) for one in reservations)

    def booted(
        self, instance: str, policy: Policy, clusters: Iterable[Cluster], out: Outcome
    ) -> None:
        """Nothing is known of any manager: tell each again what it is to keep and to forget."""
        self._instance = instance
        known = sorted(self.known.items())
        self.known.clear()
        self.known.update(known)
        self._unplaced, self._chosen, self._looked, self._run_out = set(), set(), {}, set()
        self._clusters = {cluster.name: cluster for cluster in clusters}
        self.free.configure(instance, self._clusters)
        self._chooser = (
            ResourcePriority([*self._clusters])
            if policy.reserve == "first"
            else MinimumCompletionTime(policy.seed)
        )
        for one in [*self.known.values()]:
            self._look_for_its_cluster(one, out)
            if one.cluster not in self._clusters or self._waits(one):
                continue
            if one.state not in OPEN:
                out.bindings.append(Unbind(one.cluster, one.id))
            elif one.state in (Stage.REQUESTED, Stage.CONFIRMED) or one.nodes != one.placed:
                out.bindings.append(Bind(one.cluster, one.id))

    def _look_for_its_cluster(self, one: Reservation, out: Outcome) -> None:
        """Say so if it is not configured (any more); an error in a file must not cost a promise.

        Its manager keeps what it has been told, and so it is broken only when it would begin. One
        that has begun stays as it is: its jobs run, and nobody can be given them elsewhere.
        """
        gone = f"cluster {one.cluster} is not configured"
        if one.state in OVER:
            return
        if one.cluster in self._clusters:
            if one.cause == gone:
                back = f"cluster {one.cluster} is configured again"
                self._store(structs.replace(one, cause=back), out)
            return
        self._store(structs.replace(one, cause=gone), out)
        told = "put it back, or cancel the reservation"
        out.warnings.append(f"reservation {one.id} of {one.user}: {gone}; {told}")

    # Looking things up

    def against(self, job: Job, cluster: str) -> Unfit | None:
        """Why a job cannot be sent to a cluster for its reservation's sake, if it has one."""
        if job.reservation is None:
            return None
        one = self.known.get(job.reservation)
        if one is None or one.state in OVER:
            how = "over" if one is None else f"{one.state}: {one.cause}"
            return Unfit(Reason.RESERVATION_WAIT, f"reservation {job.reservation} is {how}")
        if one.cluster not in self._clusters:
            return Unfit(Reason.RESERVATION_WAIT, f"reservation {one.id}: {one.cause}")
        if one.cluster != cluster:
            return Unfit(Reason.NO_CLUSTER_FITS, f"its reservation is on {one.cluster}")
        if one.state not in (Stage.BOUND, Stage.ACTIVE):
            told = f"reservation {one.id} is {one.state}: {one.cause}"
            return Unfit(Reason.RESERVATION_WAIT, told)
        if job.licences and one.state is not Stage.ACTIVE:  # none are to lie idle until then
            told = f"reservation {one.id} has not begun; its jobs have their licences from then on"
            return Unfit(Reason.RESERVATION_WAIT, told)
        return None

    def concerns(self, cluster: str) -> bool:
        """Whether a cluster's manager is to keep or to forget anything."""
        return any(one.cluster == cluster for one in self.known.values())

    def lacks(self, cluster: str) -> bool:
        """Whether one there lacks nodes, which any survey may show to be free."""
        return any(
            one.id in self._unplaced or (one.placed and self.free.down(one))
            for one in self.free.open_on(cluster)
        )

    @property
    def next_due(self) -> float | None:
        """When time alone changes the state of one (epoch seconds), or None."""
        dues = (
            self._due(one) if one.state in OPEN else one.until
            for one in self.known.values()
            if one.id not in self._run_out
        )
        return min(dues, default=None)

    def _due(self, one: Reservation) -> float:
        if one.cluster not in self._clusters:
            return one.end if one.state is Stage.ACTIVE else one.start
        if self._waits(one):
            looked = self._looked.get(one.id, -inf)
            marks = (one.start - self._clusters[one.cluster].lead, one.start, one.end)
            return next(mark for mark in marks if mark > looked or mark == one.end)
        if one.state is Stage.REQUESTED:
            return min(max(one.start, one.made + ANSWERED_IN), one.end)
        return one.end if one.state in (Stage.ACTIVE, Stage.CONFIRMED) else one.start

    def _waits(self, one: Reservation) -> bool:
        """Whether its nodes are chosen, and its manager told of it, shortly before its start."""
        if one.state is not Stage.CONFIRMED or one.placed or one.id in self._chosen:
            return False
        cluster = self._clusters.get(one.cluster)
        return cluster is not None and cluster.binds_late

    def run_out(self, now: float) -> list[Reservation]:
        """Those in which nothing may run any more, once each in a life of the daemon."""
        new = [
            one
            for one in self.known.values()
            if one.until <= now and one.state in OVER and one.id not in self._run_out
        ]
        self._run_out.update(one.id for one in new)
        return new

    def over_on(self, cluster: str) -> list[Reservation]:
        """Those of which `run_out` has told, as long as their manager may know them."""
        over = (self.known[id] for id in sorted(self._run_out))
        return [one for one in over if one.cluster == cluster]

    # What is kept by sending late

    def promises(self, cluster: Cluster, now: float) -> Promises | None:
        """What a cluster must have free for reservations to come; None if it has none.

        Where its manager binds early that sees to it.
        """
        if not cluster.binds_late:
            return None
        coming = [r for r in self.free.open_on(cluster.name) if r.state is not Stage.ACTIVE]
        if not coming:
            return None
        first = min(one.start for one in coming)
        carts = next(iter(self.free.carts(cluster.name, now)), None)
        return Promises(now, first, self.free.guard(cluster.name), cluster.granularity, carts)

    # What happens

    def step(self, event: ReservationEvent, out: Outcome) -> None:
        match event:
            case Surveyed():
                self._surveyed(event, out)
            case ReservationAsked():
                self._asked(event, out)
            case ReservationBound():
                self._bound(event, out)
            case ReservationDeclined():
                self._declined(event, out)
            case ReservationReleased():
                self._released(event, out)
            case ReservationCancelled():
                one = self.known[event.id]
                if one.state in OPEN:
                    self._over(one, Turn.CANCEL, event.time, f"cancelled by {event.by}", out)

    def pass_time(self, now: float, out: Outcome) -> None:
        """Begin and end what is due; what is not bound by then is broken."""
        for one in [r for r in self.known.values() if r.state in OPEN]:
            if one.state is Stage.BOUND and one.start <= now and one.cluster in self._clusters:
                one = self._begin(one, now, out)
            if one.state not in OPEN or self._due(one) > now:
                continue
            if self._waits(one) and now < one.end:
                self._looked[one.id] = now
                out.bindings.append(LookAround(one.cluster))
                continue
            if one.state is Stage.ACTIVE:
                self._over(one, Turn.END, now, "its window is over", out)
            elif one.cluster not in self._clusters:
                self._broken(one, now, one.cause, out)
            elif one.state is not Stage.BOUND:
                self._broken(one, now, f"not bound in time: {one.cause}", out)

    def _begin(self, one: Reservation, now: float, out: Outcome) -> Reservation:
        down = self.free.down(one)
        if down and now < one.end:
            self._broken(one, now, f"{', '.join(down)} {_NO_OTHER}", out)
            return self.known[one.id]
        return self._turn(one, Turn.BEGIN, "its window has begun", out)

    def _surveyed(self, event: Surveyed, out: Outcome) -> None:
        cluster, survey = event.cluster, event.survey
        self.free.surveys[cluster] = survey
        kept = {}
        for held in survey.held:
            if (id := id_of(held.name, self._instance)) is not None:
                kept[id] = held
        for id in kept.keys() - {r.id for r in self.free.open_on(cluster)}:
            out.bindings.append(Unbind(cluster, id))  # nobody's, or not any more
        for one in self.free.open_on(cluster):
            if one.state not in (Stage.BOUND, Stage.ACTIVE):
                continue
            if one.id in kept:
                if kept[one.id].size not in (None, one.size):
                    out.bindings.append(Bind(cluster, one.id))  # somebody has changed it
            elif event.time < one.end:
                one = self._turn(one, Turn.LOSE, "its manager does not know it any more", out)
                out.bindings.append(Bind(cluster, one.id))
        for one in self.free.open_on(cluster):
            if one.cause.endswith(_NO_OTHER) and not self.free.down(one):
                self._store(structs.replace(one, cause="its nodes can be used again"), out)
        self._choose(cluster, event.time, out)
        self._place_anew(cluster, event.time, out)

    def _asked(self, event: ReservationAsked, out: Outcome) -> None:
        found = {c: self._possible(event, c) for c in event.clusters}
        offers = {c: made[0] for c, made in found.items() if made is not None}
        if not offers:
            return
        alike = {c: self._alike(event, c, offer) for c, offer in offers.items()}
        cluster = self._chooser.choose(alike, event.request.deadline)
        made = found[cluster]
        assert made is not None
        offer, places = made
        new = Reservation(
            id=event.id,
            user=event.user,
            cluster=cluster,
            start=offer.start,
            end=offer.end,
            size=offer.size,
            cpus=offer.size * self.free.cpus(cluster),
            made=event.time,
            nodes=places[event.id],
            cause="asked for",
            let_run=event.let_run,
            licences=event.licences,
            mail=event.mail,
        )
        if self._clusters[cluster].binds_late:
            told = f"its nodes are chosen {self._clusters[cluster].lead:g} s before its start"
            new = structs.replace(new, state=Stage.CONFIRMED, cause=told)
        self._store(new, out)
        self._move(cluster, places, out, always=event.id)

    def _alike(self, event: ReservationAsked, cluster: str, offer: Offer) -> Offer:
        """An offer as it compares with other clusters': what nobody asked for is no gain."""
        each = 1 if event.by_node else self.free.cpus(cluster)
        return replace(offer, size=min(offer.size * each, event.request.most))

    def possible(self, event: ReservationAsked) -> dict[str, Offer]:
        """What each cluster could promise now, the best first; nothing is reserved."""
        found = [
            (self._alike(event, cluster, made[0]).rank, cluster, made[0])
            for cluster in event.clusters
            if (made := self._possible(event, cluster)) is not None
        ]
        return {cluster: offer for _, cluster, offer in sorted(found, key=lambda one: one[:2])}

    def starts(
        self, event: ReservationAsked, cluster: str, offer: Offer
    ) -> list[tuple[float, float]]:
        """When a window as large and long as this offer could start, by amounts: (first, last)."""
        lasts = offer.end - offer.start + event.let_run
        found = [
            span
            for carts in self.free.carts_for(event, cluster)
            if offer.size <= carts.capacity
            for span in carts.starts(
                offer.size, lasts, event.request.ready, event.request.deadline + event.let_run
            )
        ]
        return list(merged(found)) or [(offer.start, offer.start)]  # where others are to move

    def instead(self, event: ReservationAsked) -> dict[str, list[Offer]]:
        """What would be possible instead, by cluster, the nearest to the request first."""
        found = {}
        for cluster in event.clusters:
            offers: list[Offer] = []
            for carts in self.free.carts_for(event, cluster):
                if (request := self._as_counted(event, cluster, carts)) is not None:
                    offers += instead(carts, request, event.until + event.let_run)
            found[cluster] = [_asked_of(one, event.let_run) for one in dict.fromkeys(offers)]
        return {cluster: offers for cluster, offers in found.items() if offers}

    def _possible(
        self, event: ReservationAsked, cluster: str
    ) -> tuple[Offer, dict[int, tuple[str, ...]]] | None:
        """The best that a cluster can promise, and the nodes of all its reservations then."""
        survey = self.free.surveys.get(cluster)
        if survey is None or event.time - survey.taken > FRESH:
            return None
        offers = [
            offer
            for carts in self.free.carts_for(event, cluster)
            if (request := self._as_counted(event, cluster, carts)) is not None
            and (offer := best(carts, request)) is not None
        ]
        if not offers and (moved := self._by_moving(event, cluster)) is not None:
            offers = [moved]
        if not offers:
            return None
        offer = min(offers, key=lambda offer: offer.rank)
        if survey.pools:
            return _asked_of(offer, event.let_run), {event.id: ()}
        need = Need(event.id, offer.start, offer.end, offer.size)
        places = assigned(self.free.taken(cluster, event.time), [*self.free.needs(cluster), need])
        return None if places is None else (_asked_of(offer, event.let_run), places)

    def _by_moving(self, event: ReservationAsked, cluster: str) -> Offer | None:
        """The first window by the amounts of all pools, if others can leave one of them for it.

        The adapter moves them, when the manager finds no room.
        """
        if (places := self.free.places(cluster, event.time)) is None:
            return None
        for carts in self.free.carts_for(event, cluster, together=True):
            request = self._as_counted(event, cluster, carts)
            largest = max(places.slots.values())
            if request is None or request.least > largest:
                return None
            offer = best(carts, structs.replace(request, most=min(request.most, largest)))
            if offer is not None:
                need = Need(event.id, offer.start, offer.end, offer.size)
                return offer if places.moves(need) is not None else None
        return None

    def _as_counted(self, event: ReservationAsked, cluster: str, carts: Carts) -> Request | None:
        """The request in what the cluster promises, until its jobs are gone.

        None: it is too large, or asks for nodes where processors are promised.
        """
        if event.by_node and not self.free.by_node(cluster):
            return None
        cpus = 1 if event.by_node else self.free.cpus(cluster)
        asked = event.request
        least, most = -(-asked.least // cpus), -(-asked.most // cpus)
        if least > carts.capacity:
            return None
        return structs.replace(
            asked,
            least=least,
            most=min(most, carts.capacity),
            deadline=asked.deadline + event.let_run,
            shortest=asked.shortest + event.let_run,
            longest=asked.longest + event.let_run,
        )

    def _bound(self, event: ReservationBound, out: Outcome) -> None:
        one = structs.replace(self.known[event.id], placed=event.nodes, held=True, tries=0)
        if one.state in (Stage.REQUESTED, Stage.CONFIRMED):
            kept = ", ".join(event.nodes) or f"{one.cpus} processors"
            self._turn(one, Turn.BIND, f"its manager keeps {kept}", out)
            return
        if one.state in OPEN and one.nodes == event.nodes:
            one = structs.replace(one, cause=f"moved to {', '.join(event.nodes) or 'other nodes'}")
        self._store(one, out)

    def _declined(self, event: ReservationDeclined, out: Outcome) -> None:
        """Look again at what is free, and place it anew; it may have been somebody's meanwhile."""
        one = self.known[event.id]
        one = structs.replace(
            one, tries=one.tries + 1, cause=f"its manager refused: {event.reason}"
        )
        if one.state in (Stage.BOUND, Stage.ACTIVE):  # it stays where it is
            if down := self.free.down(one):
                one = structs.replace(one, cause=f"{', '.join(down)} {_NO_OTHER}")
            self._store(structs.replace(one, nodes=one.placed), out)
            return
        if one.state not in OPEN:
            return
        if one.tries >= (TRIES if one.state is Stage.REQUESTED else PROMISED_TRIES):
            self._broken(one, event.time, one.cause, out)
            return
        self._store(one, out)
        self._unplaced.add(one.id)
        if one.tries < TRIES:
            out.bindings.append(LookAround(one.cluster))

    def _released(self, event: ReservationReleased, out: Outcome) -> None:
        one = self.known.get(event.id)
        if one is not None and one.state not in OPEN:
            self._store(structs.replace(one, held=False), out)
            del self.known[event.id]
            self._run_out.discard(event.id)

    # Which nodes

    def _choose(self, cluster: str, now: float, out: Outcome) -> None:
        """Bind what is due to be, on the lowest-numbered nodes that will be free."""
        lead = self._clusters[cluster].lead
        due = [r for r in self.free.open_on(cluster) if self._waits(r) and r.start - lead <= now]
        for one in sorted(due, key=lambda one: (one.start, one.id)):
            nodes = self._lowest(one, now)
            if nodes is not None:
                self._chosen.add(one.id)
                self._store(structs.replace(one, nodes=nodes, cause="its nodes are chosen"), out)
                out.bindings.append(Bind(cluster, one.id))
            elif now >= one.start:
                self._broken(one, now, "too few nodes are free at its start", out)
            elif one.cause != (cause := "too few nodes are free for it as yet"):
                self._store(structs.replace(one, cause=cause), out)

    def _lowest(self, one: Reservation, now: float) -> tuple[str, ...] | None:
        """The nodes for one that binds late; jobs past their limits are counted if that can be."""
        begin = max(one.start, now)
        settled = [
            other
            for other in self.free.open_on(one.cluster)
            if other.state is not Stage.ACTIVE and not self._waits(other)
        ]
        for guard in (self.free.guard(one.cluster), 0.0):
            taken = self.free.taken(one.cluster, now, guard=guard)
            for other in settled:
                for node in taken.keys() & set(other.nodes):
                    taken[node].append((other.start, other.until))
            free = [
                node
                for node in sorted(taken, key=_numbered)
                if not any(start < one.until and begin < end for start, end in taken[node])
            ]
            if len(free) >= one.size:
                return tuple(free[: one.size])
        return None

    def _place_anew(self, cluster: str, now: float, out: Outcome) -> None:
        """Replace nodes that have failed, and what was refused."""
        waiting = [r for r in self.free.open_on(cluster) if r.id in self._unplaced]
        kept = (Stage.BOUND, Stage.ACTIVE)
        failing = [r for r in self.free.open_on(cluster) if r.state in kept and self.free.down(r)]
        if not (waiting or failing):
            return
        for one in waiting:
            self._unplaced.discard(one.id)
        if not self.free.by_node(cluster):  # its manager chooses
            out.bindings += [Bind(cluster, one.id) for one in (*waiting, *failing)]
            return
        without = {one.id for one in waiting}
        taken = self.free.taken(cluster, now)
        for one in waiting:
            needs = [n for n in self.free.needs(cluster) if n.id == one.id or n.id not in without]
            places = assigned(taken, [replace(n, has=()) if n.id == one.id else n for n in needs])
            if places is None:
                self._broken(one, now, one.cause, out)
                continue
            without.discard(one.id)
            self._move(cluster, places, out, always=one.id)
        for one in failing:
            needs = [need for need in self.free.needs(cluster) if need.id != one.id]
            taken = self.free.taken(cluster, now, but=one.id)
            usable = tuple(node for node in one.nodes if node in taken)
            begin = max(one.start, now) if one.state is Stage.ACTIVE else one.start
            places = assigned(taken, [*needs, Need(one.id, begin, one.until, one.size, usable)])
            down = ", ".join(self.free.down(one))
            if places is None:
                cause = f"{down} {_NO_OTHER}"
                if one.cause != cause:
                    self._store(structs.replace(one, cause=cause), out)
                    out.warnings.append(f"reservation {one.id} of {one.user}: {cause}")
                continue
            self._move(cluster, places, out, f"{down} cannot be used")

    def _move(
        self,
        cluster: str,
        places: Mapping[int, tuple[str, ...]],
        out: Outcome,
        cause: str = "",
        always: int | None = None,
    ) -> None:
        """Give reservations their nodes, in an order in which each finds its own free."""
        moving = {
            id: nodes
            for id, nodes in places.items()
            if set(nodes) != set(self.known[id].placed) or id == always
        }
        known = [self.known[id] for id in moving]
        now = {r.id: Need(r.id, r.start, r.until, r.size, r.placed) for r in known}
        for id in in_turn(now, moving):
            one = self.known[id]
            self._store(structs.replace(one, nodes=moving[id], cause=cause or one.cause), out)
            if not self._waits(one):
                out.bindings.append(Bind(cluster, id))

    # What becomes of one

    def _turn(self, one: Reservation, turn: Turn, cause: str, out: Outcome) -> Reservation:
        """Let something happen to a reservation: the only place where its state changes."""
        new = structs.replace(one, state=turned(one, turn), cause=cause)
        self._store(new, out)
        return new

    def _over(self, one: Reservation, turn: Turn, now: float, cause: str, out: Outcome) -> None:
        self._unplaced.discard(one.id)
        self._store(structs.replace(self._turn(one, turn, cause, out), closed=now), out)
        if one.cluster in self._clusters:  # else it is told once that is configured again
            out.bindings.append(Unbind(one.cluster, one.id))

    def _broken(self, one: Reservation, now: float, cause: str, out: Outcome) -> None:
        """It cannot be kept: tell why, and which window there is instead."""
        self._over(one, Turn.BREAK, now, cause, out)
        known = one.cluster in self._clusters
        offer = self._there(one, now) if known else self._elsewhere(one, now)
        if offer is not None:
            self._store(structs.replace(self.known[one.id], offers=(offer,)), out)
        out.warnings.append(f"reservation {one.id} of {one.user} is broken: {cause}")

    def _there(self, one: Reservation, now: float) -> Offer | None:
        """The next window of its cluster that would do."""
        lasts, ready = one.until - one.start, max(one.start, now)
        starts = [
            start
            for carts in self.free.carts(one.cluster, now)
            if one.size <= carts.capacity
            and (start := carts.earliest_start(one.size, lasts, ready)) is not None
        ]
        if not starts:
            return None
        return Offer(min(starts), min(starts) + one.end - one.start, one.size)

    def _elsewhere(self, one: Reservation, now: float) -> Offer | None:
        """The next window of any cluster with as many processors, as these have told last."""
        begin, lasts = max(one.start, now), one.end - one.start
        able = [
            name
            for name, cluster in self._clusters.items()
            if cluster.reserves and cluster.takes != "jobs" and lasts >= cluster.granularity
        ]
        request = Request.flexible(one.cpus, lasts, begin, begin + _AHEAD)
        event = ReservationAsked(
            *(now, one.id, one.user, request, False, tuple(able), begin + _AHEAD, one.let_run),
            one.licences,
        )
        offers = [
            replace(
                _asked_of(found, one.let_run),
                size=found.size * self.free.cpus(name),
                cluster=name,
            )
            for name in able
            for carts in self.free.carts_for(event, name)
            if (asked := self._as_counted(event, name, carts)) is not None
            and (found := best(carts, asked)) is not None
        ]
        return min(offers, key=lambda offer: (offer.start, offer.cluster), default=None)

    def _store(self, one: Reservation, out: Outcome) -> None:
        self.known[one.id] = out.reservations[one.id] = one


def _asked_of(offer: Offer, let_run: float) -> Offer:
    """The window of an offer that holds its nodes until its jobs are gone."""
    return replace(offer, end=offer.end - let_run)


def _numbered(node: str) -> list[tuple[int, str]]:
    """What sorts n2 before n10."""
    parts = re.split(r"(\d+)", node)
    return [(int(part) if part.isdecimal() else -1, part) for part in parts]
