"""The expected start of a job that waits on a `local` cluster, as its user is told."""

from __future__ import annotations

from datetime import datetime

from tests.e2e.conftest import ONE_LOCAL, Site


def test_status_and_explain_have_an_interval(site: Site) -> None:
    """Of 100 ended tasks none took more than a part of its limit; nor will the running job."""
    site.configure(f'{ONE_LOCAL}policy = "easy"\n')
    site.start()
    known = site.submit("-n", "1", "--array", "1-100", "--time", "60", "--wrap", "true")
    site.until_ended(known)
    first = site.submit("-n", "4", "--time", "60", "--wrap", "exec sleep 600")
    begun = datetime.fromisoformat(site.until(lambda: site.row(first)["started"]))
    second = site.submit("-n", "4", "--time", "5", "--wrap", "true")
    row = site.until(lambda: (row := site.row(second))["expected_late"] and row)
    early, median, late = (
        datetime.fromisoformat(row[key])
        for key in ("expected_early", "expected_start", "expected_late")
    )
    assert begun <= early <= median <= late
    # no known task has run for so long: any part of the limit of an hour
    assert (late - begun).total_seconds() > 600
    assert (late - begun).total_seconds() <= 3600 + 2
    explanation = site.json("explain", str(second))
    assert explanation["expected_early"] <= explanation["expected_start"]
    assert "with 80% probability between" in explanation["text"]
    site.run("cancel", str(first))
    [row] = site.until_ended(second)
    assert (row["expected_start"], row["expected_late"]) == (None, None)
    assert "not estimated" not in site.json("explain", str(second))["text"]
