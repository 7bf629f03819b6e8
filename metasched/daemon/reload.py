"""Takes a changed configuration over into the running daemon: all of it or nothing.

1. The files are read and checked as at a start. A mistake refuses the reload; what is outside of
   the files, such as a dead cluster, is only reported. So are mistakes in policies of the calendar
   that were reported before: at night they must not bar the repair of something else.
2. What changes no decision of the core (operators, members of classes, quotas) is exchanged.
3. Anything else takes effect as after a restart: the scheduler service is built anew from the
   database, while listeners and requests wait. Its first event, `DaemonStarted`, holds the new
   configuration, so that a replay repeats the decisions. No dispatch is under way then.

A crash before that event leaves the old decisions, and the next start reads the new files.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace

from metasched.config.reading import reload_settings, scheduled_policy_mistakes
from metasched.config.restart_keys import describe_changes
from metasched.config.settings import ClusterSettings, Settings
from metasched.daemon.doctor.checks import check_settings
from metasched.daemon.doctor.findings import Finding
from metasched.daemon.late_settings import check_reservation_units
from metasched.daemon.policy_versions import with_policy_in_force
from metasched.daemon.service import Daemon, ReloadRefused, SchedulerService
from metasched.errors import UserError
from metasched.model.audit import OPERATORS_ONLY, AuditKind, AuditRecord
from metasched.model.reservation import OPEN_STATES

log = logging.getLogger("metasched")

QUIET_TIME = 10.0  # most seconds to wait for answers of dispatches under way
_QUIET_POLL = 0.05  # seconds between looks for dispatches under way


@dataclass(frozen=True)
class ReloadResult:
    """The result of a reload."""

    changes: tuple[str, ...]  # keys that are in force now
    restart_keys: tuple[str, ...]  # changed keys that only a restart puts in force
    findings: tuple[Finding, ...]  # problems outside of the files

    def __str__(self) -> str:
        text = f"changed: {', '.join(self.changes)}" if self.changes else "nothing changed"
        if self.restart_keys:
            text += f"; restart needed for: {', '.join(self.restart_keys)}"
        return text


async def reload(daemon: Daemon, by: str) -> ReloadResult:
    """Read the configuration again and take it over.

    `by` is who asked for it. ConfigError for a mistake in the files, ReloadRefused if it cannot be
    taken over now; then nothing has changed.
    """
    async with daemon.reload_lock:  # a second reload reads files that were written since
        try:
            result = await _reload(daemon, by)
        except UserError as error:
            log.error("reload by %s refused: %s", by, error)
            raise
    log.info("configuration reloaded by %s: %s", by, result)
    return result


def _read_settings(
    running: Settings, earlier_mistakes: frozenset[str]
) -> tuple[Settings, list[str], frozenset[str]]:
    """Read the files again, and the policies of the calendar. ConfigError for the first mistake.

    Mistakes in policies of the calendar bar no other change if they are in `earlier_mistakes`. They
    are returned, and are findings of the reload.
    """
    settings, restart_keys = reload_settings(running)
    mistakes = [*scheduled_policy_mistakes(settings)]
    for mistake in mistakes:
        if str(mistake) not in earlier_mistakes:
            raise mistake
    return settings, restart_keys, frozenset(map(str, mistakes))


async def _reload(daemon: Daemon, by: str) -> ReloadResult:
    running = daemon.settings
    # in threads: files and directory services may hang
    settings, restart_keys, mistakes = await asyncio.to_thread(
        _read_settings, running, daemon.calendar_mistakes
    )
    settings = with_policy_in_force(settings, running.policy_version, by)
    findings = await asyncio.to_thread(check_settings, settings)
    changes = describe_changes(running.tables, settings.tables)
    if running.policy != settings.policy:
        changes.append("policy")
    elif running.policy_version is not None:  # the same, perhaps in other words
        settings = replace(settings, policy_version=running.policy_version)
    service = running_service(daemon)
    if not changes:
        service.plug_ins.renew()
        # a policy that is activated from now on replaces this file
        daemon.settings = replace(
            running, files=settings.files, policy_origin=settings.policy_origin
        )
    elif not _changes_decisions(running, settings):
        service.plug_ins.renew()
        service.store_act(
            AuditRecord(
                time=time.time(),
                kind=AuditKind.CONFIGURATION_CHANGED,
                actor=by,
                owner=OPERATORS_ONLY,
                cause="; ".join(changes),
            )
        )
        daemon.settings = service.settings = settings
    else:
        await make_replaceable(service, settings)
        del service  # else its state would stay in memory beside that of the next
        await daemon.replace_service(settings, by, tuple(changes))
    daemon.calendar_mistakes = mistakes
    problems = (finding for finding in findings if finding.severity in ("error", "warning"))
    return ReloadResult(tuple(changes), tuple(restart_keys), tuple(problems))


def running_service(daemon: Daemon) -> SchedulerService:
    """Return the service. ReloadRefused if none runs now."""
    service, reason = daemon.service, daemon.unavailable_reason
    if service is None or reason is not None:
        raise ReloadRefused(f"{reason}; nothing changed, try again soon")
    return service


def _changes_decisions(running: Settings, changed: Settings) -> bool:
    """Return whether more changed than what requests alone look up."""
    looked_up = {
        name: getattr(changed, name)
        for name in (
            *("user_classes", "site", "quotas", "max_array_tasks", "retention", "event_retention"),
            *(
                "probe_account",
                "files",
                "tables",
                "database_url",
                "policy_origin",
                "policy_version",
            ),
        )
    }
    return replace(running, **looked_up) != changed


async def make_replaceable(service: SchedulerService, settings: Settings) -> None:
    """Wait until no dispatch is under way. ReloadRefused if a task would lose its cluster."""
    _check_obstacles(service, settings)
    connections = service.connections.values()
    for connection in connections:
        connection.pending_actions.paused = True
    try:
        deadline = asyncio.get_running_loop().time() + QUIET_TIME
        while any(connection.has_dispatches_in_flight for connection in connections):
            if asyncio.get_running_loop().time() > deadline:
                break  # as after a crash: their tags are looked for
            await asyncio.sleep(_QUIET_POLL)
        _check_obstacles(service, settings)
        service.store_group()
    except BaseException:
        for connection in connections:
            connection.pending_actions.paused = False
            connection.poll_soon()
        raise


def _check_obstacles(service: SchedulerService, settings: Settings) -> None:
    """Raise ReloadRefused if tasks or reservations would lose their cluster."""
    check_reservation_units(settings, service.ledger)
    after = {entry.cluster.name: entry for entry in settings.clusters}
    for entry in service.settings.clusters:
        name = entry.cluster.name
        tasks = len(service.core.tasks_on(name))
        reservations = sum(
            reservation.cluster == name
            and (reservation.state in OPEN_STATES or reservation.known_to_manager)
            for reservation in service.core.reservations.by_id.values()
        )
        source = f'{settings.config_path}, cluster "{name}"'
        if name not in after:
            if tasks or reservations:
                raise ReloadRefused(
                    f"it is removed, but has {tasks} tasks and {reservations} reservations, "
                    f"{source}; put it back, `metasched cluster drain {name}`, and wait for them"
                )
        elif tasks and _manager_of(entry) != _manager_of(after[name]):
            raise ReloadRefused(
                f"it is another manager now, but has {tasks} tasks at the old one, {source}; "
                f"put it back, `metasched cluster drain {name}`, and wait for them"
            )


def _manager_of(entry: ClusterSettings) -> tuple[object, ...]:
    """Return the settings that identify a cluster's manager and metasched's jobs there."""
    keys = ("config", "library", "profile", "tag_field")
    variables = {k: v for k, v in entry.environment.items() if k.startswith(("SGE_", "SLURM_"))}
    return (entry.cluster.adapter, *(entry.options.get(key) for key in keys), variables)
