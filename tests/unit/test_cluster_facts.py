"""Storage of cluster info: small when little has changed, and restored exactly."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from metasched.core.cluster_view import ClusterView, eligibility_key, loads
from metasched.db.cluster_info import apply_changes, changed_fields
from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition

NODES = st.builds(
    NodeCapacity,
    count=st.integers(1, 4),
    cpus=st.just(8),
    free_cpus=st.integers(0, 8),
    memory=st.one_of(st.none(), st.just(100)),
    free_memory=st.one_of(st.none(), st.integers(0, 100)),
    gres=st.just({"gpu": 2}),
    free_gres=st.builds(lambda n: {"gpu": n}, st.integers(0, 2)),
    up=st.booleans(),
)
PARTITIONS = st.lists(
    st.builds(Partition, st.sampled_from("abc"), st.lists(NODES, max_size=3).map(tuple)),
    unique_by=lambda p: p.name,
    max_size=3,
).map(tuple)
RUNNING = st.lists(st.tuples(st.floats(0, 9), st.integers(1, 3)), max_size=6)
FACTS = st.builds(
    ClusterInfo,
    cpus=st.integers(0, 99),
    used_cpus=st.integers(0, 99),
    partitions=PARTITIONS,
    running_jobs=st.one_of(RUNNING.map(tuple), RUNNING.map(lambda r: tuple(sorted(r)))),
    owed_by_others=st.floats(0, 1e9),
    pending_jobs=st.integers(0, 9),
    queue_head=st.one_of(st.none(), st.tuples(st.integers(1, 9), st.floats(1, 9))),
)


@given(FACTS, FACTS)
def test_stored_cluster_info_is_decoded_unchanged(before: ClusterInfo, now: ClusterInfo) -> None:
    stored = msgspec.json.decode(msgspec.json.encode(changed_fields(before, now)))
    assert apply_changes(before, stored) == now
    assert changed_fields(now, now) == {}


@given(FACTS)
def test_what_lasts_decides_the_same_about_jobs(facts: ClusterInfo) -> None:
    for passing in (True, False):
        assert eligibility_key(facts.without_load, include_transient=passing) == eligibility_key(
            facts, include_transient=passing
        )
    assert facts.without_load.without_load == facts.without_load


def test_two_thousand_running_jobs_of_which_two_change_take_a_hundredth() -> None:
    draw = random.Random(1)
    running = sorted((1e9 + draw.randrange(10**6), draw.randrange(1, 64)) for _ in range(2000))
    partition = Partition(
        "main", (NodeCapacity(100, 64, 0), NodeCapacity(10, 64, 12)), default=True
    )
    before = ClusterInfo(
        cpus=7040, used_cpus=7000, partitions=(partition,), running_jobs=tuple(running)
    )
    now = structs.replace(before, used_cpus=6990, running_jobs=tuple(running[2:]))
    whole, news = (len(msgspec.json.encode(f)) for f in (now, changed_fields(before, now)))
    assert news < whole / 100


def test_a_load_is_not_negative_when_all_that_runs_is_about_to_end() -> None:
    """The sum of processors x end has a rounding error of some thousandths here."""
    end = 1800000375.4333339
    running = ((end, 237), (end, 2724), (end, 2922))
    view = ClusterView(Cluster(name="a", adapter="local"))
    view.update_info(ClusterInfo(cpus=6000, used_cpus=5883, partitions=(), running_jobs=running))
    assert loads((view,), 1800000375.4333336) == [0.0]
    assert loads((view,), end - 60.0) == [pytest.approx(5883 * 60.0 / 6000)]
