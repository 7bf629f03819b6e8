"""Ordinary accounts for tests with several users; they are created once and kept."""

from __future__ import annotations

import pwd
import subprocess
import sys
from typing import Any

import pytest

KEEPER = "metasched-test-d"  # the daemon's
A, B = "metasched-test-a", "metasched-test-b"
OPERATOR = "metasched-test-o"  # by its group, which has the same name
DENIED, DENIED_GROUP = "metasched-test-p", "metasched-test-denied"  # see `make_denied`


def make(*names: str) -> None:
    """Create missing accounts. Skip the test if the first account cannot run this interpreter."""
    if (reason := cannot_read_checkout(*names)) is not None:
        pytest.skip(reason)


def cannot_read_checkout(*names: str) -> str | None:
    """Create missing accounts. Return why the first cannot run this interpreter, or None."""
    for name in names:
        try:
            pwd.getpwnam(name)
        except KeyError:
            subprocess.run(["useradd", "--shell", "/bin/sh", name], check=True)
    completed = subprocess.run(
        [sys.executable, "-c", "import metasched"],
        **as_(names[0]),
        capture_output=True,
        check=False,
    )
    if completed.returncode == 0:
        return None
    return f"{names[0]} cannot run {sys.executable}: {completed.stderr.decode()[-200:]}"


def make_denied() -> None:
    """Create the account whose only further group is `DENIED_GROUP`, for use in `deny_groups`.

    No test puts an account into a group that could make it root, such as docker.
    """
    make(DENIED)
    subprocess.run(["groupadd", "--force", "--system", DENIED_GROUP], check=True)
    subprocess.run(["usermod", "--groups", DENIED_GROUP, DENIED], check=True)


def as_(name: str) -> dict[str, Any]:
    """Return the `subprocess` arguments that run a process as that account and its own group."""
    account = pwd.getpwnam(name)
    return {
        "user": account.pw_uid,
        "group": account.pw_gid,
        "extra_groups": [account.pw_gid],
        "cwd": "/",
    }


def become(name: str) -> tuple[str, ...]:
    """Return the command prefix that runs a command as that account."""
    return "setpriv", f"--reuid={name}", f"--regid={name}", "--init-groups", "--inh-caps=-all"
