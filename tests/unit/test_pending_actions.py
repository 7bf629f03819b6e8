"""Actions that wait for a cluster: claims to be revoked are taken in turns of their owners."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

from metasched.config.settings import ClusterSettings
from metasched.core.events import JobSubmitted, Revoke, UserRequested
from metasched.daemon.host import SchedulerHost
from metasched.daemon.pending_actions import MAX_CLAIMS_PER_CALL, REPORTED_TRIES, PendingActions
from metasched.model.cluster import Cluster
from metasched.model.job import State
from metasched.model.listing import TaskClaim
from metasched.model.tags import tag_of
from tests.unit.core_site import NOW, Site, job


def pending(site: Site) -> PendingActions:
    settings = ClusterSettings(Cluster(name="left", adapter="local"), {}, 1.0, 1.0, None, {})
    host = SimpleNamespace(core=site.core)
    return PendingActions(cast(SchedulerHost, host), settings, 60.0, by_owner=False)


def claims(id: int, count: int) -> tuple[TaskClaim, ...]:
    return tuple(TaskClaim("/fence", tag_of("cafe", id, 1), index) for index in range(count))


def test_no_owner_waits_for_thousands_of_claims_of_another_or_of_ended_tasks() -> None:
    site = Site(remainder_minimum=5000)
    for id, user, array in ((1, "ada", "0-999"), (2, "bob", None)):
        site.step(JobSubmitted(NOW, job(id, user=user, array=array)))
    actions, ended = pending(site), claims(99, 1000)
    for order in (claims(1, 1000), ended, claims(2, 1)):
        actions.enqueue(Revoke("left", order))
    assert actions.take_claims() == claims(1, MAX_CLAIMS_PER_CALL)
    assert actions.take_claims() == ended[:MAX_CLAIMS_PER_CALL]
    assert actions.take_claims() == claims(2, 1)
    taken = 2 * MAX_CLAIMS_PER_CALL + 1
    while actions.next_claims_due == 0.0:
        taken += len(actions.take_claims())
    assert taken == 2001


def test_withdrawals_without_effect_are_reported_with_the_managers_words() -> None:
    site = Site()
    for id in (1, 2):
        site.step(JobSubmitted(NOW, job(id, clusters=("left",))))
        site.sent(id)
        site.seen("left", None, site.row(State.RUNNING, id, started=NOW))
    actions = pending(site)
    vars(actions._host)["owner_of"] = lambda _: "ada"
    for minute in range(REPORTED_TRIES):
        at = NOW + 61 * minute
        requests = site.seen("left", None, site.row(State.RUNNING, started=NOW), at=at)
        if minute == 0:
            requests = site.step(UserRequested(at, "cancel", 1))
        assert not actions.futile_withdrawals()
        for request in requests:
            actions.enqueue(request)
        actions.remove_withdrawals(actions.next_withdrawals(""), "Invalid job id")
        assert not actions.has_withdrawals
    assert actions.futile_withdrawals() == [(1, "left", REPORTED_TRIES, "Invalid job id")]
    ended = site.row(State.CANCELLED, started=NOW, ended=NOW + 400)
    site.seen("left", None, ended, at=NOW + 400)
    assert not actions.futile_withdrawals()


def test_a_claim_that_is_asked_again_meanwhile_is_asked_once() -> None:
    actions = pending(Site())
    for _ in range(2):
        actions.enqueue(Revoke("left", claims(1, 2)))
    assert actions.counts()["claim"] == 2
    assert actions.take_claims() == claims(1, 2)
    assert actions.next_claims_due == math.inf
