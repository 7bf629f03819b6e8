"""Accounts that share a reservation: users by name, and the members of groups.

A directory service may delay each name by seconds. So names are looked up in threads of their own,
for each owner in a single thread at a time.
"""

from __future__ import annotations

import asyncio
import grp
import pwd
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from metasched.errors import ApiError

MAX_USERS = 200  # of a reservation, besides its owner: managers take them in a single command
# a manager reads them as a list, separated by commas
ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,62}")
MAX_THREADS = 8
LOOK_UP_TIMEOUT = 20.0  # seconds

_threads = ThreadPoolExecutor(MAX_THREADS, "shared-with")
_running: dict[str, asyncio.Future[tuple[str, ...]]] = {}  # by owner


async def find_accounts(
    owner: str, users: Sequence[str], groups: Sequence[str], *, ignore_unknown: bool = False
) -> tuple[str, ...]:
    """Call `accounts_of` in a thread, after the call for this owner that is under way.

    ApiError, too, if that takes longer than `LOOK_UP_TIMEOUT`.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(LOOK_UP_TIMEOUT):
            while (running := _running.get(owner)) is not None:
                await asyncio.wait({running})
            call = partial(accounts_of, owner, users, groups, ignore_unknown=ignore_unknown)
            running = _running[owner] = loop.run_in_executor(_threads, call)
            running.add_done_callback(lambda _: _running.pop(owner))
            return await asyncio.shield(running)  # a thread cannot be cancelled
    except TimeoutError:
        problem = f"the accounts could not be looked up within {LOOK_UP_TIMEOUT:.0f} s"
        raise ApiError(503, f"{problem}; nothing changed, try again soon") from None


def accounts_of(
    owner: str, users: Sequence[str], groups: Sequence[str], *, ignore_unknown: bool = False
) -> tuple[str, ...]:
    """Return the accounts that share a reservation with its owner, sorted.

    The members of a group are those that the group database lists. ApiError for an unknown name;
    with `ignore_unknown` it is left out, since accounts may have been removed. Directory services
    may delay this: call it in a thread.
    """
    accounts: set[str] = set()
    for name in users:
        if ACCOUNT.fullmatch(name) and _has_account(name):
            accounts.add(name)
        elif not ignore_unknown:
            raise ApiError(404, f"there is no account {name[:63]!r}; name another user")
    for name in groups:
        try:
            accounts.update(filter(ACCOUNT.fullmatch, grp.getgrnam(name).gr_mem))
        except (KeyError, ValueError):
            if not ignore_unknown:
                raise ApiError(404, f"there is no group {name[:63]!r}; name another") from None
    accounts.discard(owner)
    if len(accounts) > MAX_USERS:
        problem = f"{len(accounts)} accounts would share it, at most {MAX_USERS} may"
        raise ApiError(403, f"{problem}; name fewer")
    return tuple(sorted(accounts))


def _has_account(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
