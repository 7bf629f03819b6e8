"""The tree of shares of slurmdbd, as `sacctmgr` lists it. Pure.

`sshare` prints the same shares, but only with priority/multifactor, and without the parents.
"""

from __future__ import annotations

from typing import NamedTuple

from metasched.adapters.slurm.records import parse_int
from metasched.model.fair_share import MIN_WEIGHT, ROOT, ShareAccount, ShareTree
from metasched.model.foreign_use import is_name

SHARE_FIELDS = ("account", "parentname", "user", "partition", "share")  # of sacctmgr
_MAX_LINES = 20_000
_ROOT_ACCOUNT = "root"  # of every cluster
_FROM_PARENT = "parent"  # in place of a share
_COMPLETE_FOR = (_ROOT_ACCOUNT, "root")  # account and user; hidden with PrivateData=users


class _Line(NamedTuple):
    """An association: an account, or a user with an account."""

    account: str
    parent: str
    user: str  # "": the account itself
    partition: str  # "": all partitions
    share: str


def parse_shares(output: str) -> ShareTree:
    """Return the tree of `sacctmgr --parsable2` with SHARE_FIELDS. Raises ValueError.

    An account whose share is `parent` passes its users and accounts to the account above, as in
    Slurm. A user whose share is `parent` has the weight 1. Slurm's share 0 is the least weight.
    """
    lines = [_parse_line(line) for line in output.splitlines()]
    if len(lines) > _MAX_LINES:
        raise ValueError(f"{len(lines)} associations, more than {_MAX_LINES}")
    if _COMPLETE_FOR not in {(line.account, line.user) for line in lines}:
        raise ValueError("the list is incomplete: PrivateData of slurmdbd hides users")
    parents = {line.account: line.parent for line in lines if not line.user}
    passing = {line.account for line in lines if not line.user and line.share == _FROM_PARENT}

    def counted_below(account: str) -> str:
        """Return the nearest account, from this account upwards, that has a share of its own."""
        for _ in range(len(parents) + 1):
            if account == _ROOT_ACCOUNT:
                return ROOT
            if account not in passing:
                return account
            account = parents[account]  # of an account that is passing, so it is there
        raise ValueError(f'accounts in a cycle at "{account}"')

    for account in passing:  # also where nothing is below it
        if counted_below(account) not in (ROOT, *parents):
            raise ValueError(f'no account above "{account}"')
    users: dict[str, dict[str, float]] = {ROOT: {}}
    of_partition: set[tuple[str, str]] = set()
    for line in lines:
        if line.user and line.account in parents:
            shares = users.setdefault(counted_below(line.account), {})
            if line.user not in shares or (line.account, line.user) in of_partition:
                shares[line.user] = _weight(line.share)
            if line.partition:
                of_partition.add((line.account, line.user))
            else:
                of_partition.discard((line.account, line.user))
    return ShareTree(
        accounts=tuple(
            ShareAccount(
                name=line.account,
                parent=counted_below(line.parent),
                weight=_weight(line.share),
                users=users.get(line.account, {}),
            )
            for line in lines
            if not line.user and line.account != _ROOT_ACCOUNT and line.account not in passing
        ),
        users=users[ROOT],
    )


def _parse_line(text: str) -> _Line:
    fields = text.split("|")
    if len(fields) != len(SHARE_FIELDS):
        raise ValueError(f"{len(fields)} fields in {text[:100]!r}")
    line = _Line(*fields)
    if not is_name(line.account) or (line.user and not is_name(line.user)):
        raise ValueError(f"no name of an account or user in {text[:100]!r}")
    return line


def _weight(share: str) -> float:
    return 1.0 if share == _FROM_PARENT else max(float(parse_int(share)), MIN_WEIGHT)
