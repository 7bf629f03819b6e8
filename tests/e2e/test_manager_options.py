"""--signal, --open-mode, --nice, --nodelist, --exclude and --time 0 on clusters of each kind."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.conftest import require
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.harness import slurm
from tests.harness.gridengine import Cell
from tests.harness.slurm import ClusterSpec, SlurmSite

# The script prints what arrives; its step prints in a file of its own.
SCRIPT = """#!/bin/bash
#SBATCH --job-name=early
trap 'echo to-script' USR1
srun bash -c 'trap "echo to-step; exit" USR1; for i in {1..900}; do sleep 0.1; done' &
for i in {1..900}; do
    sleep 0.1
    [ -e stop ] && exit 0
done
"""
FIRST_ID = "first_id = 100000001\n"


@pytest.fixture(scope="module")
def two_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    if reason := slurm.missing():
        require("slurm", reason)
    specs = [
        ClusterSpec("alpha", "a", nodes=2, cpus=4),
        ClusterSpec("beta", "b", nodes=1, cpus=4),
    ]
    with SlurmSite(tmp_path_factory.mktemp("options"), specs) as site:
        yield site


@pytest.fixture
def unlimited_cell(gridengine_cell: Cell) -> Iterator[Cell]:
    """A cell whose queue has no time limit."""
    gridengine_cell.empty()
    gridengine_cell.run("qconf", "-mattr", "queue", "h_rt", "INFINITY", "all.q")
    yield gridengine_cell
    gridengine_cell.run("qconf", "-mattr", "queue", "h_rt", "24:00:00", "all.q")


def received(site: Site, *options: str) -> set[str]:
    """Return what a job and its step print of a signal before the limit.

    A shell may also print that a process of the step ended by the signal.
    """
    file, output = site.folder / "script", site.folder / "out"
    file.write_text(SCRIPT)
    for path in (output, site.folder / "stop"):
        path.unlink(missing_ok=True)
    job = site.submit(*options, "-D", str(site.folder), "-o", str(output), str(file))
    expected = {"to-script", "to-step"}
    site.until(lambda: output.exists() and expected & set(output.read_text().split()), 120)
    (site.folder / "stop").touch()
    [row] = site.until_ended(job)
    assert row["state"] == "completed", (row, output.read_text())
    return expected & set(output.read_text().split())


def check_appending(site: Site) -> None:
    output = site.folder / "appended"
    output.write_text("before\n")
    options = ("-o", str(output), "--wrap", "echo after")
    site.until_ended(site.submit("--open-mode", "append", *options))
    assert output.read_text() == "before\nafter\n"
    site.until_ended(site.submit(*options))
    assert output.read_text() == "after\n"


def check_refused(site: Site, text: str, *options: str) -> None:
    refused = site.run("submit", *options, "--wrap", "true", code=3)
    assert text in refused.stderr


@pytest.mark.parametrize("fence", [False, True])
def test_on_a_local_cluster(site: Site, fence: bool) -> None:
    extra = f'fence_dir = "{site.folder / "fence"}"\n' if fence else ""
    (site.folder / "fence").mkdir()
    host = socket.gethostname()
    site.configure(ONE_LOCAL + extra, extra=FIRST_ID)
    site.start()
    assert received(site, "-t", "60s", "--signal", "B:USR1@57") == {"to-script"}
    assert received(site, "-t", "60s", "--signal", "USR1@57") == {"to-step"}
    check_appending(site)
    site.until_ended(site.submit("-w", host, "-x", "other[1-3]", "-t", "0", "--wrap", "true"))
    check_refused(site, "the cluster has no node elsewhere", "-w", "elsewhere")
    check_refused(site, "--nice below 0 has no equivalent on the cluster", "--nice=-1")
    [row] = site.until_ended(site.submit("-x", host, "--wrap", "true"))
    assert row["state"] == "rejected"
    assert f"node {host} is excluded" in site.run("story", str(row["job"])).stdout
    assert site.stop() == 0
    site.replayed()


def test_nice_orders_the_queue_of_a_local_cluster(site: Site) -> None:
    site.configure(ONE_LOCAL.replace("cpus = 4", "cpus = 1"))
    site.start()
    log = site.folder / "order"
    first = site.submit("--wrap", f"while [ ! -e {site.folder}/go ]; do sleep 0.1; done")
    jobs = [
        site.submit(f"--nice={nice}", "-n", "1", "--wrap", f"echo {nice} >>{log}")
        for nice in ("200", "100", "0")
    ]
    site.until(lambda: all(site.row(job)["state"] == "pending" for job in jobs))
    (site.folder / "go").touch()
    site.until_ended(first)
    for job in jobs:
        site.until_ended(job)
    assert log.read_text().split() == ["0", "100", "200"]


@pytest.mark.slow("two jobs run until a signal three seconds after their starts; others follow")
@pytest.mark.parametrize("fence", [False, True])
def test_on_grid_engine(site: Site, unlimited_cell: Cell, fence: bool) -> None:
    python = unlimited_cell.python(site.folder / "python")
    (site.folder / "fence").mkdir()
    extra = f'fence_dir = "{site.folder / "fence"}"\n' if fence else ""
    table = unlimited_cell.table(python, "poll_interval = 0.5\nsettle = 1\n" + extra)
    site.configure(table, extra=FIRST_ID)
    site.start()
    assert received(site, "-t", "60s", "--signal", "B:USR1@57") == {"to-script"}
    assert received(site, "-t", "60s", "--signal", "USR1@57") == {"to-step"}
    check_appending(site)
    host = unlimited_cell.run("qconf", "-sel").split()[0]
    job = site.submit("--nice=7", "-w", host, "-x", "other", "-t", "0", "--wrap", "sleep 60")
    site.until(lambda: site.row(job)["state"] == "running", 60)
    details = unlimited_cell.run("qstat", "-j", str(site.row(job)["native_id"]))
    assert "priority:                   -7" in details
    assert f"hostname={host}" in details
    assert "h_rt=INFINITY" in details
    site.run("cancel", str(job))
    site.until_ended(job)
    check_refused(site, "--signal without --time has no equivalent", "--signal", "USR1")
    check_refused(site, "--nodelist with several nodes has no equivalent", "-w", "a,b")
    [row] = site.until_ended(site.submit("-x", host, "--wrap", "true"))
    assert row["state"] == "rejected"
    assert site.stop() == 0
    site.replayed()


@pytest.mark.slow("boots two clusters; four jobs run and are cancelled one by one")
def test_on_two_slurm_clusters(site: Site, two_clusters: SlurmSite) -> None:
    for cluster in two_clusters:
        cluster.empty()
        cluster.run("scontrol", "update", "PartitionName=main", "MaxTime=UNLIMITED")
    site.configure(
        "".join(cluster.table("poll_interval = 0.5\n") for cluster in two_clusters) + ONE_LOCAL,
        extra=FIRST_ID,
    )
    site.start()
    alpha = two_clusters["alpha"]

    def shown(*options: str) -> tuple[str, dict[str, str]]:
        job = site.submit(*options, "--wrap", "sleep 300")
        site.until(lambda: site.row(job)["state"] == "running")
        row = site.row(job)
        text = two_clusters[row["cluster"]].run("scontrol", "show", "job", str(row["native_id"]))
        fields = dict(pair.partition("=")[::2] for pair in text.split())
        site.run("cancel", str(job))
        site.until_ended(job)
        return row["cluster"], fields

    name, fields = shown("-w", "b1", "-x", "a1,nowhere", "-t", "0", "--nice=7")
    assert (name, fields["NodeList"], fields["Nice"]) == ("beta", "b1", "7")
    assert fields["TimeLimit"] == "UNLIMITED"
    assert shown("-w", "a[1-2]", "-n2", "--comment", "c")[1]["NodeList"] == "a[1-2]"
    assert shown("-x", "a1,b1", "--cluster", "alpha,beta")[1]["NodeList"] == "a2"
    job = site.submit("-w", "b1", "--hold", "--wrap", "true")
    text = site.run("explain", str(job)).stdout
    assert "the cluster has no node b1" in text
    site.run("cancel", str(job))
    assert received(site, "-t", "1", "--cluster", alpha.name, "--signal", "B:USR1@59") == {
        "to-script"
    }
    assert site.stop() == 0
    site.replayed()
