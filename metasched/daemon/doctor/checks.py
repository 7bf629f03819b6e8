"""Which checks there are, and the findings of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from metasched.config.reading import find_config, load_settings
from metasched.config.settings import Settings
from metasched.daemon.doctor.account_checks import check_accounts, check_own_account
from metasched.daemon.doctor.check_runs import Check, run_side_by_side
from metasched.daemon.doctor.cluster_checks import (
    check_claims,
    check_licence_server,
    check_manager,
)
from metasched.daemon.doctor.daemon_checks import check_daemon
from metasched.daemon.doctor.database_checks import check_database
from metasched.daemon.doctor.findings import Finding, from_error
from metasched.daemon.doctor.folder_checks import (
    check_config_file,
    check_disk,
    check_scheduled_policies,
    check_socket_folder,
    check_state_folder,
)
from metasched.daemon.doctor.launcher_checks import (
    check_launcher,
    check_mail_program,
    check_webhooks,
)
from metasched.daemon.doctor.probe_jobs import run_probes
from metasched.errors import UserError

# kinds of findings that both doctor and the daemon may have, in different words
_SEEN_TWICE = frozenset({"cluster-records", "cluster-forgeable"})
# checks whose subject a start needs at once
_NEEDED = frozenset({"configuration", "filesystem", "state folder", "socket", "database"})
DEFAULT_TIMEOUT = 3.5  # seconds for all checks, which run side by side


def run_checks(
    config: Path | None,
    timeout: float = DEFAULT_TIMEOUT,
    probe: bool = False,
    account: str | None = None,
) -> list[Finding]:
    """Read the configuration and run all checks of it, and of the running daemon.

    With `probe`, then run a small job on each cluster as `account`, by default that of [doctor].
    """
    try:
        settings = load_settings(find_config(config))
    except UserError as error:
        return [from_error("config-invalid", "configuration", str(error))]
    checks = [*checks_of_file(settings, timeout), Check("daemon", partial(check_daemon, settings))]
    findings = _without_repetitions(run_side_by_side(checks, timeout))
    return [*findings, *(run_probes(settings, account) if probe else ())]


def check_settings(
    settings: Settings, timeout: float = DEFAULT_TIMEOUT, before_start: bool = False
) -> list[Finding]:
    """Run the checks of a configuration that no daemon needs to run for.

    `before_start`: a start creates or upgrades the database, so it may be missing or old.
    """
    checks = checks_of_file(settings, timeout, before_start)
    return _without_repetitions(run_side_by_side(checks, timeout))


_NO_HINDRANCES = ("restored-backup", "database-went-back")  # a start holds what is in doubt


def prevents_start(finding: Finding) -> bool:
    """Whether the daemon would not start, or not be safe, before this finding is mended.

    What it can wait for does not: clusters, licence servers, the launcher, programs.
    """
    if finding.kind is None or finding.kind.id in _NO_HINDRANCES:
        return False
    if finding.kind.id in ("check-timeout", "check-failed"):
        return finding.check in _NEEDED
    return not finding.ok and finding.kind.component in ("configuration", "folders", "database")


def checks_of_file(settings: Settings, timeout: float, before_start: bool = False) -> list[Check]:
    """Return the checks of a configuration, in the order of their findings."""
    site_checks: tuple[tuple[str, Callable[[Settings], Iterable[Finding]]], ...] = (
        ("configuration", check_config_file),
        ("policies of the calendar", check_scheduled_policies),
        ("accounts", check_accounts),
        ("account", check_own_account),
        ("filesystem", partial(check_disk, before_start=before_start)),
        ("state folder", check_state_folder),
        ("socket", check_socket_folder),
        ("database", partial(check_database, before_start=before_start)),
        ("launcher", check_launcher),
        ("mail program", check_mail_program),
        ("webhooks", check_webhooks),
    )
    checks = [Check(name, partial(check, settings)) for name, check in site_checks]
    for entry in settings.clusters:
        name = entry.cluster.name
        checks += [
            Check(f"manager of {name}", partial(check_manager, entry, settings, timeout)),
            Check(f"claims of {name}", partial(check_claims, entry)),
        ]
    checks += [
        Check(f"query of {server.name}", partial(check_licence_server, server, settings, timeout))
        for server in settings.licence_servers
    ]
    return checks


def _without_repetitions(findings: Iterable[Finding]) -> list[Finding]:
    """Keep the first finding of a kind for a subject: doctor and the daemon may see the same."""
    distinct: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        key = ("", finding.check, finding.text)
        if finding.kind is not None:
            key = (
                finding.kind.id,
                finding.check,
                "" if finding.kind.id in _SEEN_TWICE else finding.text,
            )
        distinct.setdefault(key, finding)
    return list(distinct.values())
