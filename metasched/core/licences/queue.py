"""Allocation of floating licences: leases, and the queue of tasks that wait for tokens. Pure.

Times are seconds since the epoch, durations seconds, amounts tokens (copies of a licence).

A task leases all the licences it requests or none, so that no two tasks can deadlock. Tasks whose
request cannot be met wait in one queue. A task that is first for each of its licences gets a
reservation at the shadow time, when enough leases will have expired by the time limits of their
tasks; a later task may overtake it if its own lease ends before the shadow time, or fits into the
extra tokens (EASY backfilling; Lifka 1995; `policies.local.queueing` does the same for processors).
The head of the whole queue always has such a reservation, so that no task starves however many
tokens it requests, unless use outside metasched takes the tokens it is missing.

The windows of advance reservations are honoured in the same way, also by the head of the queue: a
task outside the reservation gets only tokens that it returns before the window begins, or that the
window leaves. Here only enforced limits count: a task without an enforced limit is assumed never to
return its tokens.

Tasks that join within one `patience` interval are ordered by size, the largest request first: small
requests then fill the gaps that large requests leave (first fit decreasing; Johnson et al. 1974).

The queue is never scanned as a whole. Tasks with the same request and about the same duration form
one group; a group is blocked at one pool that has too few tokens (as a clause watches one of its
literals in a SAT solver), and only pools in which tokens became free are checked again.
"""

from __future__ import annotations

import difflib
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from metasched.core.licences.lookahead import Lookahead
from metasched.core.licences.pool import (
    NEVER,
    BlockedGroup,
    GroupEntry,
    LeaseTerms,
    LicenceState,
    PoolState,
    QueueKey,
    RequestedTokens,
    TaskGroup,
    unconfigured_pool,
)
from metasched.core.licences.windows import TokenWindow
from metasched.core.tasks import TaskId
from metasched.model.licence import (
    MAX_TOKENS,
    Lease,
    LicenceCount,
    LicencePool,
    LicenceStatus,
    LingeringTokens,
)


