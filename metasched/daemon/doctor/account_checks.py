"""Users and groups that the configuration names."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Iterable, Iterator

from metasched.config.settings import Settings
from metasched.daemon.doctor.findings import Finding, found, passed
from metasched.db.backends import database_at
from metasched.db.sqlite import Sqlite


def check_accounts(settings: Settings) -> Iterator[Finding]:
    """Look up each user and group of the file: a misspelt name would never match."""
    users, groups = _named_users(settings), _named_groups(settings)
    unknown = 0
    for kind, id, names, look_up in (
        ("user", "user-unknown", users, pwd.getpwnam),
        ("group", "group-unknown", groups, grp.getgrnam),
    ):
        for name, source in sorted(names.items()):
            if not _is_known(look_up, name):
                unknown += 1
                text = f"no {kind} {name}, {source}"
                fix = f"`getent {'passwd' if kind == 'user' else kind} {name}`; correct the name"
                yield found(id, f"{kind} {name}", text, fix)
    if (users or groups) and not unknown:
        yield passed("accounts", f"{len(users)} users, {len(groups)} groups of the file exist")


def check_own_account(settings: Settings) -> Iterator[Finding]:
    """Note that findings are those of another account than the daemon's."""
    database = database_at(settings.database_url)
    if settings.site is None or not isinstance(database, Sqlite):
        return
    try:
        owner = pwd.getpwuid(database.path.stat().st_uid)
    except (OSError, KeyError):
        return
    if owner.pw_uid != os.geteuid():
        text = f"the daemon is {owner.pw_name}; permissions are checked for {os.geteuid()}"
        fix = f"sudo -u {owner.pw_name} metasched doctor"
        yield found("account-differs", "account", text, fix)


def _is_known(look_up: Callable[[str], object], name: str) -> bool:
    try:
        look_up(name)
    except KeyError:
        return False
    return True


def _named_users(settings: Settings) -> dict[str, str]:
    """Return the users that the file names, each with a table."""
    named: list[tuple[str, Iterable[str]]] = [
        ("[limits.users]", settings.limits.users),
        *((f'user_class "{name}"', users) for name, (users, _) in settings.user_classes.items()),
    ]
    if settings.site is not None:
        named.append(("[site] operators", settings.site.operators))
    if settings.probe_account:
        named.append(("[doctor]", [settings.probe_account]))
    return {name: source for source, names in named for name in names}


def _named_groups(settings: Settings) -> dict[str, str]:
    """Return the groups that the file names, each with a table."""
    named: list[tuple[str, Iterable[str]]] = [
        ("[limits.groups]", settings.limits.groups),
        *((f'user_class "{name}"', groups) for name, (_, groups) in settings.user_classes.items()),
    ]
    if settings.site is not None:
        named.append(("[site] operator_groups", settings.site.operator_groups))
    return {name: source for source, names in named for name in names}
