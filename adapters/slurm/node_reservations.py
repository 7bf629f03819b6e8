"""Advance reservations of one Slurm cluster: what takes its nodes when, and nodes kept for users.

A reservation names its nodes (Slurm then marks it SPEC_NODES and replaces none by itself), so that
it is metasched that says where it is. Slurm 22.05, measured: names are unique; nodes change at any
time, also while jobs wait or run in it, which stay where they are; one in which jobs wait or run
cannot be deleted; up to 30 s after its end its jobs are killed, and it is forgotten.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from metasched.adapters.errors import Refused, Unreachable
from metasched.adapters.slurm import cluster_info
from metasched.adapters.slurm import listing as text
from metasched.adapters.slurm import reservation_listing as windows
from metasched.adapters.slurm.commands import Commands
from metasched.adapters.slurm.reservation_listing import Kept, hosts
from metasched.model.reservation import id_of
from metasched.model.survey import Held, NodesInUse, Span, Survey, Window

# The controller's own words: it has not done it.
_NO = re.compile(
    r"busy|Invalid|invalid|Duplicate|Access/permission|not permitted|in use|Requested|specification"
)
_UNKNOWN = re.compile(r"Requested reservation is invalid|not found")
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
                held.append(Held(line.name, line.start, line.end, line.nodes))
                continue
            for node in line.nodes:
                spans.setdefault(node, []).append((line.start, line.end))
        cpus = {place.name: int(place.cpus.rpartition("/")[2]) for place in places}
        kinds: dict[tuple[int, bool, tuple[Span, ...]], list[str]] = {}
        for name, up in members(places).items():
            kind = (cpus[name], up, tuple(sorted(spans.get(name, ()))))
            kinds.setdefault(kind, []).append(name)
        return Survey(
            taken,
            tuple(NodesInUse(tuple(names), *kind) for kind, names in kinds.items()),
            tuple(held),
            guard=overrun,
        )

    def beside(
        self, jobs: Sequence[text.QueueLine], places: Sequence[text.NodeLine], taken: float
    ) -> Sequence[text.NodeLine]:
        """The nodes as jobs in no reservation can have them."""
        return places

    def coming(
        self, jobs: Sequence[text.QueueLine], places: Sequence[text.NodeLine], taken: float
    ) -> tuple[tuple[float, int], ...]:
        """Windows of a time to come, everybody's: when, and the processors that they leave.

        Not one if that cannot be read: a manager that answers is not silent for want of it.
        """
        try:
            kept = self._commands.reservations()
            if not any(one.start > taken for one in kept):
                return ()
            cores = self._commands.cores()
        except Unreachable:
            return ()
        usable = {name: cpus for name, (_, cpus) in cluster_info.usable_cpus(places).items()}
        return windows.coming(usable, cores, jobs, kept, taken)

    def find(self, name: str) -> str:
        """Under which name jobs are to be sent into it."""
        return name

    def reserve(self, window: Window) -> None:
        nodes = ",".join(window.nodes)
        if (known := self._known(window.name)) is None:
            said = self._commands.change(
                *("create", "reservation", f"ReservationName={window.name}"),
                *(f"StartTime={moment(window.start)}", f"EndTime={moment(window.end)}"),
                *(f"Nodes={nodes}", f"Users={window.user}"),
            )
            if "Duplicate" in said:  # an earlier call of ours has arrived after all
                known, said = self._known(window.name), ""
            if said or known is None:
                return checked(said)
        if set(known.nodes) != set(window.nodes):
            checked(
                self._commands.change("update", f"ReservationName={window.name}", f"Nodes={nodes}")
            )
        return None

    def unreserve(self, name: str) -> None:
        said = self._commands.change("delete", f"ReservationName={name}")
        if in_use(said):
            raise Refused(said, again=True)
        if not _UNKNOWN.search(said):
            checked(said)

    def _known(self, name: str) -> Kept | None:
        return next((line for line in self._commands.reservations() if line.name == name), None)


def members(places: Sequence[text.NodeLine]) -> dict[str, bool]:
    """The nodes of the default partition (all, if there is none), and whether each is up."""
    default = [place for place in places if place.partition.endswith("*")]
    states = {p.name: set(p.state.lower().split("+")) for p in default or places}
    return {name: (some - _UP).isdisjoint(text.UNUSABLE) for name, some in states.items()}


def in_use(said: str) -> bool:
    """Whether scontrol complains that jobs are in a reservation."""
    return "in use" in said


def checked(said: str) -> None:
    """Refused if scontrol said no, Unreachable if it is not known what became of it."""
    if said and _NO.search(said):
        raise Refused(said)
    if said:
        raise Unreachable(f"scontrol: {said}")


def moment(seconds: float) -> str:
    """A time as scontrol takes it under TZ=UTC; one that has passed is now.

    Slurm refuses what has passed by more than ten minutes.
    """
    if seconds < time.time():
        return "now"
    return datetime.fromtimestamp(round(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S")
