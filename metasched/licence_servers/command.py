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

from metasched.licence_servers.base import MOST, Feature, LicenceServer, ProbeError, Report, Use
from metasched.licence_servers.running import answer_of

_Natural = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=MOST)]


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
            words = ", ".join(self.command) or "empty"
            raise ValueError(f"command is {words}; write the absolute path of a program first")


class Command(LicenceServer):
    """A command of the site's."""

    Options: ClassVar[type[Any]] = CommandOptions

    def ask(self) -> str:
        answer = answer_of(self.options.command, self.timeout)
        if answer.code != 0:
            words = f"{self.options.command[0]} ended with {answer.code}: {answer.complaint}"
            raise ProbeError(words)
        return answer.out

    @staticmethod
    def read(answer: str, now: float) -> Report:
        return read(answer)


def read(answer: str) -> Report:
    """What the JSON says; ProbeError, with the place, if it has not that shape."""
    try:
        found = msgspec.json.decode(answer.encode("utf-8", "replace"), type=_Answer)
        features = tuple(
            Feature(
                one.name,
                one.total,
                one.used,
                None
                if one.uses is None
                else tuple(Use(use.user, use.host, use.count, use.since) for use in one.uses),
                one.reserved,
                one.queued,
            )
            for one in found.licences
        )
        return Report(features, observed=found.observed)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise ProbeError(f"the answer cannot be read: {error}") from None
