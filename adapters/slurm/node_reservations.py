"""Advance reservations of whole nodes on a Slurm cluster, and the use of its nodes over time.

metasched chooses the nodes of a reservation and names them (Slurm then marks it SPEC_NODES and
replaces none). Measured with Slurm 22.05: names are unique. Nodes can be changed at any time; jobs
that are pending or running in the reservation stay where they are. A reservation with pending or
running jobs cannot be deleted. Up to 30 s after its end Slurm kills its jobs and forgets it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from metasched.adapters.slurm import listing
from metasched.adapters.slurm.cluster_info import usable_cpus
from metasched.adapters.slurm.commands import SlurmCommands
from metasched.adapters.slurm.listing import UNUSABLE_FLAGS, QueueLine, SinfoRecord
from metasched.adapters.slurm.reservation_listing import (
    SlurmReservation,
    upcoming_windows,
)
from metasched.adapters.slurm.submission import is_about_connection, is_by_controller
from metasched.model.adapter_errors import Refused, Unreachable
from metasched.model.host_lists import expand_hosts
from metasched.model.reservation import reservation_id
from metasched.model.survey import ManagerReservation, NodeUsage, ReservationSpec, Span, Survey

# Error messages of the controller that mean: nothing was changed.
_NOT_FOUND = re.compile(r"Requested reservation is invalid|not found")
# Nodes up, but restricted; or not yet known to a controller that has just started.
_UP_FLAGS = frozenset({"reserved", "maint", "unknown"})


class UnknownAccounts(Refused):
    """The manager has no such accounts of accounting: no other time or place helps."""


class NodeReservations:
    """The reservations of a cluster, by commands as this account, which must be an operator."""

    def __init__(self, commands: SlurmCommands, instance: str) -> None:
        self._commands, self._instance = commands, instance

    def survey(
        self,
        jobs: Iterable[QueueLine],
        node_lines: Sequence[SinfoRecord],
        taken_at: float,
    ) -> Survey:
        """Survey the nodes of the default partition, or of all partitions if none is default."""
        reservations = self._commands.reservations()
        overrun = self._commands.controller().overrun
        spans: dict[str, list[Span]] = {}
        for job in jobs:
            if listing.is_active(job) and (nodes := expand_hosts(job.nodes)):
                begin = listing.parse_epoch_time(job.start) or taken_at
                end = listing.parse_epoch_time(job.end) or begin + listing.NO_LIMIT
                for node in nodes:
                    spans.setdefault(node, []).append((begin, end))
        own = []
        for r in reservations:
            if reservation_id(r.name, self._instance) is not None:
                own.append(ManagerReservation(r.name, r.start, r.end, r.nodes))
                continue
            for node in r.nodes:
                spans.setdefault(node, []).append((r.start, r.end))
        cpus = {line.name: int(line.cpus.rpartition("/")[2]) for line in node_lines}
        groups: dict[tuple[int, bool, tuple[Span, ...]], list[str]] = {}
        for name, is_up in default_nodes(node_lines).items():
            group = (cpus[name], is_up, tuple(sorted(spans.get(name, ()))))
            groups.setdefault(group, []).append(name)
        return Survey(
            taken_at,
            tuple(NodeUsage(tuple(names), *group) for group, names in groups.items()),
            tuple(own),
            guard=overrun,
        )

    def available_nodes(
        self,
        jobs: Sequence[QueueLine],
        node_lines: Sequence[SinfoRecord],
        taken_at: float,
    ) -> Sequence[SinfoRecord]:
        """Return the nodes with the resources that jobs outside reservations can use."""
        return node_lines

    def upcoming(
        self,
        jobs: Sequence[QueueLine],
        node_lines: Sequence[SinfoRecord],
        taken_at: float,
    ) -> tuple[tuple[float, int], ...]:
        """Return (start, processors left) of the upcoming reservations of all users.

        The result is empty if they cannot be listed: the poll succeeds nevertheless.
        """
        try:
            reservations = self._commands.reservations()
            if not any(reservation.start > taken_at for reservation in reservations):
                return ()
            cores = self._commands.cores()
        except Unreachable:
            return ()
        usable = {name: cpus for name, (_, cpus) in usable_cpus(node_lines).items()}
        return upcoming_windows(usable, cores, jobs, reservations, taken_at)

    def current_name(self, name: str) -> str:
        """Return Slurm's name of a reservation, for the submission of jobs."""
        return name

    def reserve(self, spec: ReservationSpec) -> None:
        nodes = ",".join(spec.nodes)
        if (existing := self._find(spec.name)) is None:
            error = self._commands.scontrol(
                "create",
                "reservation",
                f"ReservationName={spec.name}",
                f"StartTime={scontrol_time(spec.start)}",
                f"EndTime={scontrol_time(spec.end)}",
                f"Nodes={nodes}",
                permitted(spec),
            )
            if "Duplicate" in error:  # an earlier call has arrived late
                existing, error = self._find(spec.name), ""
            if error or existing is None:
                return self._check_creation(error, spec)
        if set(existing.nodes) != set(spec.nodes):
            check_error(
                self._commands.scontrol("update", f"ReservationName={spec.name}", f"Nodes={nodes}")
            )
        return None

    def _check_creation(self, error: str, spec: ReservationSpec) -> None:
        """As `check_error`; UnknownAccounts, with their names if slurmdbd answers."""
        if "Invalid account" not in error or not spec.accounts:
            return check_error(error)
        try:
            tree = self._commands.shares(self._commands.controller().cluster)
            account_names = {account.name.lower() for account in tree.accounts}
            missing = [name for name in spec.accounts if name.lower() not in account_names]
        except Unreachable:
            missing = []
        problem = (
            f"Slurm has no account {', '.join(missing)}"
            if missing
            else f"Slurm does not accept each account of {', '.join(spec.accounts)}"
        )
        raise UnknownAccounts(
            f"{problem}; name others, add it with sacctmgr, or map it in [cluster.map.account]"
        )

    def delete(self, name: str) -> None:
        error = self._commands.scontrol("delete", f"ReservationName={name}")
        if has_jobs(error):
            raise Refused(error, retryable=True)
        if not _NOT_FOUND.search(error):
            check_error(error)

    def _find(self, name: str) -> SlurmReservation | None:
        return next((r for r in self._commands.reservations() if r.name == name), None)


