"""Accounts that share a reservation: users by name, and the members of groups."""

from __future__ import annotations

import grp
import pwd
import re
from collections.abc import Sequence

from metasched.errors import ApiError

MAX_USERS = 200  # of a reservation, besides its owner: managers have them in one command
# a manager reads them as a list, separated by commas
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,62}")


def accounts_of(
    owner: str, users: Sequence[str], groups: Sequence[str], *, ignore_unknown: bool = False
) -> tuple[str, ...]:
    """Return the accounts that share a reservation with its owner, sorted.

    The members of a group are those that the group database lists. ApiError for an unknown name;
    with `ignore_unknown` it is left out, since accounts may have been removed. Directory services
    may delay this: call it in a thread.
    """
    found: set[str] = set()
    for name in users:
        if _ACCOUNT.fullmatch(name) and _has_account(name):
            found.add(name)
        elif not ignore_unknown:
            raise ApiError(404, f"there is no account {name[:63]!r}; name another user")
    for name in groups:
        try:
            found.update(filter(_ACCOUNT.fullmatch, grp.getgrnam(name).gr_mem))
        except (KeyError, ValueError):
            if not ignore_unknown:
                raise ApiError(404, f"there is no group {name[:63]!r}; name another") from None
    found.discard(owner)
    if len(found) > MAX_USERS:
        problem = f"{len(found)} accounts would share it, at most {MAX_USERS} may"
        raise ApiError(403, f"{problem}; name fewer")
    return tuple(sorted(found))


def _has_account(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
