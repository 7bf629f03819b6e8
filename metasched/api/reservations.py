"""Advance reservations as users ask for them: what is checked, promised, told, and submitted into.

A request is decided by the core from surveys that are taken for it; then its manager must answer.
"""

from __future__ import annotations

import asyncio
import math
import pwd
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastapi import APIRouter, Body
from msgspec import structs

from metasched.api.identity import ForbiddenError
from metasched.api.modifications import MAX_EPOCH
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.api.selection import RECENTLY_ENDED
from metasched.client.schemas import JobRequest as JobRequest
from metasched.core.reservations.book import ReservationBook
from metasched.core.reservations.events import ReservationCancelled, ReservationRequested
from metasched.daemon.mail import ADDRESS
from metasched.daemon.service import SchedulerService
from metasched.errors import ApiError
from metasched.model.job import Job
from metasched.model.reservation import OPEN_STATES, Reservation, ReservationState
from metasched.model.reservation_request import Offer, ReservationQuota, ReservationRequest
from metasched.units import MAX_NUMBER, iso

router = APIRouter()

START_TOLERANCE = 5.0  # seconds by which a start may have passed on its way to us
ANSWER_TIMEOUT = 20.0  # seconds for which managers are waited for
MAX_STARTS = 20  # intervals of possible starts that are told of each cluster
MAX_ALTERNATIVES = 3  # windows that are offered instead, of each cluster


@dataclass(frozen=True, kw_only=True)
class ReservationBody:
    """What a client asks for: times in epoch seconds, durations in seconds.

    `least` to `most` processors (nodes if `by_node`) for `shortest` to `longest` seconds within
    [ready, deadline]; `ready` None: now. `deadline` None: the horizon of the owner's quota.
    `let_run` None: as long as the owner may. `licences` are kept for the window, too. `user` is the
    owner, None: the caller, who is told at `mail` if it breaks, "": by name.
    """

    least: int
    most: int
    shortest: float
    longest: float
    ready: float | None = None
    deadline: float | None = None
    by_node: bool = False
    clusters: tuple[str, ...] = ()
    let_run: float | None = None
    licences: Mapping[str, int] = field(default_factory=dict)
    dry_run: bool = False
    user: str | None = None
    mail: str = ""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - the API checks by it


@router.get("/reservations")
def reservations(
    daemon: CurrentDaemon, caller: CurrentCaller, all: bool = False
) -> list[dict[str, Any]]:
    stored = daemon.ledger.reservations(0.0 if all else time.time() - RECENTLY_ENDED)
    return [
        _reservation_row(reservation)
        for reservation in stored
        if caller.sees_all or reservation.user == caller.user
    ]


@router.post("/reservations")
async def create(
    caller: CurrentCaller, service: CurrentService, body: Annotated[ReservationBody, Body()]
) -> dict[str, Any]:
    user = caller.user if body.user is None else body.user
    if user != caller.user:
        caller.require_operator("reserve for others")
        try:
            pwd.getpwnam(user)
        except (KeyError, ValueError):
            raise ApiError(404, f"there is no account {user[:63]!r}; name another user") from None
    return await _reserve(service, user, body)


@router.post("/reservations/{id}/cancel")
async def cancel(caller: CurrentCaller, service: CurrentService, id: int) -> dict[str, Any]:
    """Cancel a reservation that is open; one that is over stays as it is."""
    reservation = _stored_reservation(service, id)
    if reservation.user != caller.user and not caller.operator:
        message = f"reservation {id} is {reservation.user}'s, and you are {caller.user}"
        raise ForbiddenError(f"{message}; ask its owner or an operator")
    current = service.core.reservations.by_id.get(id)
    if current is not None and current.state in OPEN_STATES:
        service.apply_events(ReservationCancelled(time.time(), id, caller.user))
        reservation = service.core.reservations.by_id[id]
    return _reservation_row(reservation)