def default_nodes(node_lines: Sequence[SinfoRecord]) -> dict[str, bool]:
    """Return whether each node of the default partition (else of all partitions) is up."""
    lines = [line for line in node_lines if line.partition.endswith("*")] or node_lines
    states = {line.name: set(line.state.lower().split("+")) for line in lines}
    return {name: (flags - _UP_FLAGS).isdisjoint(UNUSABLE_FLAGS) for name, flags in states.items()}


def permitted(spec: ReservationSpec) -> str:
    """Return scontrol's option with whose jobs may run in a reservation.

    Given users and accounts, Slurm would ask for both: so the owner's jobs need the account, too.
    """
    return f"Accounts={','.join(spec.accounts)}" if spec.accounts else f"Users={spec.user}"


def has_jobs(error: str) -> bool:
    """Return whether scontrol's error is that jobs are in the reservation."""
    return "in use" in error


def check_error(error: str) -> None:
    """Raise Refused if scontrol's error proves that nothing changed, else Unreachable.

    Proofs are a text that the controller alone sends, and scontrol's own words before it asks.
    """
    if not error:
        return
    messages = error.split("; ")
    if any(map(is_by_controller, messages)) or error.endswith("No reservation created."):
        raise Refused(error.replace("; ", ", "))  # it is no remedy of metasched
    reason = f"scontrol: {error}"
    raise Unreachable(reason, "" if is_about_connection(error) else reason)


def scontrol_time(seconds: float) -> str:
    """Format epoch seconds for scontrol under TZ=UTC; a time in the past becomes `now`.

    Slurm refuses times more than ten minutes in the past.
    """
    if seconds < time.time():
        return "now"
    return datetime.fromtimestamp(round(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S")
