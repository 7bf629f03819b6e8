"""Advance reservations of processors of one Slurm cluster: Slurm chooses the cores itself.

Slurm reserves cores, with all their processors. It is told how many, and takes them on one node if
it can: lists of nodes with a number for each are gone from 24.11 on. Slurm 22.05, measured: cores
are taken round those of others' windows and of jobs that may still run then; they are never
changed, so that what replaces a reservation is made beside it, under another name, and jobs that
wait go over to it; one in which jobs wait or run cannot be deleted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from metasched.adapters.errors import Refused, Unreachable
from metasched.adapters.slurm import listing as text
from metasched.adapters.slurm import reservation_listing as windows
from metasched.adapters.slurm.node_reservations import (
    NodeReservations,
    check_error,
    default_nodes,
    has_jobs,
    scontrol_time,
)
from metasched.adapters.slurm.reservation_listing import SlurmReservation, base_name
from metasched.model.reservation import reservation_id
from metasched.model.survey import ReservationSpec, Survey

_MAX_MOVES = 10  # reservations that are moved at the most to make room for one


class CoreReservations(NodeReservations):
    """Those of one cluster, each so many cores of the default partition."""

    def survey(
        self, jobs: Iterable[text.QueueLine], node_lines: Sequence[text.NodeLine], taken_at: float
    ) -> Survey:
        reservations, cores = self._commands.reservations(), self._commands.cores()
        reserved_ids = {job.id for job in self._commands.reserved_jobs()}
        up_nodes = [
            name for name, is_up in default_nodes(node_lines).items() if is_up and name in cores
        ]
        pools = (
            (windows.build_pool(up_nodes, cores, jobs, reservations, reserved_ids, taken_at),)
            if up_nodes
            else ()
        )
        return Survey(taken_at, (), windows.own_reservations(reservations, self._instance), pools)

    def available_nodes(
        self, jobs: Sequence[text.QueueLine], node_lines: Sequence[text.NodeLine], taken_at: float
    ) -> Sequence[text.NodeLine]:
        if not any("reserved" in line.state.lower() for line in node_lines):
            return node_lines
        reservations, cores = self._commands.reservations(), self._commands.cores()
        reservation_by_job = {job.id: job.reservation for job in self._commands.reserved_jobs()}
        return windows.available_nodes(
            node_lines, cores, jobs, reservations, reservation_by_job, taken_at
        )

    def reserve(self, spec: ReservationSpec) -> None:
        """Have it made once, on nodes that are up; what was made besides is deleted."""
        node_lines = self._commands.nodes()
        if any("unknown" in line.state.lower() for line in node_lines):
            raise Unreachable("the controller has not heard from all of its nodes as yet")
        up_nodes = {current for current, is_up in default_nodes(node_lines).items() if is_up}
        reservations = self._commands.reservations()
        existing = _versions_of(reservations, spec.name)
        usable = [
            reservation.name
            for reservation in existing
            if reservation.cores == spec.size and up_nodes.issuperset(reservation.nodes)
        ]
        if len(existing) > 1 and not usable:
            self._replace(existing[0].name, existing[-1].name)
            return self.reserve(spec)
        current = usable[0] if usable else self._create_with_room(spec, reservations)
        for reservation in existing:
            if reservation.name != current:
                self._replace(reservation.name, current)
        return None

    def delete(self, name: str) -> None:
        for reservation in _versions_of(self._commands.reservations(), name):
            super().delete(reservation.name)

    def current_name(self, name: str) -> str:
        """Refused, to be tried again, if there is none."""
        existing = _versions_of(self._commands.reservations(), name)
        if not existing:
            raise Refused(f"no reservation {name}", retryable=True)
        return existing[-1].name

    def _create_with_room(
        self, spec: ReservationSpec, reservations: Sequence[SlurmReservation]
    ) -> str:
        """Make a new one, and room for it by moving ours that have not begun; its name.

        What Slurm chose for these may be in the way although there are cores enough.
        """
        now = time.time()
        movable = [
            reservation
            for reservation in sorted(reservations, key=lambda reservation: reservation.start)
            if reservation_id(base_name(reservation.name), self._instance) is not None
            and base_name(reservation.name) != spec.name
            and now < reservation.start < spec.end
            and spec.start < reservation.end
        ]
        refusal = Refused("")
        for reservation in (None, *movable[:_MAX_MOVES]):
            try:
                if reservation is not None:
                    self._move(reservation, reservations)
                return self._create(spec, reservations)
            except Refused as error:
                refusal = error
        raise refusal

    def _move(
        self, reservation: SlurmReservation, reservations: Iterable[SlurmReservation]
    ) -> None:
        """Have other cores for one. Refused if there are none."""
        name = base_name(reservation.name)
        names = [version.name for version in _versions_of(reservations, name)]
        if len(names) > 1:  # an earlier call has not come to its end
            replacement = names[-1]
        else:
            spec = ReservationSpec(
                name, reservation.users, reservation.start, reservation.end, (), reservation.cores
            )
            replacement = self._create(spec, reservations)
        self._replace(names[0], replacement)

    def _create(self, spec: ReservationSpec, reservations: Iterable[SlurmReservation]) -> str:
        """The name of a new one. Refused if it cannot be had."""
        existing = [reservation.name for reservation in _versions_of(reservations, spec.name)]
        name = windows.alternate_name(existing[0]) if existing else spec.name
        error = ""
        for node_options in (("NodeCnt=1",), ()):
            error = self._commands.scontrol(
                *("create", "reservation", f"ReservationName={name}", f"Users={spec.user}"),
                *(f"StartTime={scontrol_time(spec.start)}", f"EndTime={scontrol_time(spec.end)}"),
                *(f"CoreCnt={spec.size}", *node_options, "Flags=STATIC_ALLOC"),
            )
            if not error:
                break
        if "CoreCnt" in error:
            raise Refused('its SelectType reserves no cores; write reservation_unit = "node"')
        if "Duplicate" in error:  # an earlier call of ours has arrived after all
            raise Unreachable(f"{name}: {error}")
        check_error(error)
        return name

    def _replace(self, old_name: str, new_name: str) -> None:
        """Delete it; what waits in it goes over to the new one, what runs in it is let run."""
        reserved_jobs = [
            job_line
            for job_line in self._commands.reserved_jobs()
            if job_line.reservation == old_name
        ]
        pending_ids = [
            job_line.id.partition("_")[0]
            for job_line in reserved_jobs
            if job_line.state == "PENDING"
        ]
        for job_id in dict.fromkeys(pending_ids):
            self._commands.scontrol("update", f"JobId={job_id}", f"ReservationName={new_name}")
        error = self._commands.scontrol("delete", f"ReservationName={old_name}")
        if has_jobs(error):
            raise Unreachable(f"{old_name}: {error}")
        check_error(error)


def _versions_of(reservations: Iterable[SlurmReservation], name: str) -> list[SlurmReservation]:
    """The one of that name, and what replaces it."""
    return [reservation for reservation in reservations if base_name(reservation.name) == name]