async def _reserve(service: SchedulerService, user: str, body: ReservationBody) -> dict[str, Any]:
    """Promise what is asked for, or tell what would happen. Wrong: nothing is promised."""
    quota = service.settings.quota_of(user)
    _validate(body)
    if body.mail and service.mailer.program is None:
        message = "this site has no mail program to tell you by, --mail"
        raise ApiError(403, f"{message}; leave it out, and look at `metasched reservations`")
    _build_request(body, quota, time.time())  # before anybody is asked
    _check_licences_float(service, body.licences)
    clusters = _eligible_clusters(service, body)
    surveys = [
        asyncio.create_task(service.connections[name].reservation_sync.request_survey())
        for name in clusters
    ]
    _, unanswered = await asyncio.wait(surveys, timeout=ANSWER_TIMEOUT)
    for survey in unanswered:
        survey.cancel()
    now = time.time()
    reservation_id = 0 if body.dry_run else service.ledger.next_reservation()
    request = _build_request(body, quota, now)
    let_run = quota.let_run if body.let_run is None else body.let_run
    event = ReservationRequested(
        *(now, reservation_id, user, request, body.by_node, clusters, now + quota.horizon, let_run),
        *(body.licences, body.mail),
    )
    book = service.core.reservations
    largest, largest_cluster = book.availability.largest_capacity(clusters, body.by_node)
    unit = "nodes" if body.by_node else "processors"
    if body.by_node and not any(map(book.availability.reserves_nodes, clusters)):
        message = f"processors, not nodes, are what can be reserved on {', '.join(clusters)}"
        raise ApiError(403, f"{message}; leave out --nodes")
    if not largest_cluster:
        raise ApiError(503, "no cluster tells what is free; nothing changed, try again soon")
    if request.min_size > largest:
        message = f"no cluster has {request.min_size} {unit}, the largest is {largest_cluster} with {largest}"
        raise ApiError(403, f"{message}; ask for fewer")
    open_reservations = [
        reservation
        for reservation in book.by_id.values()
        if reservation.user == user and reservation.state in OPEN_STATES
    ]
    if excess := quota.refusal(
        request.max_size, sum(_size_in_units(o, body.by_node) for o in open_reservations)
    ):
        raise ApiError(403, f"{excess}; ask for less, or cancel another")
    if body.dry_run:
        offers = book.offer_finder.offers(event)
        if not offers:
            raise ApiError(403, _explain_refusal(service, event))
        return {
            "offers": [
                _offer_row(
                    name,
                    offer,
                    None
                    if book.availability.reserves_nodes(name)
                    else book.availability.cpus_per_unit(name),
                )
                | {
                    "starts": [
                        list(map(iso, interval))
                        for interval in book.offer_finder.possible_starts(event, name, offer)[:MAX_STARTS]
                    ]
                }
                for name, offer in offers.items()
            ]
        }
    service.apply_events(event)
    if reservation_id not in book.by_id:
        raise ApiError(403, _explain_refusal(service, event))
    reservation = await _await_answer(service, reservation_id)
    if reservation.state is ReservationState.BROKEN:
        service.ledger.mark_notified(reservation_id, time.time())  # by this answer
        message = f"{reservation.cluster} cannot keep it: {reservation.cause}"
        raise ApiError(
            403,
            f"{message}; {_alternatives_message(book, {reservation.cluster: list(reservation.offers)})}",
        )
    return _reservation_row(reservation)


def _size_in_units(reservation: Reservation, by_node: bool) -> int:
    return reservation.size if by_node else reservation.cpus


def _check_licences_float(service: SchedulerService, requested: Mapping[str, int]) -> None:
    """Wrong if these licences cannot be reserved at all, or if nobody knows now."""
    core = service.core
    if (refusal := core.licences.refusal(requested)) is not None:
        raise ApiError(403, refusal)
    for name in requested:
        if node_locked := [
            cluster.name for cluster in core.clusters if name in cluster.licence_features
        ]:
            message = f"licence {name} can be used on some machines of {node_locked[0]} only"
            raise ApiError(403, f"{message}, and floating ones can be reserved; leave it out")
        if problem := core.licences.status(name, time.time()).unknown_reason:
            raise ApiError(503, f"licence {name}: {problem}; nothing changed, try again soon")


