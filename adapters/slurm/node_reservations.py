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
from metasched.adapters.slurm.commands import SlurmCommands
from metasched.adapters.slurm.reservation_listing import SlurmReservation, expand_hosts
from metasched.model.reservation import reservation_id
from metasched.model.survey import ManagerReservation, NodeUsage, ReservationSpec, Span, Survey

# The controller's own words: it has not done it.
_REJECTED = re.compile(
    r"busy|Invalid|invalid|Duplicate|Access/permission|not permitted|in use|Requested|specification"
)
_NOT_FOUND = re.compile(r"Requested reservation is invalid|not found")
# Up, but not for everybody; and not yet heard from by a controller that has just started.
_UP_FLAGS = frozenset({"reserved", "maint", "unknown"})


class NodeReservations:
    """Those of one cluster, by its commands, given as this account, which must be an operator."""

    def __init__(self, commands: SlurmCommands, instance: str) -> None:
        self._commands, self._instance = commands, instance

    def survey(
        self, jobs: Iterable[text.QueueLine], node_lines: Sequence[text.NodeLine], taken_at: float
    ) -> Survey:
        """What takes the nodes of the default partition (of all, if there is none)."""
        reservations = self._commands.reservations()
        overrun = self._commands.controller().overrun
        spans: dict[str, list[Span]] = {}
        for job in jobs:
            if text.is_active(job) and (nodes := expand_hosts(job.nodes)):
                begin = text.parse_time(job.start) or taken_at
                end = text.parse_time(job.end) or begin + text.NO_LIMIT
                for node in nodes:
                    spans.setdefault(node, []).append((begin, end))
        held = []
        for reservation in reservations:
            if reservation_id(reservation.name, self._instance) is not None:
                held.append(
                    ManagerReservation(
                        reservation.name, reservation.start, reservation.end, reservation.nodes
                    )
                )
                continue
            for node in reservation.nodes:
                spans.setdefault(node, []).append((reservation.start, reservation.end))
        cpus = {node_line.name: int(node_line.cpus.rpartition("/")[2]) for node_line in node_lines}
        groups: dict[tuple[int, bool, tuple[Span, ...]], list[str]] = {}
        for name, is_up in default_nodes(node_lines).items():
            group = (cpus[name], is_up, tuple(sorted(spans.get(name, ()))))
            groups.setdefault(group, []).append(name)
        return Survey(
            taken_at,
            tuple(NodeUsage(tuple(names), *group) for group, names in groups.items()),
            tuple(held),
            guard=overrun,
        )

    def available_nodes(
        self, jobs: Sequence[text.QueueLine], node_lines: Sequence[text.NodeLine], taken_at: float
    ) -> Sequence[text.NodeLine]:
        """The nodes as jobs in no reservation can have them."""
        return node_lines

    def upcoming(
        self, jobs: Sequence[text.QueueLine], node_lines: Sequence[text.NodeLine], taken_at: float
    ) -> tuple[tuple[float, int], ...]:
        """Windows of a time to come, everybody's: when, and the processors that they leave.

        Not one if that cannot be read: a manager that answers is not silent for want of it.
        """
        try:
            reservations = self._commands.reservations()
            if not any(reservation.start > taken_at for reservation in reservations):
                return ()
            cores = self._commands.cores()
        except Unreachable:
            return ()
        usable = {name: cpus for name, (_, cpus) in cluster_info.usable_cpus(node_lines).items()}
        return windows.upcoming(usable, cores, jobs, reservations, taken_at)

    def current_name(self, name: str) -> str:
        """Under which name jobs are to be sent into it."""
        return name

    def reserve(self, spec: ReservationSpec) -> None:
        nodes = ",".join(spec.nodes)
        if (existing := self._find(spec.name)) is None:
            error = self._commands.scontrol(
                *("create", "reservation", f"ReservationName={spec.name}"),
                *(f"StartTime={scontrol_time(spec.start)}", f"EndTime={scontrol_time(spec.end)}"),
                *(f"Nodes={nodes}", f"Users={spec.user}"),
            )
            if "Duplicate" in error:  # an earlier call of ours has arrived after all
                existing, error = self._find(spec.name), ""
            if error or existing is None:
                return check_error(error)
        if set(existing.nodes) != set(spec.nodes):
            check_error(
                self._commands.scontrol("update", f"ReservationName={spec.name}", f"Nodes={nodes}")
            )
        return None

    def delete(self, name: str) -> None:
        error = self._commands.scontrol("delete", f"ReservationName={name}")
        if has_jobs(error):
            raise Refused(error, retryable=True)
        if not _NOT_FOUND.search(error):
            check_error(error)

    def _find(self, name: str) -> SlurmReservation | None:
        return next(
            (
                reservation
                for reservation in self._commands.reservations()
                if reservation.name == name
            ),
            None,
        )


def default_nodes(node_lines: Sequence[text.NodeLine]) -> dict[str, bool]:
    """The nodes of the default partition (all, if there is none), and whether each is up."""
    marked_lines = [line for line in node_lines if line.partition.endswith("*")]
    states = {
        node_line.name: set(node_line.state.lower().split("+"))
        for node_line in marked_lines or node_lines
    }
    return {
        name: (flags - _UP_FLAGS).isdisjoint(text.UNUSABLE_FLAGS) for name, flags in states.items()
    }


def has_jobs(error: str) -> bool:
    """Whether scontrol complains that jobs are in a reservation."""
    return "in use" in error


def check_error(error: str) -> None:
    """Refused if scontrol said no, Unreachable if it is not known what became of it."""
    if error and _REJECTED.search(error):
        raise Refused(error)
    if error:
        raise Unreachable(f"scontrol: {error}")


def scontrol_time(seconds: float) -> str:
    """A time as scontrol takes it under TZ=UTC; one that has passed is now.

    Slurm refuses what has passed by more than ten minutes.
    """
    if seconds < time.time():
        return "now"
    return datetime.fromtimestamp(round(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S")
