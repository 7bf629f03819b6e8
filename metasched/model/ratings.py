"""How the site's own heuristics rated a job at its submission. Pure.

The ratings are part of the job, so events, checkpoints and rows of jobs have them. A replay uses
them and runs no plug-in.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class SiteRatings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The values of each heuristic, by its name in the policy file."""

    priorities: Mapping[str, float] = msgspec.field(default_factory=dict)  # 0..max_priority
    # 0..1 by cluster, 1: the best
    placements: Mapping[str, Mapping[str, float]] = msgspec.field(default_factory=dict)
    run_times: Mapping[str, float] = msgspec.field(default_factory=dict)  # seconds
    excluded: Mapping[str, str] = msgspec.field(default_factory=dict)  # why it has no value