def _validate(body: ReservationBody) -> None:
    if body.mail and not ADDRESS.fullmatch(body.mail):
        raise ApiError(
            422, f"{body.mail[:63]!r} is no address, --mail; write one as ada@example.org"
        )
    for name, count in body.licences.items():
        if not 1 <= count <= MAX_NUMBER:
            raise ApiError(
                422, f"{count} of licence {name[:63]!r} makes no sense; ask for 1 or more"
            )
    for name in ("least", "most"):
        if not 1 <= (count := getattr(body, name)) <= MAX_NUMBER:
            raise ApiError(422, f"size {count} makes no sense; ask for 1 to {MAX_NUMBER}")
    for name in ("shortest", "longest"):
        if not 0 < (seconds := getattr(body, name)) <= MAX_NUMBER:
            raise ApiError(422, f"a duration of {seconds:g} s makes no sense; ask for another")
    if not 0 <= (seconds := body.let_run or 0.0) <= MAX_NUMBER:
        raise ApiError(422, f"to let run for {seconds:g} s makes no sense; give another time")
    for name in ("ready", "deadline"):
        if not 0 <= (getattr(body, name) or 0.0) < MAX_EPOCH:
            raise ApiError(422, f"{name} is no time of this world; give another")


def _build_request(
    body: ReservationBody, quota: ReservationQuota, now: float
) -> ReservationRequest:
    """The request on whole seconds, as managers count. Wrong if it can never be met."""
    ready = now if body.ready is None else body.ready
    if ready < now - START_TOLERANCE:
        raise ApiError(422, f"the start {iso(ready)} has passed; ask for a later one")
    horizon = now + quota.horizon
    deadline = horizon if body.deadline is None else body.deadline
    if deadline > horizon:
        raise ApiError(
            403,
            f"the end {iso(deadline)} lies beyond the horizon of {quota.horizon:.0f} s, which is "
            f"{iso(horizon)}; ask for an earlier one",
        )
    if body.longest > quota.max_duration:
        message = (
            f"{body.longest:.0f} s is more than the {quota.max_duration:.0f} s that you may reserve"
        )
        raise ApiError(403, f"{message}; ask for less")
    if (body.let_run or 0.0) > quota.let_run:
        message = f"jobs of yours may go on for {quota.let_run:.0f} s after its end"
        raise ApiError(403, f"{message}, not for {body.let_run:.0f} s; ask for less")
    if body.deadline is not None and deadline <= ready:
        raise ApiError(
            422, f"the end {iso(deadline)} is not after the start {iso(ready)}; swap them"
        )
    begin, deadline = float(math.ceil(max(ready, now))), float(math.ceil(deadline))
    shortest, longest, remaining = body.shortest, body.longest, deadline - begin
    if (
        remaining < shortest <= remaining + START_TOLERANCE + 1.0
    ):  # what has passed on its way to us it does not get
        shortest = longest = max(remaining, 1.0)
    try:
        return ReservationRequest(begin, deadline, body.least, body.most, shortest, longest)
    except ValueError as error:
        raise ApiError(422, f"{error}, in the request; change it") from None


def _eligible_clusters(service: SchedulerService, body: ReservationBody) -> tuple[str, ...]:
    """The clusters that can be asked for what is wanted now. Wrong if there is none."""
    requested, duration = body.clusters, body.longest
    clusters = {cluster.name: cluster for cluster in service.core.clusters}
    if unknown := [name for name in requested if name not in clusters]:
        raise ApiError(404, f"there is no cluster {unknown[0]}; there are {', '.join(clusters)}")
    objections, eligible = {}, []
    for name in requested or clusters:
        _, unreachable_reason = service.core.cluster_status(name)
        if not clusters[name].supports_reservations:
            objections[name] = "its manager keeps no reservations"
        elif clusters[name].takes == "jobs":
            objections[name] = "the site keeps it for jobs without one"
        elif duration < (granularity := clusters[name].granularity):
            objections[name] = (
                f"a job there takes {granularity:g} s at the least, the window {duration:g} s"
            )
        elif (
            unusable_licence := service.core.licences.first_unusable(body.licences, name)
        ) is not None:
            objections[name] = f"licence {unusable_licence} cannot be used there"
        elif unreachable_reason:
            objections[name] = f"it does not answer ({unreachable_reason})"
        elif (drain := service.core.find_drain(name)) is not None:
            objections[name] = str(drain)
        else:
            eligible.append(name)
    if not eligible:
        reasons = "; ".join(f"{name}: {objection}" for name, objection in objections.items())
        raise ApiError(
            403, f"no cluster takes reservations now ({reasons}); see `metasched clusters`"
        )
    return tuple(eligible)


