"""Which of a server's tokens are ours: pure, so that nothing counts twice.

Every doubt goes to the outside: what cannot be shown to be ours is somebody else's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from metasched.licence_servers.base import Feature, Use

# Seconds by which a token may be told to be older than the job that holds it: servers tell whole
# minutes, and clocks differ.
SLACK = 120.0
_MOST_HOSTS = 100_000  # of one job
_LONGEST = 65536  # characters of a list of hosts

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True)
class Held:
    """What we leased to one attempt that has begun: `count` tokens to `user` since `since`.

    It runs on `hosts` (short names, see `hosts_of`); None: nobody knows where.
    """

    user: str
    hosts: frozenset[str] | None
    since: float
    count: int

    def may_be(self, use: Use) -> bool:
        """Whether that use can be this attempt's."""
        return (
            use.user == self.user
            and (not use.host or self.hosts is None or short(use.host) in self.hosts)
            and (use.since is None or use.since >= self.since - SLACK)
        )


def outside(feature: Feature, held: Iterable[Held]) -> int:
    """How many of the feature's tokens in use are not ours.

    A use is counted as ours once, an attempt never has more than it leased. The attempts that can
    have the fewest uses choose first, O(uses x attempts of one user). Where the server does not
    tell who uses what, all that we leased is taken to be in its figure.
    """
    ours = list(held)
    if feature.uses is None:
        return max(feature.used - sum(one.count for one in ours), 0)
    left = {number: use.count for number, use in enumerate(feature.uses)}
    by_user: dict[str, list[int]] = {}
    for number, use in enumerate(feature.uses):
        by_user.setdefault(use.user, []).append(number)
    candidates = [
        (one, [n for n in by_user.get(one.user, ()) if one.may_be(feature.uses[n])]) for one in ours
    ]
    wanted = Counter(number for _, some in candidates for number in some)
    matched = 0
    for one, some in sorted(candidates, key=lambda pair: len(pair[1])):
        lacking = one.count
        for number in sorted(some, key=lambda n: wanted[n]):
            taken = min(lacking, left[number])
            left[number] -= taken
            lacking -= taken
            matched += taken
    return max(feature.used - matched, 0)


def short(host: str) -> str:
    """A host's name without its domain; an address stays whole."""
    name = host.strip().casefold()
    return name if re.fullmatch(r"[0-9.]+|.*:.*", name) else name.partition(".")[0]


def hosts_of(nodes: str) -> frozenset[str] | None:
    """The hosts of a manager's list, `n[1-3,07],m2`; None if there is none that can be read."""
    if not nodes or len(nodes) > _LONGEST:
        return None
    found: set[str] = set()
    for part in _parts(nodes):
        head, bracket, rest = part.partition("[")
        ranges, _, tail = rest.partition("]")
        if not bracket:
            found.add(short(part))
            continue
        for span in ranges.split(","):
            match = _RANGE.fullmatch(span)
            if match is None:
                return None
            first, last = match[1], match[2] or match[1]
            if int(last) - int(first) + len(found) >= _MOST_HOSTS:
                return None
            for number in range(int(first), int(last) + 1):
                found.add(short(f"{head}{number:0{len(first)}d}{tail}"))
    return frozenset(found) or None


def _parts(nodes: str) -> Iterator[str]:
    """The list at its commas outside of brackets."""
    depth, part = 0, ""
    for letter in nodes:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    yield part
