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

GROUP = "metasched.licence_servers"
MOST = 10**9 - 1  # tokens, of anything


class ProbeError(Exception):
    """A probe that learnt nothing; in one line, why. No licence is counted by it."""

    def __init__(self, words: str) -> None:
        super().__init__(_one_line(words))


@dataclass(frozen=True)
class Use:
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
        _count("count", self.count, 1)
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
    uses: tuple[Use, ...] | None = None
    reserved: int = 0
    queued: int = 0

    def __post_init__(self) -> None:
        for what in ("issued", "used", "reserved", "queued"):
            value = getattr(self, what)
            if value is not None:
                _count(f"{what} of {self.name}", value, 0)


@dataclass(frozen=True)
class Trouble:
    """Something that could not be read, or that the server itself complains of, by its line."""

    line: int
    text: str

    def __str__(self) -> str:
        text = _one_line(self.text)
        return f"line {self.line}: {text}" if self.line else text


@dataclass(frozen=True)
class Report:
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
    def ask(self) -> str:
        """The server's whole answer as text. ProbeError: it gave none.

        May block and may crash; runs with TZ=UTC and LC_ALL=C.
        """

    @staticmethod
    @abstractmethod
    def read(answer: str, now: float) -> Report:
        """What an answer says; pure. ProbeError, with the line, if it says nothing of licences.

        `now` (epoch seconds) is when it was asked for, for times without a year.
        """


def server_class(kind: str) -> type[LicenceServer]:
    """The kind of licence server registered under a name. KeyError if there is none."""
    found = entry_points(group=GROUP, name=kind)
    if not found:
        raise KeyError(kind)
    loaded: type[LicenceServer] = next(iter(found)).load()
    return loaded


def _one_line(words: str) -> str:
    """What a server printed, as far as it may stand on a terminal or in a log."""
    return " ".join("".join(c if c.isprintable() else " " for c in words[:1000]).split())


def _count(what: str, value: int, least: int) -> None:
    if not least <= value <= MOST:
        raise ValueError(f"{what} is {value}; it must be from {least} to {MOST}")
