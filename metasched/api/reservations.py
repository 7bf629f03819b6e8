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

from metasched.api.identity import Forbidden
from metasched.api.modifications import LATEST
from metasched.api.request import Running, Serving, Who
from metasched.api.selection import RECENT
from metasched.client.schemas import Request as JobRequest
from metasched.core.reservations.book import ReservationBook
from metasched.core.reservations.events import ReservationAsked, ReservationCancelled
from metasched.daemon.mail import ADDRESS
from metasched.daemon.service import Engine
from metasched.errors import Wrong
from metasched.model.job import Job
from metasched.model.reservation import OPEN, Reservation, Stage
from metasched.model.reservation_request import Offer, Quota, Request
from metasched.units import MOST, iso

router = APIRouter()

LATE = 5.0  # seconds by which a start may have passed on its way to us
ANSWER = 20.0  # seconds for which managers are waited for
MOST_STARTS = 20  # intervals of possible starts that are told of each cluster
TOLD = 3  # windows that are offered instead, of each cluster


@dataclass(frozen=True, kw_only=True)
class Wish:
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
def reservations(daemon: Serving, who: Who, all: bool = False) -> list[dict[str, Any]]:
    found = daemon.ledger.reservations(0.0 if all else time.time() - RECENT)
    return [_row(one) for one in found if who.sees_all or one.user == who.user]


@router.post("/reservations")
async def make(who: Who, running: Running, wish: Annotated[Wish, Body()]) -> dict[str, Any]:
    user = who.user if wish.user is None else wish.user
    if user != who.user:
        who.must_operate("reserve for others")
        try:
            pwd.getpwnam(user)
        except (KeyError, ValueError):
            raise Wrong(404, f"there is no account {user[:63]!r}; name another user") from None
    return await _reserve(running, user, wish)


@router.post("/reservations/{id}/cancel")
async def cancel(who: Who, running: Running, id: int) -> dict[str, Any]:
    """Cancel a reservation that is open; one that is over stays as it is."""
    one = _stored(running, id)
    if one.user != who.user and not who.operator:
        told = f"reservation {id} is {one.user}'s, and you are {who.user}"
        raise Forbidden(f"{told}; ask its owner or an operator")
    now = running.core.reservations.known.get(id)
    if now is not None and now.state in OPEN:
        running.take(ReservationCancelled(time.time(), id, who.user))
        one = running.core.reservations.known[id]
    return _row(one)


async def _reserve(engine: Engine, user: str, wish: Wish) -> dict[str, Any]:
    """Promise what is asked for, or tell what would happen. Wrong: nothing is promised."""
    quota = engine.settings.quota_of(user)
    _check(wish)
    if wish.mail and engine.mailer.program is None:
        told = "this site has no mail program to tell you by, --mail"
        raise Wrong(403, f"{told}; leave it out, and look at `metasched reservations`")
    _request(wish, quota, time.time())  # before anybody is asked
    _must_float(engine, wish.licences)
    clusters = _able(engine, wish)
    looks = [asyncio.create_task(engine.links[n].reservations.look()) for n in clusters]
    _, unanswered = await asyncio.wait(looks, timeout=ANSWER)
    for look in unanswered:
        look.cancel()
    now = time.time()
    id = 0 if wish.dry_run else engine.ledger.next_reservation()
    request = _request(wish, quota, now)
    let_run = quota.let_run if wish.let_run is None else wish.let_run
    event = ReservationAsked(
        *(now, id, user, request, wish.by_node, clusters, now + quota.horizon, let_run),
        *(wish.licences, wish.mail),
    )
    book = engine.core.reservations
    largest, where = book.free.largest(clusters, wish.by_node)
    unit = "nodes" if wish.by_node else "processors"
    if wish.by_node and not any(map(book.free.by_node, clusters)):
        told = f"processors, not nodes, are what can be reserved on {', '.join(clusters)}"
        raise Wrong(403, f"{told}; leave out --nodes")
    if not where:
        raise Wrong(503, "no cluster tells what is free; nothing changed, try again soon")
    if request.least > largest:
        told = f"no cluster has {request.least} {unit}, the largest is {where} with {largest}"
        raise Wrong(403, f"{told}; ask for fewer")
    open_now = [one for one in book.known.values() if one.user == user and one.state in OPEN]
    if over := quota.exceeded(request.most, sum(_units(o, wish.by_node) for o in open_now)):
        raise Wrong(403, f"{over}; ask for less, or cancel another")
    if wish.dry_run:
        found = book.possible(event)
        if not found:
            raise Wrong(403, _refused(engine, event))
        return {
            "offers": [
                _offer(name, offer, None if book.free.by_node(name) else book.free.cpus(name))
                | {
                    "starts": [
                        list(map(iso, s)) for s in book.starts(event, name, offer)[:MOST_STARTS]
                    ]
                }
                for name, offer in found.items()
            ]
        }
    engine.take(event)
    if id not in book.known:
        raise Wrong(403, _refused(engine, event))
    one = await _answered(engine, id)
    if one.state is Stage.BROKEN:
        engine.ledger.told(id, time.time())  # by this answer
        told = f"{one.cluster} cannot keep it: {one.cause}"
        raise Wrong(403, f"{told}; {_instead(book, {one.cluster: list(one.offers)})}")
    return _row(one)


