"""Has systemd take over the files that were written: accounts, folders, units."""

from __future__ import annotations

import contextlib
import grp
import pwd
import subprocess
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from metasched.launcher import SiteFault, require_root_owned
from metasched.site_setup.choices import SiteChoices, SiteSetupError
from metasched.site_setup.configuration import programs
from metasched.site_setup.site_files import SYSUSERS, TMPFILES

TIMEOUT = 60.0  # seconds for a program of systemd


def require_root_files(choices: SiteChoices) -> list[str]:
    """Return why clusters cannot be served: others than root can change a file there.

    These are the programs of a manager and the files that its programs obey. Those files may belong
    to the manager's own account, which starts the jobs of every user anyway.

    SiteSetupError if metasched itself can be changed by others.
    """
    for path in (
        choices.python,
        f"{choices.package}/launcher.py",
        f"{choices.package}/adapters/supervisor.py",
        f"{choices.prefix}/bin/metasched",
    ):
        if (reason := _not_roots(path)) is not None:
            raise SiteSetupError(
                f"{reason}; install metasched as root, for instance to /opt/metasched"
            )
    problems = []
    for cluster in choices.clusters:
        reasons = [_not_roots(command[0]) for command in programs(cluster).values()]
        owners = {0, *_uids(cluster.manager_accounts)}
        reasons += [_not_roots(path, owners) for path in cluster.obeyed_files]
        if reason := next((reason for reason in reasons if reason), None):
            problems.append(f"cluster {cluster.name}: {reason}")
    return problems


def _uids(accounts: Iterable[str]) -> Iterator[int]:
    """Yield the user ids of the accounts that this host has."""
    for account in accounts:
        with contextlib.suppress(KeyError):
            yield pwd.getpwnam(account).pw_uid


def _not_roots(path: str, owners: Collection[int] = (0,)) -> str | None:
    try:
        require_root_owned(path, owners=owners)
    except SiteFault as fault:
        return str(fault).partition(";")[0]
    return None


def group_of(account: str) -> str:
    """Return the group of an account, by number if it has another name; its own if it is new."""
    try:
        group_id = pwd.getpwnam(account).pw_gid
        return account if grp.getgrgid(group_id).gr_name == account else str(group_id)
    except KeyError:
        return account


def create_account(account: str) -> bool:
    """Create the account, unless it exists; return whether it was created."""
    if _exists(account):
        return False
    _run("systemd-sysusers", f"/{SYSUSERS}")
    if not _exists(account):
        raise SiteSetupError(f"no account {account} after systemd-sysusers; create it by useradd")
    return True


def _exists(account: str) -> bool:
    try:
        entry = pwd.getpwnam(account)
    except KeyError:
        return False
    if entry.pw_uid == 0:
        raise SiteSetupError(f"account {account} is root; name another with --account")
    return True


def create_folders() -> None:
    """Create the folders of daemon and launcher, and correct their owners and modes."""
    _run("systemd-tmpfiles", "--create", f"/{TMPFILES}")


def reload_units() -> None:
    """Have systemd read the units, if it runs."""
    if Path("/run/systemd/system").is_dir():
        _run("systemctl", "daemon-reload")


def check_launcher(choices: SiteChoices) -> str | None:
    """Return the launcher's error for its configuration; None if it is right."""
    command = [choices.python, "-I", "-S", f"{choices.package}/launcher.py"]
    checked = subprocess.run(
        [*command, "--config", "/etc/metasched/launcher.toml", "--check"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if checked.returncode == 0:
        return None
    return checked.stderr.strip().removeprefix("metasched: error: ")


def _run(*command: str) -> None:
    """Run a program of systemd. SiteSetupError if it is missing or fails."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    try:
        completed = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
    except FileNotFoundError:
        raise SiteSetupError(
            f"no {command[0]} on this host; install systemd, or follow docs/admin/site-mode.md"
        ) from None
    except subprocess.TimeoutExpired:
        raise SiteSetupError(
            f"{command[0]} did not end in {TIMEOUT:g} s; run it yourself"
        ) from None
    if completed.returncode != 0:
        lines = completed.stderr.strip().splitlines() or ["no message"]
        raise SiteSetupError(f"{' '.join(command)}: {lines[-1]}; correct that, then run this again")
