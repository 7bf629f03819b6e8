"""Replies to reservation requests with licences: granted, or refused in one line."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metasched.adapters.slurm.node_reservations import check_error
from metasched.adapters.slurm.submission import error_message
from metasched.api.identity import Caller
from metasched.api.licences import _licence_row as licence_row
from metasched.api.lookups import Lookups
from metasched.api.request import CurrentCaller
from metasched.api.reservations import create
from metasched.core.calendar_events import CalendarEntrySet
from metasched.core.events import CoreEvent, DaemonStarted, ListingReceived, Outcome
from metasched.core.reservations.events import (
    ReservationBound,
    ReservationCancelled,
    ReservationRejected,
    ReservationRequested,
    SurveyReceived,
)
from metasched.core.scheduler import Core
from metasched.daemon.reservation_requests import ReservationTerms, _await_answer
from metasched.daemon.series import Occurrences, SeriesTerms, make_series
from metasched.daemon.service import SchedulerService
from metasched.errors import ApiError
from metasched.model.adapter_errors import Refused
from metasched.model.calendar import CalendarEntry, LimitLicence
from metasched.model.cluster import Cluster, ClusterInfo
from metasched.model.licence import LicencePool
from metasched.model.reservation import ReservationState
from metasched.model.reservation_request import ReservationQuota
from metasched.model.survey import NodeUsage, Survey
from metasched.policies.policy import Policy

POOLS = (
    LicencePool(name="matlab", total=4, headroom=1),
    LicencePool(name="ansys", total=2, clusters=("beta",)),
    LicencePool(name="cad", total=2, clusters=("alpha",)),
    LicencePool(name="told", server="flex"),
)


def test_a_service_that_ends_is_not_waited_for() -> None:
    """Its signal stays set: a wait for the next change would never yield to the loop."""
    ended, waiting = asyncio.Event(), SimpleNamespace(state=ReservationState.REQUESTED)
    ended.set()
    book = SimpleNamespace(by_id={1: waiting})
    service = SimpleNamespace(core=SimpleNamespace(reservations=book), state_changed=ended)
    found = asyncio.run(_await_answer(cast(SchedulerService, service), 1))
    assert cast(object, found) is waiting


async def at_once(check: Callable[[], Occurrences]) -> Occurrences:
    return check()


class Desk:
    """The daemon that `create` needs, with two clusters that answer at once."""

    def __init__(self) -> None:
        self.core, now = Core(), time.time()
        alpha = Cluster(
            name="alpha",
            adapter="slurm",
            supports_reservations=True,
            licence_features={"cad": "cad"},
        )
        beta = Cluster(name="beta", adapter="local")
        self.core.step(DaemonStarted(now, "cafe", Policy(), (alpha, beta), pools=POOLS))
        for name in ("alpha", "beta"):
            facts = ClusterInfo(cpus=8, used_cpus=0, partitions=())
            self.core.step(ListingReceived(now, name, (), info=facts, since=0.0, until=now))
        self.quota = ReservationQuota()
        mail = SimpleNamespace(domains=("example.org",))
        self.settings = SimpleNamespace(quota_of=lambda _: self.quota, mail=mail)
        self.connections = {
            name: SimpleNamespace(reservation_sync=self, last_listed=0.0)
            for name in ("alpha", "beta")
        }
        self.ledger, self.ids = self, 0

    async def request_survey(self) -> None:
        now = time.time()
        nodes = (NodeUsage(("n1", "n2"), 4, True),)
        self.core.step(SurveyReceived(now, "alpha", Survey(now, nodes)))

    def next_reservation(self) -> int:
        self.ids += 1
        return self.ids

    async def apply_events(self, event: CoreEvent) -> list[Outcome]:
        outcome = self.core.step(event)
        if isinstance(event, ReservationRequested) and event.id in self.core.reservations.by_id:
            nodes = self.core.reservations.by_id[event.id].nodes
            self.core.step(ReservationBound(event.time, event.id, nodes))
        return [outcome]

    def reserve(self, dry_run: bool = False, mail: str = "", /, **licences: int) -> dict[str, Any]:
        begin = math.ceil(time.time()) + 3600.0
        request = ReservationTerms(
            least=1,
            most=1,
            shortest=600.0,
            longest=600.0,
            ready=begin,
            deadline=begin + 600.0,
            licences=licences,
            dry_run=dry_run,
            mail=mail,
        )
        return self.create(request)

    def reserve_for(self, accounts: tuple[str, ...], users: tuple[str, ...]) -> dict[str, Any]:
        request = ReservationTerms(
            least=1, most=1, shortest=600.0, longest=600.0, accounts=accounts, users=users
        )
        return self.create(request)

    def make_series_for(self, accounts: tuple[str, ...], users: tuple[str, ...]) -> None:
        self.settings.zone, until = "UTC", time.time() + 864_000.0
        terms = SeriesTerms(
            every="daily 08:00",
            until=until,
            duration=600,
            least=1,
            most=1,
            accounts=accounts,
            users=users,
        )
        asyncio.run(make_series(cast(SchedulerService, self), "ada", terms, "", at_once))

    def create(self, request: ReservationTerms) -> dict[str, Any]:
        caller = cast(CurrentCaller, SimpleNamespace(user="ada"))
        answer = create(caller, cast(SchedulerService, self), Lookups("account"), request)
        return dict(asyncio.run(answer))


class RefusingDesk(Desk):
    """Its manager answers each reservation with the same error."""

    def __init__(self, error: str) -> None:
        super().__init__()
        self.error = error

    async def apply_events(self, event: CoreEvent) -> list[Outcome]:
        outcome = self.core.step(event)
        with pytest.raises(Refused) as refused:
            check_error(self.error)
        while self.core.reservations.by_id[1].state is ReservationState.REQUESTED:
            self.core.step(ReservationRejected(event.time, 1, refused.value.reason))
        return [outcome]

    def mark_notified(self, id: int, now: float) -> None:
        pass


def test_an_error_of_several_lines_offers_other_windows() -> None:
    error = error_message(
        "scontrol: Requested nodes are busy\nscontrol: error: plugin of the site: no answer\n"
    )
    with pytest.raises(ApiError) as refused:
        RefusingDesk(error).reserve()
    assert "nodes are busy, plugin of the site: no answer; that is not free" in str(refused.value)


def test_mail_goes_to_the_owner_or_to_domains_of_the_site() -> None:
    desk = Desk()
    for address in ("bob", "eve@evil.org"):
        for dry_run in (True, False):
            with pytest.raises(ApiError) as refused:
                desk.reserve(dry_run, address)
            assert refused.value.status == 403
            assert str(refused.value) == (
                f"this site allows addresses at example.org, not {address}, --mail;"
                " leave it out, and mail goes to ada"
            )
    assert desk.core.reservations.by_id == {}
    assert desk.reserve(False, "ada")["mail"] == "ada"
    assert desk.reserve(False, "bob@example.org")["mail"] == "bob@example.org"


def test_a_series_mails_the_owner_or_domains_of_the_site() -> None:
    desk = Desk()
    until = time.time() + 864_000.0
    terms = SeriesTerms(every="daily 08:00", until=until, duration=600, least=1, most=1, mail="bob")
    desk.settings.zone = "UTC"
    with pytest.raises(ApiError, match=r"allows addresses at example\.org, not bob, --mail"):
        asyncio.run(make_series(cast(SchedulerService, desk), "ada", terms, "", at_once))


def test_accounts_are_checked_before_anything_is_reserved() -> None:
    desk = Desk()
    for accounts, users, status, problem in (
        (("a,b",), (), 422, "is no name of an account"),
        (("-a",), (), 422, "is no name of an account"),
        (("a\nb",), (), 422, "is no name of an account"),
        (tuple(f"a{i}" for i in range(201)), (), 422, "at most 200"),
        (("aero",), ("bob",), 422, "beside users or groups"),
        (("aero",), (), 403, "reserves for users, not for accounts"),
    ):
        for make in (desk.reserve_for, desk.make_series_for):
            with pytest.raises(ApiError, match=problem) as refused:
                make(accounts, users)
            assert refused.value.status == status
    assert desk.core.reservations.by_id == {}
    assert desk.core.calendar.entries == {}


@pytest.mark.parametrize(
    ("maps", "native"),
    [
        ({}, ()),
        ({"account": {"*": "*"}}, ("aero",)),
        ({"account": {"aero": "proj7", "*": "*"}}, ("proj7",)),
        ({"account": {"marine": "proj8"}}, ()),
    ],
)
def test_a_manager_is_given_its_own_names_of_accounts(
    maps: dict[str, dict[str, str]], native: tuple[str, ...]
) -> None:
    assert Cluster(name="a", adapter="slurm", maps=maps).manager_accounts("aero") == native
    by_user = {"aero": {"bob": "x", "eve": "y", "*": "x"}}
    mapped = Cluster(name="a", adapter="slurm", maps=maps, user_accounts=by_user)
    assert mapped.manager_accounts("aero") == ("x", "y")


def test_a_window_has_its_licences_and_the_next_request_learns_the_holder() -> None:
    desk = Desk()
    assert desk.reserve(True, matlab=3)["offers"]
    made = desk.reserve(matlab=2)
    assert (made["state"], made["licences"]) == ("bound", {"matlab": 2})
    row = licence_row(
        cast(SchedulerService, desk),
        desk.core.licences.status("matlab", time.time()),
        Caller("ada"),
    )
    assert (row["reserved"], row["free"]) == (0, 3)
    window = {
        "reservation": 1,
        "entry": None,
        "count": 2,
        "start": made["start"],
        "end": made["end"],
    }
    assert row["windows"] == [window]
    for dry_run in (True, False):
        with pytest.raises(ApiError) as refused:
            desk.reserve(dry_run, matlab=2)
        message = str(refused.value)
        assert message.startswith(
            "there is room, but matlab:2 cannot be kept for it, reservation 1 has 2 of matlab"
            f" from {made['start']} to {made['end']}; alpha has 1 node from {made['end']}"
        )


def test_a_later_run_of_the_calendar_is_not_promised() -> None:
    desk = Desk()
    now = time.time()
    act = LimitLicence("matlab", 2, 3600.0)  # one is kept free
    entry = CalendarEntry(
        id=7,
        name="hourly",
        act=act,
        rule="0 * * * *",
        zone="UTC",
        created=now,
        grace=3600.0,
        next_run=now - now % 3600.0 - 3600.0,  # the runs of an hour ago, now and in an hour
    )
    desk.core.step(CalendarEntrySet(now, entry, cause="new"))
    assert desk.reserve(True, matlab=1)["offers"]
    for dry_run in (True, False):
        with pytest.raises(ApiError, match="calendar entry hourly leaves 2 of matlab from"):
            desk.reserve(dry_run, matlab=2)
    assert desk.core.reservations.by_id == {}


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"matlab": 4}, "4 of licence matlab, there are 4, 1 of them kept free; ask for at most 3"),
        ({"matlap": 1}, "no licence 'matlap' is known; did you mean matlab?"),
        ({"cad": 1}, "licence cad can be used on some machines of alpha only, and floating ones"),
        ({"ansys": 1}, "alpha: licence ansys cannot be used there"),
        ({"told": 1}, "licence told: its server flex has not answered yet"),
        ({"matlab": 0}, "0 of licence 'matlab' makes no sense"),
    ],
)
def test_licences_that_cannot_be_reserved(requested: dict[str, int], message: str) -> None:
    desk = Desk()
    with pytest.raises(ApiError) as refused:
        desk.reserve(**requested)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert desk.core.reservations.by_id == {}


def test_who_has_all_that_may_be_reserved_gets_more_once_some_of_it_is_over() -> None:
    desk = Desk()
    desk.quota = ReservationQuota(max_size=4)
    assert desk.reserve()["size"] == 4
    for dry_run in (True, False):
        with pytest.raises(
            ApiError, match="1 more, beside 4, exceed the 4 that you may reserve; ask"
        ):
            desk.reserve(dry_run)
    desk.core.step(ReservationCancelled(time.time(), 1, "ada"))
    assert desk.reserve()["state"] == "bound"


@pytest.mark.parametrize(
    ("quota", "message"),
    [
        (
            ReservationQuota(horizon=3600.0),
            r"lies beyond the horizon of 3600 s, which is \S+; ask for an",
        ),
        (
            ReservationQuota(max_duration=599.0),
            "600 s is more than the 599 s that you may reserve; ask for less",
        ),
    ],
)
def test_how_far_ahead_and_for_how_long(quota: ReservationQuota, message: str) -> None:
    desk = Desk()
    desk.quota = quota
    with pytest.raises(ApiError, match=message):
        desk.reserve()
    assert desk.core.reservations.by_id == {}
