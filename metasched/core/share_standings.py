"""Shares, use and places of accounts and users, from a copy of the tree. Pure.

The copy is read in any thread: the scheduler thread only makes it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from metasched.model.fair_share import ROOT

ShareRank = tuple[float, ...]  # use per weight of each node from below the root to a leaf


@dataclass(frozen=True)
class Standing:
    """An account or user of the tree at a time."""

    account: str  # name of the account; of a user: where he is a leaf; "": the root
    user: str | None  # None: the account itself
    parent: str | None  # of an account; "": the root; None: a user
    weight: float  # among the children of the same node
    share: float  # of all processors that it is entitled to, 0..1
    used: float  # processor-seconds x benchmark, decayed, with what live tasks are charged
    used_share: float  # part of all such use, 0..1
    place: int | None  # of a user among all users in the tree, 1: goes first; None: an account


class StandingAccount(NamedTuple):
    """A copy of an account."""

    name: str
    parent: str
    weight: float
    use: float


class StandingLeaf(NamedTuple):
    """A copy of a user in an account."""

    account: str
    user: str
    weight: float
    use: float


class Standings:
    """Where all accounts and users stand."""

    def __init__(
        self,
        accounts: Sequence[StandingAccount],
        leaves: Sequence[StandingLeaf],
        unit: float,
    ) -> None:
        """`accounts` besides the root, in the order of the tree; `unit`: a processor-second."""
        self._accounts, self._leaves, self._unit = accounts, leaves, unit

    def __iter__(self) -> Iterator[Standing]:
        """Yield all accounts, then all users in the order of their turns."""
        for account in self._accounts:
            yield self._of_account(account)
        for rank, leaf in enumerate(sorted(self._leaves, key=self._turn_of), 1):
            yield self._of_leaf(leaf, rank)

    def of_user(self, user: str) -> Iterator[Standing]:
        """Yield the accounts above a user, in the order of the tree, then where he stands."""
        own = sorted((leaf for leaf in self._leaves if leaf.user == user), key=self._turn_of)
        above = {name for leaf in own for name in self._paths[leaf.account]}
        for account in self._accounts:
            if account.name in above:
                yield self._of_account(account)
        for leaf in own:
            yield self._of_leaf(leaf, self._place_of(leaf))

    def find(self, account: str, user: str) -> Standing:
        """Return where a user stands in an account; the caller knows that he does."""
        leaf = next(leaf for leaf in self._leaves if (leaf.account, leaf.user) == (account, user))
        return self._of_leaf(leaf, self._place_of(leaf))

    def _of_account(self, account: StandingAccount) -> Standing:
        return Standing(
            account=account.name,
            user=None,
            parent=account.parent,
            weight=account.weight,
            share=self._shares[account.name],
            used=account.use / self._unit,
            used_share=self._part_of_all(account.use),
            place=None,
        )

    def _of_leaf(self, leaf: StandingLeaf, rank: int) -> Standing:
        return Standing(
            account=leaf.account,
            user=leaf.user,
            parent=None,
            weight=leaf.weight,
            share=self._shares[leaf.account] * leaf.weight / self._weights_below[leaf.account],
            used=leaf.use / self._unit,
            used_share=self._part_of_all(leaf.use),
            place=rank,
        )

    def _part_of_all(self, use: float) -> float:
        return use / self._total if self._total else 0.0

    def _turn_of(self, leaf: StandingLeaf) -> tuple[ShareRank, str, str]:
        """Return the order of users: that of `FairShare.rank_of`, then of names."""
        above = (self._by_name[name] for name in self._paths[leaf.account])
        uses = [account.use / account.weight for account in above]
        return (*uses, leaf.use / leaf.weight), leaf.account, leaf.user

    def _place_of(self, leaf: StandingLeaf) -> int:
        turn = self._turn_of(leaf)
        return 1 + sum(self._turn_of(other) < turn for other in self._leaves)

    @cached_property
    def _by_name(self) -> dict[str, StandingAccount]:
        return {account.name: account for account in self._accounts}

    @cached_property
    def _paths(self) -> dict[str, tuple[str, ...]]:
        """Names of the accounts from below the root to an account, by its name."""
        paths: dict[str, tuple[str, ...]] = {ROOT: ()}
        for account in self._accounts:
            pending = []
            name = account.name
            while name not in paths:
                pending.append(name)
                name = self._by_name[name].parent
            path = paths[name]
            for below in reversed(pending):
                path = paths[below] = (*path, below)
        return paths

    @cached_property
    def _weights_below(self) -> dict[str, float]:
        """Sum of the weights of all accounts and users right below an account, by its name."""
        weights: defaultdict[str, list[float]] = defaultdict(list)
        for account in self._accounts:
            weights[account.parent].append(account.weight)
        for leaf in self._leaves:
            weights[leaf.account].append(leaf.weight)
        return {name: math.fsum(below) for name, below in weights.items()}

    @cached_property
    def _shares(self) -> dict[str, float]:
        """Part of all processors that an account is entitled to, by its name."""
        shares = {ROOT: 1.0}
        for name in sorted(self._by_name, key=lambda name: len(self._paths[name])):
            account = self._by_name[name]
            part = account.weight / self._weights_below[account.parent]
            shares[name] = shares[account.parent] * part
        return shares

    @cached_property
    def _total(self) -> float:
        """All use."""
        uses = [account.use for account in self._accounts if account.parent == ROOT]
        uses += [leaf.use for leaf in self._leaves if leaf.account == ROOT]
        return math.fsum(uses)
