"""The contract between metasched and what counts a site's licences.

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
MAX_TOKENS = 10**9 - 1  # tokens, of anything


class LicenceServerError(Exception):
    """A probe that learnt nothing; in one line, why. No licence is counted by it."""

    def __init__(self, message: str) -> None:
        super().__init__(_one_line(message))


@dataclass(frozen=True)
class LicenceUse:
    """Tokens that somebody holds: `count` of them on `host` since `since` (epoch seconds).

    `host` "": not told, `since` None: not told. `linger` are the seconds for which they stay out
    after they were given back, or are borrowed.
    """

    user: str
    host: str = ""
    count: int = 1
    since: float | None = None
    linger: float | None = None

    def __post_init__(self) -> None:
        _check_range("count", self.count, 1)
        if self.since is not None and not math.isfinite(self.since):
            raise ValueError(f"since is {self.since!r}; it must be a time")


@dataclass(frozen=True)
class Feature:
    """What a server says of one licence.

    `issued` tokens exist there (None: it does not count them), `used` are out or kept from us,
    `reserved` of these because they are kept for somebody. `uses` tells of those that are out who
    has them (None: the server does not tell); they may be fewer than `used`, and more where
    several share one. `queued` wait at the server.
    """

    name: str
    issued: int | None
    used: int
    uses: tuple[LicenceUse, ...] | None = None
    reserved: int = 0
    queued: int = 0

    def __post_init__(self) -> None:
        for field_name in ("issued", "used", "reserved", "queued"):
            value = getattr(self, field_name)
            if value is not None:
                _check_range(f"{field_name} of {self.name}", value, 0)


@dataclass(frozen=True)
class Trouble:
    """Something that could not be read, or that the server itself complains of, by its line."""

    line: int
    text: str

    def __str__(self) -> str:
        text = _one_line(self.text)
        return f"line {self.line}: {text}" if self.line else text


@dataclass(frozen=True)
class UsageReport:
    """What was understood of one answer. A licence that it lacks is not counted.

    `observed` is the time of which the answer itself says that it is true (epoch seconds).
    """

    features: tuple[Feature, ...]
    troubles: tuple[Trouble, ...] = ()
    observed: float | None = None

    def __post_init__(self) -> None:
        names = [feature.name for feature in self.features]
        if len(set(names)) < len(names):
            raise ValueError("a licence is told twice")
        if self.observed is not None and not math.isfinite(self.observed):
            raise ValueError(f"observed is {self.observed!r}; it must be a time")

    def feature(self, name: str) -> Feature | None:
        return next((feature for feature in self.features if feature.name == name), None)


class LicenceServer(ABC):
    """One source of counts. An object asks once, in a process that ends then.

    `Options` is a frozen dataclass of its own keys in `[[licence_server]]`; ValueError in its
    `__post_init__` is shown to whoever wrote them.
    """

    Options: ClassVar[type[Any]]

    def __init__(self, options: Any, timeout: float) -> None:
        """`timeout` are the seconds after which `ask` is killed. Must not talk to the server."""
        self.options, self.timeout = options, timeout

    @abstractmethod
    def query(self) -> str:
        """The server's whole answer as text. ProbeError: it gave none.

        May block and may crash; runs with TZ=UTC and LC_ALL=C.
        """

    @staticmethod
    @abstractmethod
    def parse(output: str, now: float) -> UsageReport:
        """What an answer says; pure. ProbeError, with the line, if it says nothing of licences.

        `now` (epoch seconds) is when it was asked for, for times without a year.
        """


def licence_server_class(name: str) -> type[LicenceServer]:
    """The kind of licence server registered under a name. KeyError if there is none."""
    matching_entry_points = entry_points(group=LICENCE_SERVER_GROUP, name=name)
    if not matching_entry_points:
        raise KeyError(name)
    server_type: type[LicenceServer] = next(iter(matching_entry_points)).load()
    return server_type


def _one_line(text: str) -> str:
    """What a server printed, as far as it may stand on a terminal or in a log."""
    return " ".join(
        "".join(character if character.isprintable() else " " for character in text[:1000]).split()
    )


def _check_range(field_name: str, value: int, minimum: int) -> None:
    if not minimum <= value <= MAX_TOKENS:
        raise ValueError(f"{field_name} is {value}; it must be from {minimum} to {MAX_TOKENS}")
