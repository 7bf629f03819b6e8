"""Free licence tokens over time: shadow times, reservation windows, overtaking. Pure.

Times are seconds since the epoch, durations seconds, amounts tokens (copies of a licence).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from operator import attrgetter

from metasched.core.licences.groups import LeaseTerms, QueueKey, RequestGroup
from metasched.core.licences.pool import NEVER, LicenceState, PoolState
from metasched.core.licences.windows import (
    TokenSlots,
    TokenWindow,
    earliest_start,
    later_windows,
    less_claims,
    min_tokens,
    slot_spans,
    tokens_over_time,
)
from metasched.core.tasks import TaskId
from metasched.model.calendar import CalendarLimit

_ROUNDING = 0.001  # seconds: more than times since the epoch are rounded by


class Lookahead:
    """Queries of the future of all licence pools; changes nothing but caches in the pools."""

    def __init__(self, state: LicenceState) -> None:
        self._state = state

    def head_reservation(self, pool: PoolState, now: float) -> tuple[float, int]:
        """Return the shadow time of a pool's first task, and the extra tokens others may hold then.

        O(n log n) in the leases of its licences, or O(1) while nothing has changed since. The
        shadow time is infinite if it is unknown, or if the task is not first for all its licences:
        leases by other tasks do not delay it then.
        """
        cache_key = (self._state.version, now)
        if pool.head_cache_key != cache_key:
            pool.head_cache_key, pool.head_reservation = (
                cache_key,
                self._compute_head_reservation(pool, now),
            )
        return pool.head_reservation

    def _compute_head_reservation(self, pool: PoolState, now: float) -> tuple[float, int]:
        group = self.head_group(pool)
        if group is None:
            return NEVER, 0
        first = self.first_key(pool)
        if any(self.first_key(self._state.pools[name]) != first for name in group.requested):
            return NEVER, 0
        if any(self._state.pools[name].windows for name in group.requested):
            return self._compute_head_reservation_with_windows(pool, group, now)
        shadow_time = max(
            self._time_available(self._state.pools[name], count, now)
            for name, count in group.requested.items()
        )
        if shadow_time == NEVER:
            return NEVER, 0
        extra = (pool.free(now) or 0) - group.requested[pool.config.name]
        returns = self._expected_returns(pool, None, False)
        return shadow_time, extra + sum(count for end, count in returns if end <= shadow_time)

    def _compute_head_reservation_with_windows(
        self, pool: PoolState, group: RequestGroup, now: float
    ) -> tuple[float, int]:
        """Return the head reservation where windows claim tokens that come back."""
        shadow_time, previous = now, now - 1.0
        while previous < shadow_time < NEVER:  # until all are free at once
            previous = shadow_time
            shadow_time = max(
                self._time_available_with_windows(
                    self._state.pools[name], count, group.terms, previous, now
                )
                for name, count in group.requested.items()
            )
        if shadow_time == NEVER:
            return NEVER, 0
        slots = self._tokens_over_time(pool, group.terms.reservation, False, now)
        end = self._end_of_use(group.terms, shadow_time)
        own = group.requested[pool.config.name]
        return shadow_time, min_tokens(slots, shadow_time, end) - own

    def head_group(self, pool: PoolState) -> RequestGroup | None:
        """Return the group of the first task queued for a licence."""
        first = self.first_key(pool)
        return None if first is None else self._state.line_of[first[3:]].group

    def first_key(self, pool: PoolState) -> QueueKey | None:
        """Return the key of the first task queued for a licence; None: none is.

        Tasks that the calendar never lets go are not first: others would wait for them.
        """
        order = self._state.order
        if pool.groups and (pool.head_key is None or pool.head_ranking != order.ranking):
            with closing(pool.groups.in_order(order)) as groups:
                first = next((group for group in groups if not self._is_barred(group)), None)
            pool.head_key = None if first is None else order.rank(first)[2]
            pool.head_ranking = order.ranking
        return pool.head_key

    def _is_barred(self, group: RequestGroup) -> bool:
        """Return whether the calendar never lets the tasks of a group go."""
        return any(
            self.barring_window(self._state.pool(name), count, group.terms) is not None
            for name, count in group.requested.items()
        )

    def barring_window(self, pool: PoolState, count: int, terms: LeaseTerms) -> TokenWindow | None:
        """Return a limit of the calendar that never leaves so many tokens for so long, or None.

        The lease would reach into its next run, whenever it began.
        """
        if terms.reservation is not None:
            return None  # it ends with that at the latest
        held_for = terms.duration + pool.config.linger if terms.enforced else NEVER
        for window in pool.windows.values():
            available = window.licences[pool.config.name] - pool.config.headroom
            if (
                window.longest_gap is not None
                and count > available
                and held_for >= window.longest_gap
            ):
                return window
        return None

    def _time_available(self, pool: PoolState, needed: int, now: float) -> float:
        """Return when so many tokens will be free, by the time limits of their holders."""
        free = pool.free(now)
        if free is None:
            return NEVER
        if free >= needed:
            return now
        for end, count in sorted(self._expected_returns(pool, None, False)):
            free += count
            if free >= needed:
                return max(end, now)  # a task past its limit ends at any moment
        return NEVER

    def _time_available_with_windows(
        self, pool: PoolState, needed: int, terms: LeaseTerms, ready: float, now: float
    ) -> float:
        """Return when, from `ready` on, so many tokens will be free for the duration of a lease."""
        if pool.free(now) is None:
            return NEVER
        slots = self._tokens_over_time(pool, terms.reservation, False, now)
        return earliest_start(slots, needed, ready, terms.duration, self._window_end(terms))

    def _window_end(self, terms: LeaseTerms) -> float:
        """Return when everything in its reservation is killed; infinity: it is in none."""
        if terms.reservation is None:
            return NEVER
        window = self._state.windows.get(terms.reservation)
        return NEVER if window is None else window.until

    def _end_of_use(self, terms: LeaseTerms, start: float) -> float:
        """Return when a task that starts at `start` has returned its tokens."""
        return min(start + terms.duration, self._window_end(terms))

    def _tokens_over_time(
        self,
        pool: PoolState,
        reservation: int | None,
        enforced_only: bool,
        now: float,
        overrun: float = 0.0,
    ) -> TokenSlots:
        """Return the tokens that jobs of `reservation` (None: of none) may lease, over time.

        O(n log n) in the leases, or O(1) while nothing has changed since. `enforced_only`: only
        leases with an enforced end come back, `overrun` seconds after it and after lingering.
        """
        cache_key = (self._state.version, now)
        if pool.slots_cache_key != cache_key:
            pool.slots_cache_key, pool.slots, pool.short_slots = cache_key, {}, None
        slots_key = (reservation if reservation in pool.windows else None, enforced_only, overrun)
        if slots_key not in pool.slots:
            returns = self._expected_returns(pool, *slots_key)
            free = pool.free(now) or 0
            pool.slots[slots_key] = tokens_over_time(
                now, free, returns, pool.unleased_window_tokens(), slots_key[0]
            )
        return pool.slots[slots_key]

    def _expected_returns(
        self, pool: PoolState, reservation: int | None, enforced_only: bool, overrun: float = 0.0
    ) -> Iterator[tuple[float, int]]:
        """Yield when how many tokens come back.

        Tokens leased within a window come back only to that window until it ends.
        """
        for task_id, count in pool.leased_by_task.items():
            end = self._state.lease_ends.get(task_id, NEVER)
            if enforced_only:
                # jobs in a window end with it
                limit_end = end if task_id in self._state.reservation_of else end + overrun
                end = NEVER if task_id in self._state.unenforced else limit_end + pool.config.linger
            if pool.windows:
                window = pool.windows.get(self._state.reservation_of.get(task_id, 0))
                if window is not None and window.id != reservation:
                    end = max(end, window.until + (pool.config.linger if enforced_only else 0.0))
            yield end, count
        for entry in pool.returning:
            if pool.still_lingers(entry):
                yield entry[0], entry[2]

    def may_take(
        self, pool: PoolState, count: int, queue_key: QueueKey | None, terms: LeaseTerms, now: float
    ) -> bool:
        """Return whether the queued task with this key may lease so many tokens of a pool now."""
        free = pool.free(now)
        if free is None or count > free:
            return False
        return self.may_take_free(pool, count, queue_key, terms, now)

    def may_take_free(
        self, pool: PoolState, count: int, queue_key: QueueKey | None, terms: LeaseTerms, now: float
    ) -> bool:
        """Return whether the queued task with this key may lease so many of the free tokens."""
        if self.first_key(pool) != queue_key and not self.may_overtake(pool, count, terms, now):
            return False
        return not pool.windows or count <= self.free_beside_windows(pool, terms, now)

    def may_overtake(self, pool: PoolState, count: int, terms: LeaseTerms, now: float) -> bool:
        """Return whether leasing so many tokens now does not delay the first task of the pool."""
        shadow_time, extra = self.head_reservation(pool, now)
        if (
            count <= extra
            or now + terms.duration <= shadow_time
            or self._window_end(terms) <= shadow_time
        ):
            return True
        if not pool.windows:
            return False
        head = self.head_group(pool)
        if head is None or terms.reservation == head.terms.reservation:
            return False
        claimed = sum(
            tokens
            for window, tokens in pool.unleased_window_tokens()
            if window.id == terms.reservation
        )
        return count <= extra + claimed

    def find_next_change(self, pool: PoolState, now: float) -> float:
        """Return when time alone may let a task take tokens that are free, but kept from it.

        That is when one more lease is past its expected end, so that the first task of the pool
        leaves more extra tokens, when the count of a server is too old, so that this task can have
        no reservation, or when another task comes before it, since its user has waited for longer.
        Near windows it is also when a window ends, or when the first task no longer ends before it.
        """
        head = self.head_group(pool)
        pools = [pool, *(self._state.pools[name] for name in (head.requested if head else ()))]
        shadow_time, _ = self.head_reservation(pool, now)
        reservation = head.terms.reservation if head and pool.windows else None
        returns = self._expected_returns(pool, reservation, False)
        changes = [end for end, _ in returns if end > shadow_time]
        for other in pools:
            changes += other.known_until, self._state.order.next_rise(other.groups)
        if any(other.windows for other in pools):
            changes += shadow_time, *self._window_changes(pools, head)
        return min((change for change in changes if change > now), default=NEVER)

    def _window_changes(
        self, pools: Iterable[PoolState], head: RequestGroup | None
    ) -> Iterator[float]:
        """Yield when windows may keep fewer tokens from a task than before.

        A window that is over keeps none. A first task that could have begun until its lease would
        reach into a window waits for the end of it, and lets others overtake it.
        """
        for pool in pools:
            for window in pool.windows.values():
                for moment in (window.start, window.until, window.until + pool.config.linger):
                    yield moment
                    if head is not None:
                        latest = moment - head.terms.duration
                        # the sum of a time and a duration is rounded
                        yield from (latest, latest + _ROUNDING)

    def free_beside_windows(self, pool: PoolState, terms: LeaseTerms, now: float) -> int:
        """Return the free tokens not claimed by any window during a lease that begins now."""
        end = self._end_of_use(terms, now) if terms.enforced else self._window_end(terms)
        end = max(end + pool.config.linger, math.nextafter(now, math.inf))
        return min_tokens(self._tokens_over_time(pool, terms.reservation, True, now), now, end)

    def unavailable_spans(
        self,
        requested: Mapping[str, int],
        now: float,
        overrun: float = 0.0,
        calendar_limits: Collection[CalendarLimit] = (),
    ) -> Iterator[tuple[float, float]]:
        """Yield the spans in which this request cannot be reserved.

        Each begins a linger time early. Running jobs may hold tokens for `overrun` seconds after
        their limits. `calendar_limits` have the later runs of the calendar, too.
        """
        for name, count in requested.items():
            pool = self._state.pool(name)
            if pool.free(now) is None:
                yield now, NEVER
                continue
            slots = self._tokens_over_time(pool, None, True, now, overrun)
            claims = [
                (window, tokens)
                for window in later_windows(calendar_limits, name, pool.windows.values())
                if (tokens := pool.claimed_by(window)) > 0
            ]
            for start, end, free in slot_spans(less_claims(slots, claims) if claims else slots):
                if free < count:
                    yield start - pool.config.linger, end

    def blocking_window(self, task_id: TaskId, name: str, now: float) -> TokenWindow | None:
        """Return the reservation that keeps a queued task from leasing free tokens; None: none."""
        group, pool = self._state.line_of[task_id].group, self._state.pools[name]
        needed, free = group.requested[name], pool.free(now)
        if (
            free is None
            or not pool.windows
            or needed <= self.free_beside_windows(pool, group.terms, now)
        ):
            return None
        other_windows = [
            window for window in pool.windows_by_start() if window.id != group.terms.reservation
        ]
        for start, _, count in slot_spans(
            self._tokens_over_time(pool, group.terms.reservation, True, now)
        ):
            if count < needed:
                covering = [
                    window for window in other_windows if window.start <= start < window.until
                ]
                return covering[-1] if covering else None
        return None

    def delayed_window(
        self, task_id: TaskId, freed: Mapping[str, int], now: float
    ) -> TokenWindow | None:
        """Return the window short of tokens if this lease lasts until its task's limit.

        `freed` is returned before. None: none is, or the lease belongs to a reservation.
        """
        if task_id in self._state.reservation_of:
            return None
        for name in self._state.leases[task_id].tokens:
            pool = self._state.pools[name]
            end = self._state.lease_ends[task_id] + pool.config.linger
            begin = min((window.start for window in pool.windows.values()), default=NEVER)
            if begin >= end or pool.free(now) is None:
                continue
            for start, count in self._short_slots(pool, now):
                if start >= end:
                    break
                if count + freed.get(name, 0) < 0:
                    covering = (w for w in pool.windows.values() if w.start <= start < w.until)
                    return max(covering, key=attrgetter("id"))
        return None

    def _short_slots(self, pool: PoolState, now: float) -> TokenSlots:
        """Return the slots within windows that are short of tokens, by enforced limits.

        O(n log n) in the leases, or O(1) while nothing has changed since.
        """
        slots = self._tokens_over_time(pool, None, True, now)  # it keeps the cache up to date
        if pool.short_slots is None:
            pool.short_slots = [
                (start, count)
                for start, count in slots
                if count < 0 and any(w.start <= start < w.until for w in pool.windows.values())
            ]
        return pool.short_slots
