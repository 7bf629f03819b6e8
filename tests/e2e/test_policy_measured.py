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

LONG = (1, 4, 6, 8)  # of 8 tasks with the same limit: those that go to the first cluster
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


def run_tasks(site: Site, long: float, short: float) -> list[Any]:
    """Run an array; return the rows of its tasks."""
    indices = "|".join(map(str, LONG))
    command = f"case $METASCHED_TASK in {indices}) exec sleep {long}; esac; exec sleep {short}"
    job = site.submit("-n", "2", "--time", "1", "--array", "1-8", "--wrap", command)
    return site.until_ended(job)


def wait_of(row: Any) -> float:
    """Return the seconds from the submission of a task to its start."""
    submitted, started = (datetime.fromisoformat(row[key]) for key in ("submitted", "started"))
    return (started - submitted).total_seconds()


@pytest.mark.parametrize(
    ("kind", "long", "short"),
    [
        ("local", 3.0, 0.2),
        pytest.param("local", 20.0, 1.0, marks=pytest.mark.bench),
        pytest.param("slurm", 20.0, 1.0, marks=pytest.mark.bench),
    ],
)
def test_a_predicted_change_is_compared_with_the_measured_one(
    site: Site, tmp_path: Path, kind: str, long: float, short: float
) -> None:
    (site.folder / "still.toml").write_text("pull = false\n")
    (site.folder / "moving.toml").write_text("pull = true\npull_after = 1.0\n")
    with two_clusters(kind, tmp_path) as tables:
        site.configure(tables, extra='[policy]\nfile = "still.toml"\n')
        site.start()
        before = run_tasks(site, long, short)
        tried = site.json("policy", "try", "moving.toml")
        site.run("policy", "activate", "moving.toml")
        after = run_tasks(site, long, short)
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
    assert waits["recorded"] == pytest.approx(measured[0], abs=0.1)
    # the other cluster becomes idle, and takes some of the long tasks only if these may move
    long_on = [{row["cluster"] for row in rows if row["task"] in LONG} for rows in (before, after)]
    assert long_on == [{"alpha"}, {"alpha", "beta"}]
    assert predicted["moves per job"]["after"] > predicted["moves per job"]["before"] == 0
    assert waits["change"] < 0
