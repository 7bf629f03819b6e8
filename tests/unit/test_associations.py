"""Associations: which accounts a user may charge decides which clusters he may use."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from metasched.adapters.slurm import associations
from metasched.adapters.slurm.associations import (
    AssociationLine,
    AssociationReader,
    build_associations,
    parse_associations,
)
from metasched.adapters.slurm.listing import ControllerInfo
from metasched.core.events import JobSubmitted
from metasched.db.cluster_info import apply_changes, changed_fields
from metasched.model.adapter_errors import Unreachable
from metasched.model.cluster import Associations, Cluster, UserAccounts
from metasched.model.job import Reason, State
from metasched.policies.eligible import find_charged_account, find_ineligibility
from tests.unit.core_site import NOW, Site, facts, job

LISTED = """\
|root|
root|root|
|chem|
ada|chem|short
ada|chem|long
Bob|Chem|short
|physics|
ada|physics|
"""
DEFAULTS = "ada|physics|\nBob|Chem|short\nroot|root|\n"
CLUSTER = Cluster(name="left", adapter="slurm", maps={"account": {"*": "*", "p": "physics"}})


def known(required: bool = True) -> Associations:
    made = build_associations(
        parse_associations(LISTED), parse_associations(DEFAULTS), required=required
    )
    assert made is not None
    return made


def test_associations_are_read_by_user() -> None:
    assert known().users == {
        "root": UserAccounts(default="root", accounts={"root": ()}),
        "ada": UserAccounts(default="physics", accounts={"chem": ("long", "short"), "physics": ()}),
        "bob": UserAccounts(default="chem", accounts={"chem": ("short",)}),
    }
    assert known(required=False).users["ada"] == UserAccounts(default="physics")


def test_a_restricted_or_endless_list_counts_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [AssociationLine("ada", "chem", "")]
    assert build_associations(own, own, required=True) is None
    monkeypatch.setattr(associations, "MAX_ASSOCIATIONS", 4)
    assert (
        build_associations(parse_associations(LISTED), parse_associations(DEFAULTS), required=True)
        is None
    )


@pytest.mark.parametrize("output", ["ada|chem", "ada|chem||x", "\x00"])
def test_odd_output_is_an_error(output: str) -> None:
    with pytest.raises(ValueError, match="fields in"):
        parse_associations(output)


@pytest.mark.parametrize(
    ("requested", "text", "account"),
    [
        ({"user": "ada"}, "", "physics"),
        ({"user": "Ada"}, "", "physics"),
        ({"user": "eve"}, "user eve has no account on the cluster", None),
        ({"user": "bob"}, "account chem only in partition short", "chem"),
        ({"user": "bob", "account": "physics"}, "bob may not charge account physics", "physics"),
        ({"user": "bob", "account": "p"}, "bob may not charge account physics", "physics"),
        ({"user": "ada", "account": "p"}, "", "physics"),
        ({"user": "ada", "account": "CHEM"}, "only in partition long, short", "CHEM"),
        ({"user": "bob", "native": {"left": "-A chem"}}, "", None),
        ({"user": "bob", "native": {"left": "--bbf=x '--partition=short'"}}, "", None),
        ({"user": "bob", "native": {"right": "-A chem"}}, "chem only in partition short", "chem"),
        ({"user": "eve", "native": {"left": "-A chem"}}, "eve has no account", None),
    ],
)
def test_a_missing_association_makes_a_cluster_ineligible(
    requested: dict[str, Any], text: str, account: str | None
) -> None:
    info = facts(8, associations=known())
    obstacle = find_ineligibility(job(**requested), CLUSTER, info)
    assert (
        (text in obstacle.text and obstacle.reason is Reason.NO_MAPPING) if obstacle else not text
    )
    assert find_charged_account(job(**requested), CLUSTER, info) == account


def test_associations_forbid_nothing_where_they_are_not_required_or_unknown() -> None:
    for there in (known(required=False), None):
        for user in ("eve", "bob"):
            info = facts(8, associations=there)
            assert find_ineligibility(job(user=user), CLUSTER, info) is None
    optional = facts(8, associations=known(required=False))
    assert find_charged_account(job(user="bob"), CLUSTER, optional) == "chem"


def test_jobs_go_where_their_users_have_accounts() -> None:
    site = Site()
    site.seen("left", facts(800, associations=known()))
    for number, user in enumerate(("eve", "ada", "eve", "ada"), 1):
        site.step(JobSubmitted(NOW, job(number, user=user)))
    clusters = [site.core.tasks[number, 0].live_attempt.cluster for number in (1, 2, 3, 4)]
    assert [clusters[0], clusters[2]] == ["right", "right"]
    assert "left" in (clusters[1], clusters[3])


def test_an_association_added_later_is_seen_at_the_next_listing() -> None:
    site = Site()
    for cluster in ("left", "right"):
        site.seen(cluster, facts(8, associations=known()))
    eve = job(user="eve")
    assert "eve has no account" in str(site.core.rejection_reason(eve))
    site.step(JobSubmitted(NOW, eve))
    task = site.core.tasks[1, 0]
    assert (task.state, task.reason) == (State.QUEUED, Reason.NO_MAPPING)
    added = structs.replace(
        known(), users={**known().users, "eve": UserAccounts(default="x", accounts={"x": ()})}
    )
    site.seen("right", facts(8, associations=added))
    assert (task.state, task.live_attempt.cluster) == (State.DISPATCHING, "right")
    assert site.core.rejection_reason(eve) is None
    [first, second] = site.core.assess_clusters(task)
    assert (first.account, second.account) == (None, "x")


def test_associations_are_stored_with_the_cluster() -> None:
    without, with_them = facts(8), facts(8, associations=known())
    for before, after in ((without, with_them), (with_them, without), (with_them, with_them)):
        changes = msgspec.json.decode(msgspec.json.encode(changed_fields(before, after)))
        assert apply_changes(before, changes) == after
    assert changed_fields(with_them, with_them) == {}


CONTROLLER = ControllerInfo(
    now=0.0, boot=0.0, min_job_age=1.0, slurmdbd=True, cluster="alpha", requires_associations=True
)


class Source:
    """A slurmdbd that answers, fails, or hangs while `answers` is not set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.fails = False
        self.clusters: list[str] = []

    def associations(self, cluster: str, *, only_defaults: bool) -> list[AssociationLine]:
        self.clusters.append(cluster)
        self.answers.wait(60)
        if self.fails:
            raise Unreachable("sacctmgr: refused")
        return parse_associations(DEFAULTS if only_defaults else LISTED)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setattr(associations, "_REFRESH_WAIT", 0.01)
    return Source()


def test_associations_are_read_at_intervals_not_at_each_poll(source: Source) -> None:
    reader = AssociationReader(source)
    assert [reader.current(CONTROLLER) for _ in range(3)] == [known()] * 3
    assert source.clusters == ["alpha", "alpha"]  # all associations, and the defaults
    assert reader.current(replace(CONTROLLER, slurmdbd=False)) is None


def test_a_failing_slurmdbd_makes_them_unknown(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(associations, "REFRESH_INTERVAL", 0.0)
    monkeypatch.setattr(associations, "_REFRESH_WAIT", 60.0)
    reader = AssociationReader(source)
    assert reader.current(CONTROLLER) == known()
    source.fails = True
    assert reader.current(CONTROLLER) is None
    source.fails = False
    assert reader.current(CONTROLLER) == known()


def test_a_hanging_slurmdbd_delays_no_poll(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(associations, "REFRESH_INTERVAL", 0.0)
    reader = AssociationReader(source)
    reader.current(CONTROLLER)
    source.answers.clear()
    try:
        assert [reader.current(CONTROLLER) for _ in range(5)] == [known()] * 5
        assert len(source.clusters) == 3  # while a query hangs, no other starts
    finally:
        source.answers.set()