def _units(one: Reservation, by_node: bool) -> int:
    return one.size if by_node else one.cpus


def _must_float(engine: Engine, wanted: Mapping[str, int]) -> None:
    """Wrong if these licences cannot be reserved at all, or if nobody knows now."""
    core = engine.core
    if (why := core.licences.refusal(wanted)) is not None:
        raise Wrong(403, why)
    for name in wanted:
        if locked := [cluster.name for cluster in core.clusters if name in cluster.licensed]:
            told = f"licence {name} can be used on some machines of {locked[0]} only"
            raise Wrong(403, f"{told}, and floating ones can be reserved; leave it out")
        if word := core.licences.standing(name, time.time()).word:
            raise Wrong(503, f"licence {name}: {word}; nothing changed, try again soon")


def _check(wish: Wish) -> None:
    if wish.mail and not ADDRESS.fullmatch(wish.mail):
        raise Wrong(422, f"{wish.mail[:63]!r} is no address, --mail; write one as ada@example.org")
    for name, many in wish.licences.items():
        if not 1 <= many <= MOST:
            raise Wrong(422, f"{many} of licence {name[:63]!r} makes no sense; ask for 1 or more")
    for name in ("least", "most"):
        if not 1 <= (many := getattr(wish, name)) <= MOST:
            raise Wrong(422, f"size {many} makes no sense; ask for 1 to {MOST}")
    for name in ("shortest", "longest"):
        if not 0 < (seconds := getattr(wish, name)) <= MOST:
            raise Wrong(422, f"a duration of {seconds:g} s makes no sense; ask for another")
    if not 0 <= (seconds := wish.let_run or 0.0) <= MOST:
        raise Wrong(422, f"to let run for {seconds:g} s makes no sense; give another time")
    for name in ("ready", "deadline"):
        if not 0 <= (getattr(wish, name) or 0.0) < LATEST:
            raise Wrong(422, f"{name} is no time of this world; give another")


def _request(wish: Wish, quota: Quota, now: float) -> Request:
    """The request on whole seconds, as managers count. Wrong if it can never be met."""
    ready = now if wish.ready is None else wish.ready
    if ready < now - LATE:
        raise Wrong(422, f"the start {iso(ready)} has passed; ask for a later one")
    horizon = now + quota.horizon
    deadline = horizon if wish.deadline is None else wish.deadline
    if deadline > horizon:
        raise Wrong(
            403,
            f"the end {iso(deadline)} lies beyond the horizon of {quota.horizon:.0f} s, which is "
            f"{iso(horizon)}; ask for an earlier one",
        )
    if wish.longest > quota.longest:
        told = f"{wish.longest:.0f} s is more than the {quota.longest:.0f} s that you may reserve"
        raise Wrong(403, f"{told}; ask for less")
    if (wish.let_run or 0.0) > quota.let_run:
        told = f"jobs of yours may go on for {quota.let_run:.0f} s after its end"
        raise Wrong(403, f"{told}, not for {wish.let_run:.0f} s; ask for less")
    if wish.deadline is not None and deadline <= ready:
        raise Wrong(422, f"the end {iso(deadline)} is not after the start {iso(ready)}; swap them")
    begin, deadline = float(math.ceil(max(ready, now))), float(math.ceil(deadline))
    shortest, longest, left = wish.shortest, wish.longest, deadline - begin
    if left < shortest <= left + LATE + 1.0:  # what has passed on its way to us it does not get
        shortest = longest = max(left, 1.0)
    try:
        return Request(begin, deadline, wish.least, wish.most, shortest, longest)
    except ValueError as error:
        raise Wrong(422, f"{error}, in the request; change it") from None


