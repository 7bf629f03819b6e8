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

Tasks with the same request and about the same duration form one group. A group that cannot go waits
at one pool that has too few tokens (as a clause watches one of its literals in a SAT solver). Only
groups that wait at pools in which tokens became free are checked again, all of them.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from metasched.core.licences.accounts import LicenceAccounts
from metasched.core.licences.pool import LeaseTerms, PoolState, QueueKey, RequestedTokens, TaskGroup
from metasched.core.tasks import TaskId
from metasched.model.licence import Lease, LicencePool, LicenceStatus


class LicenceQueue(LicenceAccounts):
    """The accounts of all licences, and the queue of tasks that wait for tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patience = 0.0  # seconds
        self._groups: dict[tuple[RequestedTokens, LeaseTerms], TaskGroup] = {}
        self._to_check: set[TaskGroup] = set()  # groups that wait at no pool
        self._heads_to_update: set[str] = set()  # the first task may have changed

    def configure(
        self, pools: Iterable[LicencePool], patience: float, clusters: Iterable[str] = ()
    ) -> list[str]:
        """Replace the configuration and empty the queue; see `set_pools`."""
        self.patience = patience
        self._groups, self._state.group_of, self._to_check = {}, {}, set()
        self._heads_to_update = set()
        for pool in self._state.pools.values():
            pool.waiting_tokens = pool.requests = 0
            pool.queue, pool.blocked, pool.head_key = [], defaultdict(set), None
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
        return any(
            all(self._may_take(group, other, now, freed) for other in group.requested)
            for name in freed
            for group in chain.from_iterable(self._state.pools[name].blocked.values())
        )

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
            group = self._groups[group_key] = TaskGroup(dict(group_key[0]), terms)
        step = queue_time // self.patience if self.patience else queue_time
        queue_key = (step, -sum(requested.values()), queue_time, *task_id)
        previous_head = group.head_key()
        self._state.group_of[task_id] = group
        group.queue_keys[task_id] = queue_key
        heapq.heappush(group.heap, queue_key)
        for name, count in group.requested.items():
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
        for name, count in group.requested.items():
            self._state.pools[name].waiting_tokens -= count
            self._state.pools[name].requests -= 1
        if queue_key != previous_head:
            return
        head = group.head_key()
        if head is not None:
            self._add_group_head(group, head)
            return
        self._set_of(group).remove(group)
        del self._groups[tuple(group.requested.items()), group.terms]
        self._heads_to_update.update(group.requested)

    def _add_group_head(self, group: TaskGroup, head: QueueKey) -> None:
        """Queue a group for a check after its first task changed."""
        self._move(group, "")
        for name in group.requested:
            heapq.heappush(self._state.pools[name].queue, head)
            self._heads_to_update.add(name)

    def _move(self, group: TaskGroup, name: str) -> None:
        """Let a group wait at a licence."""
        self._set_of(group).discard(group)
        group.waits_at = name
        self._set_of(group).add(group)

    def _set_of(self, group: TaskGroup) -> set[TaskGroup]:
        """Return the set in which a group waits."""
        if not group.waits_at:
            return self._to_check
        request = group.requested[group.waits_at], group.terms
        return self._state.pools[group.waits_at].blocked[request]

    def _update_heads(self) -> None:
        """Find the first task of each pool where it may have changed."""
        while self._heads_to_update:
            pool = self._state.pools[self._heads_to_update.pop()]
            previous_head, heap = pool.head_key, pool.queue
            while heap and not self._is_group_head(heap[0]):
                heapq.heappop(heap)
            pool.head_key = heap[0] if heap else None
            if pool.head_key == previous_head:
                continue
            self._state.version += 1
            if previous_head is not None:
                # tokens may have been kept for it, also of other licences
                self._pools_to_recheck.add(pool.config.name)
                self._recheck_requested_by(previous_head)

    def _is_group_head(self, queue_key: QueueKey) -> bool:
        group = self._state.group_of.get(queue_key[3:])
        return group is not None and group.head_key() == queue_key

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
        return not (self._heads_to_update or self._pools_to_recheck or self._to_check)

    def next_ready(self, now: float) -> TaskId | None:
        """Return the first queued task that can have all its licences now; None: none can.

        The caller must then call `take` or `leave` for it.
        """
        if self.settled:
            return None
        self._update_heads()
        candidates = self._to_check.copy()
        for name in self._pools_to_recheck:
            candidates.update(self._unblocked_groups(self._state.pools[name], now))
        by_key = {key: group for group in candidates if (key := group.head_key()) is not None}
        in_order = sorted(by_key)
        for index, queue_key in enumerate(in_order):
            group = by_key[queue_key]
            for name in group.requested:
                if not self._may_take(group, name, now):
                    self._move(group, name)
                    break
            else:
                unchecked = (by_key[key].waits_at for key in in_order[index + 1 :])
                self._pools_to_recheck = {name for name in unchecked if name}
                return queue_key[3:]
        self._pools_to_recheck.clear()
        return None

    def _unblocked_groups(self, pool: PoolState, now: float) -> Iterator[TaskGroup]:
        """Yield the groups blocked at a pool that may now take its tokens."""
        free, lookahead = pool.free(now) or 0, self.lookahead
        for (count, terms), groups in list(pool.blocked.items()):
            if not groups:
                del pool.blocked[count, terms]
            elif count <= free and lookahead.may_take(pool, count, None, terms, now):
                yield from groups
        head = lookahead.head_group(pool)
        if head is not None and head.waits_at == pool.config.name:
            yield head

    def _may_take(
        self, group: TaskGroup, name: str, now: float, freed: Mapping[str, int] | None = None
    ) -> bool:
        """Return whether the first task of a group may lease its tokens of a licence now.

        `freed` tokens count as free.
        """
        missing = group.requested[name] - (freed.get(name, 0) if freed else 0)
        pool = self._state.pools[name]
        return self.lookahead.may_take(pool, missing, group.head_key(), group.terms, now)

    def missing_licences(self, task_id: TaskId, now: float) -> Iterator[LicenceStatus]:
        """Yield the status of each licence that a queued task could not have now."""
        group = self._state.group_of[task_id]
        queue_key = group.queue_keys[task_id]
        for name, count in group.requested.items():
            pool = self._state.pools[name]
            if not self.lookahead.may_take(pool, count, queue_key, group.terms, now):
                yield self.status(name, now)
