"""Series of reservations over a real Slurm cluster: each occurrence once, skipped, cancelled."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.e2e.conftest import Site, reserve
from tests.e2e.reservable_clusters import SlurmReservations

pytestmark = pytest.mark.parametrize("reservable", ["slurm-nodes"], indirect=True)


def occurrences(site: Site) -> list[dict[str, Any]]:
    """Return the reservations of series, by start."""
    rows = site.json("reservations", "--all")
    return [row for row in rows if row["series"] is not None]


@pytest.mark.slow("seven windows are reserved in Slurm and cancelled, over a crash")
def test_a_series_is_reserved_once_over_a_crash(cluster: SlurmReservations, site: Site) -> None:
    site.configure(
        cluster.table(site.folder) + '[reservations]\nahead = "7d"\n', extra='zone = "UTC"\n'
    )
    site.start()
    now = datetime.now(UTC)
    hour = (now + timedelta(hours=2)).replace(minute=0, second=0, microsecond=0)
    conflict = hour + timedelta(days=2)
    everything = str(cluster.cpus)
    window = ("--start", f"{conflict:%Y-%m-%dT%H:%M+00:00}", "--duration", "30m")
    single = reserve(site, "--size", everything, *window)
    every = ("--every", f"daily {hour:%H:%M}", "--until", f"{hour + timedelta(days=9):%Y-%m-%d}")
    terms = ("reserve", "--size", everything, "--duration", "1h", *every)
    listed = site.json(*terms, "--dry-run")
    assert listed["occurrences"] == 10
    assert site.json("calendar") == []
    series = site.json(*terms)
    assert series["entry"] != single["reservation"]
    site.until(lambda: len(occurrences(site)) >= 2)
    site.stop(signal.SIGKILL)
    site.start()
    site.until(lambda: len(occurrences(site)) == 6)  # of seven days, without the conflict
    site.until(lambda: {row["state"] for row in occurrences(site)} == {"bound"})
    starts = Counter(row["start"][:16] for row in occurrences(site))
    assert set(starts.values()) == {1}
    assert f"{conflict:%Y-%m-%dT%H:%M}" not in starts
    [skipped] = site.json("events", "--kind", "reservation_skipped")
    assert "not free" in skipped["cause"]
    [row] = site.json("calendar")
    assert row["next"][0].startswith(f"{hour + timedelta(days=7):%Y-%m-%dT%H:%M}")

    first, *others = occurrences(site)
    site.run("reservation", "cancel", str(first["reservation"]))
    assert {r["state"] for r in occurrences(site) if r != first} >= {"bound"}
    assert len(site.json("calendar")) == 1
    site.run("reservation", "cancel", "--series", str(series["entry"]))
    assert site.json("calendar") == []
    site.until(lambda: {row["state"] for row in occurrences(site)} == {"cancelled"})
    site.until(lambda: len(cluster.reservations()) == 1)  # the single one
    assert len(others) == 5
    assert site.stop() == 0
    assert {row["ok"] for row in site.json("db", "check")} == {True}
    site.replayed()


def test_bounds_of_a_series(cluster: SlurmReservations, site: Site) -> None:
    site.configure(cluster.table(site.folder))
    site.start()
    size = ("reserve", "--size", "1")
    refusals = {
        ("--duration", "60s", "--every", "*/15 * * * *", "--until", "+12d"): "more than 1000",
        ("--duration", "60s", "--every", "* * * * *", "--until", "+3h"): "900 s apart or more",
        ("--duration", "2h", "--every", "0 * * * *", "--until", "+2d"): "shorter duration",
        ("--duration", "1h", "--every", "0 0 30 2 *", "--until", "+9d"): "no occurrence until",
        ("--duration", "1h", "--every", "08:00", "--until", "+60s"): "no occurrence until",
        ("--duration", "90d", "--every", "08:00", "--until", "+9d"): "that you may reserve",
        ("--duration", "1h", "--every", "08:00", "--until", "+9d", "--users", "no-one,root"): (
            "there is no account"
        ),
        ("--duration", "1h", "--every", "08:00", "--until", "+9d", "--groups", "no-such"): (
            "there is no group"
        ),
    }
    for options, problem in refusals.items():
        done = site.run(*size, *options, code=5 if "there is no" in problem else _code(problem))
        assert problem in done.stderr
        assert done.stderr.count("\n") == 1
    assert site.json("calendar") == []
    shared_with = reserve(
        site, "--size", "1", "--start", "+2h", "--duration", "1h", "--users", "root,daemon"
    )
    assert "daemon" in shared_with["users"]
    [native] = cluster.reservations()
    assert "daemon" in cluster.show(native)


def _code(problem: str) -> int:
    return 3 if "may reserve" in problem else 2
