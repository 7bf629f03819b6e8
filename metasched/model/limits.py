"""Limits on the resources of users, groups, accounts, classes, and of all together. Pure.

Admission limits refuse a submission: `open_tasks`, `queued`, `stored_bytes`. Dispatch limits let
tasks wait: `dispatched`, `running`, `processors`, `licences`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from metasched.model.job import Job

MAX_LIMIT = 1_000_000_000_000  # fits every database's integers
ADMISSION: Final = ("open_tasks", "queued", "stored_bytes")
DISPATCH: Final = ("dispatched", "running", "processors")
LICENCE: Final = "licence:"  # prefix of the resource that is the tokens of a licence


class ScopeKind(StrEnum):
    """Whose tasks a limit counts together."""

    USER = "user"
    ACCOUNT = "account"
    GROUP = "group"
    CLASS = "class"
    ALL = "all"


class LimitScope(NamedTuple):
    """The tasks that a limit counts together."""

    kind: ScopeKind
    name: str  # of the user, group, account or class; "" for all

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else "all users"


class LimitTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of a scope. None: no limit."""

    open_tasks: int | None = None  # tasks that have not ended
    queued: int | None = None  # of them: queued or held in metasched
    stored_bytes: int | None = None  # of jobs with such tasks, see `Job.stored_bytes`
    dispatched: int | None = None  # tasks that are sent to clusters and have not ended
    running: int | None = None  # tasks that may run: dispatched, and not forgotten by their manager
    processors: int | None = None  # of tasks that may run
    licences: Mapping[str, int] = msgspec.field(default_factory=dict)  # tokens of such tasks

    def maxima(self) -> dict[str, int]:
        """The limits by resource; the resource of a licence is `licence:NAME`."""
        plain = {name: getattr(self, name) for name in (*ADMISSION, *DISPATCH)}
        maxima = {name: value for name, value in plain.items() if value is not None}
        return maxima | {LICENCE + name: count for name, count in self.licences.items()}


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All limits of a site. A task must keep within each limit that counts it."""

    for_all: LimitTable = LimitTable()  # all tasks together
    each_user: LimitTable = LimitTable()  # of every user
    users: Mapping[str, LimitTable] = msgspec.field(default_factory=dict)  # before `each_user`
    groups: Mapping[str, LimitTable] = msgspec.field(default_factory=dict)
    accounts: Mapping[str, LimitTable] = msgspec.field(default_factory=dict)
    classes: Mapping[str, LimitTable] = msgspec.field(default_factory=dict)

    def maxima_of(self, scope: LimitScope) -> dict[str, int]:
        """Return the limits of a scope by resource."""
        match scope.kind:
            case ScopeKind.ALL:
                return self.for_all.maxima()
            case ScopeKind.USER:
                own = self.users.get(scope.name, LimitTable())
                return self.each_user.maxima() | own.maxima()
            case ScopeKind.GROUP:
                tables = self.groups
            case ScopeKind.ACCOUNT:
                tables = self.accounts
            case ScopeKind.CLASS:
                tables = self.classes
        return tables.get(scope.name, LimitTable()).maxima()

    def named_scopes(self) -> list[LimitScope]:
        """Return the scopes that have limits of their own, besides those of each user."""
        return [
            *(LimitScope(ScopeKind.USER, name) for name in self.users),
            *(LimitScope(ScopeKind.ACCOUNT, name) for name in self.accounts),
            *(LimitScope(ScopeKind.GROUP, name) for name in self.groups),
            *(LimitScope(ScopeKind.CLASS, name) for name in self.classes),
            *([LimitScope(ScopeKind.ALL, "")] if self.for_all.maxima() else []),
        ]

    def scopes_of(self, job: Job) -> list[LimitScope]:
        """Return the scopes that count a job's tasks; the user's own comes first."""
        account = job.account
        scopes = [LimitScope(ScopeKind.USER, job.user)]
        if account is not None and account in self.accounts:
            scopes.append(LimitScope(ScopeKind.ACCOUNT, account))
        scopes += [
            LimitScope(ScopeKind.GROUP, group) for group in job.groups if group in self.groups
        ]
        if job.user_class in self.classes:
            scopes.append(LimitScope(ScopeKind.CLASS, job.user_class))
        return [*scopes, LimitScope(ScopeKind.ALL, "")]

    @property
    def configured(self) -> bool:
        """Whether there is any limit."""
        return bool(self.named_scopes() or self.each_user.maxima())

    @property
    def bounds_bytes(self) -> bool:
        """Whether any limit bounds stored bytes."""
        named = (*self.users.values(), *self.groups.values())
        tables = (*named, *self.accounts.values(), *self.classes.values())
        return any(
            table.stored_bytes is not None for table in (self.for_all, self.each_user, *tables)
        )


class LimitUse(NamedTuple):
    """How much of a resource a scope takes."""

    scope: LimitScope
    resource: str
    used: int
    maximum: int


@dataclass(slots=True)
class LimitChange:
    """The change of a use in a step of the core."""

    maximum: int
    delta: int = 0
    forced: bool = False  # it may exceed the maximum: the tasks are there already


def dispatch_demand(resource: str, job: Job) -> int:
    """Return how much of a resource a dispatched task of a job takes."""
    if resource == "processors":
        return job.cpus
    if resource.startswith(LICENCE):
        return job.licences.get(resource.removeprefix(LICENCE), 0)
    return 1


def describe_resource(resource: str) -> str:
    """Return the plural of a limit's unit."""
    if resource.startswith(LICENCE):
        return f"tokens of licence {resource.removeprefix(LICENCE)}"
    return {
        "open_tasks": "open tasks",
        "queued": "queued tasks",
        "stored_bytes": "bytes stored for open jobs",
        "dispatched": "dispatched tasks",
        "running": "tasks that may run",
    }.get(resource, resource)
