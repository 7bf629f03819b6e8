"""Reads [mail] and [[webhook]]. ConfigError for the first mistake."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from metasched.config.mistakes import suggestion
from metasched.config.settings import ConfigError, MailSettings, WebhookSettings
from metasched.config.tables import ConfigFile, WebhookTable
from metasched.model.audit import AuditKind
from metasched.model.notice import ALERTS, JOB_ENDED, MAIL, UNREPORTED, expand_kinds

MAX_WEBHOOKS = 16
KINDS = (JOB_ENDED, ALERTS, *(kind.value for kind in AuditKind if kind not in UNREPORTED))


def read_mail(config: ConfigFile, base: Path, path: Path | None) -> MailSettings | None:
    """Return how mail is sent; None: not at all."""
    table, old_program = config.mail, config.daemon.mail_program
    if table.program and old_program:
        raise ConfigError(f"both program in [mail] and mail_program in [daemon], {path}; keep one")
    program = table.program or old_program
    if not program:
        return None
    return MailSettings(
        program=base / program,
        is_sendmail=bool(table.program),
        sender=table.sender,
        domains=tuple(domain.lower() for domain in table.domains),
        per_hour=table.per_hour,
        alerts_to=table.alerts_to,
    )


def read_webhooks(
    tables: Sequence[WebhookTable], base: Path, path: Path | None
) -> tuple[WebhookSettings, ...]:
    """Return the receivers of events."""
    if len(tables) > MAX_WEBHOOKS:
        raise ConfigError(
            f"{len(tables)} webhooks, {path}; write at most {MAX_WEBHOOKS}, each has a thread"
        )
    return tuple(_read_webhook(table, base, f'{path}, webhook "{table.name}"') for table in tables)


def _read_webhook(table: WebhookTable, base: Path, location: str) -> WebhookSettings:
    if table.name == MAIL:
        raise ConfigError(f"a webhook cannot have this name, {location}; choose another")
    for kind in table.kinds:
        if kind not in KINDS:
            raise ConfigError(f'no kind "{kind}", {location}; {suggestion(kind, KINDS)}')
    if not table.kinds:
        raise ConfigError(f"no kinds, {location}; name some, or leave kinds out")
    _check_url(table, location)
    return WebhookSettings(
        name=table.name,
        url=table.url,
        secret_file=base / table.secret_file,
        kinds=expand_kinds(table.kinds),
        allow_private=table.allow_private,
    )


def _check_url(table: WebhookTable, location: str) -> None:
    """Raise ConfigError if the URL cannot be called, or events would be read on the way."""
    try:
        parts = urlsplit(table.url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"url: {error}, {location}; write https://host/path") from None
    if parts.scheme not in ("http", "https") or not host or not table.url.isascii():
        raise ConfigError(f"url is no URL of HTTP, {location}; write https://host/path")
    try:
        host.encode("idna")
    except UnicodeError:
        problem = "url holds a host with an empty label or one of over 63 characters"
        raise ConfigError(f"{problem}, {location}; write https://host/path") from None
    if any(character <= " " or character == "\x7f" for character in table.url):
        raise ConfigError(f"url holds spaces or control characters, {location}; encode them")
    if parts.username is not None or parts.fragment:
        raise ConfigError(f"url holds a user or a fragment, {location}; leave it out")
    if parts.scheme == "http" and not table.allow_private:
        raise ConfigError(
            f"url is not encrypted, {location}; write https://, or allow_private = true"
        )