def _able(engine: Engine, wish: Wish) -> tuple[str, ...]:
    """The clusters that can be asked for what is wanted now. Wrong if there is none."""
    wanted, lasts = wish.clusters, wish.longest
    known = {cluster.name: cluster for cluster in engine.core.clusters}
    if unknown := [name for name in wanted if name not in known]:
        raise Wrong(404, f"there is no cluster {unknown[0]}; there are {', '.join(known)}")
    against, able = {}, []
    for name in wanted or known:
        _, silent = engine.core.view(name)
        if not known[name].reserves:
            against[name] = "its manager keeps no reservations"
        elif known[name].takes == "jobs":
            against[name] = "the site keeps it for jobs without one"
        elif lasts < (step := known[name].granularity):
            against[name] = f"a job there takes {step:g} s at the least, the window {lasts:g} s"
        elif (barred := engine.core.licences.barred(wish.licences, name)) is not None:
            against[name] = f"licence {barred} cannot be used there"
        elif silent:
            against[name] = f"it does not answer ({silent})"
        elif (drain := engine.core.drain(name)) is not None:
            against[name] = str(drain)
        else:
            able.append(name)
    if not able:
        told = "; ".join(f"{name}: {why}" for name, why in against.items())
        raise Wrong(403, f"no cluster takes reservations now ({told}); see `metasched clusters`")
    return tuple(able)


async def _answered(engine: Engine, id: int) -> Reservation:
    """The reservation once its manager has answered, or after a while as it is."""
    one = engine.core.reservations.known[id]
    try:
        async with asyncio.timeout(ANSWER):
            while one.state is Stage.REQUESTED:
                await engine.changed.wait()
                one = engine.core.reservations.known.get(id) or _stored(engine, id)
    except TimeoutError:
        pass
    return one


def _stored(engine: Engine, id: int) -> Reservation:
    one = engine.ledger.reservation(id) if 0 < id <= MOST else None
    if one is None:
        raise Wrong(404, f"no reservation {id}; see `metasched reservations`")
    return one


def _refused(engine: Engine, event: ReservationAsked) -> str:
    """Why a request is refused, and what would be possible."""
    book, licences = engine.core.reservations, engine.core.licences
    found = book.instead(event)
    if not event.licences or not book.possible(structs.replace(event, licences={})):
        return _instead(book, found)
    names = " and ".join(f"{name}:{many}" for name, many in event.licences.items())
    others = [
        f", reservation {window.id} has {window.licences[name]} of {name} from "
        f"{iso(window.start)} to {iso(window.until)}"
        for name in event.licences
        for window in licences.windows(name)
        if event.request.ready < window.until and window.start < event.request.deadline
    ]
    told = "".join(others[:TOLD])
    return _instead(book, found, f"there is room, but {names} cannot be kept for it{told}")


def _instead(
    book: ReservationBook,
    found: Mapping[str, list[Offer]],
    why: str = "that is not free",
) -> str:
    told = [
        f"{cluster} has {_what(book, cluster, offer)} from {iso(offer.start)} to {iso(offer.end)}"
        for cluster, offers in found.items()
        for offer in offers[:TOLD]
    ]
    return f"{why}; {'; '.join(told) or 'nor is anything like it: ask for less, or for later'}"


def _what(book: ReservationBook, cluster: str, offer: Offer) -> str:
    if book.free.by_node(cluster):
        return _many(offer.size, "node")
    return _many(offer.size * book.free.cpus(cluster), "processor")


