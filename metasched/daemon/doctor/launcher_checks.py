"""The launcher of site mode, the program that sends mail, and the secrets of webhooks."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator

from metasched.adapters.launcher_client import LauncherClient
from metasched.adapters.registry import adapter_class
from metasched.config.settings import Settings
from metasched.daemon.doctor.findings import Finding, found, from_error, passed
from metasched.daemon.webhook import SecretUnusable, read_secret
from metasched.model.adapter_errors import Refused, SiteFault, Unreachable


def check_launcher(settings: Settings) -> Iterator[Finding]:
    """Check that the launcher answers, for whom, and compare its clusters with the file's."""
    path = settings.launcher
    if path is None:
        return
    allowed = []
    for user in dict.fromkeys(("root", pwd.getpwuid(os.geteuid()).pw_name)):
        try:
            LauncherClient(path, "").check_access(user, "/")
            allowed.append(user)
        except Refused:
            pass  # as it should: no job may run as root or as the daemon's account
        except SiteFault as error:
            yield from_error("launcher-unusable", "launcher", error.reason)
            return
        except Unreachable as error:
            fix = "run this as the daemon's account; look at the log of metasched-launcher"
            yield found("launcher-unusable", "launcher", error.reason, fix)
            return
    yield passed("launcher", f"answers at {path}")
    if allowed:
        text = f"it would run jobs of {' and '.join(allowed)}"
        yield found("launcher-accounts", "launcher accounts", text)
    for entry in settings.clusters:
        name = entry.cluster.name
        verbs = adapter_class(entry.cluster.adapter).launcher_verbs
        try:
            LauncherClient(path, name).check_cluster(verbs)
        except Unreachable as error:
            yield from_error("launcher-cluster", f"launcher.toml for {name}", error.reason)
        else:
            yield passed(f"launcher.toml for {name}", ", ".join(verbs))


def check_mail_program(settings: Settings) -> Iterator[Finding]:
    """Check that the mail program can be executed."""
    if settings.mail is None:
        return
    path = settings.mail.program
    if path.is_file() and os.access(path, os.X_OK):
        yield passed("mail program", str(path))
    else:
        yield found("mail-program", "mail program", f"no program {path}")


def check_webhooks(settings: Settings) -> Iterator[Finding]:
    """Check the secrets of webhooks."""
    for hook in settings.webhooks:
        check = f"secret of webhook {hook.name}"
        try:
            read_secret(hook.secret_file)
        except SecretUnusable as error:
            yield from_error("webhook-secret", check, str(error))
        else:
            yield passed(check, str(hook.secret_file))
