"""Fair share: the tree of shares, and use that accounting reports. Pure.

The tree has accounts as nodes and users as leaves. A user is a leaf of each account that he may
charge. Weights are relative to those of the other children of the same node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

DEFAULT_HALF_LIFE = 7 * 86400.0  # seconds
MIN_HALF_LIFE = 60.0  # seconds
MAX_WEIGHT = 1e9
MIN_WEIGHT = 1e-9
ROOT = ""  # name of the root, which is the account of users in no other account


class ShareAccount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An account of the tree."""

    name: str
    parent: str = ROOT  # account above it
    weight: float = 1.0  # among the children of its parent
    # weights of its users, among each other and the accounts below it
    users: Mapping[str, float] = msgspec.field(default_factory=dict)
    other_users: float | None = None  # weight of each other user; None: others may not charge it

    def admits(self, user: str) -> bool:
        """Return whether a user may charge it."""
        return user in self.users or self.other_users is not None


class ShareTree(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The shares of all accounts and users. Raises ValueError (problem; remedy) if it is none."""

    accounts: tuple[ShareAccount, ...] = ()
    users: Mapping[str, float] = msgspec.field(default_factory=dict)  # weights below the root
    default: float = 1.0  # weight below the root of each user whom no account admits

    def __post_init__(self) -> None:
        by_name: dict[str, ShareAccount] = {}
        for account in self.accounts:
            if not account.name:
                raise ValueError("an account without a name; name it")
            if account.name in by_name:
                raise ValueError(f'account "{account.name}" is there twice; rename one')
            by_name[account.name] = account
        _check_weights("", self.users.items(), ("default", self.default))
        for account in self.accounts:
            own = [("weight", account.weight)]
            if account.other_users is not None:
                own.append(("other_users", account.other_users))
            _check_weights(f' of account "{account.name}"', account.users.items(), *own)
            if account.parent != ROOT and account.parent not in by_name:
                raise ValueError(
                    f'account "{account.name}" has the parent "{account.parent}", which is no '
                    "account; add it, or correct the name"
                )
        _check_cycles(by_name)

    @property
    def root(self) -> ShareAccount:
        """The root as an account."""
        return ShareAccount(name=ROOT, users=self.users, other_users=self.default)


def _check_weights(
    owner: str, users: Iterable[tuple[str, float]], *keys: tuple[str, float]
) -> None:
    """Raise ValueError if some weight is not a number above 0."""
    for name, weight in (*((f'user "{user}"', weight) for user, weight in users), *keys):
        if not (math.isfinite(weight) and MIN_WEIGHT <= weight <= MAX_WEIGHT):
            raise ValueError(
                f"weight {weight:g}, {name}{owner}; write a number above 0, or remove it"
            )


def _check_cycles(accounts: Mapping[str, ShareAccount]) -> None:
    """Raise ValueError if some account is above itself."""
    below_root: set[str] = {ROOT}
    for name in accounts:
        path: list[str] = []
        above = name
        while above not in below_root:
            if above in path:
                cycle = [*path[path.index(above) :], above]
                raise ValueError(f"accounts in a cycle, {' below '.join(cycle)}; change a parent")
            path.append(above)
            above = accounts[above].parent
        below_root.update(path)


class FairShareSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the site shares processors."""

    half_life: float = DEFAULT_HALF_LIFE  # seconds after which use counts half
    tree: ShareTree = ShareTree()
    shares_from: str = ""  # cluster whose manager reports the tree; "": it is `tree`


class ForeignUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use by jobs that metasched did not send, as a manager's accounting reports it."""

    user: str
    account: str = ""  # the manager's name; "": none
    processor_seconds: float  # not scaled by the cluster's benchmark
    ended: float  # epoch seconds


class ShareUse(msgspec.Struct, frozen=True, kw_only=True):
    """Decayed use of a user in an account, as stored."""

    account: str  # "": the root
    user: str
    used: float  # processor-seconds x benchmark, decayed to `as_of`
    as_of: float  # epoch seconds


def decayed(used: float, seconds: float, half_life: float) -> float:
    """Return a use after some seconds of decay; time that runs backwards adds nothing."""
    return used * math.exp2(-seconds / half_life) if seconds > 0 else used
