"""A change that `policy try` predicts, compared with the change once the policy is in force.

The same tasks run twice: under a policy that moves none, and after the activation of one that does.
Times decide nothing: a busy host delays all. `pytest -s -m bench` of this file prints the figures
of docs/policy.md, of longer tasks, which `make test` leaves out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.e2e.conftest import Site
from tests.harness import slurm
from tests.harness.slurm import ClusterSpec, SlurmSite

LOCAL = '[[cluster]]\nname = "{}"\nadapter = "local"\ncpus = 2\npoll_interval = 0.2\n'


@contextmanager
def two_clusters(kind: str, folder: Path) -> Iterator[str]:
    """Yield the tables of two clusters, on each of which one task runs at a time."""
    if kind == "local":
        yield LOCAL.format("alpha") + LOCAL.format("beta")
        return
    if (reason := slurm.missing()) is not None:
        require("slurm", reason)
    specs = [ClusterSpec(name, name[0], nodes=1, cpus=2) for name in ("alpha", "beta")]
    with SlurmSite(folder, specs) as booted:
        yield "".join(cluster.table("poll_interval = 1\n") for cluster in booted)


def run_tasks(site: Site, tasks: int, seconds: float) -> list[Any]:
    """Run an array beside a task that ends long before its limit; return all rows.

    That task holds one cluster until all others have gone to the other cluster, in the simulation
    too: no decision depends on a small difference.
    """
    go = site.folder / "go"
    go.unlink(missing_ok=True)
    # simulated, it starts at once: it must run for longer than the manager took to start it
    waiting = f"until [ -e {go} ]; do sleep 0.1; done; sleep {2 * seconds}"
    holder = site.submit("-n", "2", "--time", "60", "--cluster", "beta", "--wrap", waiting)
    site.until(lambda: site.rows(holder)[0]["state"] == "running")
    array = ("-n", "2", "--time", "1", "--array", f"1-{tasks}", "--wrap", f"exec sleep {seconds}")
    job = site.submit(*array)
    go.touch()
    return site.until_ended(holder, job)


def wait_of(row: Any) -> float:
    """Return the seconds from the submission of a task to its start."""
    submitted, started = (datetime.fromisoformat(row[key]) for key in ("submitted", "started"))
    return (started - submitted).total_seconds()


@pytest.mark.slow("eight tasks of 1.5 s run one by one, twice")
@pytest.mark.parametrize(
    ("kind", "tasks", "seconds"),
    [
        ("local", 8, 1.5),
        pytest.param("local", 12, 4.0, marks=pytest.mark.bench),
        pytest.param("slurm", 12, 4.0, marks=pytest.mark.bench),
    ],
)
def test_a_predicted_change_is_compared_with_the_measured_one(
    site: Site, tmp_path: Path, kind: str, tasks: int, seconds: float
) -> None:
    (site.folder / "still.toml").write_text("pull = false\n")
    (site.folder / "moving.toml").write_text("pull = true\npull_after = 1.0\n")
    with two_clusters(kind, tmp_path) as tables:
        site.configure(tables, extra='[policy]\nfile = "still.toml"\n')
        site.start()
        before = run_tasks(site, tasks, seconds)
        tried = site.json("policy", "try", "moving.toml")
        site.run("policy", "activate", "moving.toml")
        after = run_tasks(site, tasks, seconds)
        assert site.stop() == 0
    predicted = {row["figure"]: row for row in tried["figures"]}
    waits = predicted["mean wait"]
    measured = [statistics.mean(map(wait_of, rows)) for rows in (before, after)]
    print(
        f"\n{kind}: mean wait {measured[0]:.1f} s, simulated {waits['before']:.1f} s; predicted "
        f"change {waits['change']:.1f} s [{waits['low']:.1f}, {waits['high']:.1f}], measured "
        f"{measured[1] - measured[0]:.1f} s"
    )
    assert tried["replay"]["problems"] == []
    # beta becomes idle, and takes some of the tasks only if these may move
    clusters = [{row["cluster"] for row in rows if row["task"]} for rows in (before, after)]
    assert clusters == [{"alpha"}, {"alpha", "beta"}]
    assert predicted["moves per job"]["after"] > predicted["moves per job"]["before"] == 0
    assert waits["change"] <= waits["high"] < 0
