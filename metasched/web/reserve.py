"""The act that reserves: its fields, then the free windows, then a chosen window.

With a rule it makes a series: its fields, then its first occurrences, then the series.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response

from metasched.api.identity import Caller
from metasched.api.lookups import AccountLookups, Lookups
from metasched.api.readers import CurrentReaders, Readers
from metasched.api.request import CurrentCaller, CurrentService
from metasched.api.reservations import create, create_series
from metasched.daemon.reservation_requests import ReservationTerms
from metasched.daemon.series import SeriesTerms
from metasched.daemon.service import SchedulerService
from metasched.errors import ApiError, ParseError, quote_for_error
from metasched.model.reservation import OPEN_STATES
from metasched.model.units import (
    parse_count,
    parse_duration,
    parse_last_day,
    parse_licences,
    parse_moment,
    parse_names,
)
from metasched.web.acts import alone, record, require_same
from metasched.web.forms import CheckedForm
from metasched.web.rendering import link, page
from metasched.web.results import lead_to

MAX_TEXT = 255  # characters of a field
PATIENCE = 600.0  # seconds after which a window that began when it was shown is gone

router = APIRouter()


class Field(NamedTuple):
    """A field of the form."""

    label: str
    hint: str
    parse: Callable[[str], Any]  # ParseError
    for_operators: bool = False


def _moment(text: str) -> float:
    return parse_moment(text, time.time())


def _last_day(text: str) -> float:
    return parse_last_day(text, time.time())


FIELDS: Mapping[str, Field] = {
    "size": Field("Size", "processors; nodes if that is ticked below", parse_count),
    "duration": Field("Duration", "4h or 1:30:00", parse_duration),
    "start": Field("Start", "+2h or 2030-01-31T17:30; empty: the earliest", _moment),
    "deadline": Field("End at the latest", "of a reservation without a start", _moment),
    "cluster": Field("Clusters", "names with commas between; empty: all", parse_names),
    "licences": Field("Licences", "matlab:2", parse_licences),
    "users": Field("Shared with users", "accounts of hosts, with commas between", parse_names),
    "groups": Field("Shared with groups", "their members share it", parse_names),
    "accounts": Field("Accounts", "instead: only jobs of these accounts, of any user", parse_names),
    "every": Field("Every", "a series: mon-fri 08:00 or monthly 1 06:00; no start then", str),
    "until": Field("Until", "2030-06-30, the last day of a series", _last_day),
    "owner": Field("For", "another account; empty: yourself", str, for_operators=True),
}


@router.get("/acts/reserve")
async def offer(
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    accounts: AccountLookups,
    readers: CurrentReaders,
) -> Response:
    """Ask for the terms; with terms, show the windows that are free."""
    fields = _given(request.query_params)
    offers: list[dict[str, Any]] = []
    series: dict[str, Any] | None = None
    if "every" in fields:
        planned: Any = await create_series(
            request, caller, service, accounts, readers, _series_terms(fields, is_dry_run=True)
        )
        owner = fields.get("owner") or caller.user
        series = {**planned, "fields": {**fields, "seen": _open_series(service, owner)}}
    elif fields:
        answer: Any = await create(caller, service, accounts, _terms(fields, is_dry_run=True))
        offers = [
            {
                **row,
                "fields": {
                    **{name: fields[name] for name in fields if name not in ("start", "deadline")},
                    "cluster": row["cluster"],
                    "start": row["start"],
                    "seen": _open_ids(service, fields.get("owner") or caller.user),
                },
            }
            for row in answer["offers"]
        ]
    return page(
        request,
        "act_reserve.html",
        given=fields,
        offers=offers,
        series=series,
        fields={
            name: field
            for name, field in FIELDS.items()
            if caller.operator or not field.for_operators
        },
        zone=datetime.now().astimezone().tzname(),
    )


@router.post("/acts/reserve")
async def reserve(
    request: Request,
    form: CheckedForm,
    caller: CurrentCaller,
    service: CurrentService,
    accounts: AccountLookups,
    readers: CurrentReaders,
) -> Response:
    fields = _given(form)
    if "every" in fields:
        return await _make_series(
            request, form.get("seen", ""), fields, caller, service, accounts, readers
        )
    terms = _terms(fields, is_dry_run=False)
    if "start" not in fields:
        raise ApiError(422, "no start; choose one of the windows that the page shows")
    owner = fields.get("owner") or caller.user
    _require_owner(caller, owner)
    async with alone([f"reservations of {owner}"]):
        # a form that is sent twice reserves once
        require_same(form.get("seen", ""), _open_ids(service, owner), f"what {owner} has reserved")
        record(service, caller, f"reserve for {owner}")
        row: Any = await create(caller, service, accounts, terms)
    size = f"{row['size']} processors on {row['cluster']}"
    text = f"Reservation {row['reservation']} of {size} from {row['start']} is {row['state']}."
    return lead_to(request, link("/reservations"), text)


async def _make_series(
    request: Request,
    seen: str,
    fields: Mapping[str, str],
    caller: Caller,
    service: SchedulerService,
    accounts: Lookups,
    readers: Readers,
) -> Response:
    terms = _series_terms(fields, is_dry_run=False)
    owner = fields.get("owner") or caller.user
    _require_owner(caller, owner)
    async with alone([f"series of {owner}"]):
        require_same(seen, _open_series(service, owner), f"the list of series of {owner}")
        record(service, caller, f"make a series for {owner}")
        row = await create_series(request, caller, service, accounts, readers, terms)
    text = f"Series {row['entry']} has {row['occurrences']} occurrences from {row['next'][0]}."
    return lead_to(request, link("/reservations"), text)


def _require_owner(caller: Caller, owner: str) -> None:
    if owner != caller.user:
        caller.require_operator("reserve for others")


def _given(values: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that are filled in. ApiError if any is too long."""
    fields = {name: values.get(name, "").strip() for name in (*FIELDS, "by_node")}
    for name, text in fields.items():
        if len(text) > MAX_TEXT:
            label = FIELDS[name].label if name in FIELDS else "nodes"
            raise ApiError(422, f"over {MAX_TEXT} characters, {label}; write less")
    return {name: text for name, text in fields.items() if text}


