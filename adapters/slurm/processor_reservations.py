"""Advance reservations of processors on a Slurm cluster, which chooses the cores itself.

Slurm reserves cores with all their processors. It is given their number, and takes them on one node
if it can; releases from 24.11 on take no number for each node. Measured with Slurm 22.05: it avoids
cores of other reservations and of jobs that may still run then. It never changes the cores of a
reservation. So a replacement is created under an alternate name, and pending jobs move to it. A
reservation with pending or running jobs cannot be deleted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from metasched.adapters.slurm.listing import QueueLine, SinfoRecord
from metasched.adapters.slurm.node_reservations import (
    NodeReservations,
    UnknownAccounts,
    check_error,
    default_nodes,
    has_jobs,
    permitted,
    scontrol_time,
)
from metasched.adapters.slurm.reservation_listing import (
    SlurmReservation,
    alternate_name,
    base_name,
    build_pool,
    nodes_outside_reservations,
    own_reservations,
)
from metasched.model.adapter_errors import Refused, Unreachable
from metasched.model.reservation import reservation_id
from metasched.model.survey import ProcessorPool, ReservationSpec, Survey

_MAX_MOVES = 10  # reservations that are moved to make room for a new reservation


class ProcessorReservations(NodeReservations):
    """The reservations of a cluster, each a number of cores of the default partition."""

    def survey(
        self,
        jobs: Iterable[QueueLine],
        node_lines: Sequence[SinfoRecord],
        taken_at: float,
    ) -> Survey:
        reservations, cores = self._commands.reservations(), self._commands.cores()
        reserved_ids = {job.id for job in self._commands.jobs_in_reservations()}
        nodes = default_nodes(node_lines)
        up_nodes = [name for name, is_up in nodes.items() if is_up and name in cores]
        pools: tuple[ProcessorPool, ...] = ()
        if up_nodes:
            pools = (build_pool(up_nodes, cores, jobs, reservations, reserved_ids, taken_at),)
        return Survey(taken_at, (), own_reservations(reservations, self._instance), pools)

    def available_nodes(
        self,
        jobs: Sequence[QueueLine],
        node_lines: Sequence[SinfoRecord],
        taken_at: float,
    ) -> Sequence[SinfoRecord]:
        if not any("reserved" in line.state.lower() for line in node_lines):
            return node_lines
        reservations, cores = self._commands.reservations(), self._commands.cores()
        reservation_by_job = {
            job.id: job.reservation for job in self._commands.jobs_in_reservations()
        }
        return nodes_outside_reservations(
            node_lines, cores, jobs, reservations, reservation_by_job, taken_at
        )

    def reserve(self, spec: ReservationSpec) -> None:
        """Create the reservation on nodes that are up; delete its other versions."""
        node_lines = self._commands.nodes()
        if any("unknown" in line.state.lower() for line in node_lines):
            raise Unreachable("the state of some nodes is unknown after a start of the controller")
        up_nodes = {name for name, is_up in default_nodes(node_lines).items() if is_up}
        reservations = self._commands.reservations()
        existing = _versions_of(reservations, spec.name)
        usable = [r.name for r in existing if r.cores == spec.size and up_nodes.issuperset(r.nodes)]
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
        """Return the name of the newest version. Raises Refused, retryable, if there is none."""
        existing = _versions_of(self._commands.reservations(), name)
        if not existing:
            raise Refused(f"no reservation {name}", retryable=True, scope="job")
        return existing[-1].name

    def _create_with_room(
        self, spec: ReservationSpec, reservations: Sequence[SlurmReservation]
    ) -> str:
        """Create a reservation; if necessary, move reservations of this instance. Return its name.

        The cores that Slurm chose for other reservations may leave no room, although there are
        enough cores. Only reservations that have not started are moved.
        """
        now = time.time()
        movable = [
            r
            for r in sorted(reservations, key=lambda r: r.start)
            if reservation_id(base_name(r.name), self._instance) is not None
            and base_name(r.name) != spec.name
            and now < r.start < spec.end
            and spec.start < r.end
        ]
        refusal = Refused("")
        for reservation in (None, *movable[:_MAX_MOVES]):
            try:
                if reservation is not None:
                    self._move(reservation, reservations)
                return self._create(spec, reservations)
            except UnknownAccounts:
                raise  # no move of other reservations makes room for it
            except Refused as error:
                refusal = error
        raise refusal

    def _move(self, moved: SlurmReservation, reservations: Iterable[SlurmReservation]) -> None:
        """Move a reservation to other cores. Raises Refused if there are none."""
        name = base_name(moved.name)
        names = [version.name for version in _versions_of(reservations, name)]
        if len(names) > 1:  # an earlier call did not complete
            replacement = names[-1]
        else:
            spec = ReservationSpec(
                *(name, moved.users, moved.start, moved.end, (), moved.cores),
                accounts=moved.accounts,
            )
            replacement = self._create(spec, reservations)
        self._replace(names[0], replacement)

    def _create(self, spec: ReservationSpec, reservations: Iterable[SlurmReservation]) -> str:
        """Create a reservation and return its name. Raises Refused if that is impossible."""
        existing = [r.name for r in _versions_of(reservations, spec.name)]
        name = alternate_name(existing[0]) if existing else spec.name
        error = ""
        for node_options in (["NodeCnt=1"], []):
            error = self._commands.scontrol(
                "create",
                "reservation",
                f"ReservationName={name}",
                permitted(spec),
                f"StartTime={scontrol_time(spec.start)}",
                f"EndTime={scontrol_time(spec.end)}",
                f"CoreCnt={spec.size}",
                *node_options,
                "Flags=STATIC_ALLOC",
            )
            if not error:
                break
        if "CoreCnt" in error:
            raise Refused('its SelectType reserves no cores; write reservation_unit = "node"')
        if "Duplicate" in error:  # an earlier call has arrived late
            raise Unreachable(f"{name}: {error}")
        self._check_creation(error, spec)
        return name

    def _replace(self, old_name: str, new_name: str) -> None:
        """Delete a reservation; move its pending jobs to the new one; its running jobs continue."""
        jobs = [job for job in self._commands.jobs_in_reservations() if job.reservation == old_name]
        pending_ids = [job.id.partition("_")[0] for job in jobs if job.state == "PENDING"]
        for job_id in dict.fromkeys(pending_ids):
            self._commands.scontrol("update", f"JobId={job_id}", f"ReservationName={new_name}")
        error = self._commands.scontrol("delete", f"ReservationName={old_name}")
        if has_jobs(error):
            raise Unreachable(f"{old_name}: {error}")
        check_error(error)


def _versions_of(reservations: Iterable[SlurmReservation], name: str) -> list[SlurmReservation]:
    """Return the reservation of that name, and its replacement."""
    return [r for r in reservations if base_name(r.name) == name]
