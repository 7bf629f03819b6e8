"""Advance reservations over HTTP: list, create, cancel. See `daemon.reservation_requests`."""

from __future__ import annotations

import pwd
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated

import msgspec
from fastapi import APIRouter, Body, Request
from fastapi.responses import Response

from metasched.api.calendar import MAX_RUNS, calendar_row
from metasched.api.identity import Caller
from metasched.api.lookups import AccountLookups, Lookups
from metasched.api.pages import RequestedPage
from metasched.api.readers import CurrentReaders, ReadingKind
from metasched.api.request import CurrentCaller, CurrentDaemon, CurrentService
from metasched.api.selection import RECENTLY_ENDED
from metasched.api.whole_answers import joined, whole_answer
from metasched.client.site_answers import (
    CalendarRow,
    FreeWindows,
    OfferRow,
    ReservationRow,
    SeriesRow,
)
from metasched.core.reservations.events import ReservationCancelled
from metasched.daemon.reservation_requests import (
    ReservationTerms,
    find_windows,
    reserve,
    stored_reservation,
)
from metasched.daemon.series import Occurrences, SeriesTerms, cancel_series, make_series
from metasched.daemon.service import SchedulerService
from metasched.errors import ApiError
from metasched.model.calendar import CalendarEntry
from metasched.model.reservation import OPEN_STATES, Reservation, ReservationState
from metasched.model.reservation_request import Offer
from metasched.model.units import iso

router = APIRouter()


@router.get("/reservations", response_model=list[ReservationRow])
async def reservations(
    request: Request,
    daemon: CurrentDaemon,
    caller: CurrentCaller,
    readers: CurrentReaders,
    page: RequestedPage,
    all: bool = False,
) -> Response:
    """List reservations by start; in pages, by id."""
    since = 0.0 if all else time.time() - RECENTLY_ENDED
    user = caller.visible_owner

    def list_page() -> Response:
        stored = daemon.ledger.reservation_page(since, user, page.after, page.size + 1)
        return page.answer(list(map(_reservation_row, stored)), "reservation")

    def list_all() -> Iterator[bytes]:
        portions = daemon.ledger.reservation_portions(since, user)
        encode = msgspec.json.encode
        yield from joined(b"[", (encode(list(map(_reservation_row, p))) for p in portions), b"]")

    if page.requested:
        return await readers.run(request, ReadingKind.LISTING, list_page)
    return await whole_answer(request, readers, ReadingKind.LISTING, list_all)


@router.post("/reservations")
async def create(
    caller: CurrentCaller,
    service: CurrentService,
    accounts: AccountLookups,
    body: Annotated[ReservationTerms, Body()],
) -> ReservationRow | FreeWindows:
    user = await _owner(caller, accounts, body.user)
    if body.dry_run:
        return {
            "offers": [
                {
                    **_offer_row(window.cluster, window.offer, window.cpus_per_unit),
                    "starts": [(iso(first), iso(last)) for first, last in window.starts],
                }
                for window in await find_windows(service, user, body)
            ]
        }
    return _reservation_row(await reserve(service, user, body, caller.user))


@router.post("/reservations/{id}/cancel")
async def cancel(caller: CurrentCaller, service: CurrentService, id: int) -> ReservationRow:
    """Cancel a reservation that is open; a closed reservation stays unchanged."""
    reservation = own_reservation(service, caller, id)
    current = service.core.reservations.by_id.get(id)
    if current is not None and current.state in OPEN_STATES:
        cancelled = ReservationCancelled(time.time(), id, caller.user)
        [outcome] = await service.apply_events(cancelled)
        reservation = outcome.reservations.get(id, current)
    return _reservation_row(reservation)


def own_reservation(service: SchedulerService, caller: Caller, id: int) -> Reservation:
    """Return a reservation that the caller may cancel. ApiError, or ForbiddenError."""
    reservation = stored_reservation(service, id)
    owner = None if reservation is None else reservation.user
    caller.require_object("reservation", id, owner, "reservations")
    assert reservation is not None
    return reservation


@router.post("/series")
async def create_series(
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    accounts: AccountLookups,
    readers: CurrentReaders,
    body: Annotated[SeriesTerms, Body()],
) -> SeriesRow:
    """Make a series of reservations; its occurrences are reserved from now on."""
    user = await _owner(caller, accounts, body.user)

    async def in_reader(work: Callable[[], Occurrences]) -> Occurrences:
        return await readers.run(request, ReadingKind.LISTING, work, until_answered=False)

    entry, occurrences = await make_series(service, user, body, caller.user, in_reader)
    row = calendar_row(entry, MAX_RUNS, is_operator=False)
    return {**row, "occurrences": occurrences}


@router.post("/series/{id}/cancel")
async def cancel_whole_series(
    caller: CurrentCaller, service: CurrentService, id: int
) -> CalendarRow:
    """Cancel a series with its open reservations."""
    entry = own_series(service, caller, id)
    await cancel_series(service, entry, caller.user)
    return {**calendar_row(entry, 1, is_operator=False), "next": []}


def own_series(service: SchedulerService, caller: Caller, id: int) -> CalendarEntry:
    """Return a series that the caller may cancel. ApiError, or ForbiddenError."""
    entry = service.core.calendar.entries.get(id)
    owner = entry.owner if entry is not None and entry.is_series else None
    caller.require_object("series", id, owner, "calendar")
    assert entry is not None
    return entry


async def _owner(caller: Caller, accounts: Lookups, user: str | None) -> str:
    """Return the owner of the reservation; only operators reserve for others."""
    if user is None or user == caller.user:
        return caller.user
    caller.require_operator("reserve for others")
    try:
        await accounts.run(user, partial(pwd.getpwnam, user))
    except (KeyError, ValueError):
        raise ApiError(404, f"there is no account {user[:63]!r}; name another user") from None
    return user


def _offer_row(cluster: str, offer: Offer, cpus: int | None) -> OfferRow:
    """Return a possible window; either `nodes` or `processors` is null.

    `cpus` are the processors per reserved unit; None: the cluster reserves nodes.
    """
    nodes, processors = (offer.size, None) if cpus is None else (None, offer.size * cpus)
    return {
        "cluster": cluster,
        "start": iso(offer.start),
        "end": iso(offer.end),
        "nodes": nodes,
        "processors": processors,
    }


def _reservation_row(reservation: Reservation) -> ReservationRow:
    """Return a row of `reservations --json`; `size` counts processors."""
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
        "users": list(reservation.users),
        "accounts": list(reservation.accounts),
        "series": reservation.series,
    }
