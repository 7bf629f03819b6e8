"""The policy in force: the site's own file, or a policy that was activated since.

The last act counts. An activated or undone policy stays in force over restarts until the contents
of the site's file change. Then the file is in force, as the next version. So neither
replaces the other without an act, and each act is a version with its author.

The newest version in the ledger is in force. It is stored in the transaction of `DaemonStarted`,
the event from which on it decides. So a crash leaves either the former version in force, or this
version.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from metasched.config.policy_file import parse_policy
from metasched.config.reading import with_policy
from metasched.config.settings import ConfigError, Settings
from metasched.model.audit import MAX_CAUSE_LENGTH, one_line
from metasched.model.policy_version import DEFAULTS, PolicyChange, PolicyVersion

log = logging.getLogger("metasched")


def with_policy_in_force(
    settings: Settings, newest: PolicyVersion | None, by: str = ""
) -> Settings:
    """Return settings with the policy in force, and its version, which may be new.

    `newest` is the newest version of the ledger, `by` who had the files read; "": the owner of the
    policy file. ConfigError if the configuration does not go with the policy in force.
    """
    origin = settings.policy_origin
    if newest is None or newest.site_digest != origin.digest:
        return _with_policy_of_file(settings, newest, by)
    policy = parse_policy(newest.text, f"policy version {newest.number}")
    try:
        settings = with_policy(settings, policy)
    except ConfigError as error:
        if newest.change is PolicyChange.FILE:
            raise
        raise ConfigError(
            f"{error} (policy version {newest.number} is in force: {newest.describe_fully()})"
        ) from None
    return replace(settings, policy_version=newest)


def settle_policy(settings: Settings, newest: PolicyVersion | None) -> Settings:
    """Return settings with the policy in force at a start, which no policy may prevent.

    A version that cannot be used any more gives way to the site's file, as a new version.
    """
    try:
        settled = with_policy_in_force(settings, newest)
    except ConfigError as error:
        assert newest is not None
        log.error("policy version %d cannot be used: %s", newest.number, error)
        reason = f"version {newest.number} cannot be used: {error}"
        return _with_policy_of_file(settings, newest, reason=reason)
    version = settled.policy_version
    assert version is not None
    if newest is not None and version is not newest and newest.change is not PolicyChange.FILE:
        log.warning(
            "the policy file has changed: it replaces version %d (%s)",
            *(newest.number, newest.describe_fully()),
        )
    elif version.change is not PolicyChange.FILE:
        log.info(
            "policy version %d is in force (%s), in place of %s",
            *(version.number, version.describe_fully()),
            settings.policy_origin.path or DEFAULTS,
        )
    return settled


def policy_cause(version: PolicyVersion | None) -> str:
    """Return how a version came into force, for the record; "": the file was read, as usual."""
    if version is None or (version.change is PolicyChange.FILE and not version.reason):
        return ""
    return version.describe()


def _with_policy_of_file(
    settings: Settings, newest: PolicyVersion | None, by: str = "", reason: str = ""
) -> Settings:
    origin = settings.policy_origin
    version = PolicyVersion(
        number=1 if newest is None else newest.number + 1,
        time=time.time(),
        change=PolicyChange.FILE,
        by=by or origin.owner,
        reason=one_line(reason, MAX_CAUSE_LENGTH),
        file=origin.path,
        text=origin.text,
        site_digest=origin.digest,
        previous=None if newest is None else newest.number,
    )
    policy = parse_policy(origin.text, origin.path)
    return replace(with_policy(settings, policy), policy_version=version)