async def _await_answer(service: SchedulerService, reservation_id: int) -> Reservation:
    """The reservation once its manager has answered, or after a while as it is."""
    reservation = service.core.reservations.by_id[reservation_id]
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            while reservation.state is ReservationState.REQUESTED:
                await service.state_changed.wait()
                reservation = service.core.reservations.by_id.get(
                    reservation_id
                ) or _stored_reservation(service, reservation_id)
    except TimeoutError:
        pass
    return reservation


def _stored_reservation(service: SchedulerService, reservation_id: int) -> Reservation:
    reservation = (
        service.ledger.reservation(reservation_id) if 0 < reservation_id <= MAX_NUMBER else None
    )
    if reservation is None:
        raise ApiError(404, f"no reservation {reservation_id}; see `metasched reservations`")
    return reservation


def _explain_refusal(service: SchedulerService, event: ReservationRequested) -> str:
    """Why a request is refused, and what would be possible."""
    book, licences = service.core.reservations, service.core.licences
    alternatives = book.offer_finder.alternatives(event)
    if not event.licences or not book.offer_finder.offers(structs.replace(event, licences={})):
        return _alternatives_message(book, alternatives)
    licence_names = " and ".join(f"{name}:{count}" for name, count in event.licences.items())
    conflicts = [
        f", reservation {window.id} has {window.licences[name]} of {name} from "
        f"{iso(window.start)} to {iso(window.until)}"
        for name in event.licences
        for window in licences.windows(name)
        if event.request.ready < window.until and window.start < event.request.deadline
    ]
    shown_conflicts = "".join(conflicts[:MAX_ALTERNATIVES])
    return _alternatives_message(
        book,
        alternatives,
        f"there is room, but {licence_names} cannot be kept for it{shown_conflicts}",
    )


def _alternatives_message(
    book: ReservationBook,
    alternatives: Mapping[str, list[Offer]],
    reason: str = "that is not free",
) -> str:
    descriptions = [
        f"{cluster} has {_describe_offer(book, cluster, offer)} from {iso(offer.start)} to {iso(offer.end)}"
        for cluster, offers in alternatives.items()
        for offer in offers[:MAX_ALTERNATIVES]
    ]
    return f"{reason}; {'; '.join(descriptions) or 'nor is anything like it: ask for less, or for later'}"


def _describe_offer(book: ReservationBook, cluster: str, offer: Offer) -> str:
    if book.availability.reserves_nodes(cluster):
        return _quantity(offer.size, "node")
    return _quantity(offer.size * book.availability.cpus_per_unit(cluster), "processor")


