"""Fair share over all clusters: decayed use of users and accounts, and whose turn is next. Pure.

Users are ordered as by Slurm's Fair Tree: at each level of the tree the child with the least use
per weight goes first. Use is in processor-seconds times the cluster's benchmark and halves with
each half-life. Sums are kept in units of a common epoch, in which decay changes no order: a use
counts 2^((its end - epoch) / half-life) times. So no event looks at all users.

A dispatched task is charged its expected use at once. So the order changes with each dispatch. The
charge doubles when the task runs for longer, and its end replaces it by the true use.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import structs

from metasched.core.events import SharesReported, UseReported
from metasched.core.own_accounts import OwnAccounts
from metasched.core.share_standings import (
    ShareRank,
    Standing,
    StandingAccount,
    StandingLeaf,
    Standings,
)
from metasched.core.state import SchedulerState
from metasched.core.tasks import Attempt, StateChange, Task, TaskId
from metasched.core.transitions import LIVE, QUEUED_OR_HELD, STARTED, TaskEvent
from metasched.model.cluster import Cluster
from metasched.model.fair_share import (
    ROOT,
    FairShareSettings,
    ShareAccount,
    ShareTree,
    ShareUse,
    decayed,
)
from metasched.model.job import Job

NEGLIGIBLE = 1e-3  # processor-seconds: less is forgotten at a start
MIN_CHARGE = 1.0  # seconds that a running task is charged at least when it outruns its charge
MAX_DOUBLINGS = 500.0  # half-lives after the epoch; then sums are computed for a later epoch
MAX_USE = 1e18  # processor-seconds in a report; more is a defect of the report

LeafKey = tuple[str, str]  # account, user


@dataclass(eq=False, slots=True)
class Node:
    """An account or a leaf."""

    account: str  # its name; that of a leaf's parent
    user: str | None  # None: an account
    weight: float
    path: tuple[Node, ...]  # from below the root to itself
    use: float = 0.0  # in units of the epoch, with all below it


@dataclass(eq=False, slots=True)
class Charge:
    """The expected use of a live task."""

    task: Task
    leaf: Node
    benchmark: float  # of its cluster
    seconds: float  # expected run time
    amount: float = 0.0  # in units of the epoch


class FairShare:
    """Use and shares of all users. Without configuration nothing is counted."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self.enabled = False
        self._settings = FairShareSettings()
        self.uses: dict[LeafKey, ShareUse] = {}  # as stored; of tasks that have ended
        self.trees: dict[str, ShareTree] = {}  # as reported last, by cluster
        self.falls = 0  # increases when any rank may have fallen
        self._epoch = 0.0  # epoch seconds
        self._accounts: dict[str, ShareAccount] = {}
        self._homes: dict[str, str] = {}  # account of a user's jobs that name none
        self._open_home = ROOT  # of users whom no account names
        self._nodes: dict[str, Node] = {}  # accounts
        self._leaves: dict[LeafKey, Node] = {}
        self._charges: dict[TaskId, Charge] = {}
        # heap of (time, task): when a running task has used its charge
        self._dues: list[tuple[float, TaskId]] = []
        self._own_accounts: dict[str, OwnAccounts] = {}  # by cluster

    def restore(self, uses: Iterable[ShareUse], trees: Mapping[str, ShareTree]) -> None:
        """Take over the stored use and the reported trees."""
        self.uses = {(use.account, use.user): use for use in uses}
        self.trees = dict(trees)

    # Configuration

    def configure(
        self,
        settings: FairShareSettings | None,
        clusters: Iterable[Cluster],
        tasks: Iterable[Task],
    ) -> None:
        """Take over the configuration, and charge the live tasks anew."""
        self.enabled, self.falls = settings is not None, 0
        self._settings = settings or FairShareSettings()
        self._charges, self._dues = {}, []
        self._own_accounts = {cluster.name: OwnAccounts(cluster) for cluster in clusters}
        if not self.enabled:
            self._epoch = 0.0
            self._clear_tree()
            return
        for key, use in list(self.uses.items()):
            if self._decayed_use(use) < NEGLIGIBLE:
                del self.uses[key]
                self._state.outcome.share_uses[key] = None
        self._build_tree()
        for task in tasks:
            if task.state in LIVE:
                self._charge(task)

    @property
    def tree(self) -> ShareTree:
        """The tree in force."""
        source = self._settings.shares_from
        return self.trees.get(source, ShareTree()) if source else self._settings.tree

    def _clear_tree(self) -> None:
        self._accounts, self._homes, self._open_home = {}, {}, ROOT
        self._nodes, self._leaves = {}, {}

    def _build_tree(self) -> None:
        """Build the tree with the stored use and the charges, from a new epoch."""
        tree, self._epoch = self.tree, self._state.now
        self.falls += 1
        self._clear_tree()
        self._accounts = {ROOT: tree.root, **{a.name: a for a in tree.accounts}}
        for account in self._accounts.values():
            for user in account.users:
                self._homes.setdefault(user, account.name)
            if self._open_home == ROOT and account.other_users is not None:
                self._open_home = account.name
        for key in sorted(self.uses):
            use = self.uses[key]
            self._add(self._leaf(use.user, use.account), self._in_epoch(use.used, use.as_of))
        for charge in self._charges.values():
            charge.leaf, charge.amount = self._leaf_of(charge.task.job), 0.0
            self._set_amount(charge)

    def _node(self, name: str) -> Node:
        node = self._nodes.get(name)
        if node is None:
            account = self._accounts[name]
            node = self._nodes[name] = Node(name, None, account.weight, ())
            if name != ROOT:
                node.path = (*self._node(account.parent).path, node)
        return node

    def _leaf(self, user: str, account: str | None) -> Node:
        """Return the leaf of a user who charges an account; None: he names none.

        An account that does not admit him counts as none: users invent names.
        """
        named = self._accounts.get(account) if account else None
        if named is None or not named.admits(user):
            named = self._accounts[self._homes.get(user, self._open_home)]
        key = named.name, user
        leaf = self._leaves.get(key)
        if leaf is None:
            weight = named.users.get(user, named.other_users)
            assert weight is not None, key
            leaf = self._leaves[key] = Node(named.name, user, weight, ())
            leaf.path = (*self._node(named.name).path, leaf)
        return leaf

    def _leaf_of(self, job: Job) -> Node:
        return self._leaf(job.user, job.account)

    # Use

    def _in_epoch(self, used: float, at: float) -> float:
        """Convert a use at a time (epoch seconds) to units of the epoch."""
        at = min(at, self._state.now)  # the clock may have been set back while no daemon ran
        return used * math.exp2((at - self._epoch) / self._settings.half_life)

    def _decayed_use(self, use: ShareUse) -> float:
        return decayed(use.used, self._state.now - use.as_of, self._settings.half_life)

    def _add(self, leaf: Node, amount: float) -> None:
        if amount < 0.0:
            self.falls += 1
        for node in leaf.path:
            use = node.use + amount
            node.use = use if use > 0.0 else 0.0  # rounding

    def _record(self, leaf: Node, used: float, ended: float) -> None:
        """Add the use of something that ended at a time (epoch seconds)."""
        ended = min(ended, self._state.now)
        self._add(leaf, self._in_epoch(used, ended))
        assert leaf.user is not None
        key, half_life = (leaf.account, leaf.user), self._settings.half_life
        before = self.uses.get(key)
        as_of = ended
        if before is not None:
            as_of = max(ended, before.as_of)
            used = decayed(used, as_of - ended, half_life)
            used += decayed(before.used, as_of - before.as_of, half_life)
        self.uses[key] = self._state.outcome.share_uses[key] = ShareUse(
            account=key[0], user=key[1], used=used, as_of=as_of
        )

    def apply_use(self, event: UseReported) -> None:
        """Count use by jobs that metasched did not send."""
        own, uses = self._own_accounts.get(event.cluster), event.uses
        if own is not None:
            uses = tuple(
                structs.replace(use, account=own.name_of(use.account, use.user)) for use in uses
            )
        self._state.outcome.foreign_uses = uses
        view = self._state.views.get(event.cluster)
        if not self.enabled or view is None:
            return
        for use in uses:
            used = use.processor_seconds * view.cluster.benchmark
            if not (0.0 < used < MAX_USE and math.isfinite(use.ended)):
                continue
            self._record(self._leaf(use.user, use.account), used, use.ended)

    def apply_shares(self, event: SharesReported) -> None:
        """Take over the tree that a manager reports."""
        unchanged = self.trees.get(event.cluster) == event.tree
        self.trees[event.cluster] = event.tree
        if self.enabled and not unchanged and event.cluster == self._settings.shares_from:
            self._build_tree()

    # Charges of live tasks

    def update(self, change: StateChange) -> None:
        """Charge a task when it is dispatched; count its true use when its attempt ends."""
        task = change.task
        if change.event is TaskEvent.RESTART:
            self._settle(task, self._state.outcome.closed_attempts[-1][1])
            self._charge(task)
        elif change.after in LIVE:
            if change.before in QUEUED_OR_HELD:
                self._charge(task)
            elif change.after in STARTED and change.before not in STARTED:
                self._await_due(self._charges[task.task_id])
        elif change.attempt is not None:
            self._settle(task, change.attempt)

    def _charge(self, task: Task) -> None:
        job, view = task.job, self._state.view_of(task)
        benchmark = 1.0 if view is None else view.cluster.benchmark
        seconds = job.estimated
        if job.benchmark != 1.0:  # of a simulation; time limits hold on every cluster
            seconds *= job.benchmark / benchmark
        charge = Charge(task, self._leaf_of(job), benchmark, seconds)
        self._charges[task.task_id] = charge
        self._set_amount(charge)
        if task.state in STARTED:
            self._await_due(charge)

    def _set_amount(self, charge: Charge) -> None:
        """Charge the expected use as of now."""
        used = charge.task.job.cpus * charge.seconds * charge.benchmark
        amount = self._in_epoch(used, self._state.now)
        self._add(charge.leaf, amount - charge.amount)
        charge.amount = amount

    def _await_due(self, charge: Charge) -> None:
        """Set the time when a running task will have run for as long as it is charged."""
        heapq.heappush(self._dues, (self._due_of(charge), charge.task.task_id))

    def _due_of(self, charge: Charge) -> float:
        run_since = charge.task.live_attempt.run_since
        return (self._state.now if run_since is None else run_since) + charge.seconds

    def _settle(self, task: Task, attempt: Attempt) -> None:
        """Replace the charge of an attempt by its true use: from its start to its end."""
        charge = self._charges.pop(task.task_id, None)
        if charge is None:
            return
        self._add(charge.leaf, -charge.amount)
        if attempt.started is not None and attempt.ended is not None:
            seconds = attempt.ended - attempt.started
            if seconds > 0:
                used = task.job.cpus * seconds * charge.benchmark
                self._record(charge.leaf, used, attempt.ended)

    # Time

    def pass_time(self, now: float, clock_step: float) -> None:
        """Double the charges of tasks that have run for longer; start a new epoch if it is old.

        `clock_step`: seconds by which the clock was set. They add no decay and no running time.
        """
        if clock_step:
            self._adjust_clock(clock_step)
        if now - self._epoch > MAX_DOUBLINGS * self._settings.half_life:
            self._build_tree()
        while self._dues and self._dues[0][0] <= now:
            _, task_id = heapq.heappop(self._dues)
            charge = self._charges.get(task_id)
            if charge is None or charge.task.state not in STARTED:
                continue
            due = self._due_of(charge)
            if due <= now:  # the task may be another attempt by now
                charge.seconds = 2 * max(charge.seconds, now - due + charge.seconds, MIN_CHARGE)
                self._set_amount(charge)
            self._await_due(charge)

    def _adjust_clock(self, step: float) -> None:
        for key, use in self.uses.items():
            self.uses[key] = self._state.outcome.share_uses[key] = ShareUse(
                account=use.account, user=use.user, used=use.used, as_of=use.as_of + step
            )
        self._epoch += step
        self._dues = [(due + step, task_id) for due, task_id in self._dues]
        heapq.heapify(self._dues)  # rounding may have made times equal

    # Queries

    def rank_of(self, job: Job) -> ShareRank:
        """Return the rank of a job's user in the account that it charges; the lowest goes first."""
        return _rank(self._leaf_of(job))

    def standings(self) -> Standings:
        """Return a copy of where all accounts and users stand. Empty without configuration.

        It has all accounts, and all users that the tree names or that have used anything.
        """
        leaves = [
            StandingLeaf(leaf.account, str(leaf.user), leaf.weight, leaf.use)
            for leaf in self._leaves.values()
        ]
        accounts = []
        for name, account in self._accounts.items():
            for user, weight in account.users.items():
                if (name, user) not in self._leaves:
                    leaves.append(StandingLeaf(name, user, weight, 0.0))
            if name != ROOT:
                use = self._node(name).use
                accounts.append(StandingAccount(name, account.parent, account.weight, use))
        in_epoch = self._in_epoch(1.0, self._state.now) if self.enabled else 1.0
        return Standings(accounts, leaves, in_epoch)

    def standing_of(self, job: Job) -> Standing | None:
        """Return where the user of a job stands in the account that it charges."""
        if not self.enabled:
            return None
        leaf = self._leaf_of(job)
        return self.standings().find(leaf.account, str(leaf.user))


def _rank(leaf: Node) -> ShareRank:
    return tuple([node.use / node.weight for node in leaf.path])
