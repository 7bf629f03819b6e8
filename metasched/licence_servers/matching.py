"""Counts the tokens in use outside metasched, without side effects.

A token that cannot be attributed to a job of metasched counts as used outside.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from metasched.licence_servers.base import Feature, LicenceUse
from metasched.model.host_lists import expand_hosts

# Seconds that a token may be older than the job that holds it: servers report whole minutes,
# and clocks differ.
START_TOLERANCE = 120.0


@dataclass(frozen=True)
class LeasedTokens:
    """The tokens of a licence that metasched has leased to a started attempt."""

    user: str
    hosts: frozenset[str] | None  # short names; None: unknown
    since: float  # epoch seconds of the attempt's start
    count: int

    def may_match(self, use: LicenceUse) -> bool:
        """Return whether a reported use can belong to this attempt."""
        return (
            use.user == self.user
            and (not use.host or self.hosts is None or short_host_name(use.host) in self.hosts)
            and (use.since is None or use.since >= self.since - START_TOLERANCE)
        )


def count_outside(feature: Feature, leased: Iterable[LeasedTokens]) -> int:
    """Return the tokens of a feature that are used outside metasched.

    A use is attributed to a single attempt, and no attempt gets more tokens than it leased.
    Attempts with the fewest matching uses choose first: O(uses x attempts per user). If the server
    does not report users, all leased tokens are assumed to be part of its count.
    """
    attempts = list(leased)
    if feature.uses is None:
        return max(feature.used - sum(attempt.count for attempt in attempts), 0)
    unmatched = {position: use.count for position, use in enumerate(feature.uses)}
    by_user: dict[str, list[int]] = {}
    for position, use in enumerate(feature.uses):
        by_user.setdefault(use.user, []).append(position)
    uses = feature.uses
    candidates = [
        (attempt, [i for i in by_user.get(attempt.user, ()) if attempt.may_match(uses[i])])
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
    """Return a host name without its domain; an IP address is returned unchanged."""
    name = host.strip().casefold()
    return name if re.fullmatch(r"[0-9.]+|.*:.*", name) else name.partition(".")[0]


def job_hosts(nodes: str) -> frozenset[str] | None:
    """Return the short names of a job's hosts; None: the list is empty or invalid."""
    try:
        return frozenset(map(short_host_name, expand_hosts(nodes))) or None
    except ValueError:
        return None
