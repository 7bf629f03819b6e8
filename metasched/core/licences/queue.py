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
    BlockedGroup,
    GroupEntry,
    LeaseTerms,
    PoolState,
    QueueKey,
    RequestedTokens,
    TaskGroup,
    TaskId,
    unconfigured_pool,
)
from metasched.core.licences.windows import (
    TokenSlots,
    TokenWindow,
    earliest_start,
    min_tokens,
    slot_spans,
    tokens_over_time,
)
from metasched.model.licence import (
    MAX_TOKENS,
    Lease,
    LicenceCount,
    LicencePool,
    LicenceStatus,
    LingeringTokens,
)


class LicenceQueue:
    """All pools, all leases and the line before them."""

    def __init__(self) -> None:
        self.leases: dict[TaskId, Lease] = {}
        self.patience = 0.0
        self._pools: dict[str, PoolState] = {}
        self._lease_ends: dict[
            TaskId, float
        ] = {}  # when leases end by the time limits of their tasks
        self._unenforced: set[TaskId] = set()  # of these: nobody sees to it
        self._reservation_of: dict[TaskId, int] = {}  # leases of jobs in reservations
        self._windows: dict[int, TokenWindow] = {}  # of reservations, also without licences
        self.reserved_licences: set[str] = set()  # licences of which something is kept for some
        self._groups: dict[tuple[RequestedTokens, LeaseTerms], TaskGroup] = {}
        self._group_of: dict[TaskId, TaskGroup] = {}
        self._new_groups: list[GroupEntry] = []  # groups to be looked at, wherever they wait
        self._pools_to_recheck: set[str] = set()  # pools of which more may be free
        self._heads_to_update: set[str] = set()  # pools that may have another first in line
        self._linger_ends: list[tuple[float, str]] = []  # when something stops to linger
        self._serial = 0
        self._version = 0  # of what reservations follow from

    # What is there

    def restore(
        self,
        leases: Iterable[Lease],
        lingering: Iterable[LingeringTokens],
        operator_totals: Mapping[str, int],
        used_outside: Mapping[str, Mapping[str, LicenceCount]],
    ) -> None:
        """Take over what is stored: live leases, what lingers, totals that operators have set.

        And what managers have given past us: so much counts until they are heard again.
        """
        for lease in leases:
            self._add(lease)
        for tokens in lingering:
            self._add_lingering(tokens)
        for name, total in operator_totals.items():
            self._pool(name).operator_total = total
            self._pools[name].recompute()
        for name, counts in used_outside.items():
            self._pool(name).used_outside = dict(counts)
            self._pools[name].recompute()

    def configure(
        self, pools: Iterable[LicencePool], patience: float, clusters: Iterable[str] = ()
    ) -> list[str]:
        """Begin anew with these pools: nobody is in line, and no server has been heard.

        Nor has any reservation been promised: that follows.

        What the managers of these clusters gave past us stays; those of which there was more.
        """
        self._version += 1
        configured_clusters = frozenset(clusters)
        self.patience = patience
        by_name = {pool.name: pool for pool in pools}
        self._groups, self._group_of, self._new_groups = {}, {}, []
        self._pools_to_recheck, self._heads_to_update = set(), set()
        self._windows, self.reserved_licences = {}, set()
        for name, pool in self._pools.items():
            pool.config, pool.configured, pool.server_count = unconfigured_pool(name), False, None
            pool.waiting_tokens = pool.requests = 0
            pool.queue, pool.blocked, pool.head_key, pool.windows = [], {}, None, {}
        for name, config in by_name.items():
            self._pool(name).config, self._pools[name].configured = config, True
        dropped = []
        for name, pool in self._pools.items():
            remaining = {
                cluster: count
                for cluster, count in pool.used_outside.items()
                if cluster in configured_clusters and not pool.excludes(cluster)
            }
            if remaining != pool.used_outside:
                pool.used_outside = remaining
                dropped.append(name)
            pool.recompute()
        return dropped

    def _pool(self, name: str) -> PoolState:
        if name not in self._pools:
            self._pools[name] = PoolState(unconfigured_pool(name), configured=False)
        return self._pools[name]

    def record_count(self, count: LicenceCount, now: float) -> bool:
        """Learn what a server told; whether it counts: it must be known, and not of the future."""
        pool = self._pools.get(count.name)
        if pool is None or not pool.configured or not pool.config.server or count.observed > now:
            return False
        if pool.server_count is not None and count.observed < pool.server_count.observed:
            return False
        pool.server_count = count
        pool.recompute()
        self._mark_changed(pool)
        return True

    def record_outside_use(self, cluster: str, used: Mapping[str, int], now: float) -> list[str]:
        """Learn what a cluster's manager has given of these licences to others than us.

        Of a licence that cannot be used on that cluster it counts some other pool. Those of which
        it has another number than before.
        """
        changed = []
        for name, pool in self._pools.items():
            previous = pool.used_outside.pop(cluster, None)
            count = min(used.get(name, 0), MAX_TOKENS)
            if pool.excludes(cluster):
                count = 0
            if count:
                pool.used_outside[cluster] = LicenceCount(name, None, count, now)
            if count != (previous.outside if previous is not None else 0):
                changed.append(name)
                pool.recompute()
                self._mark_changed(pool)
        return changed

    def set_operator_total(self, name: str, total: int | None) -> None:
        """An operator sets how many there are; None: as configured again."""
        self._pool(name).operator_total = total
        self._pools[name].recompute()
        self._mark_changed(self._pools[name])

    def _mark_changed(self, pool: PoolState) -> None:
        """There may be more or fewer; perhaps nothing can be kept any more for who is first."""
        self._version += 1
        self._pools_to_recheck.add(pool.config.name)
        self._recheck_requested_by(pool.head_key)

    def add_window(self, window: TokenWindow) -> None:
        """Keep tokens for a reservation from now on."""
        if self._windows.get(window.id) == window:
            return
        self._version += 1
        self._windows[window.id] = window
        for name in window.licences:
            pool = self._pool(name)
            pool.windows[window.id] = window
            self.reserved_licences.add(name)
            self._mark_changed(pool)

    def remove_window(self, reservation: int) -> None:
        """A reservation is over."""
        window = self._windows.pop(reservation, None)
        if window is None:
            return
        self._version += 1
        for name in window.licences:
            pool = self._pools[name]
            del pool.windows[reservation]
            if not pool.windows:
                self.reserved_licences.remove(name)
            self._mark_changed(pool)

    def windows(self, name: str) -> list[TokenWindow]:
        """The reservations that have tokens of a licence, by their start."""
        return sorted(
            self._pool(name).windows.values(), key=lambda window: (window.start, window.id)
        )

    def _recheck_requested_by(self, head_key: QueueKey | None) -> None:
        """Look again at all licences that one in line wants: something may have been kept."""
        if head_key is not None and (group := self._group_of.get(head_key[3:])) is not None:
            self._pools_to_recheck.update(name for name, _ in group.requested)

    def adjust_clock(self, shift: float) -> None:
        """Move all times: the wall clock has gone `by` seconds more than time has."""
        self._version += 1
        for pool in self._pools.values():
            if pool.server_count is not None:
                pool.server_count = pool.server_count.adjusted_for_clock(shift)
            pool.used_outside = {
                name: count.adjusted_for_clock(shift) for name, count in pool.used_outside.items()
            }
            pool.returning = [
                (until + shift, returned + shift, tokens)
                for until, returned, tokens in pool.returning
            ]
            pool.recompute()
        self._lease_ends = {task_id: end + shift for task_id, end in self._lease_ends.items()}
        self._linger_ends = [(until + shift, name) for until, name in self._linger_ends]

    @property
    def configured_names(self) -> list[str]:
        """The licences that the site describes."""
        return [name for name, pool in self._pools.items() if pool.configured]

    def status(self, name: str, now: float) -> LicenceStatus:
        """How it stands with one licence."""
        pool = self._pool(name)
        free, reserved = pool.free(now), pool.reserved_now(now)
        return LicenceStatus(
            name,
            pool.total if pool.configured else 0,
            pool.leased_tokens,
            pool.outside,
            pool.lingering,
            None if free is None else free - reserved,
            pool.waiting_tokens,
            pool.unknown_reason(now),
            pool.observed,
            pool.operator_total,
            pool.requests,
            pool.used_outside.copy(),
            reserved,
        )

    def statuses(self, now: float) -> list[LicenceStatus]:
        """How it stands with every licence that is configured, leased or wanted."""
        return [
            self.status(name, now)
            for name, pool in sorted(self._pools.items())
            if pool.configured or pool.leased_tokens or pool.waiting_tokens or pool.windows
        ]

    def configured_pool(self, name: str) -> LicencePool | None:
        """What the site says of a licence; None: nothing."""
        pool = self._pools.get(name)
        return pool.config if pool is not None and pool.configured else None

    # What can be asked for

    @property
    def rho(self) -> dict[str, float]:
        """How critical each licence is that somebody waits for: `Standing.rho`."""
        pools = self._pools.items()
        return {
            name: pool.requests / pool.total for name, pool in pools if pool.requests and pool.total
        }

    def refusal(self, requested: Mapping[str, int]) -> str | None:
        """Why nobody can ever have these, in words with a mend; None: somebody can."""
        for name, count in requested.items():
            pool = self._pools.get(name)
            if pool is None or not pool.configured:
                matches = difflib.get_close_matches(name, self.configured_names, n=1)
                configured = ", ".join(self.configured_names[:10]) or "none"
                hint = f"did you mean {matches[0]}?" if matches else f"known are: {configured}"
                return f"no licence {name[:63]!r} is known; {hint}"
            if count > MAX_TOKENS:
                return f"{count} of licence {name}, which nobody has; ask for fewer"
            if pool.total is not None and count > (available := pool.total - pool.config.headroom):
                headroom = (
                    f", {pool.config.headroom} of them kept free" if pool.config.headroom else ""
                )
                hint = (
                    f"ask for {available} at the most"
                    if available > 0
                    else "wait until there are more"
                )
                return f"{count} of licence {name}, there are {pool.total}{headroom}; {hint}"
        return None

    def first_unusable(self, names: Iterable[str], cluster: str) -> str | None:
        """The first of these licences that cannot be used on a cluster; None: all can."""
        for name in names:
            pool = self._pools.get(name)
            if pool is not None and pool.excludes(cluster):
                return name
        return None

    # Leases

    def take(
        self, lease: Lease, end: float, enforced: bool = True, reservation: int | None = None
    ) -> None:
        """Lease all of it, to one that `next` has named or that is there already; see `expect`."""
        self.leave((lease.job, lease.index))
        self._add(lease)
        self.expect_end((lease.job, lease.index), end, enforced, reservation)

    def _add(self, lease: Lease) -> None:
        self._version += 1
        task_id = (lease.job, lease.index)
        self.leases[task_id] = lease
        for name, count in lease.tokens.items():
            pool = self._pool(name)
            pool.leased_tokens += count
            pool.leased_by_task[task_id] = count

    def expect_end(
        self, task_id: TaskId, end: float, enforced: bool = True, reservation: int | None = None
    ) -> None:
        """Learn when a lease will have ended by the time limit of its task.

        `limited`: somebody sees to that. `window` is the reservation in which the task runs. If it
        is later than it was thought to be, others may end before the first in line needs what it
        holds; if it is earlier, or certain now, before a reservation does.
        """
        if task_id not in self.leases:
            return
        previous = (self._lease_ends.get(task_id, _NEVER), task_id not in self._unenforced)
        previous_end, self._lease_ends[task_id] = previous[0], end
        (self._unenforced.discard if enforced else self._unenforced.add)(task_id)
        joins_reservation = reservation is not None and task_id not in self._reservation_of
        if reservation is not None and joins_reservation:
            self._reservation_of[task_id] = reservation
            for name, count in self.leases[task_id].tokens.items():
                self._pools[name].leased_by_reservation[reservation] += count
        if joins_reservation or (end, enforced) != previous:
            self._version += 1
        for name in self.leases[task_id].tokens:
            pool = self._pools[name]
            if end > previous_end or (pool.windows and (end, enforced) != previous):
                self._pools_to_recheck.add(name)
                self._recheck_requested_by(pool.head_key)

    def return_lease(self, task_id: TaskId, now: float, was_used: bool) -> dict[str, float]:
        """End a lease; until when its tokens count as in use, if they have been `used`."""
        self._version += 1
        lease = self.leases.pop(task_id)
        self._lease_ends.pop(task_id, None)
        self._unenforced.discard(task_id)
        reservation = self._reservation_of.pop(task_id, None)
        lingering_until = {}
        for name, count in lease.tokens.items():
            pool = self._pool(name)
            pool.leased_tokens -= count
            if reservation is not None:
                pool.leased_by_reservation[reservation] -= count
                if not pool.leased_by_reservation[reservation]:
                    del pool.leased_by_reservation[reservation]
            del pool.leased_by_task[task_id]
            self._pools_to_recheck.add(name)
            if was_used and pool.config.linger:
                lingering_until[name] = now + pool.config.linger
                self._add_lingering(LingeringTokens(name, count, now, lingering_until[name]))
                self._recheck_requested_by(
                    pool.head_key
                )  # it may have counted on them by its time limit
        return lingering_until

    def _add_lingering(self, lingering: LingeringTokens) -> None:
        pool, entry = (
            self._pool(lingering.licence),
            (lingering.until, lingering.returned, lingering.count),
        )
        heapq.heappush(pool.returning, entry)
        heapq.heappush(self._linger_ends, (lingering.until, lingering.licence))
        if pool.still_lingers(entry):
            pool.lingering += lingering.count

    @property
    def next_due(self) -> float | None:
        """When time alone gives back tokens while somebody waits, or None."""
        return self._linger_ends[0][0] if self._linger_ends and self._group_of else None

    def expire_lingering(self, now: float) -> None:
        """Free what has lingered long enough."""
        while self._linger_ends and self._linger_ends[0][0] <= now:
            self._version += 1
            name = heapq.heappop(self._linger_ends)[1]
            pool = self._pools[name]
            while pool.returning and pool.returning[0][0] <= now:
                entry = heapq.heappop(pool.returning)
                if pool.still_lingers(entry):
                    pool.lingering -= entry[2]
            self._pools_to_recheck.add(name)

    # The line

    def __contains__(self, task_id: TaskId) -> bool:
        """Whether a task is in line."""
        return task_id in self._group_of

    @property
    def has_waiting(self) -> bool:
        """Whether anybody is in line."""
        return bool(self._group_of)

    def contended(self, task_id: TaskId) -> bool:
        """Whether others wait for a licence that this one has leased."""
        return any(self._pools[name].waiting_tokens for name in self.leases[task_id].tokens)

    def would_unblock(self, freed: Mapping[str, int], now: float) -> bool:
        """Whether somebody in line could go if these were given back, too."""
        for name in freed:
            blocked = self._pools[name].blocked.values()
            for entry in chain.from_iterable(
                heap for by_terms in blocked for heap in by_terms.values()
            ):
                group = entry[2]
                if group.blocked_at == name and all(
                    self._may_take(self._pools[licence], count - freed.get(licence, 0), entry, now)
                    for licence, count in group.requested
                ):
                    return True
        return False

    def join(
        self,
        task_id: TaskId,
        queue_time: float,
        requested: Mapping[str, int],
        duration: float,
        enforced: bool = True,
        reservation: int | None = None,
    ) -> None:
        """Get in line by a key (seconds), the least first; one that is there keeps its place.

        By its time limit it will have what it wants for `lasts` seconds; `limited`: somebody sees
        to that. `window` is the reservation in which it runs.
        """
        if task_id in self._group_of:
            return
        terms = LeaseTerms(2.0 ** math.ceil(math.log2(duration)), enforced, reservation)
        group_key = (tuple(sorted(requested.items())), terms)
        group = self._groups.get(group_key)
        if group is None:
            self._serial += 1
            group = self._groups[group_key] = TaskGroup(*group_key, self._serial)
        step = queue_time // self.patience if self.patience else queue_time
        queue_key = (step, -sum(requested.values()), queue_time, *task_id)
        previous_head = group.head_key()
        self._group_of[task_id] = group
        group.queue_keys[task_id] = queue_key
        heapq.heappush(group.heap, queue_key)
        for name, count in group.requested:
            pool = self._pool(name)
            pool.waiting_tokens += count
            pool.requests += 1
        if previous_head is None or queue_key < previous_head:
            self._add_group_head(group, queue_key)

    def leave(self, task_id: TaskId) -> None:
        """Get out of line, wherever one is."""
        group = self._group_of.pop(task_id, None)
        if group is None:
            return
        previous_head = group.head_key()
        queue_key = group.queue_keys.pop(task_id)
        for name, count in group.requested:
            self._pools[name].waiting_tokens -= count
            self._pools[name].requests -= 1
        if queue_key != previous_head:
            return
        head = group.head_key()
        if head is not None:
            self._add_group_head(group, head)
            return
        del self._groups[group.requested, group.terms]
        self._heads_to_update.update(name for name, _ in group.requested)

    def _add_group_head(self, group: TaskGroup, head: QueueKey) -> None:
        """Another one is first of its group: look at it anew."""
        entry = (head, group.serial, group)
        group.blocked_at = ""
        heapq.heappush(self._new_groups, entry)
        for name, _ in group.requested:
            heapq.heappush(self._pools[name].queue, entry)
            self._heads_to_update.add(name)

    def _update_heads(self) -> None:
        """See who is first where that may have changed; what was kept for others is so no more."""
        while self._heads_to_update:
            pool = self._pools[self._heads_to_update.pop()]
            previous_head, heap = pool.head_key, pool.queue
            while heap and heap[0][2].head_key() != heap[0][0]:
                heapq.heappop(heap)
            pool.head_key = heap[0][0] if heap else None
            if pool.head_key == previous_head:
                continue
            self._version += 1
            if previous_head is not None:
                # it may have been the one for which something was kept, also of other licences
                self._pools_to_recheck.add(pool.config.name)
                self._recheck_requested_by(previous_head)

    def _head_reservation(self, pool: PoolState, now: float) -> tuple[float, int]:
        """When the first in line will have its licences, and how many others may then still have.

        O(n log n) in the leases of its licences, or O(1) while nothing has changed since. At
        infinity if nobody knows when, if ever, or if it is not first for all of them: what others
        take then does not keep it waiting.
        """
        cache_key = (self._version, now)
        if pool.head_cache_key != cache_key:
            pool.head_cache_key, pool.head_reservation = (
                cache_key,
                self._compute_head_reservation(pool, now),
            )
        return pool.head_reservation

    def _compute_head_reservation(self, pool: PoolState, now: float) -> tuple[float, int]:
        group = self._head_group(pool)
        if group is None:
            return _NEVER, 0
        if any(self._pools[name].head_key != pool.head_key for name, _ in group.requested):
            return _NEVER, 0
        if any(self._pools[name].windows for name, _ in group.requested):
            return self._compute_head_reservation_with_windows(pool, group, now)
        shadow_time = max(
            self._time_available(self._pools[name], count, now) for name, count in group.requested
        )
        if shadow_time == _NEVER:
            return _NEVER, 0
        extra = (pool.free(now) or 0) - dict(group.requested)[pool.config.name]
        returns = self._expected_returns(pool, None, False)
        return shadow_time, extra + sum(count for end, count in returns if end <= shadow_time)

    def _compute_head_reservation_with_windows(
        self, pool: PoolState, group: TaskGroup, now: float
    ) -> tuple[float, int]:
        """The same where not all that comes back stays there."""
        shadow_time, previous = now, now - 1.0
        while previous < shadow_time < _NEVER:  # until all are there together
            previous = shadow_time
            shadow_time = max(
                self._time_available_with_windows(
                    self._pools[name], count, group.terms, previous, now
                )
                for name, count in group.requested
            )
        if shadow_time == _NEVER:
            return _NEVER, 0
        slots = self._tokens_over_time(pool, group.terms.reservation, False, now)
        end = self._end_of_use(group.terms, shadow_time)
        return shadow_time, min_tokens(slots, shadow_time, end) - dict(group.requested)[
            pool.config.name
        ]

    def _head_group(self, pool: PoolState) -> TaskGroup | None:
        """That of the first in line for a licence."""
        return None if pool.head_key is None else self._group_of.get(pool.head_key[3:])

    def _time_available(self, pool: PoolState, needed: int, now: float) -> float:
        """When so many of a licence will be free by the time limits of those that have it."""
        free = pool.free(now)
        if free is None:
            return _NEVER
        if free >= needed:
            return now
        for end, count in sorted(self._expected_returns(pool, None, False)):
            free += count
            if free >= needed:
                return max(end, now)  # who is past its limit ends at any moment
        return _NEVER

    def _time_available_with_windows(
        self, pool: PoolState, needed: int, terms: LeaseTerms, ready: float, now: float
    ) -> float:
        """From `ready` on, when so many will be free for as long as one stays."""
        if pool.free(now) is None:
            return _NEVER
        slots = self._tokens_over_time(pool, terms.reservation, False, now)
        return earliest_start(slots, needed, ready, terms.duration, self._window_end(terms))

    def _window_end(self, terms: LeaseTerms) -> float:
        """When all that runs in its reservation is killed; infinity if it is in none."""
        if terms.reservation is None:
            return _NEVER
        window = self._windows.get(terms.reservation)
        return _NEVER if window is None else window.until

    def _end_of_use(self, terms: LeaseTerms, start: float) -> float:
        """When one that begins then has given all back."""
        return min(start + terms.duration, self._window_end(terms))

    def _tokens_over_time(
        self,
        pool: PoolState,
        reservation: int | None,
        enforced_only: bool,
        now: float,
        overrun: float = 0.0,
    ) -> TokenSlots:
        """What may be taken of a licence over time in the reservation `own` (None: in none).

        O(n log n) in its leases, or O(1) while nothing has changed since. `sure`: only what
        somebody sees to counts as given back, `late` after its limit, after it has lingered.
        """
        cache_key = (self._version, now)
        if pool.slots_cache_key != cache_key:
            pool.slots_cache_key, pool.slots = cache_key, {}
        slots_key = (reservation if reservation in pool.windows else None, enforced_only, overrun)
        if slots_key not in pool.slots:
            returns = self._expected_returns(pool, *slots_key)
            free = pool.free(now) or 0
            pool.slots[slots_key] = tokens_over_time(
                now, free, returns, pool.unleased_claims(), slots_key[0]
            )
        return pool.slots[slots_key]

    def _expected_returns(
        self, pool: PoolState, reservation: int | None, enforced_only: bool, overrun: float = 0.0
    ) -> Iterator[tuple[float, int]]:
        """When how many tokens come back; those of a window only to that window until its end."""
        for task_id, count in pool.leased_by_task.items():
            end = self._lease_ends.get(task_id, _NEVER)
            if enforced_only:
                limit_end = (
                    end if task_id in self._reservation_of else end + overrun
                )  # a window's end ends all
                end = _NEVER if task_id in self._unenforced else limit_end + pool.config.linger
            if pool.windows:
                window = pool.windows.get(self._reservation_of.get(task_id, 0))
                if window is not None and window.id != reservation:
                    end = max(end, window.until + (pool.config.linger if enforced_only else 0.0))
            yield end, count
        for entry in pool.returning:
            if pool.still_lingers(entry):
                yield entry[0], entry[2]

    def _may_take(self, pool: PoolState, count: int, entry: GroupEntry, now: float) -> bool:
        """Whether one in line may take so many of a licence now."""
        queue_key, _, group = entry
        free = pool.free(now)
        if free is None or count > free:
            return False
        if pool.head_key != queue_key and not self._may_overtake(pool, count, group.terms, now):
            return False
        return not pool.windows or count <= self._free_beside_windows(pool, group.terms, now)

    def _may_overtake(self, pool: PoolState, count: int, terms: LeaseTerms, now: float) -> bool:
        """Whether the first in line has its licences no later if so many are taken of one now."""
        shadow_time, extra = self._head_reservation(pool, now)
        if (
            count <= extra
            or now + terms.duration <= shadow_time
            or self._window_end(terms) <= shadow_time
        ):
            return True
        if not pool.windows:
            return False
        head = self._head_group(pool)
        if head is None or terms.reservation == head.terms.reservation:
            return False
        claimed = sum(
            tokens for window, tokens in pool.unleased_claims() if window.id == terms.reservation
        )
        return count <= extra + claimed

    def _free_beside_windows(self, pool: PoolState, terms: LeaseTerms, now: float) -> int:
        """How many windows leave of what is free, for as long as one that goes now stays."""
        end = self._end_of_use(terms, now) if terms.enforced else self._window_end(terms)
        end = max(end + pool.config.linger, math.nextafter(now, math.inf))
        return min_tokens(self._tokens_over_time(pool, terms.reservation, True, now), now, end)

    # Windows

    def unavailable_spans(
        self, requested: Mapping[str, int], now: float, overrun: float = 0.0
    ) -> Iterator[tuple[float, float]]:
        """From when to when these cannot be promised; what lingers after a window counts.

        What runs may have them for `late` seconds after its limit.
        """
        for name, count in requested.items():
            pool = self._pool(name)
            if pool.free(now) is None:
                yield now, _NEVER
                continue
            for start, end, free in slot_spans(
                self._tokens_over_time(pool, None, True, now, overrun)
            ):
                if free < count:
                    yield start - pool.config.linger, end

    def blocking_window(self, task_id: TaskId, name: str, now: float) -> TokenWindow | None:
        """The reservation for whose sake one in line may not take what is free; None: for none."""
        group, pool = self._group_of[task_id], self._pools[name]
        needed, free = dict(group.requested)[name], pool.free(now)
        if (
            free is None
            or not pool.windows
            or needed <= self._free_beside_windows(pool, group.terms, now)
        ):
            return None
        other_windows = [
            window for window in self.windows(name) if window.id != group.terms.reservation
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

    def delayed_reservation(
        self, task_id: TaskId, freed: Mapping[str, int], now: float
    ) -> int | None:
        """The reservation that will lack what a lease has, if that lasts until its task's limit.

        `freed` will be given back before. None: none will; or it is of a reservation itself.
        """
        if task_id in self._reservation_of:
            return None
        for name in self.leases[task_id].tokens:
            pool = self._pools[name]
            if not pool.windows or pool.free(now) is None:
                continue
            for start, _, count in slot_spans(self._tokens_over_time(pool, None, True, now)):
                covering = [
                    window.id
                    for window in pool.windows.values()
                    if window.start <= start < window.until
                ]
                end = self._lease_ends[task_id] + pool.config.linger
                if covering and start < end and count + freed.get(name, 0) < 0:
                    return max(covering)
        return None

    # Who goes

    @property
    def settled(self) -> bool:
        """Whether `next` has nobody to look at."""
        return not (self._heads_to_update or self._pools_to_recheck or self._new_groups)

    def next_ready(self, now: float) -> TaskId | None:
        """The first in line who can have all that it wants now; None: nobody.

        It must then `take` it or `leave`.
        """
        if self.settled:
            return None
        self._update_heads()
        candidates = [
            blocked
            for name in self._pools_to_recheck
            for blocked in self._unblocked_groups(name, now)
        ]
        heapq.heapify(candidates)
        while (entry := self._pop_candidate(candidates)) is not None:
            queue_key, _, group = entry
            for name, count in group.requested:
                pool = self._pools[name]
                if not self._may_take(pool, count, entry, now):
                    group.blocked_at = name
                    heap = pool.blocked.setdefault(count, {}).setdefault(group.terms, [])
                    heapq.heappush(heap, entry)
                    break
            else:
                heapq.heappush(self._new_groups, entry)  # until it takes it or leaves
                group.blocked_at = ""
                self._pools_to_recheck = {name for _, name, *_ in candidates}
                return queue_key[3:]
        self._pools_to_recheck.clear()
        return None

    def _pop_candidate(self, candidates: list[BlockedGroup]) -> GroupEntry | None:
        """Take out the first group that may be able to go; None: there is none.

        It is one that waits nowhere yet, or the first of those `waiting`, a heap.
        """
        new_groups = self._new_groups
        while new_groups and (
            new_groups[0][2].blocked_at or new_groups[0][2].head_key() != new_groups[0][0]
        ):
            heapq.heappop(new_groups)
        if new_groups and not (candidates and candidates[0][0] < new_groups[0]):
            return heapq.heappop(new_groups)
        if not candidates:
            return None
        entry, name, count, terms, others_may_go = candidates[0]
        heap = self._pools[name].blocked[count][terms]
        heapq.heappop(heap)
        if others_may_go and self._has_blocked_group(name, heap):
            heapq.heapreplace(candidates, (heap[0], name, count, terms, True))
        else:
            heapq.heappop(candidates)
        return entry

    def _unblocked_groups(self, name: str, now: float) -> Iterator[BlockedGroup]:
        """The first of each kind of groups at a licence that does not lack for them any more."""
        pool = self._pools[name]
        free = pool.free(now)
        fitting = [count for count in pool.blocked if free is not None and count <= free]
        if not fitting:
            return
        shadow_time, extra = self._head_reservation(pool, now)
        group = self._head_group(pool)
        head = None if group is None else (dict(group.requested)[name], group.terms)
        for count in fitting:
            by_terms = pool.blocked[count]
            for terms, heap in list(by_terms.items()):
                others_may_go = count <= extra or now + terms.duration <= shadow_time
                if pool.windows:
                    others_may_go = others_may_go or self._may_overtake(pool, count, terms, now)
                    others_may_go = others_may_go and count <= self._free_beside_windows(
                        pool, terms, now
                    )
                if not others_may_go and (count, terms) != head:
                    continue
                if not self._has_blocked_group(name, heap):
                    del by_terms[terms]
                elif others_may_go or heap[0][0] == pool.head_key:
                    yield heap[0], name, count, terms, others_may_go
            if not by_terms:
                del pool.blocked[count]

    @staticmethod
    def _has_blocked_group(name: str, heap: list[GroupEntry]) -> bool:
        """Whether anybody in a heap still waits at that licence; its first does then."""
        while heap and (heap[0][2].blocked_at != name or heap[0][2].head_key() != heap[0][0]):
            heapq.heappop(heap)
        return bool(heap)

    def missing_licences(self, task_id: TaskId, now: float) -> Iterator[LicenceStatus]:
        """Those licences of which one in line could not have what it wants now."""
        group = self._group_of[task_id]
        entry = (group.queue_keys[task_id], group.serial, group)
        for name, count in group.requested:
            if not self._may_take(self._pools[name], count, entry, now):
                yield self.status(name, now)
