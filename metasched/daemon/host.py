"""The part of the scheduler service that connections, reservation sync and monitors depend on."""

from __future__ import annotations

from typing import Protocol

from metasched.config.settings import Settings
from metasched.core.events import CoreEvent, Outcome
from metasched.core.scheduler import Core
from metasched.daemon.quarantine import Quarantine
from metasched.db.ledger import Ledger
from metasched.model.audit import AuditRecord


class SchedulerHost(Protocol):
    """Access to the core, the ledger and the configuration."""

    @property
    def settings(self) -> Settings: ...

    @property
    def core(self) -> Core: ...

    @property
    def ledger(self) -> Ledger: ...

    @property
    def quarantine(self) -> Quarantine: ...

    @property
    def failure(self) -> BaseException | None:
        """The error that ends the service, if any."""

    def fail(self, error: BaseException) -> None:
        """End the service because of an error; a first error is kept."""

    async def apply_events(self, *events: CoreEvent) -> list[Outcome]:
        """Step the core at once, store the outcomes with the group, then start their actions.

        StorageFailed if the transaction failed: no action was started.
        """

    def note_condition(self, record: AuditRecord, subject: str, value: str) -> None:
        """Record a condition of a subject, "" for well, if it differs from the last record."""

    def is_owner(self, tag: str, account: str) -> bool:
        """Return whether `account` may own native jobs with this tag."""

    def owner_of(self, tag: str) -> str:
        """Return the user who owns the job of a tag; "" for an unknown tag."""
