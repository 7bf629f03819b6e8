"""Advance reservations on real Slurm clusters, through the command line."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.conftest import require
from tests.e2e.conftest import Site
from tests.slurm import ClusterSpec, SlurmCluster, SlurmError, SlurmSite, missing

GAMMA = ClusterSpec("gamma", "g", nodes=3, cpus=4)


@pytest.fixture(scope="module")
def gamma_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    """A cluster of its own: its nodes are drained and its controller is killed."""
    if (reason := missing()) is not None:
        require("slurm", reason)
    with SlurmSite(tmp_path_factory.mktemp("gamma"), [GAMMA]) as made:
        yield made


@pytest.fixture
def gamma(gamma_site: SlurmSite) -> Iterator[SlurmCluster]:
    """The cluster, empty and with all its nodes; what a test did to it is undone."""
    cluster = gamma_site["gamma"]
    yield cluster
    cluster.empty()
    for name in re.findall(r"ReservationName=(\S+)", shown(cluster)):
        with contextlib.suppress(SlurmError):  # it has just ended
            cluster.run("scontrol", "delete", f"ReservationName={name}")
    for node in cluster.nodes:
        if "drain" in cluster.run("sinfo", "-h", "-n", node, "-o", "%T"):
            cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    cluster.wait_ready()


@pytest.fixture
def over_gamma(gamma: SlurmCluster, site: Site) -> Site:
    # in this order: the daemon ends before its cluster is put in order
    site.configure(
        f'[[cluster]]\nname = "gamma"\nadapter = "slurm"\nconfig = "{gamma.conf}"\n'
        "poll_interval = 1\n"
    )
    site.start()
    return site


def shown(cluster: SlurmCluster, *name: str) -> str:
    return cluster.run("scontrol", "--oneliner", "show", "reservation", *name)


def reserve(site: Site, *words: str) -> dict[str, Any]:
    answer = site.json("reserve", *words)
    assert isinstance(answer, dict)
    return answer


def state(site: Site, id: int) -> dict[str, Any]:
    [row] = [r for r in site.json("reservations", "--all") if r["reservation"] == id]
    assert isinstance(row, dict)
    return row


def nodes_in_slurm(cluster: SlurmCluster) -> list[str]:
    return re.findall(r" Nodes=(\S+)", shown(cluster))


def test_a_job_waits_for_its_reservation_and_runs_in_it(
    over_gamma: Site, gamma: SlurmCluster
) -> None:
    made = reserve(over_gamma, "--size", "5", "--start", "+8s", "--duration", "2m")
    assert made["state"] == "bound"
    assert (made["cluster"], made["size"], len(made["nodes"])) == ("gamma", 8, 2)
    id = str(made["reservation"])
    assert len(nodes_in_slurm(gamma)) == 1
    job = over_gamma.submit("--reservation", id, "-n", "8", "--wrap", "sleep 1")
    over_gamma.until(lambda: over_gamma.row(job)["reason"].startswith("manager:Reservation"))
    [row] = over_gamma.until_ended(job)
    assert row["state"] == "completed"
    start = datetime.fromisoformat(made["start"])
    late = (datetime.fromisoformat(row["started"]) - start).total_seconds()
    assert late >= 0
    assert state(over_gamma, made["reservation"])["state"] == "active"
    ended = json.loads(over_gamma.run("reservation", "cancel", id, "--json").stdout)
    assert ended["state"] == "cancelled"
    over_gamma.until(lambda: nodes_in_slurm(gamma) == [])
    assert over_gamma.stop() == 0
    over_gamma.replayed()
    assert "fail" not in over_gamma.run("db", "check").stdout
