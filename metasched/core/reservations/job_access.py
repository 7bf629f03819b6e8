"""What reservations allow jobs: their own jobs enter, others leave their nodes free. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from metasched.core.reservations.availability import Availability
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Reason
from metasched.model.reservation import BOUND_STATES, FINAL_STATES, Reservation, ReservationState
from metasched.policies.eligible import Ineligibility
from metasched.policies.late_binding import ReservedNodes


class JobAccess:
    """Answers placement: may a job run in its reservation, which nodes must stay free."""

    def __init__(self, reservations: Mapping[int, Reservation], availability: Availability) -> None:
        self._reservations, self._availability = reservations, availability

    def check_job(self, job: Job, cluster: str) -> Ineligibility | None:
        """Return why the job's reservation keeps it from a cluster; None: it does not."""
        if job.reservation is None:
            return None
        reservation = self._reservations.get(job.reservation)
        if reservation is None or reservation.state in FINAL_STATES:
            status = "over" if reservation is None else f"{reservation.state}: {reservation.cause}"
            message = f"reservation {job.reservation} is {status}"
            return Ineligibility(Reason.RESERVATION_WAIT, message)
        if reservation.cluster not in self._availability.clusters:
            message = f"reservation {reservation.id}: {reservation.cause}"
            return Ineligibility(Reason.RESERVATION_WAIT, message)
        if reservation.cluster != cluster:
            message = f"its reservation is on {reservation.cluster}"
            return Ineligibility(Reason.NO_CLUSTER_FITS, message)
        if reservation.state not in BOUND_STATES:
            message = f"reservation {reservation.id} is {reservation.state}: {reservation.cause}"
            return Ineligibility(Reason.RESERVATION_WAIT, message)
        if job.licences and reservation.state is not ReservationState.ACTIVE:
            # the licences must not lie idle until it begins
            message = f"reservation {reservation.id} has not begun; until then it has no licences"
            return Ineligibility(Reason.RESERVATION_WAIT, message)
        return None

    def reserved_capacity(self, cluster: Cluster, now: float) -> ReservedNodes | None:
        """Return what a late-binding cluster must keep free for its reservations; None: nothing.

        With early binding the manager keeps it free. `now` is in epoch seconds.
        """
        if not cluster.binds_late:
            return None
        first_start = self._availability.first_start_on(cluster.name)
        if first_start is None:
            return None
        guard = self._availability.guard(cluster.name)
        carts = next(iter(self._availability.carts(cluster.name, now)), None)
        return ReservedNodes(now, first_start, guard, cluster.granularity, carts)
