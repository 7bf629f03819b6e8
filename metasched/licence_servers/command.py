"""Any command that prints JSON, for licence managers without a licence server of their own here.

    {"observed": 1790000000, "licences": [
        {"name": "matlab", "total": 4, "used": 3, "reserved": 0, "queued": 1, "uses": [
            {"user": "ada", "host": "n1", "count": 2, "since": 1790000000}]}]}

Only `name`, `total` (null: not counted) and `used` are required. With `uses`, the use by jobs of
metasched is recognised by user, host and time. Without, all their leases are assumed to be part of
`used`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec

from metasched.licence_servers.base import (
    MAX_TOKENS,
    Feature,
    LicenceServer,
    LicenceServerError,
    LicenceUse,
    UsageReport,
)
from metasched.licence_servers.process import query_command

_Natural = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]


class _Use(msgspec.Struct, forbid_unknown_fields=True):
    user: str
    host: str = ""
    count: _Positive = 1
    since: float | None = None


class _Licence(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    total: _Natural | None
    used: _Natural
    reserved: _Natural = 0
    queued: _Natural = 0
    uses: list[_Use] | None = None


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    licences: list[_Licence]
    observed: float | None = None


@dataclass(frozen=True)
class CommandOptions:
    """Options: `command` is a program with its arguments. No shell is involved."""

    command: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.command or not os.path.isabs(self.command[0]):
            command = ", ".join(self.command) or "empty"
            raise ValueError(f"command is {command}; write the absolute path of a program first")


class CommandServer(LicenceServer):
    """A command provided by the site."""

    Options: ClassVar[type[Any]] = CommandOptions

    def query(self) -> str:
        completed = query_command(self.options.command, self.timeout)
        if completed.exit_code != 0:
            ending = f"{self.options.command[0]} ended with {completed.exit_code}"
            raise LicenceServerError(f"{ending}: {completed.error_message}")
        return completed.stdout

    @staticmethod
    def parse(output: str, now: float) -> UsageReport:
        return parse_report(output)


def parse_report(output: str) -> UsageReport:
    """Parse the JSON. LicenceServerError, with the place, if its structure is invalid."""
    try:
        usage = msgspec.json.decode(output.encode("utf-8", "replace"), type=_Answer)
        features = tuple(_feature(licence) for licence in usage.licences)
        return UsageReport(features, observed=usage.observed)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise LicenceServerError(f"the answer cannot be read: {error}") from None


def _feature(licence: _Licence) -> Feature:
    uses = licence.uses
    return Feature(
        name=licence.name,
        issued=licence.total,
        used=licence.used,
        uses=None
        if uses is None
        else tuple(LicenceUse(use.user, use.host, use.count, use.since) for use in uses),
        reserved=licence.reserved,
        queued=licence.queued,
    )
