"""The planned start of a job on a `local` cluster, as its user is told."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.e2e.conftest import ONE_LOCAL, Site


@pytest.mark.parametrize("policy", ["eg-edf", "tabu", "rcbo"])
def test_explain_tells_the_planned_start(site: Site, policy: str) -> None:
    """Two jobs wait for all processors behind one that may run for 600 s."""
    site.configure(f'{ONE_LOCAL}policy = "{policy}"\n')
    site.start()
    first = site.submit("-n", "4", "--time", "10", "--wrap", "exec sleep 600")
    begun = site.until(lambda: site.row(first)["started"])
    second, third = (site.submit("-n", "4", "--time", "5", "--wrap", "true") for _ in range(2))

    def planned(job: int) -> float:
        """Return the planned start, in seconds after the start of the first job."""
        expected = site.until(lambda: site.json("explain", str(job))["expected_start"])
        return (datetime.fromisoformat(expected) - datetime.fromisoformat(begun)).total_seconds()

    assert planned(second) == pytest.approx(600, abs=30)
    assert planned(third) == pytest.approx(planned(second) + 300, abs=2)
    assert "here expects it to start at" in site.json("explain", str(third))["text"]
    window = ("--size", "4", "--start", "+16m", "--duration", "1h")
    site.run("reserve", *window)  # the second ends before, the third starts behind it
    site.until(lambda: planned(third) > 4000)
    assert planned(second) == pytest.approx(600, abs=30)
    site.run("cancel", str(first))
    site.until_ended(second, third)
    assert site.json("explain", str(third))["expected_start"] is None
