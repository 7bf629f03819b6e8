"""The queue of tasks that wait for licence tokens. Pure.

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

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from metasched.core.licences.accounts import LicenceAccounts
from metasched.core.licences.pool import (
    BlockedGroup,
    GroupEntry,
    LeaseTerms,
    QueueKey,
    RequestedTokens,
    TaskGroup,
)
from metasched.core.tasks import TaskId
from metasched.model.licence import Lease, LicencePool, LicenceStatus


class LicenceQueue(LicenceAccounts):
    """The accounts of all licences, and the queue of tasks that wait for tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patience = 0.0  # seconds
        self._groups: dict[tuple[RequestedTokens, LeaseTerms], TaskGroup] = {}
        self._new_groups: list[GroupEntry] = []  # heap of groups to check
        self._heads_to_update: set[str] = set()  # the first task may have changed
        self._serial = 0

    def configure(
        self, pools: Iterable[LicencePool], patience: float, clusters: Iterable[str] = ()
    ) -> list[str]:
        """Replace the configuration and empty the queue; see `set_pools`."""
        self.patience = patience
        self._groups, self._state.group_of, self._new_groups = {}, {}, []
        self._heads_to_update = set()
        for pool in self._state.pools.values():
            pool.waiting_tokens = pool.requests = 0
            pool.queue, pool.blocked, pool.head_key = [], {}, None
        return self.set_pools(pools, clusters)

    # Queued tasks

    def __contains__(self, task_id: TaskId) -> bool:
        """Return whether a task is queued."""
        return task_id in self._state.group_of

    @property
    def has_waiting(self) -> bool:
        """Whether any task is queued."""
        return bool(self._state.group_of)

    @property
    def rho(self) -> dict[str, float]:
        """`LicenceStatus.rho` of each licence that tasks wait for."""
        pools = self._state.pools.items()
        return {
            name: pool.requests / pool.total for name, pool in pools if pool.requests and pool.total
        }

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

    def take(
        self, lease: Lease, end: float, enforced: bool = True, reservation: int | None = None
    ) -> None:
        """Lease all tokens to a task that `next_ready` returned, or that already has them.

        For the other arguments see `expect_end`.
        """
        self.leave((lease.job, lease.index))
        self._add(lease)
        self.expect_end((lease.job, lease.index), end, enforced, reservation)

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
