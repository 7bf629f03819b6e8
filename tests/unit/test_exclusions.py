"""Which requirement of a job excludes which nodes, and the partitions in which it would fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.host_lists import compress_hosts, expand_hosts, shorten_hosts
from metasched.model.job import Job
from metasched.policies.exclusions import MAX_NAMES, PartitionFit, describe_fit

GIB = 1024  # MiB
SMALL = NodeCapacity(12, 16, 16, 32 * GIB, 32 * GIB)
LARGE = NodeCapacity(3, 64, 64, 256 * GIB, 256 * GIB, {"gpu": 2}, {"gpu": 2}, ("nvme",))
DRAINED = NodeCapacity(1, 64, 0, 256 * GIB, 0, {"gpu": 2}, {}, ("nvme",), up=False)


def info(*nodes: NodeCapacity, **partition: Any) -> ClusterInfo:
    main = Partition("main", nodes or (SMALL, LARGE, DRAINED), default=True, **partition)
    big = Partition("big", (NodeCapacity(8, 128, 128),))
    return ClusterInfo(cpus=1000, used_cpus=0, partitions=(main, big))


def fit(there: ClusterInfo | None, **requested: Any) -> PartitionFit | None:
    job = Job(id=1, submitted=0.0, estimated=60.0, **requested)
    return describe_fit(job, Cluster(name="c", adapter="slurm"), there)


@pytest.mark.parametrize(
    ("requested", "text"),
    [
        (
            {"memory": 64 * GIB},
            "12 of 16 nodes have less than 64 GiB of memory; 1 of the 16 nodes are down or drained",
        ),
        (
            {"cpus": 10, "memory_per_cpu": 5000},
            "12 of 16 nodes have less than 50000 MiB of memory; "
            "1 of the 16 nodes are down or drained",
        ),
        (
            {"cpus": 20, "gres": {"gpu": 1}},
            "12 of 16 nodes have fewer than 20 processors; "
            "12 of the 16 nodes have fewer than 1 gpu; 1 of the 16 nodes are down or drained",
        ),
        (
            {"constraint": "nvme"},
            "12 of 16 nodes lack the features nvme; 1 of the 16 nodes are down or drained",
        ),
        (
            {"memory": 64 * GIB, "nodes": 5, "tasks": 5, "cpus": 5},
            "12 of 16 nodes have less than 64 GiB of memory; "
            "1 of the 16 nodes are down or drained; 4 remain, the job requests 5 nodes; "
            "the job fits in partition big",
        ),
        (
            {"memory": 64 * GIB, "tasks": 300, "cpus": 300},
            "12 of 16 nodes have less than 64 GiB of memory; "
            "1 of the 16 nodes are down or drained; the 4 that remain hold 256 of its 300 tasks; "
            "the job fits in partition big",
        ),
    ],
)
def test_the_requirement_and_the_number_of_nodes(requested: dict[str, Any], text: str) -> None:
    result = fit(info(), **requested)
    assert result is not None
    assert result.text == f"partition main: {text}"


def test_nodes_without_room_are_busy() -> None:
    full = NodeCapacity(2, 16, 3, 8 * GIB, 8 * GIB)
    result = fit(info(full, NodeCapacity(1, 16, 4)), cpus=4)
    assert result is not None
    assert result.text == "partition main: 2 of 3 nodes are busy now"
    assert result.without_load.text == ""


def test_a_time_limit_that_another_partition_allows() -> None:
    result = fit(info(max_time=60.0), time_limit=61.0)
    assert result is not None
    assert result.other_partitions == ("big",)


def test_nothing_to_say() -> None:
    result = fit(info(NodeCapacity(2, 16, 16)))
    assert result is not None
    assert (result.exclusions, result.text) == ((), "")


@pytest.mark.parametrize(
    ("there", "requested"),
    [
        (None, {}),
        (info(), {"clusters": ("d",)}),
        (info(), {"partition": "none"}),
        (info(), {"account": "unmapped"}),
    ],
)
def test_clusters_on_which_the_job_has_no_nodes(
    there: ClusterInfo | None, requested: dict[str, Any]
) -> None:
    assert fit(there, **requested) is None


def named(*names: str) -> ClusterInfo:
    kinds = (SMALL, LARGE, DRAINED)
    nodes = Partition.name_nodes(zip(names, kinds, strict=True))
    return info(named_nodes=tuple(replace(nodes[at], names=name) for at, name in enumerate(names)))


def test_excluded_nodes_have_names() -> None:
    result = fit(named("s[1-12]", "l[1-3]", "l4"), memory=64 * GIB)
    assert result is not None
    assert result.text == (
        "partition main: 12 of 16 nodes have less than 64 GiB of memory (s[1-12]); "
        "1 of the 16 nodes are down or drained (l4)"
    )
    assert [exclusion.names for exclusion in result.exclusions] == ["s[1-12]", "l4"]
    both = fit(named("s[1-12]", "l[1-3]", "l4"), gres={"gpu": 3})
    assert both is not None
    assert both.exclusions[0].names == "s[1-12],l[1-3],l4"


def test_long_lists_of_names_are_cut() -> None:
    many = compress_hosts([f"s{number}" for number in range(1, 3000, 2)])
    result = fit(named(many, "l[1-3]", "l4"), memory=64 * GIB)
    assert result is not None
    names = result.exclusions[0].names
    assert names.endswith("],...")
    assert MAX_NAMES - 10 < len(names) <= MAX_NAMES + 5
    assert {*expand_hosts(names.removesuffix(",..."))} < {*expand_hosts(many)}
    assert result.text.startswith(
        "partition main: 12 of 16 nodes have less than 64 GiB of memory (s["
    )
    assert len(result.text) < 250
    assert shorten_hosts("a" * 90, 80) == "..."
    assert shorten_hosts("a1,b[1-3],c", 8) == "a1,..."
