"""Advance reservations of a Grid Engine cell: surveys, grants, moves and deletions.

Grid Engine chooses the slots of a reservation when it grants it and never moves them. A move
grants a second reservation elsewhere, transfers the waiting jobs, and deletes the first. After a
crash in between, two reservations have the same name: a survey shows this, and `reserve` finishes
the move. This account makes all reservations and must be in the access list `arusers`. Each
reservation is open to its user only.

Measured with Son of Grid Engine 8.1.9:
- Names need not be unique.
- Consumables of a reservation are withheld from all other jobs, and its jobs get no others. They
  are not reported as used.
- The deletion or the end of a reservation deletes its jobs; waiting jobs leave no record.
- A job longer than its reservation is rejected.
- A reservation whose queue is disabled is kept, and runs nothing. New reservations are granted in
  queues that are disabled or do not answer as in any others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile

from metasched.adapters.gridengine.commands import CellCommands, id_lists, one_line
from metasched.adapters.gridengine.listing import ExecutionHost, QstatJob
from metasched.adapters.gridengine.reservation_listing import (
    AdvanceReservation,
    CellListing,
    Occupancy,
    granted_id,
    own_reservations,
    parse_reservation_ids,
    parse_reservations,
    parse_reserved_jobs,
    spans_hosts,
)
from metasched.adapters.gridengine.submission import is_rejection, unproved_answer
from metasched.carts.node_assignment import NodeDemand
from metasched.carts.relocation import NO_MOVE_BEFORE_START
from metasched.model.adapter_errors import Refused, Unreachable
from metasched.model.reservation import reservation_id
from metasched.model.survey import ReservationSpec, Survey

_WAITING_PER_QUERY = 50  # waiting jobs whose reservations are queried at a time
# Messages of the qmaster that prove that nothing was granted.
# Answers of the qmaster to qrsub alone
_REJECTION = re.compile(
    r"(advance_reservation: )?no suitable queues|error: .* is not known as a user|start time is "
    r"|.* is not an? AR user|.* not have .*permission|.*start time.* in the past"
)
_UNKNOWN_MESSAGE = re.compile(r"does not exist")
_NO_ROOM_MESSAGE = "no suitable queues"
_MAX_MOVES = 10  # reservations moved to make room for another
_START_MARGIN = 2.0  # seconds; a nearer start may have passed when the qmaster checks it


@dataclass(frozen=True)
class UnreservedCapacity:
    """The capacity of a cell for jobs outside reservations."""

    hosts: Sequence[ExecutionHost]  # without reserved slots and memory
    # reserved windows: latest end of a job started now (epoch seconds), slots left to longer jobs
    coming: tuple[tuple[float, int], ...] = ()
    awaiting: frozenset[str] = frozenset()  # ids of jobs that wait in a reservation


class GridEngineReservations:
    """The reservations of a cell."""

    def __init__(
        self, commands: CellCommands, user: str, instance: str, parallel_environment: str
    ) -> None:
        self._commands, self._user, self._instance = commands, user, instance
        self._parallel_environment = parallel_environment
        # Reservation ids by job, empty for none; caches of the two methods that list jobs inside.
        self._running_inside: dict[str, str] = {}
        self._waiting_inside: dict[str, str] = {}

    def survey(self, cell: CellListing) -> Survey:
        """Report the uses of the cell's slots; `cell` lists the jobs of all users.

        A reservation in a queue that is down is reported at its place, on nodes in no pool.
        """
        occupancy = self._occupancy(cell)
        return Survey(
            observed=cell.listed_at,
            nodes=(),
            reservations=own_reservations(occupancy.reservations, self._user, self._instance),
            pools=occupancy.pools(self._spans_hosts()),
            guard=cell.rules.duration_offset,
        )

    def _occupancy(self, cell: CellListing) -> Occupancy:
        reservations = self._list_reservations()
        return Occupancy(
            jobs=cell.jobs,
            hosts=cell.hosts,
            listed_at=cell.listed_at,
            rules=cell.rules,
            reservations=reservations,
            reservation_of_job=self._running_jobs_inside(reservations, cell),
        )

    def _spans_hosts(self) -> bool:
        return self._commands.query(spans_hosts, "qconf", "-sp", self._parallel_environment)

    def unreserved(self, cell: CellListing) -> UnreservedCapacity:
        """Return the capacity for jobs outside reservations; no commands run without any."""
        if not any(queue.reserved for host in cell.hosts for queue in host.queues):
            return UnreservedCapacity(cell.hosts)
        occupancy = self._occupancy(cell)
        return UnreservedCapacity(
            hosts=occupancy.hosts_without_reserved(),
            coming=occupancy.upcoming_windows(),
            awaiting=self._waiting_jobs_inside(
                [job.id for job in cell.jobs if job.waits_only_for_resources]
            ),
        )

    def _waiting_jobs_inside(self, queue: Sequence[str]) -> frozenset[str]:
        """Return the jobs at the head of the queue that wait in reservations.

        The first job outside reservations ends the search: only jobs before it matter.
        """
        cache = {id: self._waiting_inside[id] for id in queue if id in self._waiting_inside}
        self._waiting_inside = cache
        inside: list[str] = []
        while batch := queue[len(inside) : len(inside) + _WAITING_PER_QUERY]:
            cache |= self._reservations_of(id for id in batch if id not in cache)
            reserved = list(takewhile(cache.get, batch))
            inside += reserved
            if len(reserved) < len(batch):
                break
        return frozenset(inside)

    def _running_jobs_inside(
        self, reservations: Iterable[AdvanceReservation], cell: CellListing
    ) -> dict[str, str]:
        """Return the reservations of running jobs, by job; other jobs are left out."""
        active = [r.start for r in reservations if r.start <= cell.listed_at]
        earliest = min(active, default=math.inf)
        candidates = [
            job.id
            for job in cell.jobs
            if not job.is_waiting and (job.started or cell.listed_at) >= earliest
        ]
        cache = self._running_inside
        cached = {id: cache[id] for id in candidates if id in cache}
        new = self._reservations_of(id for id in candidates if id not in cache)
        self._running_inside = cached | new
        return {id: inside for id, inside in self._running_inside.items() if inside}

    def reserve(self, spec: ReservationSpec, cell: CellListing) -> None:
        """Have a single reservation under the name, in queues that are up.

        `cell` lists the jobs of its user. Raises Refused if the qmaster grants none.
        """
        same_name = self._named(spec.name)
        fitting = [r.id for r in same_name if r.usable and r.size == spec.size]
        id = fitting[-1] if fitting else self._grant_with_moves(spec, cell)
        self._replace([r for r in same_name if r.id != id], id, cell.jobs)

    def _grant_with_moves(self, spec: ReservationSpec, cell: CellListing) -> str:
        """Grant a reservation, after moving others if necessary; return its id. Raises Refused."""
        for _ in range(_MAX_MOVES):
            try:
                return self._grant(spec, cell)
            except Refused as refusal:
                if _NO_ROOM_MESSAGE not in refusal.reason or not self._move_first(spec, cell):
                    raise
        return self._grant(spec, cell)

    def _move_first(self, spec: ReservationSpec, cell: CellListing) -> bool:
        """Move the first own reservation that blocks the new; return False if no move helps.

        The caller decides on the next move by the slots that the qmaster chose here.
        """
        jobs = self._commands.list_jobs("*").jobs
        occupancy = self._occupancy(replace(cell, jobs=jobs))
        movable = {r.id: r for r in occupancy.reservations if self._is_movable(r, cell)}
        newest = {reservation.name: reservation for reservation in movable.values()}
        superseded = [r for r in movable.values() if r != newest[r.name]]
        if superseded:  # an earlier move is unfinished
            old = superseded[0]
            self._replace([old], newest[old.name].id, self._commands.list_jobs(old.user).jobs)
            return True
        start, end = float(round(spec.start)), float(round(spec.end))
        demand = NodeDemand(0, max(start, occupancy.listed_at), end, spec.size)
        moves = occupancy.pool_map(self._spans_hosts(), movable).find_moves(demand)
        if not moves:
            return False
        id, slots = moves[0]
        old = movable[str(id)]
        moved = ReservationSpec(old.name, old.user, old.start, old.end, nodes=(), size=old.size)
        new_id = self._grant(moved, cell, slots)
        self._replace([old], new_id, self._commands.list_jobs(old.user).jobs)
        return True

    def _is_movable(self, reservation: AdvanceReservation, cell: CellListing) -> bool:
        """Return whether a reservation is of this instance, usable, and not about to start.

        A reservation with licences stays: there may be too few licences to have them twice.
        """
        return (
            reservation.owner == self._user
            and reservation_id(reservation.name, self._instance) is not None
            and bool(reservation.user)
            and reservation.usable
            and reservation.start > cell.listed_at + NO_MOVE_BEFORE_START
            and cell.rules.consumables.keys().isdisjoint(reservation.per_slot)
        )

    def _replace(
        self, replaced: Sequence[AdvanceReservation], id: str, jobs: Sequence[QstatJob]
    ) -> None:
        """Transfer the waiting jobs of replaced reservations to reservation `id`; delete these."""
        if not replaced:
            return
        self._transfer_waiting(id, replaced, [job.id for job in jobs if job.is_waiting])
        try:
            self._delete(replaced, jobs)
        except Refused as refusal:  # jobs that run in it keep running
            raise Unreachable(refusal.reason) from None

    def _grant(
        self, spec: ReservationSpec, cell: CellListing, locations: Collection[str] = ()
    ) -> str:
        """Have a reservation granted, with its licences and memory; return its id.

        `locations` restricts it to these pools (`Occupancy.pool_map`). Raises Refused if the
        qmaster certainly granted nothing.
        """
        queues = [
            (f"{queue.name}@{host.name}", host.name, queue.up)
            for host in cell.hosts
            for queue in host.queues
        ]
        usable = [
            instance
            for instance, host, up in queues
            if up and (not locations or instance in locations or host in locations)
        ]
        if not usable:
            raise Refused("no queue is up")
        options = ["-N", spec.name, "-u", spec.user]
        if spec.start >= cell.listed_at + _START_MARGIN:
            options += ["-a", _qrsub_time(spec.start)]
        options += ["-e", _qrsub_time(spec.end)]
        options += ["-pe", self._parallel_environment, str(spec.size)]
        try:
            resources = cell.rules.resource_requests(spec, cell.hosts)
        except ValueError as error:
            raise Refused(str(error)) from None
        if resources:
            options += ["-l", ",".join(resources)]
        if len(usable) < len(queues):
            options += ["-q", ",".join(usable)]
        answer = self._commands.run("qrsub", *options)
        if (id := granted_id(answer.stdout)) is None:
            message = f"{answer.stdout}\n{answer.stderr}".strip()
            if any(is_rejection(line) or _REJECTION.match(line) for line in message.splitlines()):
                # its lines are no remedy of metasched
                raise Refused(one_line(message).replace("; ", ", "))
            raise unproved_answer(f"qrsub: {message}")
        return id

    def _transfer_waiting(
        self, id: str, replaced: Iterable[AdvanceReservation], waiting: Iterable[str]
    ) -> None:
        """Transfer waiting jobs from replaced reservations to reservation `id`."""
        replaced_ids = {reservation.id for reservation in replaced}
        jobs = [job for job, old in self._reservations_of(waiting).items() if old in replaced_ids]
        for batch in id_lists(jobs):
            answer = self._commands.run("qalter", "-ar", id, batch)
            if answer.exit_code:
                raise Unreachable(f"qalter: {one_line(answer.stdout + answer.stderr)}")

    def unreserve(self, name: str, jobs: Iterable[QstatJob]) -> None:
        """Delete a reservation; `jobs` is a new listing. Refused while jobs are in it."""
        self._delete(self._named(name), jobs)

    def find(self, name: str) -> AdvanceReservation:
        """Return the reservation of this name, the newer if another is being replaced.

        Raises Refused, retryable, if there is none.
        """
        same_name = self._named(name)
        if not same_name:
            raise Refused(f"no advance reservation {name}", retryable=True, scope="job")
        return same_name[-1]

    def _delete(self, reservations: Iterable[AdvanceReservation], jobs: Iterable[QstatJob]) -> None:
        ids = {reservation.id for reservation in reservations}
        if not ids:
            return
        reservation_of_job = self._reservations_of(job.id for job in jobs)
        if inside := sorted(job for job, id in reservation_of_job.items() if id in ids):
            raise Refused(f"jobs are in it: {', '.join(inside)}", retryable=True)
        for id in sorted(ids):
            answer = self._commands.run("qrdel", id)
            message = f"{answer.stdout}\n{answer.stderr}".strip()
            if answer.exit_code and not _UNKNOWN_MESSAGE.search(message):
                raise Unreachable(f"qrdel: {one_line(message)}")

    def _named(self, name: str) -> list[AdvanceReservation]:
        key = (name, self._user)
        return [r for r in self._list_reservations() if (r.name, r.owner) == key]

    def _list_reservations(self) -> list[AdvanceReservation]:
        query = self._commands.query
        ids = query(parse_reservation_ids, "qrstat", "-xml", "-u", "*")
        return [
            reservation
            for batch in id_lists(ids)
            # its exit code is 1 if a reservation has just ended; the answer has the others
            for reservation in query(
                parse_reservations, "qrstat", "-xml", "-ar", batch, partial=True
            )
        ]

    def _reservations_of(self, jobs: Iterable[str]) -> dict[str, str]:
        """Query the reservation of each job; empty for a job outside reservations."""
        ids = list(jobs)
        reservation_of_job = dict.fromkeys(ids, "")
        for batch in id_lists(ids):
            reservation_of_job |= self._commands.query(
                parse_reserved_jobs, "qstat", "-xml", "-j", batch
            )
        return reservation_of_job


def _qrsub_time(seconds: float) -> str:
    """Format a time for qrsub under TZ=UTC."""
    return datetime.fromtimestamp(round(seconds), UTC).strftime("%Y%m%d%H%M.%S")