class LicenceQueue:
    """All licence pools, all leases, and the queue of tasks that wait for tokens."""

    def __init__(self) -> None:
        self._state = LicenceState()
        self.lookahead = Lookahead(self._state)
        self.leases = self._state.leases
        self.patience = 0.0  # seconds
        self.reserved_licences: set[str] = set()  # with tokens in any window
        self._groups: dict[tuple[RequestedTokens, LeaseTerms], TaskGroup] = {}
        self._new_groups: list[GroupEntry] = []  # heap of groups to check
        self._pools_to_recheck: set[str] = set()  # more tokens may be free
        self._heads_to_update: set[str] = set()  # the first task may have changed
        self._linger_ends: list[tuple[float, str]] = []  # heap of (time, licence)
        self._serial = 0

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

    def configure(
        self, pools: Iterable[LicencePool], patience: float, clusters: Iterable[str] = ()
    ) -> list[str]:
        """Replace the configuration; return the licences whose use by removed clusters is dropped.

        Empties the queue and forgets server counts and reservation windows, which the caller adds
        again. Use reported by the managers of `clusters` is kept.
        """
        self._state.version += 1
        configured_clusters = frozenset(clusters)
        self.patience = patience
        by_name = {pool.name: pool for pool in pools}
        self._groups, self._state.group_of, self._new_groups = {}, {}, []
        self._pools_to_recheck, self._heads_to_update = set(), set()
        self._state.windows, self.reserved_licences = {}, set()
        for name, pool in self._state.pools.items():
            pool.config, pool.configured, pool.server_count = unconfigured_pool(name), False, None
            pool.waiting_tokens = pool.requests = 0
            pool.queue, pool.blocked, pool.head_key, pool.windows = [], {}, None, {}
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
        self._mark_changed(pool)
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
                self._mark_changed(pool)
        return changed

    def set_operator_total(self, name: str, total: int | None) -> None:
        """Set the total given by an operator; None: as configured."""
        self._state.pool(name).operator_total = total
        self._state.pools[name].recompute()
        self._mark_changed(self._state.pools[name])

    def _mark_changed(self, pool: PoolState) -> None:
        """Schedule checks of a pool with a new capacity, and of its first task's other licences."""
        self._state.version += 1
        self._pools_to_recheck.add(pool.config.name)
        self._recheck_requested_by(pool.head_key)

    def keep_tokens_for_window(self, window: TokenWindow) -> None:
        """Keep tokens for a reservation from now on."""
        if self._state.windows.get(window.id) == window:
            return
        self._state.version += 1
        self._state.windows[window.id] = window
        for name in window.licences:
            pool = self._state.pool(name)
            pool.windows[window.id] = window
            self.reserved_licences.add(name)
            self._mark_changed(pool)

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
            self._mark_changed(pool)

    def windows(self, name: str) -> list[TokenWindow]:
        """Return the reservations that have tokens of a licence, by their start."""
        return self._state.pool(name).windows_by_start()

    def _recheck_requested_by(self, head_key: QueueKey | None) -> None:
        """Schedule checks of all licences that a queued task requests.

        Tokens may have been kept for it that others can now have.
        """
        if head_key is not None and (group := self._state.group_of.get(head_key[3:])) is not None:
            self._pools_to_recheck.update(name for name, _ in group.requested)

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
        pool = self._state.pool(name)
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
        """Return the status of every licence that is configured, leased or requested."""
        return [
            self.status(name, now)
            for name, pool in sorted(self._state.pools.items())
            if pool.configured or pool.leased_tokens or pool.waiting_tokens or pool.windows
        ]

    def configured_pool(self, name: str) -> LicencePool | None:
        """Return the configuration of a licence; None: not configured."""
        pool = self._state.pools.get(name)
        return pool.config if pool is not None and pool.configured else None

    # Requests

    @property
    def rho(self) -> dict[str, float]:
        """`LicenceStatus.rho` of each licence that tasks wait for."""
        pools = self._state.pools.items()
        return {
            name: pool.requests / pool.total for name, pool in pools if pool.requests and pool.total
        }

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

    def first_unusable(self, names: Iterable[str], cluster: str) -> str | None:
        """Return the first of these licences that cannot be used on a cluster; None: all can."""
        for name in names:
            pool = self._state.pools.get(name)
            if pool is not None and pool.excludes(cluster):
                return name
        return None

    # Leases

    def take(
        self, lease: Lease, end: float, enforced: bool = True, reservation: int | None = None
    ) -> None:
        """Lease all tokens to a task that `next_ready` returned, or that already has them.

        For the other arguments see `expect_end`.
        """
        self.leave((lease.job, lease.index))
        self._add(lease)
        self.expect_end((lease.job, lease.index), end, enforced, reservation)

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

        `enforced`: the task is killed at its limit. It runs in `reservation`, if in any. If the end
        is later than expected, others may end before the head of the queue needs these tokens; if
        it is earlier or newly enforced, the tokens may be back before a window begins.
        """
        if task_id not in self.leases:
            return
        state = self._state
        previous = (state.lease_ends.get(task_id, NEVER), task_id not in state.unenforced)
        previous_end, state.lease_ends[task_id] = previous[0], end
        (state.unenforced.discard if enforced else state.unenforced.add)(task_id)
        joins_reservation = reservation is not None and task_id not in state.reservation_of
        if reservation is not None and joins_reservation:
            state.reservation_of[task_id] = reservation
            for name, count in self.leases[task_id].tokens.items():
                state.pools[name].leased_by_reservation[reservation] += count
        if joins_reservation or (end, enforced) != previous:
            state.version += 1
        for name in self.leases[task_id].tokens:
            pool = state.pools[name]
            if end > previous_end or (pool.windows and (end, enforced) != previous):
                self._pools_to_recheck.add(name)
                self._recheck_requested_by(pool.head_key)

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
            self._pools_to_recheck.add(name)
            if was_used and pool.config.linger:
                lingering_until[name] = now + pool.config.linger
                self._add_lingering(LingeringTokens(name, count, now, lingering_until[name]))
                # the head of the queue may have expected them by the time limit
                self._recheck_requested_by(pool.head_key)
        return lingering_until

    def _add_lingering(self, lingering: LingeringTokens) -> None:
        pool = self._state.pool(lingering.licence)
        entry = (lingering.until, lingering.returned, lingering.count)
        heapq.heappush(pool.returning, entry)
        heapq.heappush(self._linger_ends, (lingering.until, lingering.licence))
        if pool.still_lingers(entry):
            pool.lingering += lingering.count

    @property
    def next_lingering_return(self) -> float | None:
        """When lingering tokens become free for a waiting task, or None."""
        return self._linger_ends[0][0] if self._linger_ends and self._state.group_of else None

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
            self._pools_to_recheck.add(name)

    # The queue

    def __contains__(self, task_id: TaskId) -> bool:
        """Return whether a task is queued."""
        return task_id in self._state.group_of

    @property
    def has_waiting(self) -> bool:
        """Whether any task is queued."""
        return bool(self._state.group_of)

    def contended(self, task_id: TaskId) -> bool:
        """Return whether tasks wait for a licence that this task has leased."""
        return any(self._state.pools[name].waiting_tokens for name in self.leases[task_id].tokens)

    def would_unblock(self, freed: Mapping[str, int], now: float) -> bool:
        """Return whether a queued task could go if these tokens were free, too."""
        pools = self._state.pools
        for name in freed:
            heaps = (by_terms.values() for by_terms in pools[name].blocked.values())
            for entry in chain.from_iterable(chain.from_iterable(heaps)):
                group = entry[2]
                if group.blocked_at == name and all(
                    self.lookahead.may_take(
                        pools[licence], count - freed.get(licence, 0), entry, now
                    )
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
        """Queue a task by `queue_time`, the smallest first; a queued task keeps its position.

        By its time limit it will hold its licences for `duration` seconds; `enforced`: it is killed
        then. It will run in `reservation`, if in any.
        """
        if task_id in self._state.group_of:
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
        self._state.group_of[task_id] = group
        group.queue_keys[task_id] = queue_key
        heapq.heappush(group.heap, queue_key)
        for name, count in group.requested:
            pool = self._state.pool(name)
            pool.waiting_tokens += count
            pool.requests += 1
        if previous_head is None or queue_key < previous_head:
            self._add_group_head(group, queue_key)

    def leave(self, task_id: TaskId) -> None:
        """Remove a task from the queue, if it is there."""
        group = self._state.group_of.pop(task_id, None)
        if group is None:
            return
        previous_head = group.head_key()
        queue_key = group.queue_keys.pop(task_id)
        for name, count in group.requested:
            self._state.pools[name].waiting_tokens -= count
            self._state.pools[name].requests -= 1
        if queue_key != previous_head:
            return
        head = group.head_key()
        if head is not None:
            self._add_group_head(group, head)
            return
        del self._groups[group.requested, group.terms]
        self._heads_to_update.update(name for name, _ in group.requested)

    def _add_group_head(self, group: TaskGroup, head: QueueKey) -> None:
        """Queue a group for a check after its first task changed."""
        entry = (head, group.serial, group)
        group.blocked_at = ""
        heapq.heappush(self._new_groups, entry)
        for name, _ in group.requested:
            heapq.heappush(self._state.pools[name].queue, entry)
            self._heads_to_update.add(name)

    def _update_heads(self) -> None:
        """Find the first task of each pool where it may have changed."""
        while self._heads_to_update:
            pool = self._state.pools[self._heads_to_update.pop()]
            previous_head, heap = pool.head_key, pool.queue
            while heap and heap[0][2].head_key() != heap[0][0]:
                heapq.heappop(heap)
            pool.head_key = heap[0][0] if heap else None
            if pool.head_key == previous_head:
                continue
            self._state.version += 1
            if previous_head is not None:
                # tokens may have been kept for it, also of other licences
                self._pools_to_recheck.add(pool.config.name)
                self._recheck_requested_by(previous_head)

    # The next task

    @property
    def settled(self) -> bool:
        """Whether `next_ready` has nothing to check."""
        return not (self._heads_to_update or self._pools_to_recheck or self._new_groups)

    def next_ready(self, now: float) -> TaskId | None:
        """Return the first queued task that can have all its licences now; None: none can.

        The caller must then call `take` or `leave` for it.
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
                pool = self._state.pools[name]
                if not self.lookahead.may_take(pool, count, entry, now):
                    group.blocked_at = name
                    heap = pool.blocked.setdefault(count, {}).setdefault(group.terms, [])
                    heapq.heappush(heap, entry)
                    break
            else:
                heapq.heappush(self._new_groups, entry)  # until it calls `take` or `leave`
                group.blocked_at = ""
                self._pools_to_recheck = {name for _, name, *_ in candidates}
                return queue_key[3:]
        self._pools_to_recheck.clear()
        return None

    def _pop_candidate(self, candidates: list[BlockedGroup]) -> GroupEntry | None:
        """Remove and return the first group that may be able to go; None: there is none.

        It is a group that is not blocked anywhere yet, or the first of the heap `candidates`.
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
        heap = self._state.pools[name].blocked[count][terms]
        heapq.heappop(heap)
        if others_may_go and self._has_blocked_group(name, heap):
            heapq.heapreplace(candidates, (heap[0], name, count, terms, True))
        else:
            heapq.heappop(candidates)
        return entry

    def _unblocked_groups(self, name: str, now: float) -> Iterator[BlockedGroup]:
        """Yield the first group of each request size and terms for which a pool now has tokens."""
        pool = self._state.pools[name]
        free = pool.free(now)
        fitting = [count for count in pool.blocked if free is not None and count <= free]
        if not fitting:
            return
        lookahead = self.lookahead
        shadow_time, extra = lookahead.head_reservation(pool, now)
        group = lookahead.head_group(pool)
        head = None if group is None else (dict(group.requested)[name], group.terms)
        for count in fitting:
            by_terms = pool.blocked[count]
            for terms, heap in list(by_terms.items()):
                others_may_go = count <= extra or now + terms.duration <= shadow_time
                if pool.windows:
                    others_may_go = (
                        others_may_go or lookahead.may_overtake(pool, count, terms, now)
                    ) and count <= lookahead.free_beside_windows(pool, terms, now)
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
        """Drop stale first entries of a heap; return whether any group is still blocked there."""
        while heap and (heap[0][2].blocked_at != name or heap[0][2].head_key() != heap[0][0]):
            heapq.heappop(heap)
        return bool(heap)

    def missing_licences(self, task_id: TaskId, now: float) -> Iterator[LicenceStatus]:
        """Yield the status of each licence that a queued task could not have now."""
        group = self._state.group_of[task_id]
        entry = (group.queue_keys[task_id], group.serial, group)
        for name, count in group.requested:
            if not self.lookahead.may_take(self._state.pools[name], count, entry, now):
                yield self.status(name, now)
