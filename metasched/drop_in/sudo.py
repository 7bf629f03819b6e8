"""Under sudo: what the calling account may change names no program, configuration or daemon.

`sudo -E` keeps its variables. The answers of a daemon name programs, and a configuration of Slurm
names plug-ins: both would run as root, or as an operator.
"""

from __future__ import annotations

import os
import stat

from metasched.errors import UserError
from metasched.paths import SITE_CONFIG, is_url

_PLACES = ("SLURM_CONF", "METASCHED_SLURM_CONF", "METASCHED_DROP_IN")


def calling_uid() -> int | None:
    """Return the uid of the account that called sudo; None without sudo, or if it is this one."""
    uid = os.environ.get("SUDO_UID", "")
    if not (uid.isascii() and uid.isdecimal()) or int(uid) == os.geteuid():
        return None
    return int(uid)


def may_be_changed(path: str) -> bool:
    """Whether the account that called sudo may change what a path names; False without sudo."""
    uid = calling_uid()
    if uid in (None, 0):
        return False
    # links may be changed, too
    return any(_has_own_part(name, uid) for name in (os.path.abspath(path), os.path.realpath(path)))


def _has_own_part(path: str, uid: int | None) -> bool:
    while True:
        try:
            status = os.lstat(path)
        except OSError:  # what is not there may be created by whoever may change its folder
            pass
        else:
            open_to_all = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
            if status.st_uid == uid or (open_to_all and not stat.S_ISLNK(status.st_mode)):
                return True
        folder = os.path.dirname(path)
        if folder == path:
            return False
        path = folder


def check_environment() -> None:
    """Raise UserError if a variable names a file that the account that called sudo may change."""
    if calling_uid() in (None, 0):
        return
    for name in _PLACES:
        path = os.environ.get(name, "")
        if path and may_be_changed(path):
            raise UserError(f"{name} is {path}, which {_caller()} may change; unset it under sudo")


def check_daemon(address: str) -> None:
    """Raise UserError if the account that called sudo may have named this daemon, or runs it."""
    if calling_uid() in (None, 0):
        return
    if is_url(address):
        from metasched.client.address import configured_address

        named_by_site = os.path.exists(SITE_CONFIG) and configured_address(SITE_CONFIG) == address
        problem = "" if named_by_site else f"daemon {address} is not that of {SITE_CONFIG}"
    else:
        problem = f"socket {address} is in a place that {_caller()} may change"
        problem = problem if may_be_changed(address) else ""
    if problem:
        raise UserError(f"{problem}; use sudo without -E")


def _caller() -> str:
    return os.environ.get("SUDO_USER") or f"account {calling_uid()}"
