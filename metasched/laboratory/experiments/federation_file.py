"""A federation of a site's own, read from a TOML file: traces, clusters, loads, policies."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from metasched.config.policy_file import read_policy
from metasched.config.toml_files import parse_toml, read_text, validated
from metasched.errors import UserError
from metasched.laboratory.experiments.federations import OVERLAY, Federation, TraceSite
from metasched.laboratory.simulate.clusters import MAX_CPUS
from metasched.laboratory.simulate.workload import Overlay
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy

MAX_BYTES = 65536
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.]{0,62}$")]


class _TableModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FederationSiteTable(_TableModel):
    """[[site]]: a trace and the clusters that its users have."""

    trace: str  # file; relative to the TOML file
    clusters: Annotated[
        dict[Name, Annotated[int, Field(ge=1, le=MAX_CPUS)]], Field(min_length=1, max_length=100)
    ]  # processors, by name
    partition: Annotated[int, Field(ge=0)] | None = None  # of the trace; None: all jobs
    thinning: Annotated[int, Field(ge=1, le=1000)] = 1  # a job is kept of so many


class FederationTable(_TableModel):
    """The file of `metasched experiment better --federation`."""

    site: Annotated[tuple[FederationSiteTable, ...], Field(min_length=1, max_length=100)]
    jobs: Annotated[int, Field(ge=10, le=10**6)] = 3000  # of a window
    loads: Annotated[
        tuple[Annotated[float, Field(ge=0.01, le=10)], ...], Field(min_length=1, max_length=20)
    ] = (0.70, 0.85, 0.95)
    schemes: tuple[str, ...] = ()  # columns of `better`; (): all
    policies: dict[str, str] = {}  # further columns: a policy file by name
    local: str = "easy"  # local policy of the clusters
    deadlines: Share = OVERLAY.deadlines
    gold: Share = OVERLAY.gold
    silver: Share = OVERLAY.silver


@dataclass(frozen=True)
class FederationFile:
    """The scenarios and columns of a file."""

    rows: dict[str, Federation]  # by name of the row
    schemes: tuple[str, ...]
    policies: dict[str, Policy]
    local: str


def read_federation(path: Path, schemes: tuple[str, ...], baseline: str) -> FederationFile:
    """Read a file; `schemes` are the known columns. UserError if it is invalid."""
    source = str(path)
    text = read_text(path, None, MAX_BYTES)
    if len(text) > MAX_BYTES:
        raise UserError(f"it has more than {MAX_BYTES} bytes, {source}; name a federation file")
    table = validated(FederationTable, parse_toml(text, source), source)
    _check_names(table, schemes, source)
    try:
        overlay = Overlay(
            deadlines=table.deadlines,
            margin=OVERLAY.margin,
            gold=table.gold,
            silver=table.silver,
        )
        make_policy(table.local, {}, {})
    except ValueError as error:
        raise UserError(f"{error}, {source}") from None
    sites = tuple(
        TraceSite(
            str((path.parent / site.trace).resolve()),
            site.clusters,
            "" if site.partition is None else str(site.partition),
            site.thinning,
        )
        for site in table.site
    )
    for site in sites:
        if not Path(site.trace_name).is_file():
            raise UserError(f"no trace {site.trace_name}, {source}, [[site]]; correct its name")
    selected = table.schemes or schemes
    return FederationFile(
        {
            f"{path.stem} {load:.2f}": Federation(
                path.stem, sites, table.jobs, load, overlay=overlay
            )
            for load in table.loads
        },
        (baseline, *(name for name in selected if name != baseline)),
        {name: read_policy(path.parent / file) for name, file in table.policies.items()},
        table.local,
    )


def _check_names(table: FederationTable, schemes: tuple[str, ...], source: str) -> None:
    if unknown := next((name for name in table.schemes if name not in schemes), None):
        raise UserError(f'unknown scheme "{unknown}", {source}; available are {", ".join(schemes)}')
    if taken := next((name for name in table.policies if name in schemes), None):
        raise UserError(f'"{taken}" is the name of a scheme, {source}, [policies]; rename it')
    names = Counter(name for site in table.site for name in site.clusters)
    if double := next((name for name, count in names.items() if count > 1), None):
        raise UserError(f'two clusters are named "{double}", {source}, [[site]]; rename one')
    if len({f"{load:.2f}" for load in table.loads}) < len(table.loads):
        raise UserError(f"two loads are equal in two digits, {source}, loads; leave one out")
