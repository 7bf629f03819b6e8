"""Acts on the site: drain and resume clusters, set totals of licences, cancel reservations and
series."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from metasched.api.clusters import DrainOptions, drain, resume
from metasched.api.licences import LicenceTotal, set_licence
from metasched.api.request import CurrentCaller, CurrentService
from metasched.api.reservations import (
    cancel,
    cancel_whole_series,
    own_reservation,
    own_series,
)
from metasched.api.selection import find_cluster
from metasched.daemon.service import SchedulerService
from metasched.errors import ApiError, ParseError, quote_for_error
from metasched.model.reservation import OPEN_STATES
from metasched.model.units import iso, parse_count
from metasched.web.acts import alone, record, require_same
from metasched.web.forms import CheckedForm
from metasched.web.rendering import link, page
from metasched.web.results import lead_to

AS_CONFIGURED = "as configured"

router = APIRouter()

Name = Annotated[str, Query(max_length=200)]


def _page(
    request: Request, back_url: str, title: str, meaning: list[str], **values: Any
) -> Response:
    """Ask for a confirmation. `fields` are hidden, `inputs` the names of those to fill in."""
    shown = {"fields": {}, "inputs": (), "is_severe": False, "differences": ()} | values
    return page(request, "act_site.html", back=back_url, title=title, meaning=meaning, **shown)


@router.get("/acts/drain")
async def confirm_drain(
    request: Request, caller: CurrentCaller, service: CurrentService, cluster: Name
) -> Response:
    caller.require_operator("drain clusters")
    find_cluster(service, cluster)
    meaning = [
        f"Cluster {cluster} gets no new tasks until an operator resumes it.",
        "What runs there goes on.",
        "Tasks that wait in its queue are withdrawn and go to other clusters, unless you keep them "
        "there.",
    ]
    state = _cluster_state(service, cluster)
    if state:
        meaning.append(f"It is {state} already; this replaces the reason.")
    return _page(
        request,
        link("/"),
        f"Drain cluster {cluster}",
        meaning,
        fields={"cluster": cluster, "seen": state},
        inputs=("reason", "keep_pending"),
        is_severe=True,
    )


@router.post("/acts/drain")
async def drain_cluster(
    request: Request, form: CheckedForm, caller: CurrentCaller, service: CurrentService
) -> Response:
    caller.require_operator("drain clusters")
    cluster = form.get("cluster", "")
    find_cluster(service, cluster)
    async with alone([f"cluster {cluster}"]):
        require_same(form.get("seen", ""), _cluster_state(service, cluster), f"cluster {cluster}")
        record(service, caller, "drain", cluster=cluster)
        options = DrainOptions(form.get("reason", "").strip(), bool(form.get("keep_pending")))
        row = await drain(caller, service, cluster, options)
    return lead_to(request, link("/"), f"Cluster {cluster} is {row['state']}.")


@router.get("/acts/resume")
async def confirm_resume(
    request: Request, caller: CurrentCaller, service: CurrentService, cluster: Name
) -> Response:
    caller.require_operator("resume clusters")
    find_cluster(service, cluster)
    state = _cluster_state(service, cluster)
    if not state:
        raise ApiError(409, f"cluster {cluster} is not drained; there is nothing to resume")
    meaning = [f"Cluster {cluster} is {state}.", "It gets new tasks again, at once."]
    fields = {"cluster": cluster, "seen": state}
    return _page(request, link("/"), f"Resume cluster {cluster}", meaning, fields=fields)


@router.post("/acts/resume")
async def resume_cluster(
    request: Request, form: CheckedForm, caller: CurrentCaller, service: CurrentService
) -> Response:
    caller.require_operator("resume clusters")
    cluster = form.get("cluster", "")
    find_cluster(service, cluster)
    async with alone([f"cluster {cluster}"]):
        require_same(form.get("seen", ""), _cluster_state(service, cluster), f"cluster {cluster}")
        record(service, caller, "resume", cluster=cluster)
        row = await resume(caller, service, cluster)
    return lead_to(request, link("/"), f"Cluster {cluster} is {row['state']}.")


def _cluster_state(service: SchedulerService, cluster: str) -> str:
    """Return who drained a cluster, when and why; "": it is not drained."""
    drained = service.core.find_drain(cluster)
    return f"{drained} ({iso(drained.time)})" if drained is not None else ""


@router.get("/acts/licence-total")
async def confirm_total(
    request: Request, caller: CurrentCaller, service: CurrentService, licence: Name
) -> Response:
    caller.require_operator("set licence totals")
    total = _total(service, licence)
    meaning = [
        f"Licence {licence} has a total of {total} tokens now.",
        "A new total replaces what configuration or server say, until somebody takes it back. "
        "Leases stay; with fewer tokens than are leased, no more are leased until enough are back.",
        "An empty field takes it back: the total is as configured.",
    ]
    return _page(
        request,
        link("/licences"),
        f"Set the total of licence {licence}",
        meaning,
        fields={"licence": licence, "seen": total},
        inputs=("total",),
    )


@router.post("/acts/licence-total")
async def set_total(
    request: Request, form: CheckedForm, caller: CurrentCaller, service: CurrentService
) -> Response:
    caller.require_operator("set licence totals")
    licence, text = form.get("licence", ""), form.get("total", "").strip()
    try:
        total = parse_count(text, 0) if text else None
    except ParseError as error:
        raise ApiError(422, f"{error.problem}, total; {error.fix}") from None
    _total(service, licence)
    async with alone([f"licence {licence}"]):
        require_same(form.get("seen", ""), _total(service, licence), f"licence {licence}")
        act = f"total {AS_CONFIGURED if total is None else total}"
        record(service, caller, act, licence=licence)
        row = await set_licence(caller, service, licence, LicenceTotal(total))
    source = f" {AS_CONFIGURED}" if total is None else ""
    now = "unknown" if row["total"] is None else row["total"]
    return lead_to(
        request, link("/licences"), f"Licence {licence} has a total of {now} tokens{source}."
    )


def _total(service: SchedulerService, licence: str) -> str:
    """Return the total of a licence. ApiError if there is no such licence."""
    pools = service.core.licences
    if (refusal := pools.refusal({licence: 0})) is not None:
        raise ApiError(404, refusal)
    total = pools.status(licence, time.time()).total
    return "unknown" if total is None else str(total)


@router.get("/acts/cancel-reservation")
async def confirm_cancel(
    request: Request, caller: CurrentCaller, service: CurrentService, reservation: int
) -> Response:
    own = own_reservation(service, caller, reservation)
    if own.state not in OPEN_STATES:
        raise ApiError(409, f"reservation {reservation} is {own.state} already; nothing to do")
    meaning = [
        f"Reservation {reservation} of {own.user} on {own.cluster}, from {iso(own.start)} "
        f"to {iso(own.end)}, is {own.state}.",
        "Its nodes and tokens become free for all. Jobs that name it lose its promise.",
    ]
    if own.series is not None:
        meaning.append(f"It is an occurrence of series {own.series}; the others stay.")
    fields = {"reservation": str(reservation)}
    title = f"Cancel reservation {reservation}"
    return _page(request, link("/reservations"), title, meaning, fields=fields, is_severe=True)


@router.post("/acts/cancel-reservation")
async def cancel_reservation(
    request: Request, form: CheckedForm, caller: CurrentCaller, service: CurrentService
) -> Response:
    number = _number(form, "reservation")
    own_reservation(service, caller, number)
    async with alone([f"reservation {number}"]):
        own = own_reservation(service, caller, number)
        if own.state not in OPEN_STATES:
            cause = quote_for_error(own.cause or "no cause is stored")
            raise ApiError(
                409,
                f"reservation {number} is {own.state} already ({cause}); nothing changed",
            )
        record(service, caller, "cancel", reservation=number)
        row = await cancel(caller, service, number)
    return lead_to(request, link("/reservations"), f"Reservation {number} is {row['state']}.")


@router.get("/acts/cancel-series")
async def confirm_cancel_series(
    request: Request, caller: CurrentCaller, service: CurrentService, series: int
) -> Response:
    entry = own_series(service, caller, series)
    count = _open_occurrences(service, series)
    meaning = [
        f"Series {series} of {entry.owner}, {entry.rule} {entry.zone}, ends: it reserves no more.",
        f"Its open reservations are cancelled, too: {count}. Jobs that name them lose their "
        "promise.",
        "To skip an occurrence, cancel its reservation alone.",
    ]
    fields = {"series": str(series)}
    title = f"Cancel series {series}"
    return _page(request, link("/reservations"), title, meaning, fields=fields, is_severe=True)


@router.post("/acts/cancel-series")
async def cancel_series(
    request: Request, form: CheckedForm, caller: CurrentCaller, service: CurrentService
) -> Response:
    number = _number(form, "series")
    own_series(service, caller, number)
    async with alone([f"series {number}"]):
        own_series(service, caller, number)  # 404 if another page has cancelled it
        count = _open_occurrences(service, number)
        record(service, caller, f"cancel series {number}")
        await cancel_whole_series(caller, service, number)
    text = f"Series {number} is cancelled, with {count} open reservations."
    return lead_to(request, link("/reservations"), text)


def _open_occurrences(service: SchedulerService, series: int) -> int:
    return sum(
        reservation.series == series and reservation.state in OPEN_STATES
        for reservation in service.core.reservations.by_id.values()
    )


def _number(form: dict[str, str], name: str) -> int:
    try:
        return parse_count(form.get(name, ""))
    except ParseError as error:
        raise ApiError(422, f"{error.problem}, {name}; {error.fix}") from None
