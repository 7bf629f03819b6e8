"""The clusters of a simulation with licences, shares and limits, as given on the command line."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from metasched.laboratory.simulate.clusters import (
    MAX_CLUSTERS,
    MAX_CPUS,
    ClusterError,
    SimulatedCluster,
)
from metasched.model.fair_share import FairShareSettings
from metasched.model.licence import LicencePool
from metasched.model.limits import LimitSettings


def parse_licence_pools(text: str) -> tuple[LicencePool, ...]:
    """Read the site-wide licences of a cluster description: only a TOML file has any."""
    if text.endswith(".toml") or Path(text).is_file():
        from metasched.laboratory.simulate.cluster_file import read_licence_pools

        return read_licence_pools(Path(text))
    return ()


def parse_fair_share(text: str) -> FairShareSettings | None:
    """Read the shares of a cluster description: only a TOML file has any."""
    if text.endswith(".toml") or Path(text).is_file():
        from metasched.laboratory.simulate.cluster_file import read_shares

        return read_shares(Path(text))
    return None


def parse_limits(text: str, classes: Collection[str], licences: Collection[str]) -> LimitSettings:
    """Read the limits of a cluster description: only a TOML file has any.

    `classes`: of users; `licences`: those that the description does not name.
    """
    if text.endswith(".toml") or Path(text).is_file():
        from metasched.laboratory.simulate.cluster_file import read_limit_settings

        return read_limit_settings(Path(text), classes, licences)
    return LimitSettings()


def pool_licences(
    clusters: Sequence[SimulatedCluster],
) -> tuple[tuple[SimulatedCluster, ...], tuple[LicencePool, ...]]:
    """Replace the licences of each cluster by pools shared by the clusters that had them."""
    names = {name: None for cluster in clusters for name in cluster.licences}
    pools = tuple(
        LicencePool(
            name=name,
            total=sum(cluster.licences.get(name, 0) for cluster in clusters),
            clusters=tuple(cluster.name for cluster in clusters if cluster.licences.get(name)),
        )
        for name in names
    )
    return tuple(replace(cluster, licences={}) for cluster in clusters), pools


def parse_clusters(text: str) -> tuple[SimulatedCluster, ...]:
    """Parse `128`, `2x64`, `64,32,32` or the name of a TOML file. ClusterError if invalid.

    Without a file the clusters are named c1, c2, ... in order.
    """
    if text.endswith(".toml") or Path(text).is_file():
        from metasched.laboratory.simulate.cluster_file import read_clusters  # imports pydantic

        return read_clusters(Path(text))
    sizes: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(?:([0-9]{1,4})x)?([0-9]{1,8})\s*", part, re.ASCII)
        if match is None:
            raise ClusterError(
                f'"{text}" describes no clusters, --clusters; '
                "write 128, 2x64, 64,32,32 or the name of a TOML file"
            )
        count, size = int(match[1] or 1), int(match[2])
        if not 1 <= size <= MAX_CPUS or not 1 <= count <= MAX_CLUSTERS - len(sizes):
            raise ClusterError(
                f'"{part.strip()}" is out of range, --clusters; '
                f"write 1 to {MAX_CPUS} processors and at most {MAX_CLUSTERS} clusters"
            )
        sizes += [size] * count
    return tuple(
        SimulatedCluster(name=f"c{number}", cpus=size) for number, size in enumerate(sizes, 1)
    )
