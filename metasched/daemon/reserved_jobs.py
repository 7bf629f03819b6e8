"""Checks of jobs that are submitted into an advance reservation, or changed in it."""

from __future__ import annotations

from msgspec import structs

from metasched.client.schemas import JobRequest
from metasched.daemon.reservation_requests import find_reservation, quantity
from metasched.daemon.service import SchedulerService
from metasched.errors import ApiError
from metasched.model.job import Job
from metasched.model.reservation import OPEN_STATES, Reservation
from metasched.model.units import iso


def apply_reservation(
    service: SchedulerService,
    user: str,
    request: JobRequest,
    now: float,
    visible_owner: str | None,
) -> JobRequest:
    """Restrict a job to its reservation: to its cluster, and to a time limit within its window.

    Raise ApiError if the reservation is for others or over, or if the job does not fit. For the
    user exist those that admit the job, and those of `visible_owner` (None: of all users).
    """
    if request.reservation is None:
        return request

    def is_visible(reservation: Reservation) -> bool:
        return visible_owner in (None, reservation.user) or _admits(
            reservation, user, request.account
        )

    reservation = find_reservation(service, request.reservation, is_visible)
    name = f"reservation {reservation.id}"
    if reservation.accounts:
        _check_account(reservation, request.account)
    elif not _admits(reservation, user, request.account):
        problem = f"{name} is {reservation.user}'s, and you are {user}"
        raise ApiError(403, f"{problem}; make one of your own, or ask for --users {user}")
    if reservation.state not in OPEN_STATES:
        raise ApiError(403, f"{name} is {reservation.state}: {reservation.cause}; make another")
    if request.clusters and reservation.cluster not in request.clusters:
        requested = ", ".join(request.clusters)
        problem = f"{name} is on {reservation.cluster}, --cluster asks for {requested}"
        raise ApiError(403, f"{problem}; leave out --cluster")
    remaining = remaining_seconds(reservation, request.begin, request.time_limit, now)
    cpus, nodes = request.tasks * request.cpus_per_task, request.nodes or 1
    if cpus > reservation.cpus or nodes > reservation.size:
        requested = f"{quantity(cpus, 'processor')} on {quantity(nodes, 'node')}"
        reserved = quantity(reservation.cpus, "processor")
        if reservation.nodes:
            reserved = f"{reservation.cpus} on {reservation.size}"
        problem = f"the job asks for {requested}, {name} has {reserved}"
        raise ApiError(403, f"{problem}; ask for fewer")
    limit = request.time_limit or max(remaining // 60 * 60, min(remaining, 60.0))
    return structs.replace(request, clusters=(reservation.cluster,), time_limit=limit)


def check_reservation_fit(service: SchedulerService, job: Job, now: float) -> None:
    """Raise ApiError if a changed job does not fit into its open reservation."""
    reservation = service.core.reservations.by_id.get(job.reservation or 0)
    if reservation is None or reservation.state not in OPEN_STATES:
        return
    name = f"job {job.id} runs in reservation {reservation.id}"
    if reservation.accounts:
        _check_account(reservation, job.account)
    if job.time_limit is None:
        raise ApiError(403, f"{name}, where it needs a time limit; give --time")
    remaining_seconds(reservation, job.begin, job.time_limit, now)
    if job.clusters != (reservation.cluster,):
        raise ApiError(403, f"{name}, which is on {reservation.cluster}; leave out --cluster")


def _admits(reservation: Reservation, user: str, account: str | None) -> bool:
    """Return whether a reservation is for the user, or for jobs of the account."""
    if reservation.accounts:
        return account in reservation.accounts
    return user in (reservation.user, *reservation.users)


def _check_account(reservation: Reservation, account: str | None) -> None:
    """Raise ApiError if a reservation for accounts does not admit the job's account."""
    if account not in reservation.accounts:
        allowed = ", ".join(reservation.accounts)
        problem = f"reservation {reservation.id} is for jobs of account {allowed}"
        actual = f"this one has {account}" if account else "this one names none"
        raise ApiError(403, f"{problem}, {actual}; give --account {reservation.accounts[0]}")


def remaining_seconds(
    reservation: Reservation, begin: float | None, time_limit: float | None, now: float
) -> float:
    """Return the seconds of a reservation that a job can use; ApiError if its limit is longer."""
    if begin is not None and begin >= reservation.end:
        problem = f"the job may not begin before {iso(begin)}, reservation {reservation.id} ends at"
        raise ApiError(403, f"{problem} {iso(reservation.end)}; ask for an earlier --begin")
    remaining = reservation.end - max(reservation.start, now, begin or 0.0)
    if time_limit is not None and time_limit > remaining:
        problem = f"the job may run for {time_limit:g} s, reservation {reservation.id} lasts"
        raise ApiError(403, f"{problem} {remaining:.0f} s; ask for a shorter --time")
    return remaining
