"""Under sudo and doas: no path that others may change names a program, configuration or daemon.

`sudo -E` keeps the variables of the calling account. The answers of a daemon name programs, and a
configuration of Slurm names plug-ins: both would run as root, or as an operator. Which account has
set a variable is not known: each sudo of a chain names its own caller only. So any sudo counts.
"""

from __future__ import annotations

import os
import stat

from metasched.errors import UserError

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MUNGE_SOCKET = "METASCHED_MUNGE_SOCKET"
_CONFIG_SERVER = "SLURM_CONF_SERVER"  # host that sends real commands their configuration
_FILES = ("SLURM_CONF", "METASCHED_SLURM_CONF")
# OpenSSL and Python read these: trusted certificates, code of OpenSSL, and where to write the keys
_TLS_FILES = ("OPENSSL_CONF", "SSL_CERT_FILE", "SSLKEYLOGFILE")
_TLS_FOLDERS = ("OPENSSL_ENGINES", "OPENSSL_MODULES", "SSL_CERT_DIR")
_NOBODY = -1  # uid of an unknown account
_MAX_LINKS = 40  # that the kernel follows
_WITH_MODE = (stat.S_IFREG, stat.S_IFDIR)  # all may connect to a socket, links have no mode


def calling_uid() -> int | None:
    """Return the uid of the account that called sudo or doas last; None without them."""
    uid = os.environ.get("SUDO_UID", "")
    if uid.isascii() and uid.isdecimal():
        return int(uid)
    if name := os.environ.get("DOAS_USER"):
        import pwd

        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            return _NOBODY
    return None


def is_under_sudo() -> bool:
    """Return whether an account, which may have set variables, called sudo or doas."""
    return calling_uid() is not None


def may_be_changed(path: str, type: int = stat.S_IFREG, of_site: bool = False) -> bool:
    """Return whether others than root and this account may change a path's file or its links.

    False without sudo. As with StrictModes of sshd, each part of the path is judged by its owner
    and its mode. What does not exist, or is no file of `type`, may be changed. `of_site`: the
    site's configuration names the path, so that the daemon's account may own parts of it.
    """
    if not is_under_sudo():
        return False
    caller = calling_uid()
    owners = {0, os.geteuid()}
    try:
        is_common = False  # whether any account may have made the entries of the folder
        for status in _parts(path):
            # only root may have given a place in a folder of root to another account
            if of_site and status.st_uid not in (*owners, caller) and not is_common:
                owners.add(status.st_uid)
                of_site = False
            if status.st_uid not in owners:
                return True
            is_writable = bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
            is_common = is_writable and stat.S_ISDIR(status.st_mode)
            is_safe = is_common and status.st_mode & stat.S_ISVTX  # only owners remove names
            if is_writable and not is_safe and stat.S_IFMT(status.st_mode) in _WITH_MODE:
                return True
    except (OSError, ValueError):
        return True
    return is_common or stat.S_IFMT(status.st_mode) != type


def _parts(path: str) -> Iterator[os.stat_result]:
    """Yield the status of each folder and link on the way to a file, and of the file.

    OSError if there is no such file, or if a link lies in /proc: such a link leads elsewhere than
    its text says.
    """
    folder, links = "/", 0
    yield os.lstat(folder)
    whole = path if path[:1] == "/" else os.path.join(os.getcwd(), path)
    names = whole.split("/")[::-1]
    while names:
        name = names.pop()
        if name == "..":
            folder = os.path.dirname(folder)
            yield os.lstat(folder)
        if name in ("", ".", ".."):
            continue
        part = os.path.join(folder, name)
        status = os.lstat(part)
        yield status
        if not stat.S_ISLNK(status.st_mode):
            folder = part
            continue
        links += 1
        if links > _MAX_LINKS or status.st_dev == os.lstat("/proc").st_dev:
            raise OSError("a link that is not followed")
        target = os.readlink(part)
        names += target.split("/")[::-1]
        folder = "/" if target[:1] == "/" else folder
        yield os.lstat(folder)


def programs(name: str, folders: Sequence[str]) -> Iterator[str]:
    """Yield the absolute paths of a program in folders, but those that others may change."""
    for folder in folders:
        path = os.path.join(folder, name)
        is_program = folder[:1] == "/" and os.path.isfile(path) and os.access(path, os.X_OK)
        if is_program and not may_be_changed(path):
            yield path


def check_environment() -> None:
    """Raise UserError if a variable names a file that others may change, or a host."""
    types = {**dict.fromkeys(_FILES, stat.S_IFREG), "METASCHED_DROP_IN": stat.S_IFDIR}
    for name, type in types.items():
        _check_variable(name, type)
    munge_socket()
    if (host := os.environ.get(_CONFIG_SERVER)) and is_under_sudo():
        raise UserError(f"{_CONFIG_SERVER} is {host}, whoever has set it; unset it under sudo")


def check_config(path: str) -> None:
    """Raise UserError if a variable names a configuration of metasched that others may change."""
    if may_be_changed(path):
        problem = f"configuration {path} is in a place that others may change"
        raise UserError(f"{problem}; use sudo without -E, or name it by --config")


def check_tls() -> None:
    """Raise UserError if a TLS variable names a file that others may change; call before `ssl`."""
    for name in _TLS_FILES:
        _check_variable(name, stat.S_IFREG)
    for name in _TLS_FOLDERS:
        _check_variable(name, stat.S_IFDIR)


def munge_socket() -> str:
    """Return the socket of munged that a variable names; "" without it.

    UserError if others may change it.
    """
    return _check_variable(MUNGE_SOCKET, stat.S_IFSOCK)


def _check_variable(name: str, type: int) -> str:
    path = os.environ.get(name, "")
    if path and may_be_changed(path, type):
        raise UserError(f"{name} is {path}, which others may change; unset it under sudo")
    return path
