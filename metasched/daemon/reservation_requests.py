"""Requests of users for advance reservations, callable without HTTP.

The core decides a request by surveys taken for it; then the manager of the cluster must answer.
Every function raises ApiError with the problem and the remedy, and then nothing is reserved.
Times are seconds since the epoch, durations seconds.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from msgspec import structs

from metasched.core.licences.windows import later_windows
from metasched.core.reservations.book import ReservationBook
from metasched.core.reservations.events import ReservationRequested
from metasched.daemon.calendar_limits import limits_of
from metasched.daemon.cluster_connection import ClusterConnection
from metasched.daemon.host import SchedulerHost
from metasched.daemon.shared_with import ACCOUNT, MAX_USERS, find_accounts
from metasched.errors import ApiError
from metasched.model.calendar import CalendarLimit, LimitLicence
from metasched.model.cluster import Cluster
from metasched.model.mail import ADDRESS, is_allowed
from metasched.model.request_texts import Counts, Name, Names
from metasched.model.reservation import OPEN_STATES, Reservation, ReservationState
from metasched.model.reservation_request import Offer, ReservationQuota, ReservationRequest
from metasched.model.units import MAX_NUMBER, iso

LIMITS_MARGIN = 60.0  # seconds beyond the horizon for which limits are looked up
START_TOLERANCE = 5.0  # seconds that a start may have passed while the request was sent
ANSWER_TIMEOUT = 20.0  # seconds to wait for managers
MAX_STARTS = 20  # intervals of possible starts reported per cluster
MAX_ALTERNATIVES = 3  # alternative windows reported per cluster
_MAX_EPOCH = 1e11  # epoch seconds: the year 5138


@dataclass(frozen=True, kw_only=True)
class ReservationTerms:
    """The request of a user; field names as in the body of POST /reservations."""

    least: int  # processors (nodes if `by_node`)
    most: int
    shortest: float  # seconds
    longest: float
    ready: float | None = None  # earliest start; None: now
    deadline: float | None = None  # latest end; None: the horizon of the owner's quota
    by_node: bool = False
    clusters: Names = ()  # to choose from; empty: all
    let_run: float | None = None  # seconds that jobs may run past the end; None: the quota's
    licences: Counts = field(default_factory=dict)
    dry_run: bool = False
    user: Name | None = None  # the owner; None: the caller
    mail: Name = ""  # address for the notice that it broke; "": the user name
    users: Names = ()  # accounts that share it
    groups: Names = ()  # their members share it
    accounts: Names = ()  # of accounting; instead, jobs of these alone may run in it

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by the API's validation


class ReservationHost(SchedulerHost, Protocol):
    """The part of the scheduler service that requests depend on."""

    state_changed: asyncio.Event  # set, and replaced, when an event was stored

    @property
    def connections(self) -> Mapping[str, ClusterConnection]: ...


class NoClusterNow(ApiError):
    """No cluster takes a reservation now, which may pass."""


class PossibleWindow(NamedTuple):
    """The result of a dry run for a cluster."""

    cluster: str
    offer: Offer
    cpus_per_unit: int | None  # None: the cluster reserves nodes
    starts: list[tuple[float, float]]  # intervals (first, last), `MAX_STARTS` at most


async def reserve(
    service: ReservationHost, user: str, terms: ReservationTerms, by: str = ""
) -> Reservation:
    """Reserve a window; return the reservation after its manager answered, or timed out.

    `by` requested it for `user`; "": the user did.
    """
    event = await survey_and_check(service, user, terms, service.ledger.next_reservation)
    event = structs.replace(event, by=by)
    book = service.core.reservations
    [outcome] = await service.apply_events(event)
    if event.id not in outcome.reservations:
        raise ApiError(403, _explain_refusal(service, event))
    reservation = await _await_answer(service, event.id)
    if reservation.state is ReservationState.BROKEN:
        service.ledger.mark_notified(event.id, time.time())  # by this error
        problem = f"{reservation.cluster} cannot keep it: {reservation.cause}"
        if "; " in problem:  # it has a remedy: another window is none
            raise ApiError(403, problem)
        offers = {reservation.cluster: list(reservation.offers)}
        raise ApiError(403, f"{problem}; {_describe_alternatives(book, offers)}")
    return reservation


async def find_windows(
    service: ReservationHost, user: str, terms: ReservationTerms
) -> list[PossibleWindow]:
    """Return the windows that could be reserved, the best first, without reserving any."""
    event = await survey_and_check(service, user, terms, lambda: 0)
    book = service.core.reservations
    offers = book.offer_finder.offers(event)
    if not offers:
        raise ApiError(403, _explain_refusal(service, event))
    windows = []
    for cluster, offer in offers.items():
        by_node = book.availability.reserves_nodes(cluster)
        cpus_per_unit = None if by_node else book.availability.cpus_per_unit(cluster)
        starts = book.offer_finder.possible_starts(event, cluster, offer)[:MAX_STARTS]
        windows.append(PossibleWindow(cluster, offer, cpus_per_unit, starts))
    return windows


def stored_reservation(service: ReservationHost, id: int) -> Reservation | None:
    """Return a stored reservation by id, None if there is none."""
    return service.ledger.reservation(id) if 0 < id <= MAX_NUMBER else None


def find_reservation(
    service: ReservationHost, id: int, is_visible: Callable[[Reservation], bool] = lambda _: True
) -> Reservation:
    """Return a stored reservation by id. ApiError if it does not exist, or is not visible."""
    reservation = service.core.reservations.by_id.get(id) or stored_reservation(service, id)
    if reservation is None or not is_visible(reservation):
        raise ApiError(404, f"no reservation {id}; see `metasched reservations`")
    return reservation


def quantity(count: int, unit: str) -> str:
    """Return a count with its unit, as "1 node" or "2 nodes"."""
    return f"{count} {unit}{'' if count == 1 else 's'}"


async def survey_and_check(
    service: ReservationHost,
    user: str,
    terms: ReservationTerms,
    next_id: Callable[[], int],
    series: int | None = None,
) -> ReservationRequested:
    """Survey the eligible clusters and check the quota; return the event for the core.

    `series`: id of its series, if it is an occurrence.
    """
    quota = service.settings.quota_of(user)
    if series is None:  # for an occurrence the series was checked; mail about it is, when sent
        check_mail(service, user, terms.mail)
    clusters = check_request(service, terms, quota)
    sharing = await sharing_accounts(user, terms.users, terms.groups, is_known=series is not None)
    surveys = [
        asyncio.create_task(service.connections[name].reservation_sync.request_survey())
        for name in clusters
    ]
    _, unanswered = await asyncio.wait(surveys, timeout=ANSWER_TIMEOUT)
    for survey in unanswered:
        survey.cancel()
    limits = await _find_calendar_limits(service, terms, quota)
    now = time.time()
    id = next_id()
    request = _build_request(terms, quota, now)
    _check_size(service, terms, clusters, request)
    check_quota(service.core.reservations, user, terms.by_node, request.max_size, quota, series)
    return ReservationRequested(
        time=now,
        id=id,
        user=user,
        request=request,
        by_node=terms.by_node,
        clusters=clusters,
        horizon=now + quota.horizon,
        let_run=quota.let_run if terms.let_run is None else terms.let_run,
        licences=terms.licences,
        mail=terms.mail,
        users=sharing,
        accounts=terms.accounts,
        calendar_limits=limits,
    )


async def _find_calendar_limits(
    service: ReservationHost, terms: ReservationTerms, quota: ReservationQuota
) -> tuple[CalendarLimit, ...]:
    """Return when the calendar lowers totals of the licences, until the last possible window."""
    entries = list(service.core.calendar.entries.values())
    if not terms.licences or not any(isinstance(entry.act, LimitLicence) for entry in entries):
        return ()
    let_run = quota.let_run if terms.let_run is None else terms.let_run
    until = math.ceil(time.time() + quota.horizon + let_run) + LIMITS_MARGIN
    return await asyncio.to_thread(limits_of, entries, terms.licences, until)


async def sharing_accounts(
    owner: str, users: Sequence[str], groups: Sequence[str], *, is_known: bool
) -> tuple[str, ...]:
    """Return the accounts that share a reservation. ApiError for an unknown name.

    `is_known`: the names were checked before; those of accounts that are gone are left out.
    """
    if not (users or groups):
        return ()
    if len(users) + len(groups) > MAX_USERS:
        raise ApiError(422, f"{len(users) + len(groups)} names; give at most {MAX_USERS}")
    return await find_accounts(owner, users, groups, ignore_unknown=is_known)


def check_request(
    service: ReservationHost, terms: ReservationTerms, quota: ReservationQuota
) -> tuple[str, ...]:
    """Check a request before managers are queried; return the clusters to choose from."""
    _validate(terms)
    _build_request(terms, quota, time.time())
    _check_licences(service, terms.licences)
    return _eligible_clusters(service, terms)


def check_mail(service: ReservationHost, owner: str, address: str) -> None:
    """Check that mail to the owner of a reservation may go to an address; "": none is asked for."""
    if not address:
        return
    if not ADDRESS.fullmatch(address):
        problem = f"{address[:63]!r} is no address, --mail"
        raise ApiError(422, f"{problem}; write an address as ada@example.org")
    mail = service.settings.mail
    if mail is None:
        problem = "this site has no mail program to notify you by, --mail"
        raise ApiError(403, f"{problem}; leave it out, and look at `metasched reservations`")
    if not is_allowed(address, owner, mail.domains):
        allowed = f"addresses at {', '.join(mail.domains)}" if mail.domains else "no addresses"
        problem = f"this site allows {allowed}, not {address}, --mail"
        raise ApiError(403, f"{problem}; leave it out, and mail goes to {owner}")


def _validate(terms: ReservationTerms) -> None:
    for name, count in terms.licences.items():
        if not 1 <= count <= MAX_NUMBER:
            problem = f"{count} of licence {name[:63]!r} makes no sense"
            raise ApiError(422, f"{problem}; ask for 1 or more")
    for size in (terms.least, terms.most):
        if not 1 <= size <= MAX_NUMBER:
            raise ApiError(422, f"size {size} makes no sense; ask for 1 to {MAX_NUMBER}")
    for duration in (terms.shortest, terms.longest):
        if not 0 < duration <= MAX_NUMBER:
            problem = f"a duration of {duration:g} s makes no sense"
            raise ApiError(422, f"{problem}; ask for another")
    if not 0 <= (let_run := terms.let_run or 0.0) <= MAX_NUMBER:
        raise ApiError(422, f"to let run for {let_run:g} s makes no sense; give another time")
    _check_accounts(terms)
    for name, moment in (("ready", terms.ready), ("deadline", terms.deadline)):
        if not 0 <= (moment or 0.0) < _MAX_EPOCH:
            raise ApiError(422, f"{name} is out of range; give another time")


def _check_accounts(terms: ReservationTerms) -> None:
    """Check the accounts of accounting; that they exist is known to managers alone."""
    if len(terms.accounts) > MAX_USERS:
        raise ApiError(422, f"{len(terms.accounts)} accounts; give at most {MAX_USERS}")
    for name in terms.accounts:
        if not ACCOUNT.fullmatch(name):
            raise ApiError(422, f"{name[:63]!r} is no name of an account; give another")
    if terms.accounts and (terms.users or terms.groups):
        # a manager would let in only those jobs that match both
        problem = "accounts beside users or groups; a reservation is for the jobs of either"
        raise ApiError(422, f"{problem}, leave out one of them")


def _build_request(
    terms: ReservationTerms, quota: ReservationQuota, now: float
) -> ReservationRequest:
    """Return the request in whole seconds, as managers count."""
    ready = now if terms.ready is None else terms.ready
    if ready < now - START_TOLERANCE:
        raise ApiError(422, f"the start {iso(ready)} has passed; ask for a later one")
    horizon = now + quota.horizon
    deadline = horizon if terms.deadline is None else terms.deadline
    if deadline > horizon:
        raise ApiError(
            403,
            f"the end {iso(deadline)} lies beyond the horizon of {quota.horizon:.0f} s, which is "
            f"{iso(horizon)}; ask for an earlier one",
        )
    if terms.longest > quota.max_duration:
        limit = f"the {quota.max_duration:.0f} s that you may reserve"
        raise ApiError(403, f"{terms.longest:.0f} s is more than {limit}; ask for less")
    if (terms.let_run or 0.0) > quota.let_run:
        problem = f"jobs of yours may go on for {quota.let_run:.0f} s after its end"
        raise ApiError(403, f"{problem}, not for {terms.let_run:.0f} s; ask for less")
    if terms.deadline is not None and deadline <= ready:
        problem = f"the end {iso(deadline)} is not after the start {iso(ready)}"
        raise ApiError(422, f"{problem}; swap them")
    begin, deadline = float(math.ceil(max(ready, now))), float(math.ceil(deadline))
    shortest, longest, available = terms.shortest, terms.longest, deadline - begin
    # the window loses the seconds that passed while the request was sent
    if available < shortest <= available + START_TOLERANCE + 1.0:
        shortest = longest = max(available, 1.0)
    try:
        return ReservationRequest(begin, deadline, terms.least, terms.most, shortest, longest)
    except ValueError as error:
        raise ApiError(422, f"{error}, in the request; change it") from None


def _check_licences(service: ReservationHost, requested: Mapping[str, int]) -> None:
    """Check that the licences can be reserved, and that their use is known now."""
    core = service.core
    if (refusal := core.licences.refusal(requested)) is not None:
        raise ApiError(403, refusal)
    for name in requested:
        node_locked = [c.name for c in core.clusters if name in c.licence_features]
        if node_locked:
            problem = f"licence {name} can be used on some machines of {node_locked[0]} only"
            raise ApiError(403, f"{problem}, and floating ones can be reserved; leave it out")
        if unknown_reason := core.licences.status(name, time.time()).unknown_reason:
            problem = f"licence {name}: {unknown_reason}"
            raise ApiError(503, f"{problem}; nothing changed, try again soon")


def _eligible_clusters(service: ReservationHost, terms: ReservationTerms) -> tuple[str, ...]:
    """Return the clusters that can be surveyed for the request."""
    clusters = {cluster.name: cluster for cluster in service.core.clusters}
    if unknown := [name for name in terms.clusters if name not in clusters]:
        raise ApiError(404, f"there is no cluster {unknown[0]}; there are {', '.join(clusters)}")
    objections, eligible = {}, []
    for name in terms.clusters or clusters:
        if (objection := _objection_to(service, clusters[name], terms)) is None:
            eligible.append(name)
        else:
            objections[name] = objection
    if not eligible:
        reasons = "; ".join(f"{name}: {objection}" for name, objection in objections.items())
        problem = f"no cluster takes reservations now ({reasons})"
        raise NoClusterNow(403, f"{problem}; see `metasched clusters`")
    return tuple(eligible)


def _objection_to(
    service: ReservationHost, cluster: Cluster, terms: ReservationTerms
) -> str | None:
    """Return why the request cannot be reserved on a cluster now; None: it may be possible."""
    if not cluster.supports_reservations:
        return "its manager keeps no reservations"
    if terms.accounts and not cluster.reserves_for_accounts:
        return "its manager reserves for users, not for accounts"
    unmapped = [name for name in terms.accounts if not cluster.manager_accounts(name)]
    if unmapped:
        return f"account {unmapped[0]} has no mapping there"
    if cluster.takes == "jobs":
        return "the site keeps it for jobs without a reservation"
    if terms.longest < cluster.granularity:
        minimum = f"a job there takes at least {cluster.granularity:g} s"
        return f"{minimum}, the window {terms.longest:g} s"
    unusable_licence = service.core.licences.first_unusable(terms.licences, cluster.name)
    if unusable_licence is not None:
        return f"licence {unusable_licence} cannot be used there"
    _, unreachable_reason = service.core.cluster_status(cluster.name)
    if unreachable_reason:
        return f"it does not answer ({unreachable_reason})"
    drain = service.core.find_drain(cluster.name)
    return None if drain is None else str(drain)


def _check_size(
    service: ReservationHost,
    terms: ReservationTerms,
    clusters: tuple[str, ...],
    request: ReservationRequest,
) -> None:
    """Check that a surveyed cluster is large enough."""
    book = service.core.reservations
    largest, largest_cluster = book.availability.largest_capacity(clusters, terms.by_node)
    unit = "nodes" if terms.by_node else "processors"
    if terms.by_node and not any(map(book.availability.reserves_nodes, clusters)):
        problem = f"only processors can be reserved on {', '.join(clusters)}"
        raise ApiError(403, f"{problem}; leave out --nodes")
    if not largest_cluster:
        problem = "no cluster reports its free nodes"
        raise ApiError(503, f"{problem}; nothing changed, try again soon")
    if request.min_size > largest:
        problem = f"no cluster has {request.min_size} {unit}"
        largest_text = f"the largest is {largest_cluster} with {largest}"
        other_clusters = [
            f"{cluster.name}: {_objection_to(service, cluster, terms)}"
            for cluster in service.core.clusters
            if not terms.clusters and cluster.name not in clusters
        ]
        if other_clusters:
            largest_text += f" ({'; '.join(other_clusters)})"
        raise ApiError(403, f"{problem}, {largest_text}; ask for fewer")


def check_quota(
    book: ReservationBook,
    user: str,
    by_node: bool,
    size: int,
    quota: ReservationQuota,
    series: int | None,
) -> None:
    """Check the size of all open reservations of a user, with `size` more.

    Occurrences of a series do not overlap: the largest counts for all of them.
    """
    largest: dict[tuple[str, int], int] = {}  # by series, or single reservation
    for reservation in book.by_id.values():
        if reservation.user != user or reservation.state not in OPEN_STATES:
            continue
        if reservation.series is None:
            key = ("reservation", reservation.id)
        elif reservation.series == series:
            continue
        else:
            key = ("series", reservation.series)
        reserved = reservation.size if by_node else reservation.cpus
        largest[key] = max(largest.get(key, 0), reserved)
    if (refusal := quota.refusal(size, sum(largest.values()))) is not None:
        raise ApiError(403, f"{refusal}; ask for less, or cancel another")


async def _await_answer(service: ReservationHost, id: int) -> Reservation:
    """Return the reservation after its manager answered, or unchanged after a timeout.

    Unchanged, too, if the service ends: its signal is set for good then.
    """
    reservation = find_reservation(service, id)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            while (
                reservation.state is ReservationState.REQUESTED
                and not service.state_changed.is_set()
            ):
                await service.state_changed.wait()
                reservation = find_reservation(service, id)
    except TimeoutError:
        pass
    return reservation


def _explain_refusal(service: ReservationHost, event: ReservationRequested) -> str:
    """Return why a request is refused, and the alternative windows."""
    book, licences = service.core.reservations, service.core.licences
    alternatives = book.offer_finder.alternatives(event)
    if not event.licences or not book.offer_finder.offers(structs.replace(event, licences={})):
        return _describe_alternatives(book, alternatives)
    requested = " and ".join(f"{name}:{count}" for name, count in event.licences.items())
    windows = {name: licences.windows(name) for name in event.licences}
    conflicts = [
        f", {window.describe()} {'leaves' if window.entry else 'has'} {window.licences[name]} "
        f"of {name} from "
        f"{iso(window.start)} to {iso(window.until)}"
        for name in event.licences
        for window in (
            *windows[name],
            *later_windows(event.calendar_limits, name, windows[name]),
        )
        if event.request.ready < window.until and window.start < event.request.deadline
    ]
    problem = f"there is room, but {requested} cannot be kept for it"
    problem += "".join(conflicts[:MAX_ALTERNATIVES])
    return _describe_alternatives(book, alternatives, problem)


def _describe_alternatives(
    book: ReservationBook,
    alternatives: Mapping[str, list[Offer]],
    problem: str = "that is not free",
) -> str:
    descriptions = [
        f"{cluster} has {_describe_offer(book, cluster, offer)}"
        for cluster, offers in alternatives.items()
        for offer in offers[:MAX_ALTERNATIVES]
    ]
    if not descriptions:
        return f"{problem}; nor is anything like it: ask for less, or for later"
    return f"{problem}; {'; '.join(descriptions)}"


def _describe_offer(book: ReservationBook, cluster: str, offer: Offer) -> str:
    if book.availability.reserves_nodes(cluster):
        size = quantity(offer.size, "node")
    else:
        size = quantity(offer.size * book.availability.cpus_per_unit(cluster), "processor")
    return f"{size} from {iso(offer.start)} to {iso(offer.end)}"
