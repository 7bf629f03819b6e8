"""The contract between metasched and the licence servers of a site.

An author implements `LicenceServer` and registers it under the entry-point group
`metasched.licence_servers`; nothing else has to be edited.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, ClassVar

LICENCE_SERVER_GROUP = "metasched.licence_servers"
MAX_TOKENS = 10**9 - 1


class LicenceServerError(Exception):
    """A query failed, with a reason of a single line. It counts no licence."""

    def __init__(self, message: str) -> None:
        super().__init__(_one_line(message))


@dataclass(frozen=True)
class LicenceUse:
    """Tokens that a user holds on a host."""

    user: str
    host: str = ""  # "": not reported
    count: int = 1
    since: float | None = None  # epoch seconds; None: not reported
    linger: float | None = None  # seconds for which the tokens stay out after their return

    def __post_init__(self) -> None:
        _check_range("count", self.count, 1)
        if self.since is not None and not math.isfinite(self.since):
            raise ValueError(f"since is {self.since!r}; it must be a time")


@dataclass(frozen=True)
class Feature:
    """A server's count of a licence."""

    name: str
    issued: int | None  # existing tokens; None: the server does not count them
    used: int  # tokens that are checked out or reserved
    # Users of the tokens that are checked out; None: not reported. Their sum may be less than
    # `used`, and more where several users share a token.
    uses: tuple[LicenceUse, ...] | None = None
    reserved: int = 0  # tokens of `used` that are reserved for a user or group
    queued: int = 0  # requests that wait at the server

    def __post_init__(self) -> None:
        for field_name in ("issued", "used", "reserved", "queued"):
            value = getattr(self, field_name)
            if value is not None:
                _check_range(f"{field_name} of {self.name}", value, 0)


@dataclass(frozen=True)
class Trouble:
    """A line that cannot be parsed, or that reports a problem of the server."""

    line: int  # 0: none in particular
    text: str

    def __str__(self) -> str:
        text = _one_line(self.text)
        return f"line {self.line}: {text}" if self.line else text


@dataclass(frozen=True)
class UsageReport:
    """The counts of an answer. A licence that is missing from it is not counted."""

    features: tuple[Feature, ...]
    troubles: tuple[Trouble, ...] = ()
    observed: float | None = None  # epoch seconds of the counts, as the answer states them

    def __post_init__(self) -> None:
        names = [feature.name for feature in self.features]
        if len(set(names)) < len(names):
            raise ValueError("a licence is reported twice")
        if self.observed is not None and not math.isfinite(self.observed):
            raise ValueError(f"observed is {self.observed!r}; it must be a time")

    def feature(self, name: str) -> Feature | None:
        """Return the count of a licence, if the report has it."""
        return next((feature for feature in self.features if feature.name == name), None)


class LicenceServer(ABC):
    """A source of counts. An object makes a single query, in a process of its own.

    `Options` is a frozen dataclass of its keys in `[[licence_server]]`. A ValueError of its
    `__post_init__` is shown as an error of the configuration.
    """

    Options: ClassVar[type[Any]]

    def __init__(self, options: Any, timeout: float) -> None:
        """Store the options. Must not contact the server.

        `timeout` is in seconds; `query` is killed after it.
        """
        self.options, self.timeout = options, timeout

    @abstractmethod
    def query(self) -> str:
        """Return the whole answer of the server as text. LicenceServerError if there is none.

        It may block and may crash; it runs with TZ=UTC and LC_ALL=C.
        """

    @staticmethod
    @abstractmethod
    def parse(output: str, now: float) -> UsageReport:
        """Parse an answer, without side effects.

        `now` is the time of the query in epoch seconds, for dates without a year.
        LicenceServerError, with the line, if the answer counts no licence.
        """


def licence_server_class(name: str) -> type[LicenceServer]:
    """Return the class of licence servers registered under a name. KeyError if there is none."""
    registered = entry_points(group=LICENCE_SERVER_GROUP, name=name)
    if not registered:
        raise KeyError(name)
    server_type: type[LicenceServer] = next(iter(registered)).load()
    return server_type


def _one_line(text: str) -> str:
    """Return text of a server as a printable line, for terminals and logs."""
    printable = (character if character.isprintable() else " " for character in text[:1000])
    return " ".join("".join(printable).split())


def _check_range(field_name: str, value: int, minimum: int) -> None:
    if not minimum <= value <= MAX_TOKENS:
        raise ValueError(f"{field_name} is {value}; it must be from {minimum} to {MAX_TOKENS}")
