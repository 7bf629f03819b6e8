"""Which of a server's tokens are ours: pure, so that nothing counts twice.

Every doubt goes to the outside: what cannot be shown to be ours is somebody else's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from metasched.licence_servers.base import Feature, LicenceUse

# Seconds by which a token may be told to be older than the job that holds it: servers tell whole
# minutes, and clocks differ.
START_TOLERANCE = 120.0
_MAX_HOSTS = 100_000  # of one job
_MAX_LIST_CHARACTERS = 65536  # characters of a list of hosts

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True)
class LeasedTokens:
    """What we leased to one attempt that has begun: `count` tokens to `user` since `since`.

    It runs on `hosts` (short names, see `hosts_of`); None: nobody knows where.
    """

    user: str
    hosts: frozenset[str] | None
    since: float
    count: int

    def may_match(self, use: LicenceUse) -> bool:
        """Whether that use can be this attempt's."""
        return (
            use.user == self.user
            and (not use.host or self.hosts is None or short_host_name(use.host) in self.hosts)
            and (use.since is None or use.since >= self.since - START_TOLERANCE)
        )


def count_outside(feature: Feature, leased: Iterable[LeasedTokens]) -> int:
    """How many of the feature's tokens in use are not ours.

    A use is counted as ours once, an attempt never has more than it leased. The attempts that can
    have the fewest uses choose first, O(uses x attempts of one user). Where the server does not
    tell who uses what, all that we leased is taken to be in its figure.
    """
    attempts = list(leased)
    if feature.uses is None:
        return max(feature.used - sum(attempt.count for attempt in attempts), 0)
    unmatched = {position: use.count for position, use in enumerate(feature.uses)}
    by_user: dict[str, list[int]] = {}
    for position, use in enumerate(feature.uses):
        by_user.setdefault(use.user, []).append(position)
    candidates = [
        (
            attempt,
            [
                position
                for position in by_user.get(attempt.user, ())
                if attempt.may_match(feature.uses[position])
            ],
        )
        for attempt in attempts
    ]
    candidate_counts = Counter(position for _, positions in candidates for position in positions)
    matched = 0
    for attempt, positions in sorted(candidates, key=lambda pair: len(pair[1])):
        still_needed = attempt.count
        for position in sorted(positions, key=lambda position: candidate_counts[position]):
            taken = min(still_needed, unmatched[position])
            unmatched[position] -= taken
            still_needed -= taken
            matched += taken
    return max(feature.used - matched, 0)


def short_host_name(host: str) -> str:
    """A host's name without its domain; an address stays whole."""
    name = host.strip().casefold()
    return name if re.fullmatch(r"[0-9.]+|.*:.*", name) else name.partition(".")[0]


def expand_hosts(nodes: str) -> frozenset[str] | None:
    """The hosts of a manager's list, `n[1-3,07],m2`; None if there is none that can be read."""
    if not nodes or len(nodes) > _MAX_LIST_CHARACTERS:
        return None
    hosts: set[str] = set()
    for part in _split_host_list(nodes):
        prefix, bracket, after_bracket = part.partition("[")
        ranges, _, suffix = after_bracket.partition("]")
        if not bracket:
            hosts.add(short_host_name(part))
            continue
        for host_range in ranges.split(","):
            match = _RANGE.fullmatch(host_range)
            if match is None:
                return None
            first, last = match[1], match[2] or match[1]
            if int(last) - int(first) + len(hosts) >= _MAX_HOSTS:
                return None
            for number in range(int(first), int(last) + 1):
                hosts.add(short_host_name(f"{prefix}{number:0{len(first)}d}{suffix}"))
    return frozenset(hosts) or None


def _split_host_list(nodes: str) -> Iterator[str]:
    """The list at its commas outside of brackets."""
    depth, part = 0, ""
    for character in nodes:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            yield part
            part = ""
        else:
            part += character
    yield part
