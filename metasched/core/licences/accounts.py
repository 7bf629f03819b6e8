"""Licence pools, their leases and reservation windows: who has which tokens. Pure.

Times are seconds since the epoch, durations seconds, amounts tokens (copies of a licence).
"""

from __future__ import annotations

import difflib
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from metasched.core.licences.groups import LeaseTerms, round_up_duration
from metasched.core.licences.lookahead import Lookahead
from metasched.core.licences.pool import (
    NEVER,
    LicenceState,
    unconfigured_pool,
)
from metasched.core.licences.windows import TokenWindow, windows_of_entry
from metasched.core.tasks import TaskId
from metasched.model.calendar import CalendarEntry
from metasched.model.licence import (
    MAX_TOKENS,
    Lease,
    LicenceCount,
    LicencePool,
    LicenceStatus,
    LingeringTokens,
)

# requests of tasks, each with the number of tasks
Followers = Callable[[], Iterable[tuple[Mapping[str, int], int]]]


class LicenceAccounts:
    """All licence pools and all leases."""

    def __init__(self, followers: Followers = tuple) -> None:
        """`followers` returns the tasks of ranges that wait behind queued tasks."""
        self._followers = followers
        self._state = LicenceState()
        self.lookahead = Lookahead(self._state)
        self.leases = self._state.leases
        self.reserved_licences: set[str] = set()  # with tokens in any window
        self._linger_ends: list[tuple[float, str]] = []  # heap of (time, licence)

    # Configuration and state

    def restore(
        self,
        leases: Iterable[Lease],
        lingering: Iterable[LingeringTokens],
        operator_totals: Mapping[str, int],
        used_outside: Mapping[str, Mapping[str, LicenceCount]],
    ) -> None:
        """Restore stored state: live leases, lingering tokens, totals set by operators.

        `used_outside` is use reported by cluster managers; it counts until they report again.
        """
        for lease in leases:
            self._add(lease)
        for tokens in lingering:
            self._add_lingering(tokens)
        for name, total in operator_totals.items():
            self._state.pool(name).operator_total = total
            self._state.pools[name].recompute()
        for name, counts in used_outside.items():
            self._state.pool(name).used_outside = dict(counts)
            self._state.pools[name].recompute()

    def set_pools(self, pools: Iterable[LicencePool], clusters: Iterable[str]) -> list[str]:
        """Replace the configuration; return the licences whose use by removed clusters is dropped.

        Forgets server counts and reservation windows, which the caller adds again. Use reported by
        the managers of `clusters` is kept.
        """
        self._state.version += 1
        configured_clusters = frozenset(clusters)
        by_name = {pool.name: pool for pool in pools}
        self._state.windows, self.reserved_licences = {}, set()
        for name, pool in self._state.pools.items():
            pool.config, pool.configured, pool.server_count = unconfigured_pool(name), False, None
            pool.windows = {}
        for name, config in by_name.items():
            self._state.pool(name).config, self._state.pools[name].configured = config, True
        dropped = []
        for name, pool in self._state.pools.items():
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

    def record_count(self, count: LicenceCount, now: float) -> bool:
        """Record the count of a licence server; return whether it is accepted.

        A count is rejected if its pool is unknown, if it lies in the future or if it is outdated.
        """
        pool = self._state.pools.get(count.name)
        if pool is None or not pool.configured or not pool.config.server or count.observed > now:
            return False
        if pool.server_count is not None and count.observed < pool.server_count.observed:
            return False
        pool.server_count = count
        pool.recompute()
        self._state.version += 1
        return True

    def record_outside_use(self, cluster: str, used: Mapping[str, int], now: float) -> list[str]:
        """Record how many tokens other users have in use according to a cluster's manager.

        Return the licences whose figure changed. Licences that cannot be used on that cluster are
        ignored, since the manager counts another pool under that name.
        """
        changed = []
        for name, pool in self._state.pools.items():
            previous = pool.used_outside.pop(cluster, None)
            count = min(used.get(name, 0), MAX_TOKENS)
            if pool.excludes(cluster):
                count = 0
            if count:
                pool.used_outside[cluster] = LicenceCount(name, None, count, now)
            if count != (previous.outside if previous is not None else 0):
                changed.append(name)
                pool.recompute()
                self._state.version += 1
        return changed

    def set_operator_total(self, name: str, total: int | None) -> None:
        """Set the total given by an operator; None: as configured."""
        self._state.pool(name).operator_total = total
        self._state.pools[name].recompute()
        self._state.version += 1

    def keep_tokens_for_window(self, window: TokenWindow) -> None:
        """Keep tokens for a reservation from now on."""
        self._state.version += 1
        self._state.windows[window.id] = window
        for name in window.licences:
            pool = self._state.pool(name)
            pool.windows[window.id] = window
            self.reserved_licences.add(name)

    def remove_window(self, reservation: int) -> None:
        """Remove the window of a reservation that is over."""
        window = self._state.windows.pop(reservation, None)
        if window is None:
            return
        self._state.version += 1
        for name in window.licences:
            pool = self._state.pools[name]
            del pool.windows[reservation]
            if not pool.windows:
                self.reserved_licences.remove(name)

    def limit_by_calendar(self, id: int, entry: CalendarEntry | None) -> None:
        """Take over when a calendar entry lowers the total of a licence; None: it is removed."""
        for window_id in (-2 * id, -2 * id - 1):
            self.remove_window(window_id)
        for window in () if entry is None else windows_of_entry(entry):
            self.keep_tokens_for_window(window)
        for pool in self._state.pools.values():
            pool.head_key = None  # other tasks may be barred now

    def _calendar_ends(self) -> Iterator[float]:
        """Yield when totals rise that the calendar has lowered."""
        return (window.until for window in self._state.windows.values() if window.entry)

    def windows(self, name: str) -> list[TokenWindow]:
        """Return the reservations and calendar entries that claim tokens, by their start."""
        return self._state.pool(name).windows_by_start()

    def missing_in(self, window: TokenWindow, name: str) -> int:
        """Return how many tokens do not exist in the window of a calendar entry."""
        return max(self._state.pool(name).claimed_by(window), 0)

    def adjust_clock(self, shift: float) -> None:
        """Move all times after the wall clock was set forward by `shift` seconds."""
        self._state.version += 1
        for pool in self._state.pools.values():
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
        for task_id in self._state.lease_ends:
            self._state.lease_ends[task_id] += shift
        self._linger_ends = [(until + shift, name) for until, name in self._linger_ends]

    @property
    def configured_names(self) -> list[str]:
        """The licences that the site configures."""
        return [name for name, pool in self._state.pools.items() if pool.configured]

    def status(self, name: str, now: float) -> LicenceStatus:
        """Return the status of a licence."""
        status = self._state.pool(name).status(now)
        waiting = [(n[name], number) for n, number in self._followers() if name in n]
        return replace(
            status,
            waiting_tokens=status.waiting_tokens + sum(count * n for count, n in waiting),
            requests=status.requests + sum(n for _, n in waiting),
        )

    def statuses(self, now: float, after: str = "") -> Iterator[LicenceStatus]:
        """Yield the status of every licence that is configured, leased or requested, by name.

        `after`: only of those whose names come after this.
        """
        for name, pool in sorted(item for item in self._state.pools.items() if item[0] > after):
            if pool.configured or pool.leased_tokens or pool.waiting_tokens or pool.windows:
                yield self.status(name, now)

    def leases_of(self, name: str) -> Iterable[Lease]:
        """Return the leases of a licence, in the order in which they began."""
        return map(self.leases.__getitem__, self._state.pool(name).leased_by_task)

    def count_leases(self, name: str) -> int:
        """Return how many tasks have leases of a licence."""
        return len(self._state.pool(name).leased_by_task)

    def configured_pool(self, name: str) -> LicencePool | None:
        """Return the configuration of a licence; None: not configured."""
        pool = self._state.pools.get(name)
        return pool.config if pool is not None and pool.configured else None

    # Requests

    def refusal(self, requested: Mapping[str, int]) -> str | None:
        """Return why a request can never be met, with a hint; None: it can."""
        for name, count in requested.items():
            pool = self._state.pools.get(name)
            if pool is None or not pool.configured:
                matches = difflib.get_close_matches(name, self.configured_names, n=1)
                configured = ", ".join(self.configured_names[:10]) or "none"
                hint = f"did you mean {matches[0]}?" if matches else f"known are: {configured}"
                return f"no licence {name[:63]!r} is known; {hint}"
            if count > MAX_TOKENS:
                return f"{count} of licence {name}, the maximum is {MAX_TOKENS}; ask for fewer"
            if pool.total is not None and count > (available := pool.total - pool.config.headroom):
                headroom, hint = "", "wait until there are more"
                if pool.config.headroom:
                    headroom = f", {pool.config.headroom} of them kept free"
                if available > 0:
                    hint = f"ask for at most {available}"
                return f"{count} of licence {name}, there are {pool.total}{headroom}; {hint}"
        return None

    def calendar_refusal(
        self, requested: Mapping[str, int], duration: float, enforced: bool
    ) -> str | None:
        """Return why the calendar never lets a task of no reservation go, with a hint; or None.

        It would hold the tokens for `duration` seconds; `enforced`: it is killed then.
        """
        terms = LeaseTerms(round_up_duration(duration), enforced, None)
        for name, count in requested.items():
            pool = self._state.pool(name)
            window = self.lookahead.barring_window(pool, count, terms)
            if window is None or window.longest_gap is None:
                continue
            available = max(window.licences[name] - pool.config.headroom, 0)
            hints = [f"ask for at most {available}"] if available else []
            if (longest := window.longest_gap - pool.config.linger) > 1.0:
                allowed = 2.0 ** (math.ceil(math.log2(longest)) - 1)  # the longest group
                hints.append(f"give a time limit of at most {allowed:.0f} s")
            held = f"for {duration:.0f} s" if enforced else "without a time limit"
            return (
                f"{count} of licence {name} {held}, but {window.describe()} leaves {available}, "
                f"every time after {window.longest_gap:.0f} s at most; "
                f"{' or '.join(hints) or 'ask for another licence'}"
            )
        return None

    def first_unusable(self, names: Iterable[str], cluster: str) -> str | None:
        """Return the first of these licences that cannot be used on a cluster; None: all can."""
        for name in names:
            pool = self._state.pools.get(name)
            if pool is not None and pool.excludes(cluster):
                return name
        return None

    # Leases

    def _add(self, lease: Lease) -> None:
        self._state.version += 1
        task_id = (lease.job, lease.index)
        self.leases[task_id] = lease
        for name, count in lease.tokens.items():
            pool = self._state.pool(name)
            pool.leased_tokens += count
            pool.leased_by_task[task_id] = count

    def expect_end(
        self, task_id: TaskId, end: float, enforced: bool = True, reservation: int | None = None
    ) -> None:
        """Record when a lease will have ended by the time limit of its task.

        `enforced`: the task is killed at its limit. It runs in `reservation`, if in any.
        """
        if task_id not in self.leases:
            return
        state = self._state
        previous = (state.lease_ends.get(task_id, NEVER), task_id not in state.unenforced)
        state.lease_ends[task_id] = end
        (state.unenforced.discard if enforced else state.unenforced.add)(task_id)
        joins_reservation = reservation is not None and task_id not in state.reservation_of
        if reservation is not None and joins_reservation:
            state.reservation_of[task_id] = reservation
            for name, count in self.leases[task_id].tokens.items():
                state.pools[name].leased_by_reservation[reservation] += count
        if joins_reservation or (end, enforced) != previous:
            state.version += 1

    def return_lease(self, task_id: TaskId, now: float, was_used: bool) -> dict[str, float]:
        """End a lease; return until when its tokens linger, if they `was_used`."""
        self._state.version += 1
        lease = self.leases.pop(task_id)
        self._state.lease_ends.pop(task_id, None)
        self._state.unenforced.discard(task_id)
        reservation = self._state.reservation_of.pop(task_id, None)
        lingering_until = {}
        for name, count in lease.tokens.items():
            pool = self._state.pool(name)
            pool.leased_tokens -= count
            if reservation is not None:
                pool.leased_by_reservation[reservation] -= count
                if not pool.leased_by_reservation[reservation]:
                    del pool.leased_by_reservation[reservation]
            del pool.leased_by_task[task_id]
            if was_used and pool.config.linger:
                lingering_until[name] = now + pool.config.linger
                self._add_lingering(LingeringTokens(name, count, now, lingering_until[name]))
        return lingering_until

    def _add_lingering(self, lingering: LingeringTokens) -> None:
        pool = self._state.pool(lingering.licence)
        entry = (lingering.until, lingering.returned, lingering.count)
        heapq.heappush(pool.returning, entry)
        heapq.heappush(self._linger_ends, (lingering.until, lingering.licence))
        if pool.still_lingers(entry):
            pool.lingering += lingering.count

    def expire_lingering(self, now: float) -> None:
        """Free tokens whose linger time is over."""
        while self._linger_ends and self._linger_ends[0][0] <= now:
            self._state.version += 1
            name = heapq.heappop(self._linger_ends)[1]
            pool = self._state.pools[name]
            while pool.returning and pool.returning[0][0] <= now:
                entry = heapq.heappop(pool.returning)
                if pool.still_lingers(entry):
                    pool.lingering -= entry[2]