def _values(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the parsed fields. ApiError for a field that is missing or no value."""
    values: dict[str, Any] = {}
    for name, text in fields.items():
        if name == "by_node":
            continue
        try:
            values[name] = FIELDS[name].parse(text)
        except ParseError as error:
            raise ApiError(422, f"{error.problem}, {FIELDS[name].label}; {error.fix}") from None
    for name in ("size", "duration"):
        if name not in values:
            raise ApiError(422, f"no {FIELDS[name].label.lower()}; fill it in")
    return values


def _shared_terms(values: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Return what reservations and series have in common."""
    return {
        "least": values["size"],
        "most": values["size"],
        "by_node": "by_node" in fields,
        "clusters": values.get("cluster", ()),
        "licences": values.get("licences", {}),
        "user": values.get("owner"),
        **{name: values.get(name, ()) for name in ("users", "groups", "accounts")},
    }


def _series_terms(fields: Mapping[str, str], is_dry_run: bool) -> SeriesTerms:
    """Return the request of a form with a rule. ApiError as of `_values`."""
    values = _values(fields)
    if "until" not in values:
        raise ApiError(422, "no last day of the series, Until; fill it in")
    for name in ("start", "deadline"):
        if name in values:
            label = FIELDS[name].label
            raise ApiError(422, f"{label} beside a rule, which gives the starts; leave it out")
    return SeriesTerms(
        every=values["every"],
        until=values["until"],
        duration=values["duration"],
        dry_run=is_dry_run,
        **_shared_terms(values, fields),
    )


def _terms(fields: Mapping[str, str], is_dry_run: bool) -> ReservationTerms:
    """Return the request of a form. ApiError for a field that is missing or no value."""
    values = _values(fields)
    if "until" in values:
        raise ApiError(422, "a last day without a rule, Until; fill in Every, too")
    start, duration = values.get("start"), values["duration"]
    if start is not None and not is_dry_run and 0 < time.time() - start < PATIENCE:
        start = time.time()  # the window was free from then on
    if start is not None and "deadline" in values:
        problem = f"{quote_for_error(fields['deadline'])} beside a start"
        raise ApiError(422, f"{problem}, {FIELDS['deadline'].label}; leave out one of them")
    return ReservationTerms(
        shortest=duration,
        longest=duration,
        ready=start,
        deadline=values.get("deadline") if start is None else start + duration,
        dry_run=is_dry_run,
        **_shared_terms(values, fields),
    )


def _open_ids(service: SchedulerService, owner: str) -> str:
    """Return the open reservations of an owner, which a new reservation changes."""
    ids = sorted(
        id
        for id, reservation in service.core.reservations.by_id.items()
        if reservation.user == owner and reservation.state in OPEN_STATES
    )
    return f"reservation {ids[-1]} and {len(ids) - 1} more" if ids else ""


def _open_series(service: SchedulerService, owner: str) -> str:
    """Return the series of an owner, which a new series changes."""
    entries = service.core.calendar.entries.values()
    ids = sorted(entry.id for entry in entries if entry.is_series and entry.owner == owner)
    return f"series {ids[-1]} and {len(ids) - 1} more" if ids else ""