def _quantity(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"


def _offer_row(cluster: str, offer: Offer, cpus: int | None) -> dict[str, Any]:
    """A window that is possible; one of `nodes` and `processors` counts, the other is null.

    `cpus` are the processors of what is reserved there; None: nodes.
    """
    nodes, processors = (offer.size, None) if cpus is None else (None, offer.size * cpus)
    return {
        "cluster": cluster,
        "start": iso(offer.start),
        "end": iso(offer.end),
        "nodes": nodes,
        "processors": processors,
    }


def _reservation_row(reservation: Reservation) -> dict[str, Any]:
    """A row of `reservations --json`; `size` counts processors."""
    cpus_per_unit = None if reservation.nodes else reservation.cpus // reservation.size
    return {
        "reservation": reservation.id,
        "user": reservation.user,
        "cluster": reservation.cluster,
        "start": iso(reservation.start),
        "end": iso(reservation.end),
        "size": reservation.cpus,
        "state": reservation.state.value,
        "nodes": list(
            reservation.bound_nodes
            if reservation.state is ReservationState.CONFIRMED
            else reservation.bound_nodes or reservation.nodes
        ),
        "cause": reservation.cause,
        "made": iso(reservation.created),
        "closed": iso(reservation.closed),
        "offers": [
            _offer_row(
                offer.cluster or reservation.cluster, offer, 1 if offer.cluster else cpus_per_unit
            )
            for offer in reservation.offers
        ],
        "let_run": reservation.let_run,
        "licences": dict(reservation.licences),
        "mail": reservation.mail,
    }


def apply_reservation(
    service: SchedulerService, user: str, request: JobRequest, now: float
) -> JobRequest:
    """A job as it runs in its reservation: on its cluster, within its window.

    Wrong if the reservation is another's or over, or if the job is larger or longer.
    """
    if request.reservation is None:
        return request
    reservation = service.core.reservations.by_id.get(request.reservation)
    reservation = reservation or _stored_reservation(service, request.reservation)
    name = f"reservation {reservation.id}"
    if reservation.user != user:
        raise ApiError(
            403, f"{name} is {reservation.user}'s, and you are {user}; make one of your own"
        )
    if reservation.state not in OPEN_STATES:
        raise ApiError(403, f"{name} is {reservation.state}: {reservation.cause}; make another")
    if request.clusters and reservation.cluster not in request.clusters:
        message = (
            f"{name} is on {reservation.cluster}, --cluster asks for {', '.join(request.clusters)}"
        )
        raise ApiError(403, f"{message}; leave out --cluster")
    remaining = remaining_seconds(reservation, request.begin, request.time_limit, now)
    cpus = request.tasks * request.cpus_per_task
    if cpus > reservation.cpus or (request.nodes or 1) > reservation.size:
        requested_size = (
            f"{_quantity(cpus, 'processor')} on {_quantity(request.nodes or 1, 'node')}"
        )
        reserved_size = (
            f"{reservation.cpus} on {reservation.size}"
            if reservation.nodes
            else _quantity(reservation.cpus, "processor")
        )
        message = f"the job asks for {requested_size}, {name} has {reserved_size}"
        raise ApiError(403, f"{message}; ask for fewer")
    limit = request.time_limit or max(remaining // 60 * 60, min(remaining, 60.0))
    return replace(request, clusters=(reservation.cluster,), time_limit=limit)


def remaining_seconds(
    reservation: Reservation, begin: float | None, time_limit: float | None, now: float
) -> float:
    """Seconds that are left of a reservation for a job. Wrong if it may run for longer."""
    if begin is not None and begin >= reservation.end:
        message = f"the job may not begin before {iso(begin)}, reservation {reservation.id} ends at"
        raise ApiError(403, f"{message} {iso(reservation.end)}; ask for an earlier --begin")
    remaining = reservation.end - max(reservation.start, now, begin or 0.0)
    if time_limit is not None and time_limit > remaining:
        message = f"the job may run for {time_limit:g} s, reservation {reservation.id} lasts {remaining:.0f} s"
        raise ApiError(403, f"{message}; ask for a shorter --time")
    return remaining


def check_reservation_fit(service: SchedulerService, job: Job, now: float) -> None:
    """Wrong if a job that is changed no longer fits into its reservation, if it has an open one."""
    reservation = service.core.reservations.by_id.get(job.reservation or 0)
    if reservation is None or reservation.state not in OPEN_STATES:
        return
    if job.time_limit is None:
        message = f"job {job.id} runs in reservation {reservation.id}, where it needs a time limit"
        raise ApiError(403, f"{message}; give --time")
    remaining_seconds(reservation, job.begin, job.time_limit, now)
    if job.clusters != (reservation.cluster,):
        message = (
            f"job {job.id} runs in reservation {reservation.id}, which is on {reservation.cluster}"
        )
        raise ApiError(403, f"{message}; leave out --cluster")
