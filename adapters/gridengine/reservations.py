"""Advance reservations of one Grid Engine cell: what is free when, and slots kept for users.

Grid Engine chooses the slots itself, when it grants a reservation, and never moves one: it is
granted anew elsewhere, what waits in it goes over, and then the old one is deleted. What died in
between leaves two of one name: a survey shows that, and `reserve` goes on. All are made by this
account, which must be of the access list `arusers`, and each is open to its user alone. Son of Grid
Engine 8.1.9, measured: names need not be unique; what one has of consumables is kept from all but
its jobs, which get no others, and is not said to be taken; deleting one, and its end, deletes the
jobs in it, and of those that wait no record is left; a job longer than its reservation is refused;
a reservation whose queue is disabled is kept, and runs nothing; one is granted in queues that are
disabled or do not answer as in any others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import TypeVar

from metasched.adapters.commands import CommandResult
from metasched.adapters.errors import Refused, Unreachable
from metasched.adapters.gridengine import listing as text
from metasched.adapters.gridengine import reservation_listing as windows
from metasched.adapters.gridengine.reservation_listing import (
    AdvanceReservation,
    CellListing,
    Occupancy,
)
from metasched.carts.node_assignment import NodeDemand
from metasched.carts.relocation import NO_MOVE_BEFORE_START
from metasched.model.reservation import reservation_id
from metasched.model.survey import ReservationSpec, Survey

_IDS_PER_CALL = 500
_WAITING_PER_QUERY = 50  # of those that wait, at a time
# The qmaster's own words: it has not done it.
_REJECTION_MESSAGE = re.compile(
    r"no suitable queues|denied|is not known as a user|rejected|in the past|later than end time"
    r"|not an? AR user|not have .*permission|does not exist"
)
_UNKNOWN_MESSAGE = re.compile(r"does not exist")
_NO_ROOM_MESSAGE = "no suitable queues"
_MAX_MOVES = 10  # reservations that are moved at the most to make room for one
_START_MARGIN = 2.0  # seconds: a start nearer than that may have passed when the qmaster looks

T = TypeVar("T")


@dataclass(frozen=True)
class UnreservedCapacity:
    """The hosts as reservations leave them now, what those to come leave, who waits in one."""

    hosts: Sequence[text.ExecutionHost]
    coming: tuple[tuple[float, int], ...] = ()
    awaiting: frozenset[str] = frozenset()


class GridEngineReservations:
    """Those of one cell, by the commands that `run` gives as this account."""

    def __init__(
        self, run: Callable[..., CommandResult], user: str, instance: str, parallel_environment: str
    ) -> None:
        self._run, self._user, self._instance = run, user, instance
        self._parallel_environment = parallel_environment
        # of jobs that ran, and that waited, as far as asked: for `_inside` and `_await` alone
        self._reservation_of_running: dict[str, str] = {}
        self._reservation_of_waiting: dict[str, str] = {}

    def survey(self, listing: CellListing) -> Survey:
        """What takes the slots of the cell; `listed` are everybody's jobs.

        A reservation that cannot be used, since its queue is down, is told where it is: on nodes
        that are in no pool.
        """
        occupancy = self._occupancy(listing)
        own = windows.own_reservations(occupancy.reservations, self._user, self._instance)
        guard = listing.rules.duration_offset
        return Survey(listing.listed_at, (), own, occupancy.pools(self._spans_hosts()), guard)

    def _occupancy(self, listing: CellListing) -> Occupancy:
        reservations = self._list_reservations()
        reservation_of_job = self._running_in_reservations(
            reservations, listing.jobs, listing.listed_at
        )
        return Occupancy(
            **vars(listing), reservations=reservations, reservation_of_job=reservation_of_job
        )

    def _spans_hosts(self) -> bool:
        return self._query(windows.spans_hosts, "qconf", "-sp", self._parallel_environment)

    def unreserved(self, listing: CellListing) -> UnreservedCapacity:
        """What of the cell is there for jobs in no reservation. Some commands more if there is any.

        Ids are of jobs that wait in one, as far as the first in the line that does not.
        """
        if not any(queue.reserved for host in listing.hosts for queue in host.queues):
            return UnreservedCapacity(listing.hosts)
        occupancy = self._occupancy(listing)
        awaiting = self._waiting_in_reservations(
            [job.id for job in listing.jobs if job.is_eligible]
        )
        return UnreservedCapacity(
            occupancy.hosts_without_reserved(), occupancy.upcoming_windows(), awaiting
        )

    def _waiting_in_reservations(self, waiting: Sequence[str]) -> frozenset[str]:
        """Those of a line that wait in reservations, to the first that does not."""
        self._reservation_of_waiting = {
            id: self._reservation_of_waiting[id]
            for id in waiting
            if id in self._reservation_of_waiting
        }
        inside: list[str] = []
        while batch := waiting[len(inside) : len(inside) + _WAITING_PER_QUERY]:
            self._reservation_of_waiting |= self._reservations_of(
                id for id in batch if id not in self._reservation_of_waiting
            )
            reserved = list(takewhile(self._reservation_of_waiting.get, batch))
            inside += reserved
            if len(reserved) < len(batch):
                break
        return frozenset(inside)

    def _running_in_reservations(
        self,
        reservations: Iterable[AdvanceReservation],
        jobs: Iterable[text.QstatJob],
        listed_at: float,
    ) -> dict[str, str]:
        """The reservation of each job that runs in one."""
        earliest_start = min(
            (reservation.start for reservation in reservations if reservation.start <= listed_at),
            default=None,
        )
        running = [job for job in jobs if not job.is_waiting]
        candidates = [
            candidate
            for candidate in running
            if earliest_start is not None and (candidate.started or listed_at) >= earliest_start
        ]
        self._reservation_of_running = {
            **{
                job.id: self._reservation_of_running[job.id]
                for job in candidates
                if job.id in self._reservation_of_running
            },
            **self._reservations_of(
                job.id for job in candidates if job.id not in self._reservation_of_running
            ),
        }
        return {
            id: reservation
            for id, reservation in self._reservation_of_running.items()
            if reservation
        }

    def reserve(self, spec: ReservationSpec, listing: CellListing) -> None:
        """Have it granted once, and in queues that are up; what was granted besides is deleted.

        `listed` are the jobs of its user.
        """
        same_name = self._named(spec.name)
        fitting = [
            reservation.id
            for reservation in same_name
            if reservation.usable and reservation.size == spec.size
        ]
        id = fitting[-1] if fitting else self._grant_with_moves(spec, listing)
        self._replace(
            [reservation for reservation in same_name if reservation.id != id], id, listing.jobs
        )

    def _grant_with_moves(self, spec: ReservationSpec, listing: CellListing) -> str:
        """The id of a new one, for which others are moved if need be. Refused if it is in vain."""
        for _ in range(_MAX_MOVES):
            try:
                return self._grant(spec, listing)
            except Refused as refusal:
                if _NO_ROOM_MESSAGE not in refusal.reason or not self._move_first(spec, listing):
                    raise
        return self._grant(spec, listing)

    def _move_first(self, spec: ReservationSpec, listing: CellListing) -> bool:
        """Move the first of those of ours that are in the way of a window, if that is any use.

        The next is chosen when it is seen what the qmaster chose for this one.
        """
        occupancy = self._occupancy(replace(listing, jobs=self._list_jobs("*")))
        movable = {
            reservation.id: reservation
            for reservation in occupancy.reservations
            if reservation.owner == self._user
            and reservation_id(reservation.name, self._instance) is not None
            and reservation.user
            and reservation.usable
            and reservation.start > occupancy.listed_at + NO_MOVE_BEFORE_START
            and occupancy.rules.consumables.keys().isdisjoint(
                reservation.per_slot
            )  # there may be too few to have them twice
        }
        newest = {reservation.name: reservation for reservation in movable.values()}
        superseded = [
            reservation
            for reservation in movable.values()
            if reservation != newest[reservation.name]
        ]
        if superseded:  # an earlier call has not come to its end
            reservation = superseded[0]
            self._replace(
                [reservation], newest[reservation.name].id, self._list_jobs(reservation.user)
            )
            return True
        start, end = (float(round(time)) for time in (spec.start, spec.end))
        need = NodeDemand(0, max(start, occupancy.listed_at), end, spec.size)
        moves = occupancy.pool_map(self._spans_hosts(), movable).find_moves(need)
        if not moves:
            return False
        id, slots = moves[0]
        reservation = movable[str(id)]
        moved_spec = ReservationSpec(
            reservation.name,
            reservation.user,
            reservation.start,
            reservation.end,
            (),
            reservation.size,
        )
        new_id = self._grant(moved_spec, listing, slots)
        self._replace([reservation], new_id, self._list_jobs(reservation.user))
        return True

    def _replace(
        self, replaced: Sequence[AdvanceReservation], id: str, jobs: Sequence[text.QstatJob]
    ) -> None:
        """Delete what another one replaces; those of the jobs that wait in them come along."""
        if not replaced:
            return
        self._transfer_waiting(id, replaced, [job.id for job in jobs if job.is_waiting])
        try:
            self._delete(replaced, jobs)
        except Refused as refusal:  # what runs in it is let run
            raise Unreachable(refusal.reason) from None

    def _grant(
        self, spec: ReservationSpec, listing: CellListing, locations: Collection[str] = ()
    ) -> str:
        """The id of a new one, in these `places` if any are named (`Occupancy.places`).

        It has its licences, and each slot its share of the memory.

        Refused if it cannot be had.
        """
        queues = [
            (f"{queue.name}@{host.name}", queue.up, host.name)
            for host in listing.hosts
            for queue in host.queues
        ]
        up = [
            instance
            for instance, is_up, host in queues
            if is_up and (not locations or instance in locations or host in locations)
        ]
        if not up:
            raise Refused("no queue is up")
        queue_option = () if len(up) == len(queues) else ("-q", ",".join(up))
        start_option = (
            ()
            if spec.start < listing.listed_at + _START_MARGIN
            else ("-a", _qrsub_time(spec.start))
        )
        size_options = ["-pe", self._parallel_environment, str(spec.size)]
        try:
            resources = listing.rules.resource_requests(spec, listing.hosts)
        except ValueError as error:
            raise Refused(str(error)) from None
        if resources:
            size_options += ["-l", ",".join(resources)]
        options = ("-N", spec.name, "-u", spec.user, *start_option, "-e", _qrsub_time(spec.end))
        answer = self._run("qrsub", *options, *size_options, *queue_option)
        if (id := windows.granted_id(answer.stdout)) is None:
            message = f"{answer.stdout}\n{answer.stderr}".strip()
            raise (
                Refused(_one_line(message))
                if _REJECTION_MESSAGE.search(message)
                else Unreachable(f"qrsub: {message}")
            )
        return id

    def _transfer_waiting(
        self, id: str, replaced: Iterable[AdvanceReservation], waiting: Iterable[str]
    ) -> None:
        """Let those of the jobs that wait in other reservations wait in this one."""
        replaced_ids = {reservation.id for reservation in replaced}
        reservation_of_job = self._reservations_of(waiting)
        for batch in windows.id_lists(
            [job for job, waits_in in reservation_of_job.items() if waits_in in replaced_ids],
            _IDS_PER_CALL,
        ):
            answer = self._run("qalter", "-ar", id, batch)
            if answer.exit_code:
                raise Unreachable(f"qalter: {_one_line(answer.stdout + answer.stderr)}")

    def unreserve(self, name: str, jobs: Iterable[text.QstatJob]) -> None:
        """Delete it unless jobs are in it; `listed` are the jobs of now."""
        self._delete(self._named(name), jobs)

    def find(self, name: str) -> AdvanceReservation:
        """The one of that name, the newer if one replaces another.

        Refused, to be tried again, if there is none.
        """
        same_name = self._named(name)
        if not same_name:
            raise Refused(f"no advance reservation {name}", retryable=True)
        return same_name[-1]

    def _delete(
        self, reservations: Iterable[AdvanceReservation], jobs: Iterable[text.QstatJob]
    ) -> None:
        ids = {reservation.id for reservation in reservations}
        if not ids:
            return
        reservation_of_job = self._reservations_of(job.id for job in jobs)
        if inside := sorted(
            job for job, reservation_id in reservation_of_job.items() if reservation_id in ids
        ):
            raise Refused(f"jobs are in it: {', '.join(inside)}", retryable=True)
        for id in sorted(ids):
            answer = self._run("qrdel", id)
            message = f"{answer.stdout}\n{answer.stderr}".strip()
            if answer.exit_code and not _UNKNOWN_MESSAGE.search(message):
                raise Unreachable(f"qrdel: {_one_line(message)}")

    def _list_jobs(self, user: str) -> list[text.QstatJob]:
        return self._query(text.parse_jobs, "qstat", "-xml", "-r", "-u", user)

    def _named(self, name: str) -> list[AdvanceReservation]:
        return [
            reservation
            for reservation in self._list_reservations()
            if (reservation.name, reservation.owner) == (name, self._user)
        ]

    def _list_reservations(self) -> list[AdvanceReservation]:
        ids = self._query(windows.parse_reservation_ids, "qrstat", "-xml", "-u", "*")
        return [
            reservation
            for batch in windows.id_lists(ids, _IDS_PER_CALL)
            # it says 1 if one of them has ended meanwhile, and tells of the others
            for reservation in self._query(
                windows.parse_reservations, "qrstat", "-xml", "-ar", batch, partial=True
            )
        ]

    def _reservations_of(self, jobs: Iterable[str]) -> dict[str, str]:
        """The reservation of each of these jobs, empty for those that have none."""
        ids = list(jobs)
        reservation_of_job: dict[str, str] = dict.fromkeys(ids, "")
        for batch in windows.id_lists(ids, _IDS_PER_CALL):
            reservation_of_job |= self._query(
                windows.parse_reserved_jobs, "qstat", "-xml", "-j", batch
            )
        return reservation_of_job

    def _query(
        self, parse: Callable[[str], T], program: str, *arguments: str, partial: bool = False
    ) -> T:
        answer = self._run(program, *arguments)
        if answer.exit_code != 0 and not (partial and answer.stdout):
            raise Unreachable(f"{program}: {answer.error_message}")
        try:
            return parse(answer.stdout)
        except (ValueError, KeyError) as error:
            raise Unreachable(f"{program}: the answer cannot be read: {error}") from None


def _qrsub_time(seconds: float) -> str:
    """A time as qrsub takes it under TZ=UTC."""
    return datetime.fromtimestamp(round(seconds), UTC).strftime("%Y%m%d%H%M.%S")


def _one_line(message: str) -> str:
    return "; ".join(line.strip() for line in message.splitlines() if line.strip())[:500]
