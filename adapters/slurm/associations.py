"""The associations of slurmdbd: which accounts of the cluster each user may charge."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple, Protocol

from metasched.adapters.slurm.listing import ControllerInfo
from metasched.model.adapter_errors import Unreachable
from metasched.model.cluster import Associations, UserAccounts

ASSOCIATION_FIELDS = ("user", "account", "partition")  # of sacctmgr
REFRESH_INTERVAL = 30.0  # seconds between readings
MAX_ASSOCIATIONS = 20_000  # of users; more are not read, since each change is stored
_REFRESH_WAIT = 1.0  # seconds for which a poll waits for a refresh
_COMPLETE_FOR = "root"  # a user of every cluster; a list without it is restricted by PrivateData


class AssociationLine(NamedTuple):
    """An association of a user with an account."""

    user: str
    account: str
    partition: str  # "": all partitions


class AssociationSource(Protocol):
    """The command that lists associations."""

    def associations(self, cluster: str, *, only_defaults: bool) -> list[AssociationLine]:
        """List the associations of users, or those with their default accounts."""


class AssociationReader:
    """Reads the associations of a cluster at intervals.

    A slow slurmdbd delays a poll by at most a second; only the first poll waits for an answer.
    """

    def __init__(self, source: AssociationSource) -> None:
        self._source = source
        self._associations: Associations | None = None  # of the last reading
        self._reading: threading.Thread | None = None
        self._next_reading = 0.0  # monotonic seconds

    def current(self, controller: ControllerInfo) -> Associations | None:
        """Return the associations as last read; None: there are none, or they are unknown."""
        if not (controller.slurmdbd and controller.cluster):
            return None
        now = time.monotonic()
        if now >= self._next_reading and not (self._reading and self._reading.is_alive()):
            wait = _REFRESH_WAIT if self._reading else None
            self._next_reading = now + REFRESH_INTERVAL
            self._reading = threading.Thread(
                target=self._read, args=(controller,), name="associations", daemon=True
            )
            self._reading.start()
            self._reading.join(wait)
        return self._associations

    def _read(self, controller: ControllerInfo) -> None:
        associations = None
        try:
            with suppress(Unreachable):
                associations = build_associations(
                    self._source.associations(controller.cluster, only_defaults=False),
                    self._source.associations(controller.cluster, only_defaults=True),
                    required=controller.requires_associations,
                )
        finally:
            self._associations = associations


def parse_associations(output: str) -> list[AssociationLine]:
    """Parse `sacctmgr --parsable2` with `ASSOCIATION_FIELDS`; skip the associations of accounts."""
    lines = []
    for line in output.splitlines():
        fields = line.split("|")
        if len(fields) != len(ASSOCIATION_FIELDS):
            raise ValueError(f"{len(fields)} fields in {line[:100]!r}")
        if fields[0]:
            lines.append(AssociationLine(*fields))
    return lines


def build_associations(
    lines: Iterable[AssociationLine], defaults: Iterable[AssociationLine], *, required: bool
) -> Associations | None:
    """Return the associations by user; None if the list is incomplete or too long.

    Names are in lower case, as slurmdbd stores them by default.
    """
    partitions: dict[str, dict[str, list[str]]] = defaultdict(dict)
    number = 0
    for line in lines:
        number += 1
        accounts = partitions[line.user.lower()]
        accounts.setdefault(line.account.lower(), []).append(line.partition)
    if _COMPLETE_FOR not in partitions or number > MAX_ASSOCIATIONS:
        return None
    default_accounts = {line.user.lower(): line.account.lower() for line in defaults}
    users = {
        user: UserAccounts(
            default=default_accounts.get(user, ""),
            accounts={
                name: () if "" in allowed else tuple(sorted(allowed))
                for name, allowed in sorted(accounts.items())
            }
            if required
            else {},
        )
        for user, accounts in sorted(partitions.items())
    }
    return Associations(required=required, users=users)
