"""Advance reservations of one Slurm cluster: what takes its nodes when, and nodes kept for users.

A reservation names its nodes (Slurm then marks it SPEC_NODES and replaces none by itself), so that
it is metasched that says where it is. Slurm 22.05, measured: names are unique; nodes change at any
time, also while jobs wait or run in it, which stay where they are; one in which jobs wait or run
cannot be deleted; up to 30 s after its end its jobs are killed, and it is forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from metasched.adapters import slurm_text as text
from metasched.adapters.base import Refused, Unreachable
from metasched.adapters.slurm_commands import Commands
from metasched.adapters.slurm_windows import hosts
from metasched.reservation_life import Held, NodesInUse, Span, Survey, Window, id_of

# The controller's own words: it has not done it.
_NO = re.compile(
    r"busy|Invalid|invalid|Duplicate|Access/permission|not permitted|in use|Requested|specification"
)
_UNKNOWN = re.compile(r"Requested reservation is invalid|not found")
_IN_USE = re.compile(r"in use")
# Up, but not for everybody; and not yet heard from by a controller that has just started.
_UP = frozenset({"reserved", "maint", "unknown"})


class Reservations:
    """Those of one cluster, by its commands, given as this account, which must be an operator."""

    def __init__(self, commands: Commands, instance: str) -> None:
        self._commands, self._instance = commands, instance

    def survey(
        self, jobs: Iterable[text.QueueLine], places: Sequence[text.NodeLine], taken: float
    ) -> Survey:
        """What takes the nodes of the default partition (of all, if there is none)."""
        lines = self._commands.reservations()
        overrun = self._commands.controller().overrun
        spans: dict[str, list[Span]] = {}
        for job in jobs:
            if text.lives(job) and (nodes := hosts(job.nodes)):
                begin = text.when(job.start) or taken
                end = text.when(job.end) or begin + text.NO_LIMIT
                for node in nodes:
                    spans.setdefault(node, []).append((begin, end))
        held = []
        for line in lines:
            if id_of(line.name, self._instance) is not None:
                held.append(line)
                continue
            for node in line.nodes:
                spans.setdefault(node, []).append((line.start, line.end))
        default = [place for place in places if place.partition.endswith("*")]
        kinds: dict[tuple[int, bool, tuple[Span, ...]], list[str]] = {}
        for place in {p.name: p for p in default or places}.values():
            states = set(place.state.lower().split("+")) - _UP
            up = states.isdisjoint(text.UNUSABLE)
            cpus = int(place.cpus.rpartition("/")[2])
            kind = (cpus, up, tuple(sorted(spans.get(place.name, ()))))
            kinds.setdefault(kind, []).append(place.name)
        return Survey(
            taken,
            tuple(NodesInUse(tuple(names), *kind) for kind, names in kinds.items()),
            tuple(held),
            guard=overrun,
        )

    def reserve(self, window: Window) -> None:
        nodes = ",".join(window.nodes)
        if (known := self._known(window.name)) is None:
            said = self._commands.change_reservation(
                *("create", "reservation", f"ReservationName={window.name}"),
                *(f"StartTime={_moment(window.start)}", f"EndTime={_moment(window.end)}"),
                *(f"Nodes={nodes}", f"Users={window.user}"),
            )
            if "Duplicate" in said:  # an earlier call of ours has arrived after all
                known, said = self._known(window.name), ""
            if said or known is None:
                return _check(said)
        if set(known.nodes) != set(window.nodes):
            _check(
                self._commands.change_reservation(
                    "update", f"ReservationName={window.name}", f"Nodes={nodes}"
                )
            )
        return None

    def unreserve(self, name: str) -> None:
        said = self._commands.change_reservation("delete", f"ReservationName={name}")
        if _IN_USE.search(said):
            raise Refused(said, again=True)
        if not _UNKNOWN.search(said):
            _check(said)

    def _known(self, name: str) -> Held | None:
        return next((line for line in self._commands.reservations() if line.name == name), None)


def _check(said: str) -> None:
    if said and _NO.search(said):
        raise Refused(said)
    if said:
        raise Unreachable(f"scontrol: {said}")


def _moment(seconds: float) -> str:
    """A time as scontrol takes it under TZ=UTC."""
    return datetime.fromtimestamp(round(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S")
