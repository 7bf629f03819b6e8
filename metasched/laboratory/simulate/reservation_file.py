"""The reservations of a simulation, also recurring, read from a TOML file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from metasched.config.tables import Seconds, SecondsOrZero
from metasched.config.toml_files import parse_toml, read_text, validated
from metasched.errors import UserError
from metasched.laboratory.simulate.clusters import MAX_CPUS
from metasched.laboratory.simulate.workload import WindowRequest

MAX_REQUESTS = 10_000  # of a file, each occurrence counted
MAX_BYTES = 10**7  # of a file


class RequestTable(BaseModel):
    """A request, which may recur; times are seconds or texts such as "8h"."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start: SecondsOrZero  # from the origin of the trace
    duration: Seconds
    cpus: Annotated[int, Field(ge=1, le=MAX_CPUS)]
    slack: SecondsOrZero = 0.0  # most delay of the start
    ahead: SecondsOrZero = 86400.0  # from its request to its start
    every: Seconds | None = None  # from a start to the next
    count: Annotated[int, Field(ge=1, le=MAX_REQUESTS)] = 1  # occurrences
    user: Annotated[str, Field(max_length=100)] = ""
    clusters: tuple[str, ...] = ()  # to choose from; empty: all


class ReservationsFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reservation: Annotated[tuple[RequestTable, ...], Field(min_length=1, max_length=MAX_REQUESTS)]


def read_reservations(path: Path) -> tuple[WindowRequest, ...]:
    """Read the [[reservation]] tables in the order of their requests. UserError if invalid."""
    text = read_text(path, None, MAX_BYTES)
    if len(text) > MAX_BYTES:
        raise UserError(f"{path} has more than {MAX_BYTES} bytes, --reservations; split it")
    tables = validated(ReservationsFile, parse_toml(text, path), path).reservation
    total = sum(table.count for table in tables)
    if total > MAX_REQUESTS:
        raise UserError(
            f"{total} reservations in all, {path}; write at most {MAX_REQUESTS}, lower a count"
        )
    requests = [request for table in tables for request in _requests(table, path)]
    return tuple(sorted(requests, key=lambda request: request.submitted))


def _requests(table: RequestTable, path: Path) -> Iterator[WindowRequest]:
    if table.count > 1 and table.every is None:
        raise UserError(
            f"a reservation has count = {table.count} and no every, {path}; "
            'write how far apart they start, as every = "1d"'
        )
    for number in range(table.count):
        start = table.start + number * (table.every or 0.0)
        yield WindowRequest(
            max(start - table.ahead, 0.0),
            start,
            table.duration,
            table.cpus,
            table.slack,
            table.user,
            table.clusters,
        )
