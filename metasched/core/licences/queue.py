"""Floating licences as tokens: pools, what is counted of them, who may take how many. Pure.

Times are seconds since the epoch, durations seconds, amounts tokens (copies of a licence).

A task takes all the licences that it wants or none, so that no two can wait for each other. Who
cannot have all waits in one line. One that is first in line for each of its licences will have them
when enough leases have ended by the time limits of their tasks; later ones may pass it if by theirs
they give back before that moment, or if they take only what it leaves then (EASY backfilling; Lifka
1995; `policies.queueing` does the same for processors). The first of all is always such a one, so
that none waits forever, however many it wants, unless others outside use what it lacks.

Windows of reservations are kept likewise, also from the first in line: who is not of the
reservation takes only what it gives back before the window begins, or what the window leaves. There
limits count that somebody sees to: whoever has none counts as never giving back.

Those who come within one `patience` stand by size, who wants most first: small wants then fill what
large ones leave, instead of large ones being left over with nothing to fill their gaps (first fit
decreasing; Johnson et al. 1974).

Nothing looks at the whole line: tasks that want the same for about as long are one group, a group
waits at one pool that lacks tokens for it (as a clause watches one of its literals in a SAT
solver), and only pools of which something became free are looked at.
"""

from __future__ import annotations

import difflib
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from metasched.core.licences.pool import (
    _NEVER,
    Order,
    Place,
    Wants,
    _Entry,
    _Group,
    _Parked,
    _Pool,
    _Stay,
    _undescribed,
)
from metasched.core.licences.windows import Slots, TokenWindow, ahead, earliest, least, spans
from metasched.model.licence import MOST, Lease, LicenceCount, LicencePool, Lingering, Standing


