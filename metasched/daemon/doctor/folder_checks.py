"""Files and folders: owner, mode, filesystem, free space."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from metasched.config.reading import scheduled_policy_mistakes
from metasched.config.settings import Settings
from metasched.daemon.doctor.findings import Finding, found, from_error, passed
from metasched.db.backends import database_at
from metasched.db.sqlite import NETWORK_FILESYSTEMS, Sqlite, filesystem_type, nearest_existing

MIN_FREE_BYTES = 256 * 1024 * 1024
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def check_config_file(settings: Settings) -> Iterator[Finding]:
    """Whoever can write the file decides which programs the daemon runs."""
    path, count = settings.config_path, len(settings.clusters)
    clusters = f"{count} cluster{'' if count == 1 else 's'}"
    if path is None:
        yield found("config-none", "configuration", f"none: the defaults, {clusters}")
        return
    yield passed("configuration", f"{path}, {clusters}")
    mode = path.stat().st_mode
    if mode & stat.S_IWOTH or (settings.site is not None and mode & stat.S_IWGRP):
        text = f"{path} has mode {stat.S_IMODE(mode):o}: other accounts can write it"
        yield found("config-writable", "configuration file", text, f"chmod go-w {path}")


def check_scheduled_policies(settings: Settings) -> Iterator[Finding]:
    """Check the policy files that the calendar will put in force."""
    for mistake in scheduled_policy_mistakes(settings):
        yield from_error("calendar-policy", "policy of the calendar", str(mistake))


def check_state_folder(settings: Settings) -> Iterator[Finding]:
    """Check the folder of the clusters' state, which exists once the daemon has run."""
    folder = settings.state_folder
    try:
        status = folder.stat()
    except FileNotFoundError:
        yield passed("state folder", f"{folder} will be created by the daemon")
        return
    except (PermissionError, NotADirectoryError):
        yield _unreadable("state folder", folder)
        return
    account = _name_of(status.st_uid)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield _unreadable("state folder", folder, account)
    elif status.st_uid != os.geteuid() != 0:
        text = f"{folder} belongs to {account}"
        yield found("folder-owner", "state folder", text, f"chown -R {_own_name()} {folder}")
    elif status.st_mode & _WRITABLE_BY_OTHERS:
        text = f"{folder} has mode {stat.S_IMODE(status.st_mode):o}"
        yield found("folder-writable", "state folder", text, f"chmod go-w {folder}")
    else:
        yield passed("state folder", f"{folder}, {filesystem_type(folder.resolve())}")


def check_socket_folder(settings: Settings) -> Iterator[Finding]:
    """Check that the daemon can create its socket; a folder below /run is gone after a reboot."""
    folder = settings.socket.parent
    existing = nearest_existing(folder)
    if os.access(existing, os.W_OK | os.X_OK):
        yield passed("socket", str(settings.socket))
    elif existing != folder:
        text = f"no folder {folder}, and {_own_name()} cannot create it"
        yield found("socket-folder-missing", "socket", text, socket_folder_remedy(folder))
    elif settings.socket.is_socket() and os.geteuid() != settings.socket.stat().st_uid:
        yield passed("socket", f"{settings.socket}, of {_name_of(settings.socket.stat().st_uid)}")
    else:
        yield _unreadable("socket", folder, _name_of(folder.stat().st_uid))


def socket_folder_remedy(folder: Path) -> str:
    """Return how to create the folder of the socket, at each boot if it is below /run."""
    create = f"install -d -o {_own_name()} -m 755 {folder}"
    if not folder.is_relative_to("/run"):
        return create
    unit = f"write RuntimeDirectory={folder.relative_to('/run')} into the daemon's unit"
    return f"{create}; it is gone after a reboot: {unit}"


def check_disk(settings: Settings, before_start: bool = False) -> Iterator[Finding]:
    """Check type and free space of the filesystem of SQLite's folder.

    `before_start`: the folder need not exist yet.
    """
    database = database_at(settings.database_url)
    if not isinstance(database, Sqlite):
        return
    folder = database.path.parent
    if before_start:
        folder = nearest_existing(folder)
    if not folder.is_dir():
        yield found("folder-missing", "filesystem", f"no folder {folder}", "start the daemon once")
        return
    fs_type, free = filesystem_type(folder.resolve()), shutil.disk_usage(folder).free
    text = f"{folder} is on {fs_type or 'an unknown filesystem'}, {free >> 20} MiB free"
    if fs_type in NETWORK_FILESYSTEMS:
        yield found("filesystem-network", "filesystem", text)
    elif free < MIN_FREE_BYTES:
        yield found("filesystem-full", "filesystem", text, "make room, or `metasched db prune`")
    else:
        yield passed("filesystem", text)


def _unreadable(check: str, path: Path, account: str = "") -> Finding:
    text = f"{path} cannot be used by {_own_name()}"
    if not account:
        return found("folder-unreadable", check, text)
    fix = f"sudo -u {account} metasched doctor, or correct the mode of {path}"
    return found("folder-unreadable", check, f"{text}: it belongs to {account}", fix)


def _own_name() -> str:
    return _name_of(os.geteuid())


def _name_of(uid: int) -> str:
    """Return the name of an account, else its number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
