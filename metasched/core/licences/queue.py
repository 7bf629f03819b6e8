"""The queue of tasks that wait for licence tokens. Pure.

Times are seconds since the epoch, durations seconds, amounts tokens (copies of a licence).

A task leases all the licences it requests or none, so that no two tasks can deadlock. Tasks whose
request cannot be met wait in one queue, a task with alternatives for each of them. A task
that is first for each of its licences gets a reservation at the shadow time, when enough leases
will have expired by the time limits of their tasks; a later task may overtake it if its own lease
ends before the shadow time, or fits into the extra tokens (EASY backfilling; Lifka 1995;
`policies.local.queueing` does the same for processors). The head of the whole queue always has such
a reservation, so that no task starves however many tokens it requests, unless use outside metasched
takes the tokens it is missing.

The windows of advance reservations are honoured in the same way, also by the head of the queue: a
task outside the reservation gets only tokens that it returns before the window begins, or that the
window leaves. Here only enforced limits count: a task without an enforced limit is assumed never to
return its tokens.

Tasks that join within one `patience` interval are ordered by size, the largest request first: small
requests then fill the gaps that large requests leave (first fit decreasing; Johnson et al. 1974).

Tasks with the same request and about the same duration form one group: if its first task cannot go,
no other can. The rule is plain: after each change the groups are checked in the order of their
first tasks, and the first of them that may take all its tokens goes. Time alone lets a task go when
a lease is past its expected end, when a window is over, and when the first task could no longer end
before a window; then the groups are checked again, too. A group has a line for each user;
`QueueOrder` finds the first of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from operator import itemgetter

from metasched.core.licences.accounts import Followers, LicenceAccounts
from metasched.core.licences.groups import (
    LeaseTerms,
    OwnerLine,
    QueueKey,
    QueueOwner,
    RequestedTokens,
    RequestGroup,
    round_up_duration,
)
from metasched.core.licences.order import QueueOrder
from metasched.core.licences.pool import NEVER, PoolState
from metasched.core.licences.ranked_groups import RankedGroups
from metasched.core.tasks import TaskId
from metasched.core.user_turns import UserTurns
from metasched.model.job import Job
from metasched.model.licence import Lease, LicencePool, LicenceStatus


class LicenceQueue(LicenceAccounts):
    """The accounts of all licences, and the queue of tasks that wait for tokens."""

    def __init__(self, followers: Followers = tuple) -> None:
        super().__init__(followers)
        self.patience = 0.0  # seconds
        self._users: Counter[str] = Counter()  # of queued tasks
        self._groups: dict[RequestedTokens, dict[LeaseTerms, RequestGroup]] = {}
        # requests in `_groups`, by their largest number of tokens and its licence
        self._requests: dict[str, dict[int, set[RequestedTokens]]] = {}
        # as of a state version: every group whose request fits into the free tokens, and others;
        # a task that joins or takes tokens makes no other request fit
        self._fitting = RankedGroups()
        self._fitting_version = -1
        # of the last check after which no task could go
        self._checked_version, self._checked_at = -1, 0.0  # state version, epoch seconds
        self._next_change = NEVER  # epoch seconds from which time alone may let a task go

    def configure(
        self, pools: Iterable[LicencePool], patience: float, clusters: Iterable[str] = ()
    ) -> list[str]:
        """Replace the configuration and empty the queue; see `set_pools`."""
        self.patience = patience
        self._groups, self._requests, self._state.line_of = {}, {}, {}
        self._users, self._state.order = Counter(), QueueOrder()
        self._fitting, self._fitting_version = RankedGroups(), -1
        for pool in self._state.pools.values():
            pool.waiting_tokens = pool.requests = 0
            pool.groups, pool.head_key = RankedGroups(), None
        return self.set_pools(pools, clusters)

    def set_turns(self, turns: UserTurns, age: float) -> None:
        """Let users take turns in the queue, which is empty; `age` (seconds): see `UserTurns`."""
        self._state.order = QueueOrder(turns, age)

    def rank_anew(self, now: float) -> None:
        """Rank all tasks anew when they are needed: turns and levels may have changed."""
        self._state.order.rank_anew(now)

    def _count_user(self, user: str, change: int) -> None:
        self._users[user] += change
        if not self._users[user]:
            del self._users[user]
        if self._state.order.set_several_users(len(self._users) > 1):
            self._state.version += 1

    # Queued tasks

    def __contains__(self, task_id: TaskId) -> bool:
        """Return whether a task is queued."""
        return task_id in self._state.line_of

    @property
    def has_waiting(self) -> bool:
        """Whether any task is queued."""
        return bool(self._state.line_of)

    @property
    def rho(self) -> dict[str, float]:
        """`LicenceStatus.rho` of each licence that tasks wait for."""
        pools = self._state.pools.items()
        requests = Counter({name: pool.requests for name, pool in pools if pool.requests})
        for request, number in self._followers():
            requests.update(dict.fromkeys(request, number))
        return {
            name: count / total
            for name, count in requests.items()
            if (total := self._state.pool(name).total)
        }

    def contended(self, task_id: TaskId) -> bool:
        """Return whether tasks wait for a licence that this task has leased."""
        return any(self._state.pools[name].waiting_tokens for name in self.leases[task_id].tokens)

    def may_take_unqueued(
        self, requested: Mapping[str, int], duration: float, enforced: bool, now: float
    ) -> bool:
        """Return whether a task without reservation may have these tokens, and none waits for any.

        `duration` and `enforced`: see `join`.
        """
        terms = LeaseTerms(duration, enforced, None)
        pools = {name: self._state.pool(name) for name in requested}
        return not any(pool.waiting_tokens for pool in pools.values()) and all(
            self.lookahead.may_take(pools[name], count, None, terms, now)
            for name, count in requested.items()
        )

    def would_unblock(self, freed: Mapping[str, int], now: float) -> bool:
        """Return whether a queued task could go if these tokens were free, too.

        The caller has made sure that none can go now. Looks at requests that would fit then.
        """
        rank = self._state.order.rank
        return any(
            all(
                self.lookahead.may_take(
                    self._state.pools[name],
                    count - freed.get(name, 0),
                    rank(group)[2],
                    group.terms,
                    now,
                )
                for name, count in group.requested.items()
            )
            for group in self._fitting_groups(now, freed)
            if not freed.keys().isdisjoint(group.requested)
        )

    def join(
        self,
        task_id: TaskId,
        queue_time: float,
        requested: Mapping[str, int],
        duration: float,
        enforced: bool = True,
        reservation: int | None = None,
        job: Job | None = None,
        priority: int = 1,
    ) -> None:
        """Queue a task by `queue_time`, the smallest first; a queued task keeps its position.

        By its time limit it will hold its licences for `duration` seconds; `enforced`: it is killed
        then. It will run in `reservation`, if in any. Users of a `job` take turns.
        """
        if task_id in self._state.line_of:
            return
        terms = LeaseTerms(round_up_duration(duration), enforced, reservation)
        request = tuple(sorted(requested.items()))
        if request not in self._groups:
            self._groups[request] = {}
            name, count = _largest(request)
            self._requests.setdefault(name, {}).setdefault(count, set()).add(request)
        owner = QueueOwner() if job is None else QueueOwner(job.user, priority, job.account)
        self._count_user(owner.user, 1)
        groups = self._groups[request]
        group = groups.get(terms)
        fitting_known = self._fitting_version == self._state.version
        if group is None:
            group = groups[terms] = RequestGroup(dict(request), terms)
            self._fitting.add(group, self._state.order)
            for name in group.requested:
                self._state.pool(name).groups.add(group, self._state.order)
        line = group.lines.get(owner)
        if line is None:
            line = group.lines[owner] = OwnerLine(group, owner, job)
        step = queue_time // self.patience if self.patience else queue_time
        queue_key = (step, -sum(requested.values()), queue_time, *task_id)
        self._state.line_of[task_id] = line
        line.add(task_id, queue_key)
        for name, count in group.requested.items():
            self._state.pools[name].waiting_tokens += count
            self._state.pools[name].requests += 1
        if queue_key == line.head_key:
            self._forget_heads(group, queue_key)
        if fitting_known:
            self._fitting_version = self._state.version

    def leave(self, task_id: TaskId) -> None:
        """Remove a task from the queue, if it is there."""
        line = self._state.line_of.pop(task_id, None)
        if line is None:
            return
        queue_key, previous_head, group = line.queue_keys[task_id], line.head_key, line.group
        line.remove(task_id)
        self._count_user(line.owner.user, -1)
        for name, count in group.requested.items():
            self._state.pools[name].waiting_tokens -= count
            self._state.pools[name].requests -= 1
        if not group.lines:
            self._remove_group(group)
        if queue_key == previous_head:
            self._forget_heads(group, queue_key)

    def _remove_group(self, group: RequestGroup) -> None:
        """Remove a group without tasks."""
        self._fitting.discard(group)
        for name in group.requested:
            self._state.pools[name].groups.discard(group)
        request = tuple(group.requested.items())
        del self._groups[request][group.terms]
        if self._groups[request]:
            return
        del self._groups[request]
        name, count = _largest(request)
        self._requests[name][count].remove(request)
        if not self._requests[name][count]:
            del self._requests[name][count]
            if not self._requests[name]:
                del self._requests[name]

    def _forget_heads(self, group: RequestGroup, queue_key: QueueKey) -> None:
        """Have all groups checked again, since the first task of a line has joined or left."""
        self._state.version += 1
        self._note_fall(group)
        for name in group.requested:
            pool = self._state.pools[name]
            if pool.head_key is not None and (len(self._users) > 1 or queue_key <= pool.head_key):
                pool.head_key = None

    def _note_fall(self, group: RequestGroup) -> None:
        """Have a group ranked anew wherever groups are ranked."""
        self._fitting.note_fall(group, self._state.order)
        for name in group.requested:
            self._state.pools[name].groups.note_fall(group, self._state.order)

    def take(
        self,
        lease: Lease,
        end: float,
        enforced: bool = True,
        reservation: int | None = None,
        queued_as: TaskId | None = None,
    ) -> None:
        """Lease all tokens to a task that `next_ready` returned, or that already has them.

        `queued_as`: id of its stand-in that was granted, None: it has none (`Alternatives`). For
        the other arguments see `expect_end`.
        """
        request = queued_as or (lease.job, lease.index)
        fitting_known = self._fitting_version == self._state.version
        line = self._state.line_of.get(request)
        if line is not None:
            self._state.order.use_turn(line)
        self.leave(request)
        self._add(lease)
        self.expect_end((lease.job, lease.index), end, enforced, reservation)
        if fitting_known:  # fewer tokens are free than before
            self._fitting_version = self._state.version

    # The next task

    def settled(self, now: float) -> bool:
        """Return whether no queued task can go, as the last check has shown."""
        if not self._groups:
            return True
        unchanged = self._checked_version == self._state.version
        return unchanged and (now == self._checked_at or now < self._next_change)

    @property
    def next_change(self) -> float | None:
        """When time alone may let a queued task go (epoch seconds), or None."""
        if not self._groups:
            return None
        changes = [self._linger_ends[0][0]] if self._linger_ends else []
        if self._checked_at < self._next_change < NEVER:
            changes.append(self._next_change)
        changes += [end for end in self._calendar_ends() if end > self._checked_at]
        return min(changes, default=None)

    def next_ready(self, now: float) -> TaskId | None:
        """Return the first queued task that can have all its licences now; None: none can.

        The caller must then call `take` or `leave` for it.
        """
        if self.settled(now):
            return None
        self.rank_anew(now)
        order = self._state.order
        kept_pools: set[PoolState] = set()  # whose free tokens a group may not take
        if self._fitting_version != self._state.version:
            self._fitting = RankedGroups()
            for group in self._fitting_groups(now, {}):
                self._fitting.add(group, order)
            self._fitting_version = self._state.version
        with closing(self._fitting.in_order(order)) as groups:
            for group in groups:
                first_key = order.rank(group)[2]
                if not self._fits(group, now):  # no longer: others have taken tokens since
                    self._fitting.discard(group)
                elif (reserved_first := self._first_kept(group, first_key, now)) is None:
                    return first_key[3:]
                else:
                    kept_pools.add(reserved_first)
        first_keys = map(self.lookahead.first_key, kept_pools)
        line_of = self._state.line_of
        promised = [line_of[key[3:]] for key in first_keys if key is not None]
        for group in order.promise(promised):
            self._note_fall(group)
        self._checked_version, self._checked_at = self._state.version, now
        self._next_change = min(
            (self.lookahead.find_next_change(pool, now) for pool in kept_pools), default=NEVER
        )
        return None

    def _fits(self, group: RequestGroup, now: float) -> bool:
        """Return whether the first task of a group requests no more tokens than are free."""
        pools = self._state.pools
        return all(count <= (pools[name].free(now) or 0) for name, count in group.requested.items())

    def _first_kept(self, group: RequestGroup, first_key: QueueKey, now: float) -> PoolState | None:
        """Return the first pool whose free tokens a group may not take; None: it may take all."""
        for name, count in group.requested.items():
            pool = self._state.pools[name]
            if not self.lookahead.may_take_free(pool, count, first_key, group.terms, now):
                return pool
        return None

    def _fitting_groups(self, now: float, freed: Mapping[str, int]) -> list[RequestGroup]:
        """Return the groups whose first tasks request no more tokens than are free, or `freed`."""
        groups, pools = self._groups, self._state.pools
        fitting: list[RequestGroup] = []
        # of the licences that some request needs
        free = {name: (pools[name].free(now) or 0) + freed.get(name, 0) for name in self._requests}
        for largest, by_count in self._requests.items():
            available = free[largest]
            if available <= 0:
                continue
            for needed, requests in by_count.items():
                if needed > available:
                    continue
                for request in requests:
                    for name, count in request:
                        if name not in free:
                            free[name] = (pools[name].free(now) or 0) + freed.get(name, 0)
                        if count > free[name]:
                            break
                    else:
                        fitting += groups[request].values()
        return fitting

    def requested(self, task_id: TaskId) -> Mapping[str, int]:
        """Return the tokens by licence that a queued task requests."""
        return self._state.line_of[task_id].group.requested

    def awaits_count(self, task_id: TaskId, now: float) -> bool:
        """Return whether it is unknown how many of a queued task's licences are free."""
        pools = self._state.pools
        for name in self._state.line_of[task_id].group.requested:
            if pools[name].free(now) is None:
                return True
        return False

    def missing_licences(self, task_id: TaskId, now: float) -> Iterator[LicenceStatus]:
        """Yield the status of each licence that a queued task could not have now."""
        line = self._state.line_of[task_id]
        queue_key, terms = line.queue_keys[task_id], line.group.terms
        for name, count in line.group.requested.items():
            pool = self._state.pools[name]
            if not self.lookahead.may_take(pool, count, queue_key, terms, now):
                yield pool.status(now)


def _largest(request: RequestedTokens) -> tuple[str, int]:
    """Return the licence with the most tokens in a request, and their number."""
    return max(request, key=itemgetter(1))
