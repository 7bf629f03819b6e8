"""What is concluded of a task that a restarted manager does not list: a table of the evidence."""

from __future__ import annotations

from typing import Literal

import pytest

from metasched.core.events import (
    AccountingReceived,
    ClaimsRevoked,
    DispatchStarted,
    DispatchUncertain,
    JobSubmitted,
)
from metasched.model.job import State
from metasched.model.listing import ClaimEnd
from metasched.model.tags import tag_of
from tests.unit.core_site import NOW, Site, facts, job

KEY = (tag_of("cafe", 1, 1), 0)
BEFORE, AFTER = NOW - 5, NOW + 5  # starts of the manager, relative to what it had last
Known = Literal["unanswered", "accepted", "pending", "running"]
Evidence = Literal["none", "end", "never started", "revoked", "claimed"]

SENT_AGAIN, UNKNOWN, CANCELLED, COMPLETED = "sent again", "unknown", "cancelled", "completed"
WITHOUT_CLAIMS = {
    # what is known, start of the manager, evidence: conclusion
    ("unanswered", BEFORE, "none"): SENT_AGAIN,
    ("unanswered", AFTER, "none"): UNKNOWN,
    ("accepted", BEFORE, "none"): CANCELLED,
    ("accepted", AFTER, "none"): UNKNOWN,
    ("pending", BEFORE, "none"): CANCELLED,
    ("pending", AFTER, "none"): UNKNOWN,
    ("running", BEFORE, "none"): UNKNOWN,
    ("running", AFTER, "none"): UNKNOWN,
    ("unanswered", AFTER, "end"): COMPLETED,
    ("accepted", AFTER, "end"): COMPLETED,
    ("pending", AFTER, "end"): COMPLETED,
    ("running", AFTER, "end"): COMPLETED,
    # an adapter reports that only with proof: its accounting would know a start
    ("unanswered", AFTER, "never started"): SENT_AGAIN,
    ("accepted", AFTER, "never started"): SENT_AGAIN,
    ("pending", AFTER, "never started"): SENT_AGAIN,
    ("running", AFTER, "never started"): UNKNOWN,
}
WITH_CLAIMS = {
    ("accepted", BEFORE, "none"): CANCELLED,
    ("pending", BEFORE, "none"): CANCELLED,
    ("accepted", AFTER, "none"): UNKNOWN,
    ("pending", AFTER, "none"): UNKNOWN,
    ("accepted", AFTER, "never started"): UNKNOWN,  # until the claim answers
    ("pending", AFTER, "never started"): UNKNOWN,
    ("unanswered", AFTER, "revoked"): SENT_AGAIN,
    ("accepted", AFTER, "revoked"): SENT_AGAIN,
    ("pending", AFTER, "revoked"): SENT_AGAIN,
    ("unanswered", AFTER, "claimed"): COMPLETED,
    ("accepted", AFTER, "claimed"): COMPLETED,
    ("pending", AFTER, "claimed"): COMPLETED,
    ("running", AFTER, "claimed"): COMPLETED,
}


def conclude(site: Site, known: Known, up_since: float, evidence: Evidence) -> str:
    """Return what the core concludes of a task that a complete listing lacks."""
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    if known == "unanswered":
        site.step(DispatchStarted(NOW, 1, 1))
        site.step(DispatchUncertain(NOW, 1, 1, "no answer"))
    else:
        site.sent()
    if known == "pending":
        site.seen("left", None, site.row(State.PENDING), at=NOW + 1)
    elif known == "running":
        site.seen("left", None, site.row(State.RUNNING, started=NOW + 1), at=NOW + 1)
    # an adapter whose listing claims to prove more than a restarted manager can
    span = {"since": NOW - 100, "until": NOW + 9, "up_since": up_since}
    site.seen("left", facts(8), at=NOW + 9, full=True, previous_taken=NOW + 1, **span)
    done = site.row(State.COMPLETED, started=NOW + 3, ended=NOW + 4, exit_code=0)
    end = (*KEY, ClaimEnd(NOW + 3, NOW + 4, 0))
    match evidence:
        case "end":
            site.step(AccountingReceived(NOW + 10, "left", (done,)))
        case "never started":
            site.step(AccountingReceived(NOW + 10, "left", never_started=(KEY,)))
        case "revoked":
            site.step(ClaimsRevoked(NOW + 10, (KEY,)))
        case "claimed":
            site.step(ClaimsRevoked(NOW + 10, already_started=(KEY,), ends=(end,)))
    task = site.core.tasks.get((1, 0))
    if task is None:
        return site.core.state.ended_tasks[1, 0].state.value
    return SENT_AGAIN if task.attempts == 2 else task.state.value


@pytest.mark.parametrize(("case", "conclusion"), WITHOUT_CLAIMS.items())
def test_conclusions_without_claims(case: tuple[Known, float, Evidence], conclusion: str) -> None:
    assert conclude(Site(pull=False), *case) == conclusion


@pytest.mark.parametrize(("case", "conclusion"), WITH_CLAIMS.items())
def test_conclusions_with_claims(case: tuple[Known, float, Evidence], conclusion: str) -> None:
    assert conclude(Site(pull=False, fence_dir="/fence"), *case) == conclusion


@pytest.mark.parametrize(
    ("listings", "up_since", "conclusion"),
    [
        ((100, 250, 400), 0, SENT_AGAIN),
        ((100, 250, 255), 0, SENT_AGAIN),
        ((100,), 0, UNKNOWN),  # it may have come at 110, ended at 120, and be forgotten
        ((), 0, UNKNOWN),
        ((100, 250, 400), 450, UNKNOWN),  # the manager may have forgotten it with its restart
    ],
)
def test_a_manager_may_stand_still_for_longer_than_it_keeps_ended_jobs(
    listings: tuple[int, ...], up_since: int, conclusion: str
) -> None:
    """It keeps them for 300 s. Listings prove only after 500 s that no command can arrive."""
    site = Site(pull=False)
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.step(DispatchStarted(NOW, 1, 1))
    site.step(DispatchUncertain(NOW + 15, 1, 1, "no answer"))
    taken = NOW - 5
    for at in (NOW + seconds for seconds in listings):
        site.seen(
            "left", at=at, since=at - 300, until=0.0, previous_taken=taken, up_since=NOW - 900
        )
        taken = at
    assert site.state() is State.DISPATCHING
    at, last_start = NOW + 500, NOW + (up_since or -900)
    site.seen(
        "left",
        at=at,
        since=at - 300,
        until=at - 50,
        previous_taken=taken,
        up_since=last_start,
    )
    task = site.core.tasks[1, 0]
    assert (SENT_AGAIN if task.attempts == 2 else task.state.value) == conclusion
