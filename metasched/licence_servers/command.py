"""Any command that prints JSON: for licence managers that have no probe of their own.

    {"observed": 1790000000, "licences": [
        {"name": "matlab", "total": 4, "used": 3, "reserved": 0, "queued": 1, "uses": [
            {"user": "ada", "host": "n1", "count": 2, "since": 1790000000}]}]}

Only `name`, `total` (null: not counted there) and `used` must be there. With `uses`, our own use is
found there by user, host and time; without, all that our jobs hold is taken to be in `used`.
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
from metasched.licence_servers.running import query_command

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
    """Keys of such a source: `command`, a program and its arguments, which no shell reads."""

    command: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.command or not os.path.isabs(self.command[0]):
            shown_command = ", ".join(self.command) or "empty"
            raise ValueError(
                f"command is {shown_command}; write the absolute path of a program first"
            )


class CommandServer(LicenceServer):
    """A command of the site's."""

    Options: ClassVar[type[Any]] = CommandOptions

    def query(self) -> str:
        completed = query_command(self.options.command, self.timeout)
        if completed.exit_code != 0:
            message = f"{self.options.command[0]} ended with {completed.exit_code}: {completed.error_message}"
            raise LicenceServerError(message)
        return completed.stdout

    @staticmethod
    def parse(output: str, now: float) -> UsageReport:
        return parse_report(output)


def parse_report(output: str) -> UsageReport:
    """What the JSON says; ProbeError, with the place, if it has not that shape."""
    try:
        usage = msgspec.json.decode(output.encode("utf-8", "replace"), type=_Answer)
        features = tuple(
            Feature(
                licence.name,
                licence.total,
                licence.used,
                None
                if licence.uses is None
                else tuple(
                    LicenceUse(use.user, use.host, use.count, use.since) for use in licence.uses
                ),
                licence.reserved,
                licence.queued,
            )
            for licence in usage.licences
        )
        return UsageReport(features, observed=usage.observed)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise LicenceServerError(f"the answer cannot be read: {error}") from None
