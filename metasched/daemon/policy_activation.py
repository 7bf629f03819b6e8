"""Puts another policy in force: of an operator or the calendar, or the previous policy.

The service is replaced as by a reload (`daemon.reload`). Two operators at once are served in turn,
and the second is refused if he named the version that he looked at.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

from metasched.config.policy_file import parse_policy
from metasched.config.reading import with_policy
from metasched.config.settings import Settings
from metasched.daemon.reload import make_replaceable, running_service
from metasched.daemon.service import Daemon, ReloadRefused
from metasched.model.policy_version import PolicyChange, PolicyVersion, text_digest

log = logging.getLogger("metasched")


async def activate(
    daemon: Daemon, text: str, file: str, reason: str, by: str, expected: int | None
) -> PolicyVersion:
    """Put the policy of a text in force; `file` is where its author has it.

    `expected` is the version in force that the author has seen; None: any. Return the version in
    force: the present version, if it has the same text. ConfigError for a mistake in it,
    ReloadRefused if it cannot be put in force now; then nothing has changed.
    """
    async with daemon.reload_lock:
        current = _expected_version(daemon, expected)
        if text_digest(text) == current.digest:
            return current
        version = PolicyVersion(
            number=current.number + 1,
            time=time.time(),
            change=PolicyChange.ACTIVATED,
            by=by,
            reason=reason,
            file=file,
            text=text,
            site_digest=daemon.settings.policy_origin.digest,
            previous=current.number,
        )
        await _put_in_force(daemon, version)
        return version


async def activate_scheduled(daemon: Daemon, text: str, file: str, reason: str) -> PolicyVersion:
    """Put the policy of a text in force for the calendar, whichever is in force. As `activate`."""
    return await activate(daemon, text, file, reason, by="", expected=None)


async def undo(daemon: Daemon, reason: str, by: str, expected: int | None) -> PolicyVersion:
    """Put the previous policy in force again, as a new version; return that version.

    Repeated, it goes back further. ReloadRefused if there is none, else as `activate`.
    """
    async with daemon.reload_lock:
        current = _expected_version(daemon, expected)
        if current.previous is None:
            raise ReloadRefused(
                f"there is no policy before version {current.number}; see `metasched policy "
                "history`, and activate a file"
            )
        before = await asyncio.to_thread(daemon.ledger.policy_version, current.previous)
        if before is None:
            raise ReloadRefused(
                f"version {current.previous} is no longer stored, nothing is undone; "
                "activate a file"
            )
        version = replace(
            before,
            number=current.number + 1,
            time=time.time(),
            change=PolicyChange.UNDONE,
            by=by,
            reason=reason,
            site_digest=daemon.settings.policy_origin.digest,
            copy_of=before.number,
        )
        await _put_in_force(daemon, version)
        return version


def _expected_version(daemon: Daemon, expected: int | None) -> PolicyVersion:
    """Return the version in force. ReloadRefused if it is another than expected."""
    running_service(daemon)
    current = daemon.settings.policy_version
    assert current is not None  # a service runs
    if expected is not None and current.number != expected:
        raise ReloadRefused(
            f"policy version {current.number} is in force, not {expected} "
            f"({current.describe_fully()}); compare it by `metasched policy diff live FILE`, "
            "and repeat"
        )
    return current


async def _put_in_force(daemon: Daemon, version: PolicyVersion) -> None:
    settings = await asyncio.to_thread(_settings_with, daemon.settings, version)
    service = running_service(daemon)
    await make_replaceable(service, settings)
    del service  # else its state would stay in memory beside that of the next
    await daemon.replace_service(settings, version.by, ())
    log.info("policy version %d: %s", version.number, version.describe_fully())


def _settings_with(settings: Settings, version: PolicyVersion) -> Settings:
    """Return settings with a version of the policy. ConfigError for a mistake in it."""
    policy = parse_policy(version.text, version.file)
    return replace(with_policy(settings, policy), policy_version=version)