class Licences:
    """All pools, all leases and the line before them."""

    def __init__(self) -> None:
        self.leases: dict[Place, Lease] = {}
        self.patience = 0.0
        self._pools: dict[str, _Pool] = {}
        self._ends: dict[Place, float] = {}  # when leases end by the time limits of their tasks
        self._unlimited: set[Place] = set()  # of these: nobody sees to it
        self._drawing: dict[Place, int] = {}  # leases of jobs in reservations
        self._windows: dict[int, TokenWindow] = {}  # of reservations, also without licences
        self.windowed: set[str] = set()  # licences of which something is kept for some
        self._groups: dict[tuple[Wants, _Stay], _Group] = {}
        self._in_line: dict[Place, _Group] = {}
        self._fresh: list[_Entry] = []  # groups to be looked at, wherever they wait
        self._stirred: set[str] = set()  # pools of which more may be free
        self._touched: set[str] = set()  # pools that may have another first in line
        self._dues: list[tuple[float, str]] = []  # when something stops to linger
        self._serial = 0
        self._changes = 0  # of what reservations follow from

    # What is there

    def restore(
        self,
        leases: Iterable[Lease],
        lingering: Iterable[Lingering],
        chosen: Mapping[str, int],
        past_us: Mapping[str, Mapping[str, LicenceCount]],
    ) -> None:
        """Take over what is stored: live leases, what lingers, totals that operators have set.

        And what managers have given past us: so much counts until they are heard again.
        """
        for lease in leases:
            self._add(lease)
        for back in lingering:
            self._linger(back)
        for name, total in chosen.items():
            self._pool(name).chosen = total
            self._pools[name].add_up()
        for name, told in past_us.items():
            self._pool(name).past_us = dict(told)
            self._pools[name].add_up()

    def configure(
        self, pools: Iterable[LicencePool], patience: float, clusters: Iterable[str] = ()
    ) -> list[str]:
        """Begin anew with these pools: nobody is in line, and no server has been heard.

        Nor has any reservation been promised: that follows.

        What the managers of these clusters gave past us stays; those of which there was more.
        """
        self._changes += 1
        there = frozenset(clusters)
        self.patience = patience
        given = {pool.name: pool for pool in pools}
        self._groups, self._in_line, self._fresh = {}, {}, []
        self._stirred, self._touched = set(), set()
        self._windows, self.windowed = {}, set()
        for name, pool in self._pools.items():
            pool.pool, pool.known, pool.count = _undescribed(name), False, None
            pool.waiting = pool.asking = 0
            pool.wanting, pool.parked, pool.first, pool.windows = [], {}, None, {}
        for name, described in given.items():
            self._pool(name).pool, self._pools[name].known = described, True
        dropped = []
        for name, pool in self._pools.items():
            kept = {c: n for c, n in pool.past_us.items() if c in there and not pool.barred(c)}
            if kept != pool.past_us:
                pool.past_us = kept
                dropped.append(name)
            pool.add_up()
        return dropped

    def _pool(self, name: str) -> _Pool:
        if name not in self._pools:
            self._pools[name] = _Pool(_undescribed(name), known=False)
        return self._pools[name]

    def counted(self, count: LicenceCount, now: float) -> bool:
        """Learn what a server told; whether it counts: it must be known, and not of the future."""
        pool = self._pools.get(count.name)
        if pool is None or not pool.known or not pool.pool.server or count.observed > now:
            return False
        if pool.count is not None and count.observed < pool.count.observed:
            return False
        pool.count = count
        pool.add_up()
        self._changed(pool)
        return True

    def given_past_us(self, cluster: str, taken: Mapping[str, int], now: float) -> list[str]:
        """Learn what a cluster's manager has given of these licences to others than us.

        Of a licence that cannot be used on that cluster it counts some other pool. Those of which
        it has another number than before.
        """
        changed = []
        for name, pool in self._pools.items():
            before = pool.past_us.pop(cluster, None)
            many = min(taken.get(name, 0), MOST)
            if pool.barred(cluster):
                many = 0
            if many:
                pool.past_us[cluster] = LicenceCount(name, None, many, now)
            if many != (before.outside if before is not None else 0):
                changed.append(name)
                pool.add_up()
                self._changed(pool)
        return changed

    def choose(self, name: str, total: int | None) -> None:
        """An operator sets how many there are; None: as configured again."""
        self._pool(name).chosen = total
        self._pools[name].add_up()
        self._changed(self._pools[name])

    def _changed(self, pool: _Pool) -> None:
        """There may be more or fewer; perhaps nothing can be kept any more for who is first."""
        self._changes += 1
        self._stirred.add(pool.pool.name)
        self._stir_all(pool.first)

    def promise(self, window: TokenWindow) -> None:
        """Keep tokens for a reservation from now on."""
        if self._windows.get(window.id) == window:
            return
        self._changes += 1
        self._windows[window.id] = window
        for name in window.licences:
            pool = self._pool(name)
            pool.windows[window.id] = window
            self.windowed.add(name)
            self._changed(pool)

    def keep_no_more(self, id: int) -> None:
        """A reservation is over."""
        window = self._windows.pop(id, None)
        if window is None:
            return
        self._changes += 1
        for name in window.licences:
            pool = self._pools[name]
            del pool.windows[id]
            if not pool.windows:
                self.windowed.remove(name)
            self._changed(pool)

    def windows(self, name: str) -> list[TokenWindow]:
        """The reservations that have tokens of a licence, by their start."""
        return sorted(self._pool(name).windows.values(), key=lambda one: (one.start, one.id))

    def _stir_all(self, first: Order | None) -> None:
        """Look again at all licences that one in line wants: something may have been kept."""
        if first is not None and (group := self._in_line.get(first[3:])) is not None:
            self._stirred.update(name for name, _ in group.wants)

    def clock_set(self, by: float) -> None:
        """Move all times: the wall clock has gone `by` seconds more than time has."""
        self._changes += 1
        for pool in self._pools.values():
            if pool.count is not None:
                pool.count = pool.count.set_back(by)
            pool.past_us = {name: told.set_back(by) for name, told in pool.past_us.items()}
            pool.backs = [(until + by, given_back + by, n) for until, given_back, n in pool.backs]
            pool.add_up()
        self._ends = {place: end + by for place, end in self._ends.items()}
        self._dues = [(until + by, name) for until, name in self._dues]

    @property
    def names(self) -> list[str]:
        """The licences that the site describes."""
        return [name for name, pool in self._pools.items() if pool.known]

    def standing(self, name: str, now: float) -> Standing:
        """How it stands with one licence."""
        pool = self._pool(name)
        free, reserved = pool.free(now), pool.reserved_now(now)
        return Standing(
            name,
            pool.total if pool.known else 0,
            pool.ours,
            pool.outside,
            pool.lingering,
            None if free is None else free - reserved,
            pool.waiting,
            pool.word(now),
            pool.observed,
            pool.chosen,
            pool.asking,
            pool.past_us.copy(),
            reserved,
        )

    def standings(self, now: float) -> list[Standing]:
        """How it stands with every licence that is configured, leased or wanted."""
        return [
            self.standing(name, now)
            for name, pool in sorted(self._pools.items())
            if pool.known or pool.ours or pool.waiting or pool.windows
        ]

    def pool(self, name: str) -> LicencePool | None:
        """What the site says of a licence; None: nothing."""
        pool = self._pools.get(name)
        return pool.pool if pool is not None and pool.known else None

    # What can be asked for

    @property
    def rho(self) -> dict[str, float]:
        """How critical each licence is that somebody waits for: `Standing.rho`."""
        pools = self._pools.items()
        return {name: p.asking / p.total for name, p in pools if p.asking and p.total}

    def refusal(self, wants: Mapping[str, int]) -> str | None:
        """Why nobody can ever have these, in words with a mend; None: somebody can."""
        for name, many in wants.items():
            pool = self._pools.get(name)
            if pool is None or not pool.known:
                close = difflib.get_close_matches(name, self.names, n=1)
                known = ", ".join(self.names[:10]) or "none"
                mend = f"did you mean {close[0]}?" if close else f"known are: {known}"
                return f"no licence {name[:63]!r} is known; {mend}"
            if many > MOST:
                return f"{many} of licence {name}, which nobody has; ask for fewer"
            if pool.total is not None and many > (most := pool.total - pool.pool.headroom):
                kept = f", {pool.pool.headroom} of them kept free" if pool.pool.headroom else ""
                mend = f"ask for {most} at the most" if most > 0 else "wait until there are more"
                return f"{many} of licence {name}, there are {pool.total}{kept}; {mend}"
        return None

    def barred(self, wants: Iterable[str], cluster: str) -> str | None:
        """The first of these licences that cannot be used on a cluster; None: all can."""
        for name in wants:
            pool = self._pools.get(name)
            if pool is not None and pool.barred(cluster):
                return name
        return None

    # Leases

    def take(
        self, lease: Lease, end: float, limited: bool = True, window: int | None = None
    ) -> None:
        """Lease all of it, to one that `next` has named or that is there already; see `expect`."""
        self.leave((lease.job, lease.index))
        self._add(lease)
        self.expect((lease.job, lease.index), end, limited, window)

    def _add(self, lease: Lease) -> None:
        self._changes += 1
        place = (lease.job, lease.index)
        self.leases[place] = lease
        for name, many in lease.tokens.items():
            pool = self._pool(name)
            pool.ours += many
            pool.leased[place] = many

    def expect(
        self, place: Place, end: float, limited: bool = True, window: int | None = None
    ) -> None:
        """Learn when a lease will have ended by the time limit of its task.

        `limited`: somebody sees to that. `window` is the reservation in which the task runs. If it
        is later than it was thought to be, others may end before the first in line needs what it
        holds; if it is earlier, or certain now, before a reservation does.
        """
        if place not in self.leases:
            return
        known = (self._ends.get(place, _NEVER), place not in self._unlimited)
        before, self._ends[place] = known[0], end
        (self._unlimited.discard if limited else self._unlimited.add)(place)
        draws = window is not None and place not in self._drawing
        if window is not None and draws:
            self._drawing[place] = window
            for name, many in self.leases[place].tokens.items():
                self._pools[name].drawn[window] += many
        if draws or (end, limited) != known:
            self._changes += 1
        for name in self.leases[place].tokens:
            pool = self._pools[name]
            if end > before or (pool.windows and (end, limited) != known):
                self._stirred.add(name)
                self._stir_all(pool.first)

    def give_back(self, place: Place, now: float, used: bool) -> dict[str, float]:
        """End a lease; until when its tokens count as in use, if they have been `used`."""
        self._changes += 1
        lease = self.leases.pop(place)
        self._ends.pop(place, None)
        self._unlimited.discard(place)
        window = self._drawing.pop(place, None)
        lingers = {}
        for name, many in lease.tokens.items():
            pool = self._pool(name)
            pool.ours -= many
            if window is not None:
                pool.drawn[window] -= many
                if not pool.drawn[window]:
                    del pool.drawn[window]
            del pool.leased[place]
            self._stirred.add(name)
            if used and pool.pool.linger:
                lingers[name] = now + pool.pool.linger
                self._linger(Lingering(name, many, now, lingers[name]))
                self._stir_all(pool.first)  # it may have counted on them by its time limit
        return lingers

    def _linger(self, back: Lingering) -> None:
        pool, told = self._pool(back.licence), (back.until, back.given_back, back.count)
        heapq.heappush(pool.backs, told)
        heapq.heappush(self._dues, (back.until, back.licence))
        if pool.lingers(told):
            pool.lingering += back.count

    @property
    def next_due(self) -> float | None:
        """When time alone gives back tokens while somebody waits, or None."""
        return self._dues[0][0] if self._dues and self._in_line else None

    def pass_time(self, now: float) -> None:
        """Free what has lingered long enough."""
        while self._dues and self._dues[0][0] <= now:
            self._changes += 1
            name = heapq.heappop(self._dues)[1]
            pool = self._pools[name]
            while pool.backs and pool.backs[0][0] <= now:
                back = heapq.heappop(pool.backs)
                if pool.lingers(back):
                    pool.lingering -= back[2]
            self._stirred.add(name)

    # The line

    def __contains__(self, place: Place) -> bool:
        """Whether a task is in line."""
        return place in self._in_line

    @property
    def waited_for(self) -> bool:
        """Whether anybody is in line."""
        return bool(self._in_line)

    def contended(self, place: Place) -> bool:
        """Whether others wait for a licence that this one has leased."""
        return any(self._pools[name].waiting for name in self.leases[place].tokens)

    def serves(self, freed: Mapping[str, int], now: float) -> bool:
        """Whether somebody in line could go if these were given back, too."""
        for name in freed:
            kinds = self._pools[name].parked.values()
            for entry in chain.from_iterable(heap for of in kinds for heap in of.values()):
                group = entry[2]
                if group.at == name and all(
                    self._may_take(self._pools[n], many - freed.get(n, 0), entry, now)
                    for n, many in group.wants
                ):
                    return True
        return False

    def join(
        self,
        place: Place,
        key: float,
        wants: Mapping[str, int],
        lasts: float,
        limited: bool = True,
        window: int | None = None,
    ) -> None:
        """Get in line by a key (seconds), the least first; one that is there keeps its place.

        By its time limit it will have what it wants for `lasts` seconds; `limited`: somebody sees
        to that. `window` is the reservation in which it runs.
        """
        if place in self._in_line:
            return
        stay = _Stay(2.0 ** math.ceil(math.log2(lasts)), limited, window)
        same = (tuple(sorted(wants.items())), stay)
        group = self._groups.get(same)
        if group is None:
            self._serial += 1
            group = self._groups[same] = _Group(*same, self._serial)
        step = key // self.patience if self.patience else key
        order = (step, -sum(wants.values()), key, *place)
        before = group.first()
        self._in_line[place] = group
        group.orders[place] = order
        heapq.heappush(group.heap, order)
        for name, many in group.wants:
            pool = self._pool(name)
            pool.waiting += many
            pool.asking += 1
        if before is None or order < before:
            self._has_first(group, order)

    def leave(self, place: Place) -> None:
        """Get out of line, wherever one is."""
        group = self._in_line.pop(place, None)
        if group is None:
            return
        before = group.first()
        order = group.orders.pop(place)
        for name, many in group.wants:
            self._pools[name].waiting -= many
            self._pools[name].asking -= 1
        if order != before:
            return
        first = group.first()
        if first is not None:
            self._has_first(group, first)
            return
        del self._groups[group.wants, group.stay]
        self._touched.update(name for name, _ in group.wants)

    def _has_first(self, group: _Group, first: Order) -> None:
        """Another one is first of its group: look at it anew."""
        entry = (first, group.serial, group)
        group.at = ""
        heapq.heappush(self._fresh, entry)
        for name, _ in group.wants:
            heapq.heappush(self._pools[name].wanting, entry)
            self._touched.add(name)

    def _settle(self) -> None:
        """See who is first where that may have changed; what was kept for others is so no more."""
        while self._touched:
            pool = self._pools[self._touched.pop()]
            before, heap = pool.first, pool.wanting
            while heap and heap[0][2].first() != heap[0][0]:
                heapq.heappop(heap)
            pool.first = heap[0][0] if heap else None
            if pool.first == before:
                continue
            self._changes += 1
            if before is not None:
                # it may have been the one for which something was kept, also of other licences
                self._stirred.add(pool.pool.name)
                self._stir_all(before)

    def _reserved(self, pool: _Pool, now: float) -> tuple[float, int]:
        """When the first in line will have its licences, and how many others may then still have.

        O(n log n) in the leases of its licences, or O(1) while nothing has changed since. At
        infinity if nobody knows when, if ever, or if it is not first for all of them: what others
        take then does not keep it waiting.
        """
        asked = (self._changes, now)
        if pool.asked != asked:
            pool.asked, pool.reserved = asked, self._reserve(pool, now)
        return pool.reserved

    def _reserve(self, pool: _Pool, now: float) -> tuple[float, int]:
        group = self._first_group(pool)
        if group is None:
            return _NEVER, 0
        if any(self._pools[name].first != pool.first for name, _ in group.wants):
            return _NEVER, 0
        if any(self._pools[name].windows for name, _ in group.wants):
            return self._reserve_beside_windows(pool, group, now)
        moment = max(self._enough(self._pools[name], many, now) for name, many in group.wants)
        if moment == _NEVER:
            return _NEVER, 0
        left = (pool.free(now) or 0) - dict(group.wants)[pool.pool.name]
        back = self._returns(pool, None, False)
        return moment, left + sum(many for end, many in back if end <= moment)

    def _reserve_beside_windows(self, pool: _Pool, group: _Group, now: float) -> tuple[float, int]:
        """The same where not all that comes back stays there."""
        moment, found = now, now - 1.0
        while found < moment < _NEVER:  # until all are there together
            found = moment
            moment = max(
                self._enough_beside_windows(self._pools[name], many, group.stay, found, now)
                for name, many in group.wants
            )
        if moment == _NEVER:
            return _NEVER, 0
        slots = self._ahead(pool, group.stay.window, False, now)
        gone = self._gone(group.stay, moment)
        return moment, least(slots, moment, gone) - dict(group.wants)[pool.pool.name]

    def _first_group(self, pool: _Pool) -> _Group | None:
        """That of the first in line for a licence."""
        return None if pool.first is None else self._in_line.get(pool.first[3:])

    def _enough(self, pool: _Pool, wanted: int, now: float) -> float:
        """When so many of a licence will be free by the time limits of those that have it."""
        free = pool.free(now)
        if free is None:
            return _NEVER
        if free >= wanted:
            return now
        for end, many in sorted(self._returns(pool, None, False)):
            free += many
            if free >= wanted:
                return max(end, now)  # who is past its limit ends at any moment
        return _NEVER

    def _enough_beside_windows(
        self, pool: _Pool, wanted: int, stay: _Stay, ready: float, now: float
    ) -> float:
        """From `ready` on, when so many will be free for as long as one stays."""
        if pool.free(now) is None:
            return _NEVER
        slots = self._ahead(pool, stay.window, False, now)
        return earliest(slots, wanted, ready, stay.lasts, self._window_ends(stay))

    def _window_ends(self, stay: _Stay) -> float:
        """When all that runs in its reservation is killed; infinity if it is in none."""
        if stay.window is None:
            return _NEVER
        window = self._windows.get(stay.window)
        return _NEVER if window is None else window.until

    def _gone(self, stay: _Stay, begun: float) -> float:
        """When one that begins then has given all back."""
        return min(begun + stay.lasts, self._window_ends(stay))

    def _ahead(
        self, pool: _Pool, own: int | None, sure: bool, now: float, late: float = 0.0
    ) -> Slots:
        """What may be taken of a licence over time in the reservation `own` (None: in none).

        O(n log n) in its leases, or O(1) while nothing has changed since. `sure`: only what
        somebody sees to counts as given back, `late` after its limit, after it has lingered.
        """
        asked = (self._changes, now)
        if pool.seen != asked:
            pool.seen, pool.slots = asked, {}
        kind = (own if own in pool.windows else None, sure, late)
        if kind not in pool.slots:
            returns = self._returns(pool, *kind)
            free = pool.free(now) or 0
            pool.slots[kind] = ahead(now, free, returns, pool.claims(), kind[0])
        return pool.slots[kind]

    def _returns(
        self, pool: _Pool, own: int | None, sure: bool, late: float = 0.0
    ) -> Iterator[tuple[float, int]]:
        """When how many tokens come back; those of a window only to that window until its end."""
        for place, many in pool.leased.items():
            end = self._ends.get(place, _NEVER)
            if sure:
                over = end if place in self._drawing else end + late  # a window's end ends all
                end = _NEVER if place in self._unlimited else over + pool.pool.linger
            if pool.windows:
                window = pool.windows.get(self._drawing.get(place, 0))
                if window is not None and window.id != own:
                    end = max(end, window.until + (pool.pool.linger if sure else 0.0))
            yield end, many
        for back in pool.backs:
            if pool.lingers(back):
                yield back[0], back[2]

    def _may_take(self, pool: _Pool, many: int, entry: _Entry, now: float) -> bool:
        """Whether one in line may take so many of a licence now."""
        order, _, group = entry
        free = pool.free(now)
        if free is None or many > free:
            return False
        if pool.first != order and not self._passes(pool, many, group.stay, now):
            return False
        return not pool.windows or many <= self._beside(pool, group.stay, now)

    def _passes(self, pool: _Pool, many: int, stay: _Stay, now: float) -> bool:
        """Whether the first in line has its licences no later if so many are taken of one now."""
        moment, left = self._reserved(pool, now)
        if many <= left or now + stay.lasts <= moment or self._window_ends(stay) <= moment:
            return True
        if not pool.windows:
            return False
        first = self._first_group(pool)
        if first is None or stay.window == first.stay.window:
            return False
        owed = sum(tokens for window, tokens in pool.claims() if window.id == stay.window)
        return many <= left + owed

    def _beside(self, pool: _Pool, stay: _Stay, now: float) -> int:
        """How many windows leave of what is free, for as long as one that goes now stays."""
        gone = self._gone(stay, now) if stay.limited else self._window_ends(stay)
        gone = max(gone + pool.pool.linger, math.nextafter(now, math.inf))
        return least(self._ahead(pool, stay.window, True, now), now, gone)

    # Windows

    def lacking(
        self, wants: Mapping[str, int], now: float, late: float = 0.0
    ) -> Iterator[tuple[float, float]]:
        """From when to when these cannot be promised; what lingers after a window counts.

        What runs may have them for `late` seconds after its limit.
        """
        for name, many in wants.items():
            pool = self._pool(name)
            if pool.free(now) is None:
                yield now, _NEVER
                continue
            for start, end, free in spans(self._ahead(pool, None, True, now, late)):
                if free < many:
                    yield start - pool.pool.linger, end

    def kept_for(self, place: Place, name: str, now: float) -> TokenWindow | None:
        """The reservation for whose sake one in line may not take what is free; None: for none."""
        group, pool = self._in_line[place], self._pools[name]
        wanted, free = dict(group.wants)[name], pool.free(now)
        if free is None or not pool.windows or wanted <= self._beside(pool, group.stay, now):
            return None
        others = [one for one in self.windows(name) if one.id != group.stay.window]
        for begin, _, many in spans(self._ahead(pool, group.stay.window, True, now)):
            if many < wanted:
                there = [one for one in others if one.start <= begin < one.until]
                return there[-1] if there else None
        return None

    def delays(self, place: Place, freed: Mapping[str, int], now: float) -> int | None:
        """The reservation that will lack what a lease has, if that lasts until its task's limit.

        `freed` will be given back before. None: none will; or it is of a reservation itself.
        """
        if place in self._drawing:
            return None
        for name in self.leases[place].tokens:
            pool = self._pools[name]
            if not pool.windows or pool.free(now) is None:
                continue
            for begin, _, many in spans(self._ahead(pool, None, True, now)):
                there = [w.id for w in pool.windows.values() if w.start <= begin < w.until]
                gone = self._ends[place] + pool.pool.linger
                if there and begin < gone and many + freed.get(name, 0) < 0:
                    return max(there)
        return None

    # Who goes

    @property
    def settled(self) -> bool:
        """Whether `next` has nobody to look at."""
        return not (self._touched or self._stirred or self._fresh)

    def next(self, now: float) -> Place | None:
        """The first in line who can have all that it wants now; None: nobody.

        It must then `take` it or `leave`.
        """
        if self.settled:
            return None
        self._settle()
        waiting = [parked for name in self._stirred for parked in self._parked(name, now)]
        heapq.heapify(waiting)
        while (entry := self._candidate(waiting)) is not None:
            first, _, group = entry
            for name, many in group.wants:
                pool = self._pools[name]
                if not self._may_take(pool, many, entry, now):
                    group.at = name
                    heap = pool.parked.setdefault(many, {}).setdefault(group.stay, [])
                    heapq.heappush(heap, entry)
                    break
            else:
                heapq.heappush(self._fresh, entry)  # until it takes it or leaves
                group.at = ""
                self._stirred = {name for _, name, *_ in waiting}
                return first[3:]
        self._stirred.clear()
        return None

    def _candidate(self, waiting: list[_Parked]) -> _Entry | None:
        """Take out the first group that may be able to go; None: there is none.

        It is one that waits nowhere yet, or the first of those `waiting`, a heap.
        """
        fresh = self._fresh
        while fresh and (fresh[0][2].at or fresh[0][2].first() != fresh[0][0]):
            heapq.heappop(fresh)
        if fresh and not (waiting and waiting[0][0] < fresh[0]):
            return heapq.heappop(fresh)
        if not waiting:
            return None
        entry, name, many, stay, others = waiting[0]
        heap = self._pools[name].parked[many][stay]
        heapq.heappop(heap)
        if others and self._waits(name, heap):
            heapq.heapreplace(waiting, (heap[0], name, many, stay, True))
        else:
            heapq.heappop(waiting)
        return entry

    def _parked(self, name: str, now: float) -> Iterator[_Parked]:
        """The first of each kind of groups at a licence that does not lack for them any more."""
        pool = self._pools[name]
        free = pool.free(now)
        fitting = [many for many in pool.parked if free is not None and many <= free]
        if not fitting:
            return
        moment, left = self._reserved(pool, now)
        group = self._first_group(pool)
        first = None if group is None else (dict(group.wants)[name], group.stay)
        for many in fitting:
            kinds = pool.parked[many]
            for stay, heap in list(kinds.items()):
                others = many <= left or now + stay.lasts <= moment
                if pool.windows:
                    others = others or self._passes(pool, many, stay, now)
                    others = others and many <= self._beside(pool, stay, now)
                if not others and (many, stay) != first:
                    continue
                if not self._waits(name, heap):
                    del kinds[stay]
                elif others or heap[0][0] == pool.first:
                    yield heap[0], name, many, stay, others
            if not kinds:
                del pool.parked[many]

    @staticmethod
    def _waits(name: str, heap: list[_Entry]) -> bool:
        """Whether anybody in a heap still waits at that licence; its first does then."""
        while heap and (heap[0][2].at != name or heap[0][2].first() != heap[0][0]):
            heapq.heappop(heap)
        return bool(heap)

    def lacks(self, place: Place, now: float) -> Iterator[Standing]:
        """Those licences of which one in line could not have what it wants now."""
        group = self._in_line[place]
        entry = (group.orders[place], group.serial, group)
        for name, many in group.wants:
            if not self._may_take(self._pools[name], many, entry, now):
                yield self.standing(name, now)
