"""`sinfo` over several clusters: partitions of one name, shared nodes, hostile names."""

from __future__ import annotations

from typing import Any

import pytest

from metasched.api.partitions import named_partitions
from metasched.drop_in import command, sinfo
from metasched.model.cluster import Cluster, Partition


def nodes(count: int, cpus: int = 8, free: int = 8, **values: object) -> dict[str, object]:
    kind: dict[str, object] = {"count": count, "cpus": cpus, "free_cpus": free, "up": True}
    return {**kind, "memory": 1000, "gres": {}, "features": [], **values}


def partition(name: str, cluster: str, *kinds: dict[str, object], **values: object) -> object:
    fixed = {"partition": name, "cluster": cluster, "state": "up", "default": False}
    limits = {"time_limit": 3600.0, "default_time": None, "max_nodes": None}
    return {**fixed, **limits, "nodes": list(kinds), **values}


SITE = [
    partition("main", "alpha", nodes(4), nodes(2, free=3), default=True),
    partition("big", "alpha", nodes(4), time_limit=None),
    partition("main", "beta", nodes(3, cpus=16, free=0), nodes(1, 16, 0, up=False), state="drain"),
]


CLUSTERS = {
    "first_id": 1,
    "instances": [],
    "clusters": [
        dict.fromkeys(("config", "bin_dir", "tag_field"))
        | {"cluster": name, "manager_name": "", "up": True}
        | {"accounting": False, "native_jobs": False}
        for name in ("alpha", "beta")
    ],
}


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    class Daemon:
        def request(self, method: str, path: str) -> tuple[Any, dict[str, str]]:
            assert method == "GET"
            return {"/partitions": SITE, "/clusters/native": CLUSTERS}[path], {}

    monkeypatch.setattr(sinfo, "connect", Daemon)

    def run(*arguments: str) -> list[str]:
        assert sinfo.main(arguments) == 0
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize(
    ("format", "lines"),
    [
        ("%P %a %l %D", ["main* up 1:00:00 6", "main drain 1:00:00 4", "big up infinite 4"]),
        ("%R %F", ["main 5/4/1/10", "big 0/4/0/4"]),
        ("%R %c", ["main 8+", "big 8"]),
        ("%R %C", ["main 58/38/16/112", "big 0/32/0/32"]),
        # the four idle nodes of alpha are in both of its partitions
        ("%t %D", ["mix 2", "alloc 3", "idle 4", "down 1"]),
        ("%V %D", ["alpha 6", "beta 4"]),
    ],
)
def test_equal_nodes_share_a_line(listing: Any, format: str, lines: list[str]) -> None:
    assert sorted(listing("-h", "-o", format)) == sorted(lines)


def test_exact_lines_divide_by_processors(listing: Any) -> None:
    assert listing("-h", "-e", "-p", "main", "-o", "%c %D") == ["8 6", "16 4"]


def test_a_partition_without_the_nodes_has_an_empty_line(listing: Any) -> None:
    assert listing("-h", "-t", "down", "-o", "%R %D %t") == ["main 1 down", "big 0 n/a"]


def test_each_cluster_has_its_table(listing: Any) -> None:
    lines = listing("-M", "all", "-o", "%P")
    expected = ["CLUSTER: alpha", "PARTITION", "main*", "big", "", "CLUSTER: beta"]
    assert lines == [*expected, "PARTITION", "main"]


def test_without_slurm_no_nodes_have_names(listing: Any) -> None:
    with pytest.raises(command.CommandError, match="sinfo: error: no Slurm on cluster alpha, beta"):
        listing("-N")


def test_partitions_have_the_names_that_jobs_request() -> None:
    week, day = Partition(name="week", nodes=()), Partition(name="day", nodes=())
    names = {"long": "week", "day": "week", "gone": "month", "*": "*"}
    cluster = Cluster(name="alpha", adapter="local", maps={"partition": names})
    assert named_partitions(cluster, (week, day)) == [
        ("week", week),
        ("day", week),
        ("long", week),
    ]
