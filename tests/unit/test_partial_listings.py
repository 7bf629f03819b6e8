"""Listings after a cursor: the first of many ends prove nothing, a deferred end is kept."""

from __future__ import annotations

import pytest

from metasched.core.events import ClaimsRevoked, ClusterUnreachable, JobSubmitted
from metasched.model.job import State
from metasched.model.tags import tag_of
from tests.unit.core_site import NOW, Site, facts, job


def with_two_running_tasks() -> Site:
    site = Site(pull=False)
    for id in (1, 2):
        site.step(JobSubmitted(NOW, job(id, clusters=("left",))))
        site.sent(id)
    running = [site.row(State.RUNNING, id, started=NOW) for id in (1, 2)]
    site.seen("left", None, *running, at=NOW + 1, full=True, cursor="a:1")
    assert [site.state(id) for id in (1, 2)] == [State.RUNNING] * 2
    return site


def test_the_first_of_many_ends_prove_nothing_of_other_tasks() -> None:
    site = with_two_running_tasks()
    site.step(ClusterUnreachable(NOW + 2, "left", "it is down"))
    ended = site.row(State.COMPLETED, 1, started=NOW, ended=NOW + 3, exit_code=0)
    site.seen("left", None, ended, at=NOW + 4, partial=True, cursor="a:1")
    assert (1, 0) not in site.core.tasks
    assert site.state(2) is State.UNKNOWN
    assert site.core.cluster_status("left")[1]  # it has not answered completely
    running = site.row(State.RUNNING, 2, started=NOW)
    site.seen("left", facts(8), running, at=NOW + 5, full=True, cursor="a:2")
    assert site.state(2) is State.RUNNING
    assert not site.core.cluster_status("left")[1]


def test_a_partial_listing_is_no_answer_to_a_lost_submission() -> None:
    site = with_two_running_tasks()
    site.step(JobSubmitted(NOW + 2, job(3, clusters=("left",))))
    site.step(ClusterUnreachable(NOW + 3, "left", "it is down"))
    before = site.state(3)
    assert site.seen("left", None, at=NOW + 9, partial=True, cursor="a:1") == []
    assert site.state(3) is before


@pytest.mark.parametrize(("cursor", "is_kept"), [("a:1", True), ("", False)])
def test_an_end_that_waits_for_a_claim_is_kept_over_a_whole_listing(
    cursor: str, is_kept: bool
) -> None:
    """A manager with a cursor does not list it again; others do, or it is outdated."""
    site = Site(fence_dir="/fence", pull=False)
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.sent()
    site.seen("left", facts(8), full=True, at=NOW + 9, since=NOW + 5, up_since=NOW + 5)
    ended = site.row(State.COMPLETED, started=NOW + 9, ended=NOW + 9, exit_code=0)
    assert site.core.defers_rows("left", [ended])
    site.seen("left", None, ended, at=NOW + 10, partial=True, cursor=cursor)
    assert site.core.defers_rows("left", [])
    site.seen("left", None, full=True, at=NOW + 11, since=NOW + 5, cursor=cursor)
    site.step(ClaimsRevoked(NOW + 12, already_started=((tag_of("cafe", 1, 1), 0),)))
    assert ((1, 0) not in site.core.tasks) is is_kept
    assert not site.core.defers_rows("left", [])
