"""Clusters that can run a job, and the reason for each cluster that cannot."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from metasched.model.cluster import Cluster, ClusterInfo, ManagerLicences, NodeCapacity, Partition
from metasched.model.job import Job, Reason
from metasched.model.manager_options import (
    APPEND,
    EXCLUDE,
    NODELIST,
    SIGNAL,
    UNLIMITED,
    EarlySignal,
    ManagerOptions,
)
from metasched.policies.eligible import (
    UnmappedNameError,
    find_ineligibility,
    fits_partition,
    translate_job,
)


def job(**fields: Any) -> Job:
    return Job(id=1, submitted=0.0, estimated=60.0, **fields)


def cluster(**fields: Any) -> Cluster:
    return Cluster(name="c", adapter="slurm", **fields)


def facts(*nodes: NodeCapacity, **partition: Any) -> ClusterInfo:
    nodes = nodes or (NodeCapacity(2, 16, 16, 1000, 1000),)
    main = Partition("main", nodes, default=True, **partition)
    return ClusterInfo(cpus=sum(n.count * n.cpus for n in nodes), used_cpus=0, partitions=(main,))


@pytest.mark.parametrize(
    ("requested", "there", "site", "reason", "message"),
    [
        ({}, facts(), {}, None, ""),
        ({}, None, {}, Reason.CLUSTER_DOWN, "has not reported yet"),
        ({"cpus": 32, "tasks": 32}, facts(), {}, None, ""),
        ({"cpus": 33, "tasks": 33}, facts(), {}, Reason.NO_CLUSTER_FITS, "32 processors"),
        ({"cpus": 17}, facts(), {}, Reason.NO_CLUSTER_FITS, "no set of nodes"),
        ({"cpus": 3, "tasks": 3, "nodes": 3}, facts(), {}, Reason.NO_CLUSTER_FITS, "no set"),
        ({"memory": 1001}, facts(), {}, Reason.NO_CLUSTER_FITS, "memory"),
        ({"cpus": 4, "memory_per_cpu": 251}, facts(), {}, Reason.NO_CLUSTER_FITS, "memory"),
        ({"gres": {"gpu": 1}}, facts(), {}, Reason.NO_CLUSTER_FITS, "gres"),
        ({"gres": {"gpu": 2}}, facts(NodeCapacity(1, 4, 4, gres={"gpu": 2})), {}, None, ""),
        ({"time_limit": 61.0}, facts(max_time=60.0), {}, Reason.NO_CLUSTER_FITS, "60 s"),
        ({"clusters": ("d",)}, facts(), {}, Reason.NO_CLUSTER_FITS, "only d"),
        ({"partition": "long"}, facts(), {}, Reason.NO_MAPPING, '"long"'),
        ({"partition": "long"}, facts(), {"maps": {"partition": {"long": "main"}}}, None, ""),
        ({"partition": "main"}, facts(), {}, None, ""),
        ({"account": "aero"}, facts(), {}, Reason.NO_MAPPING, "aero"),
        ({"account": "aero"}, facts(), {"maps": {"account": {"*": "*"}}}, None, ""),
        ({"constraint": "fast"}, facts(NodeCapacity(1, 4, 4, features=("fast",))), {}, None, ""),
        ({"constraint": "fast"}, facts(), {}, Reason.NO_MAPPING, "fast"),
        ({"directory": "/home/a"}, facts(), {"filesystems": ("home",)}, None, ""),
        (
            {"directory": "/homes/a"},
            facts(),
            {"filesystems": ("home",)},
            Reason.FILESYSTEM,
            "/homes",
        ),
        (
            {"directory": "/scratch/a"},
            facts(),
            {"filesystems": ("home",), "other_filesystems": {"scratch": "lustre-beta"}},
            Reason.FILESYSTEM,
            "/scratch/a is on another filesystem than /scratch there, lustre-beta",
        ),
        (
            {"directory": "/data"},
            facts(),
            {"other_filesystems": {"scratch": "lustre-beta"}},
            Reason.FILESYSTEM,
            "on none of",
        ),
        (
            {"directory": "/scratch/common/a"},
            facts(),
            {"filesystems": ("scratch/common",), "other_filesystems": {"scratch": "lustre-beta"}},
            None,
            "",
        ),
        (
            {"directory": "/home", "writes": ("/home/tmp/out",)},
            facts(),
            {"filesystems": ("home",), "other_filesystems": {"home/tmp": "node"}},
            Reason.FILESYSTEM,
            "/home/tmp/out",
        ),
        (
            {"account": "aero", "user": "ada"},
            facts(),
            {"user_accounts": {"aero": {"ada": "aero-1"}}},
            None,
            "",
        ),
        (
            {"account": "aero", "user": "bob"},
            facts(),
            {"user_accounts": {"aero": {"ada": "aero-1"}}, "maps": {"account": {"*": "*"}}},
            Reason.NO_MAPPING,
            'account "aero" has no mapping there for bob',
        ),
        ({}, facts(up=False), {}, Reason.CLUSTER_DRAINED, "is down"),
        ({}, ClusterInfo(0, 0, ()), {}, Reason.CLUSTER_DRAINED, "no partition with nodes"),
        ({}, facts(), {"takes": "reservations"}, Reason.NO_CLUSTER_FITS, "in a reservation"),
        ({"reservation": 3}, facts(), {"takes": "reservations"}, None, ""),
        ({}, facts(), {"takes": "jobs"}, None, ""),
        (
            {"cpus": 20, "tasks": 20},
            facts(NodeCapacity(1, 16, 16), NodeCapacity(1, 16, 0, up=False)),
            {},
            Reason.CLUSTER_DRAINED,
            "down or drained",
        ),
    ],
)
def test_reasons(
    requested: dict[str, Any],
    there: ClusterInfo | None,
    site: dict[str, Any],
    reason: Reason | None,
    message: str,
) -> None:
    against = find_ineligibility(job(**requested), cluster(**site), there)
    assert (against.reason if against else None) == reason
    assert message in (against.text if against else "")


@pytest.mark.parametrize(
    ("user", "account", "expected"),
    [("ada", "aero", "a1"), ("bob", "aero", "a2"), ("bob", "bio", "biology"), ("ada", "x", "x")],
)
def test_an_account_may_depend_on_the_user(user: str, account: str, expected: str) -> None:
    site = cluster(
        maps={"account": {"bio": "biology", "*": "*"}},
        user_accounts={"aero": {"ada": "a1", "*": "a2"}},
    )
    assert translate_job(job(user=user, account=account), site, facts()).account == expected


def test_words_become_the_clusters_own() -> None:
    maps = {
        "partition": {"long": "week"},
        "account": {"aero": "a12"},
        "qos": {"*": "*"},
        "feature": {"fast": "cascade", "big": "fat"},
    }
    requested = job(partition="long", account="aero", qos="high", constraint="fast&big|fast")
    translated = translate_job(requested, cluster(maps=maps), None)
    assert (translated.partition, translated.account, translated.qos) == ("week", "a12", "high")
    assert translated.constraint == "cascade&fat|cascade"
    with pytest.raises(UnmappedNameError, match="slow"):
        translate_job(job(constraint="fast&slow"), cluster(maps=maps), None)


@pytest.mark.parametrize(
    ("requested", "free"),
    [
        ({"cpus": 6, "tasks": 6}, True),
        ({"cpus": 7, "tasks": 7}, False),
        ({"cpus": 5}, False),  # one task does not span nodes
        ({"cpus": 4, "tasks": 4, "nodes": 1}, True),
        ({"cpus": 5, "tasks": 5, "nodes": 1}, False),
        ({"cpus": 2, "tasks": 2, "nodes": 2}, True),
        ({"exclusive": True}, False),
        ({"memory": 500}, True),
        ({"memory": 501}, False),
    ],
)
def test_what_fits_in_what_is_free(requested: dict[str, Any], free: bool) -> None:
    nodes = (
        NodeCapacity(1, 8, 4, 1000, 500),
        NodeCapacity(1, 8, 2, 1000, 100),
        NodeCapacity(3, 8, 0, up=False),
    )
    assert fits_partition(job(**requested), Partition("main", nodes), only_free=True) is free
    assert fits_partition(job(**requested), Partition("main", nodes))


COUNTED = {"matlab": ManagerLicences(total=3, used=2), "abq@flex": ManagerLicences(total=9)}


@pytest.mark.parametrize(
    ("requested", "there", "reason", "message"),
    [
        ({"matlab": 1}, COUNTED, None, ""),
        ({"matlab": 2}, COUNTED, Reason.LICENCE_BUSY, "counts 2 of 3 matlab as used"),
        ({"matlab": 4}, COUNTED, Reason.NO_CLUSTER_FITS, "3 matlab in all, the job requests 4"),
        ({"matlab": 4}, {}, None, ""),  # the manager does not count it
        ({"abaqus": 10}, COUNTED, Reason.NO_CLUSTER_FITS, "9 abq@flex in all"),
    ],
)
def test_where_the_managers_own_counter_is_smaller_it_is_respected(
    requested: dict[str, int],
    there: dict[str, ManagerLicences],
    reason: Reason | None,
    message: str,
) -> None:
    site = cluster(maps={"licence": {"abaqus": "abq@flex"}})
    ineligibility = find_ineligibility(
        job(licences=requested), site, structs.replace(facts(), licences=there)
    )
    assert (ineligibility.reason if ineligibility else None) == reason
    assert message in (ineligibility.text if ineligibility else "")


def test_a_manager_is_asked_for_the_licences_that_it_counts_by_its_names() -> None:
    site = cluster(maps={"licence": {"abaqus": "abq@flex"}})
    requested = job(licences={"matlab": 1, "abaqus": 2, "ansys": 3})
    translated = translate_job(requested, site, structs.replace(facts(), licences=COUNTED))
    assert translated.licences == {"matlab": 1, "abq@flex": 2}
    assert translate_job(requested, site, facts()).licences == {}


# Fields that do not affect eligibility; paths do where the filesystems of a cluster are known.
ELSEWHERE = {
    *("id", "submitted", "estimated", "deadline", "begin", "benchmark", "name", "native", "array"),
    *("user", "user_class", "groups", "owner_priority", "held", "requeue", "dependency"),
    *("kill_on_invalid_dep", "directory", "writes", "comment", "stored_bytes"),
    "licence_choices",  # while a task waits it has stand-ins that request one alternative each
    *("mail", "group"),  # for notifications and reports
    "ratings",  # of clusters that are eligible
}
ASKED: dict[str, Any] = {
    "cpus": 8,
    "tasks": 2,
    "nodes": 1,
    "tasks_per_node": 1,
    "memory": 10,
    "memory_per_cpu": 10,
    "exclusive": True,
    "gres": {"gpu": 1},
    "time_limit": 60.0,
    "partition": "p",
    "account": "a",
    "qos": "q",
    "constraint": "fast",
    "clusters": ("c",),
    "licences": {"matlab": 1},
    "reservation": 3,
    "gres_alternatives": ({"gpu:h100": 1},),
    "manager_options": ManagerOptions(nice=1),
}


def test_the_needs_of_a_job_are_all_that_its_clusters_depend_on() -> None:
    assert set(Job.__struct_fields__) == ELSEWHERE | set(ASKED)
    plain = job(cpus=4, gres={"disk": 1})
    requested = [
        structs.replace(plain, **{name: value}).requirements for name, value in ASKED.items()
    ]
    assert len({plain.requirements, *requested}) == len(ASKED) + 1
    other = Job(id=2, submitted=1.0, estimated=2.0, cpus=4, user="ada", deadline=9.0)
    assert other.requirements == job(cpus=4).requirements


@pytest.mark.parametrize(
    ("options", "time_limit", "text"),
    [
        (ManagerOptions(append_output=True), None, None),
        (ManagerOptions(nice=5), None, "--nice has no equivalent on the cluster"),
        (ManagerOptions(nice=-5), None, "--nice below 0 has no equivalent on the cluster"),
        (ManagerOptions(signal=EarlySignal(number=10)), 60.0, None),
        (
            ManagerOptions(signal=EarlySignal(number=10)),
            None,
            "--signal without --time has no equivalent on the cluster",
        ),
        (ManagerOptions(signal=EarlySignal(number=10), unlimited=True), None, None),
        (ManagerOptions(unlimited=True), None, None),
        (ManagerOptions(nodelist="n2"), None, None),
        (ManagerOptions(nodelist="n2.site"), None, None),
        (ManagerOptions(nodelist="n4"), None, "the cluster has no node n4"),
        (ManagerOptions(nodelist="n[1-2]"), None, "--nodelist with several nodes has no"),
        (ManagerOptions(exclude="n[1-9]"), None, None),
        (ManagerOptions(wckey="key"), None, None),
    ],
)
def test_options_that_a_cluster_cannot_honour_exclude_it(
    options: ManagerOptions, time_limit: float | None, text: str | None
) -> None:
    site = cluster(job_options=(SIGNAL, APPEND, NODELIST, EXCLUDE, UNLIMITED))
    there = structs.replace(facts(NodeCapacity(3, 8, 8)), hosts="n[1-3]")
    obstacle = find_ineligibility(job(manager_options=options, time_limit=time_limit), site, there)
    assert (obstacle is None) == (text is None)
    if obstacle is not None and text is not None:
        assert (obstacle.reason, obstacle.text[: len(text)]) == (Reason.NO_CLUSTER_FITS, text)


def test_of_alternative_gres_each_cluster_gets_those_that_fit() -> None:
    a100, h100 = {"gpu:a100": 2}, {"gpu:h100": 1}
    requested = job(gres=a100, gres_alternatives=(h100,))
    few = NodeCapacity(1, 8, 8, gres={"gpu:a100": 1})
    down = NodeCapacity(1, 8, 0, gres={"gpu:a100": 4}, up=False)
    new = NodeCapacity(1, 8, 8, gres={"gpu:h100": 1})
    for nodes, gres in (
        ((few, new), h100),
        ((few, new, NodeCapacity(1, 8, 0, gres=a100)), a100),  # busy nodes count
        ((down, new), h100),
        ((down,), a100),
    ):
        there = facts(*nodes)
        translated = translate_job(requested, cluster(), there)
        assert (translated.gres, translated.gres_alternatives) == (gres, ())
        assert (find_ineligibility(requested, cluster(), there) is None) == (nodes != (down,))
    assert find_ineligibility(requested, cluster(), facts(few)) is not None


def test_partitions_fit_by_any_alternative_of_gres() -> None:
    requested = job(gres={"gpu:a100": 1}, gres_alternatives=({"gpu:h100": 1},), partition="a,b")
    of_a: dict[str, int] = {}
    partitions = tuple(
        Partition(name, (NodeCapacity(1, 8, 8, gres=gres),))
        for name, gres in (("a", of_a), ("b", {"gpu:h100": 1}))
    )
    there = structs.replace(facts(), partitions=partitions)
    translated = translate_job(requested, cluster(), there)
    assert (translated.partition, translated.gres) == ("b,a", {"gpu:h100": 1})


@pytest.mark.parametrize("alternatives", [({},), ({"gpu": 0},)])
def test_an_alternative_of_gres_has_counts(alternatives: tuple[dict[str, int], ...]) -> None:
    with pytest.raises(ValueError, match="gres"):
        job(gres={"gpu": 1}, gres_alternatives=alternatives)


def test_no_limit_excludes_partitions_that_have_one() -> None:
    site = cluster(job_options=(UNLIMITED,))
    limited = Partition("main", (NodeCapacity(1, 8, 8),), default=True, max_time=60.0)
    there = structs.replace(facts(), partitions=(limited,))
    obstacle = find_ineligibility(job(manager_options=ManagerOptions(unlimited=True)), site, there)
    assert obstacle is not None
    assert obstacle.text == "the partition's time limit is 60 s, the job requests none"


def test_tasks_per_node_bound_what_a_node_holds() -> None:
    whole = Partition("main", (NodeCapacity(2, 8, 8),))
    assert fits_partition(job(cpus=6, tasks=6, nodes=2, tasks_per_node=3), whole)
    assert fits_partition(job(cpus=6, tasks=6, tasks_per_node=3), whole)
    assert not fits_partition(job(cpus=6, tasks=6, tasks_per_node=2), whole)


def test_a_licence_and_a_gres_of_the_same_name_are_different_requirements() -> None:
    with_gres, with_licence = job(gres={"gpu": 1}), job(licences={"gpu": 1})
    assert with_gres.requirements != with_licence.requirements


@pytest.mark.parametrize(
    ("constraint", "message"),
    [(None, "cad&cfd"), ("fast", "fast&cad&cfd"), ("fast|big", "fast&cad&cfd|big&cad&cfd")],
)
def test_node_locked_licences_ask_for_the_machines_that_have_them(
    constraint: str | None, message: str
) -> None:
    site = cluster(licence_features={"nx": "cad", "catia": "cad", "star": "cfd", "other": "gpu"})
    requested = job(licences={"star": 1, "nx": 1, "catia": 2, "matlab": 1}, constraint=constraint)
    features = ("fast", "big", "cad", "cfd")
    there = facts(
        NodeCapacity(1, 8, 8, features=features), NodeCapacity(1, 16, 16, features=features[:3])
    )
    assert translate_job(requested, site, there).constraint == message
    assert find_ineligibility(requested, site, there) is None
    too_large = find_ineligibility(structs.replace(requested, cpus=16), site, there)
    assert too_large is not None
    assert too_large.reason is Reason.NO_CLUSTER_FITS


def test_without_licences_machines_are_not_asked_for() -> None:
    site = cluster(licence_features={"nx": "cad"})
    assert translate_job(job(licences={"matlab": 1}), site, facts()).constraint is None


TWO_PARTITIONS = ClusterInfo(
    cpus=24,
    used_cpus=0,
    partitions=(
        Partition("small", (NodeCapacity(1, 8, 8, features=("old",)),), default=True),
        Partition("big", (NodeCapacity(1, 16, 16, features=("new", "fast")),)),
    ),
)


@pytest.mark.parametrize(
    ("partition", "cpus", "expected"),
    [
        ("small,big", 4, "small,big"),
        ("small,big", 12, "big,small"),  # what fits decides on eligibility
        ("other,big,theirs", 4, "big"),
        ("long,small", 4, "big,small"),  # mapped
        ("long,big", 4, "big"),
        ("big,small", 20, "big,small"),
    ],
)
def test_of_several_partitions_those_that_fit_come_first(
    partition: str, cpus: int, expected: str
) -> None:
    site = cluster(maps={"partition": {"long": "big"}})
    translated = translate_job(job(cpus=cpus, partition=partition), site, TWO_PARTITIONS)
    assert translated.partition == expected
    fits = find_ineligibility(job(cpus=cpus, partition=partition), site, TWO_PARTITIONS) is None
    assert fits == (cpus <= (8 if expected == "small" else 16))


def test_no_partition_of_several_exists() -> None:
    refusal = find_ineligibility(job(partition="a,b"), cluster(), TWO_PARTITIONS)
    assert refusal is not None
    assert (refusal.reason, refusal.text) == (
        Reason.NO_MAPPING,
        'partition "a" has no mapping on the cluster',
    )


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("gpu|new", "new"),  # gpu does not exist there
        ("old|new", "new|old"),  # the partition has no node with the first
        ("fast&new|old", "fast&new|old"),
        ("[old|new]", "[old|new]"),  # Slurm's own forms stay as they are
    ],
)
def test_of_alternative_features_those_that_fit_come_first(constraint: str, expected: str) -> None:
    requested = job(constraint=constraint, partition="big")
    assert translate_job(requested, cluster(), TWO_PARTITIONS).constraint == expected
