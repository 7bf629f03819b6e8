"""Several partitions and alternative features: each cluster takes those that it has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import require
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.harness import slurm
from tests.harness.slurm import ClusterSpec, SlurmSite


@pytest.fixture(scope="module")
def two_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    if reason := slurm.missing():
        require("slurm", reason)
    specs = [
        ClusterSpec("alpha", "a", nodes=1, cpus=4, features="old"),
        ClusterSpec("beta", "b", nodes=1, cpus=4, features="new"),
    ]
    with SlurmSite(tmp_path_factory.mktemp("alternatives"), specs) as site:
        yield site


def test_each_cluster_takes_the_alternatives_that_it_has(
    site: Site, two_clusters: SlurmSite
) -> None:
    tables = []
    for cluster in two_clusters:
        cluster.empty()
        tables.append(cluster.table("poll_interval = 0.5\n"))
    site.configure("".join(tables) + ONE_LOCAL)
    site.start()

    def placed(*options: str) -> tuple[str, str]:
        """Return cluster and partition of a job that runs."""
        job = site.submit(*options, "--wrap", "sleep 300")
        site.until(lambda: site.row(job)["state"] == "running")
        row = site.row(job)
        line = two_clusters[row["cluster"]].run(
            "squeue", "-h", "-j", row["native_id"], "-o", "%P %f"
        )
        site.run("cancel", str(job))
        site.until_ended(job)
        return row["cluster"], line.strip()

    # 40 min are too long for short
    assert placed("-p", "nosuch,short,main", "-C", "old", "-t", "40") == ("alpha", "main old")
    assert placed("-p", "nosuch,short", "-C", "gpu|new", "-t", "5") == ("beta", "short new")
    refused = site.run("submit", "-p", "nosuch,other", "--wrap", "true", code=3)
    assert 'alpha: partition "nosuch" has no mapping on the cluster' in refused.stderr
    assert site.stop() == 0
    site.replayed()


def test_each_cluster_takes_the_gres_that_it_has(site: Site) -> None:
    tables = "".join(
        f'[[cluster]]\nname = "{name}"\nadapter = "local"\ncpus = 4\npoll_interval = 0.2\n'
        f'gres = {{ "gpu:{kind}" = 1 }}\n'
        for name, kind in (("left", "a100"), ("right", "h100"))
    )
    site.configure(tables)
    site.start()
    alternatives = ("--gres", "gpu:a100|gpu:h100")
    jobs = [site.submit(*alternatives, "--wrap", "sleep 300") for _ in range(2)]
    site.until(lambda: all(site.row(job)["state"] == "running" for job in jobs))
    kinds = {job: {"left": "a100", "right": "h100"}[site.row(job)["cluster"]] for job in jobs}
    assert sorted(kinds.values()) == ["a100", "h100"]
    for job, kind in kinds.items():
        explanation = site.run("explain", str(job)).stdout
        assert f"Of its alternatives it requests gpu:{kind}:1 on" in explanation
        row = site.details(job)
        assert (row["gres"], row["gres_alternatives"]) == ({f"gpu:{kind}": 1}, [])
    waiting = site.submit(*alternatives, "--wrap", "true")
    site.run("cancel", str(jobs[1]))
    assert site.until_ended(waiting)[0]["state"] == "completed"
    refused = site.run("submit", "--gres", "gpu:x|gpu:y", "--wrap", "true", code=3)
    assert "no set of nodes" in refused.stderr
    site.run("cancel", str(jobs[0]))
    site.until_ended(*jobs)
    requested = f"Of its alternatives it requested gpu:{kinds[jobs[0]]}:1 on"
    assert requested in site.run("explain", str(jobs[0])).stdout
    assert site.stop() == 0
    site.replayed()


def test_the_gres_of_a_placed_job_stay_those_of_its_placement(site: Site) -> None:
    table = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\npoll_interval = 0.2\n'
    site.configure(table + 'gres = { "gpu:a100" = 1, "gpu:h100" = 1 }\n')
    site.start()
    options = ("--gres", "gpu:a100|gpu:h100", "--wrap", "sleep 300")
    first, waiting = site.submit(*options), site.submit("--hold", *options)
    site.until(lambda: site.row(first)["state"] == "running")
    assert site.details(waiting)["gres_alternatives"] == [{"gpu:h100": 1}]
    assert site.stop() == 0
    site.configure(table + 'gres = { "gpu:h100" = 1 }\n')
    site.start()
    assert "requests gpu:a100:1 on left" in site.run("explain", str(first)).stdout
    [verdict] = site.json("explain", str(first))["clusters"]
    assert verdict["gres"] == "gpu:a100:1"
    assert site.details(first)["gres"] == {"gpu:a100": 1}
    site.run("release", str(waiting))
    site.until(lambda: site.row(waiting)["state"] == "running")
    assert site.details(waiting)["gres"] == {"gpu:h100": 1}
    site.run("requeue", str(first))  # it can have an H100 only now
    site.run("cancel", str(waiting))
    site.until(lambda: site.details(first)["gres"] == {"gpu:h100": 1})
    site.run("cancel", str(first))
    site.until_ended(first, waiting)
    assert site.stop() == 0
    site.replayed()
    assert "give the state of" in site.run("db", "check").stdout