def _many(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"


def _offer(cluster: str, one: Offer, cpus: int | None) -> dict[str, Any]:
    """A window that is possible; one of `nodes` and `processors` counts, the other is null.

    `cpus` are the processors of what is reserved there; None: nodes.
    """
    nodes, processors = (one.size, None) if cpus is None else (None, one.size * cpus)
    return {
        "cluster": cluster,
        "start": iso(one.start),
        "end": iso(one.end),
        "nodes": nodes,
        "processors": processors,
    }


def _row(one: Reservation) -> dict[str, Any]:
    """A row of `reservations --json`; `size` counts processors."""
    each = None if one.nodes else one.cpus // one.size
    return {
        "reservation": one.id,
        "user": one.user,
        "cluster": one.cluster,
        "start": iso(one.start),
        "end": iso(one.end),
        "size": one.cpus,
        "state": one.state.value,
        "nodes": list(one.placed if one.state is Stage.CONFIRMED else one.placed or one.nodes),
        "cause": one.cause,
        "made": iso(one.made),
        "closed": iso(one.closed),
        "offers": [
            _offer(offer.cluster or one.cluster, offer, 1 if offer.cluster else each)
            for offer in one.offers
        ],
        "let_run": one.let_run,
        "licences": dict(one.licences),
        "mail": one.mail,
    }


def within(engine: Engine, user: str, request: JobRequest, now: float) -> JobRequest:
    """A job as it runs in its reservation: on its cluster, within its window.

    Wrong if the reservation is another's or over, or if the job is larger or longer.
    """
    if request.reservation is None:
        return request
    one = engine.core.reservations.known.get(request.reservation)
    one = one or _stored(engine, request.reservation)
    name = f"reservation {one.id}"
    if one.user != user:
        raise Wrong(403, f"{name} is {one.user}'s, and you are {user}; make one of your own")
    if one.state not in OPEN:
        raise Wrong(403, f"{name} is {one.state}: {one.cause}; make another")
    if request.clusters and one.cluster not in request.clusters:
        told = f"{name} is on {one.cluster}, --cluster asks for {', '.join(request.clusters)}"
        raise Wrong(403, f"{told}; leave out --cluster")
    left = must_last(one, request.begin, request.time_limit, now)
    cpus = request.tasks * request.cpus_per_task
    if cpus > one.cpus or (request.nodes or 1) > one.size:
        wanted = f"{_many(cpus, 'processor')} on {_many(request.nodes or 1, 'node')}"
        has = f"{one.cpus} on {one.size}" if one.nodes else _many(one.cpus, "processor")
        told = f"the job asks for {wanted}, {name} has {has}"
        raise Wrong(403, f"{told}; ask for fewer")
    limit = request.time_limit or max(left // 60 * 60, min(left, 60.0))
    return replace(request, clusters=(one.cluster,), time_limit=limit)


def must_last(one: Reservation, begin: float | None, time_limit: float | None, now: float) -> float:
    """Seconds that are left of a reservation for a job. Wrong if it may run for longer."""
    if begin is not None and begin >= one.end:
        told = f"the job may not begin before {iso(begin)}, reservation {one.id} ends at"
        raise Wrong(403, f"{told} {iso(one.end)}; ask for an earlier --begin")
    left = one.end - max(one.start, now, begin or 0.0)
    if time_limit is not None and time_limit > left:
        told = f"the job may run for {time_limit:g} s, reservation {one.id} lasts {left:.0f} s"
        raise Wrong(403, f"{told}; ask for a shorter --time")
    return left


def must_fit(engine: Engine, job: Job, now: float) -> None:
    """Wrong if a job that is changed no longer fits into its reservation, if it has an open one."""
    one = engine.core.reservations.known.get(job.reservation or 0)
    if one is None or one.state not in OPEN:
        return
    if job.time_limit is None:
        told = f"job {job.id} runs in reservation {one.id}, where it needs a time limit"
        raise Wrong(403, f"{told}; give --time")
    must_last(one, job.begin, job.time_limit, now)
    if job.clusters != (one.cluster,):
        told = f"job {job.id} runs in reservation {one.id}, which is on {one.cluster}"
        raise Wrong(403, f"{told}; leave out --cluster")
