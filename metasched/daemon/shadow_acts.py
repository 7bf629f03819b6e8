"""Starts and stops a candidate policy beside the policy in force, for operators."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from metasched.daemon.reload import running_service
from metasched.daemon.service import Daemon, ReloadRefused
from metasched.daemon.shadow import candidate_policy
from metasched.model.audit import OPERATORS_ONLY, AuditKind, AuditRecord
from metasched.model.policy_version import text_digest
from metasched.model.shadow import Shadow
from metasched.policies.shadow import comparison_obstacle


async def start_shadow(daemon: Daemon, text: str, file: str, reason: str, by: str) -> Shadow:
    """Run the policy of a text beside the policy in force; `file` is where its author has it.

    The comparison of an earlier candidate is deleted. Return the candidate: the present candidate,
    if it has the same text. ConfigError for a mistake in it, ReloadRefused if another runs, or if
    it cannot be compared; then nothing has changed.
    """
    async with daemon.reload_lock:
        running_service(daemon)
        candidate = await asyncio.to_thread(candidate_policy, daemon.settings, text, file)
        service = running_service(daemon)
        current, version = service.shadow.shadow, daemon.settings.policy_version
        if current is not None:
            if current.digest == text_digest(text):
                return current
            raise ReloadRefused(
                f"another candidate runs, of {current.by} ({current.file}); look at it by "
                "`metasched policy shadow`, end it by --stop, and repeat"
            )
        if version is not None and version.digest == text_digest(text):
            raise ReloadRefused(
                f"this text is in force, as version {version.number}; there is nothing to compare"
            )
        if obstacle := comparison_obstacle(daemon.settings.policy, candidate):
            raise ReloadRefused(f"{obstacle}, {file}; compare it by `metasched policy try`")
        now = time.time()
        record = AuditRecord(
            time=now,
            kind=AuditKind.SHADOW_STARTED,
            actor=by,
            owner=OPERATORS_ONLY,
            cause=reason,
            details={"file": file, "digest": text_digest(text)},
        )
        shadow = Shadow(number=0, since=now, by=by, reason=reason, file=file, text=text)
        return service.start_shadow(shadow, record)


async def stop_shadow(daemon: Daemon, by: str) -> Shadow:
    """End the candidate; its comparison stays. ReloadRefused if none runs."""
    async with daemon.reload_lock:
        service = running_service(daemon)
        current = service.shadow.shadow
        if current is None:
            raise ReloadRefused("no candidate runs; start one by `metasched policy shadow FILE`")
        now = time.time()
        record = AuditRecord(
            time=now,
            kind=AuditKind.SHADOW_ENDED,
            actor=by,
            owner=OPERATORS_ONLY,
            details={"file": current.file, "digest": current.digest},
        )
        ended = replace(current, ended=now, end_reason=f"stopped by {by}")
        service.stop_shadow(ended, record)
        return ended
