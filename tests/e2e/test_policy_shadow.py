"""`metasched policy shadow`: a candidate decides beside the live policy, and changes nothing."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import TWO_LOCAL, Site

URGENT = ("--wrap", "true", "-t", "10", "--deadline", "+11m")
CANDIDATE = "[weights]\nuser = 9\ndeadline = 0\nlicence = 0\n"


@pytest.fixture
def running(site: Site) -> Site:
    (site.folder / "policy.toml").write_text("seed = 7\n")
    (site.folder / "copy.toml").write_text("# the same in other words\nseed = 7\n")
    (site.folder / "candidate.toml").write_text(CANDIDATE)
    (site.folder / "other.toml").write_text("max_priority = 5\n")
    site.configure(TWO_LOCAL, extra='[policy]\nfile = "policy.toml"\n')
    site.start()
    return site


def compared(site: Site, tasks: int) -> dict[str, int]:
    """Wait until that many tasks are compared; return the counts of all."""

    def counts() -> dict[str, int] | None:
        counts: dict[str, int] = site.json("policy", "shadow")["all"]
        return counts if counts["tasks"] >= tasks else None

    result: dict[str, int] = site.until(counts)
    return result


@pytest.mark.slow("some twenty commands, and two starts of the daemon")
def test_a_candidate_is_compared_and_never_executed(running: Site) -> None:
    site = running
    assert "no candidate has run" in site.error("policy", "shadow", code=5)
    assert "is in force, as version 1" in site.error("policy", "shadow", "policy.toml", code=1)
    assert "max_priority is 5" in site.error("policy", "shadow", "other.toml", code=1)
    assert "no candidate runs" in site.error("policy", "shadow", "--stop", code=1)

    started = site.json("policy", "shadow", "copy.toml", "--reason", "a copy")
    assert (started["reason"], started["ended"]) == ("a copy", None)
    assert "another candidate runs" in site.error("policy", "shadow", "candidate.toml", code=1)
    for _ in range(3):
        site.submit(*URGENT)
    counts = compared(site, 3)
    assert (counts["tasks"], counts["same_priority"]) == (3, 3)
    assert (counts["choices"], counts["same_cluster"]) == (3, 3)
    assert site.json("policy", "shadow", "--stop")["end"].startswith("stopped by ")

    site.run("policy", "shadow", "candidate.toml")
    assert site.json("policy", "shadow")["all"]["tasks"] == 0  # those of the copy are deleted
    job = site.submit(*URGENT)
    compared(site, 1)
    assert site.stop() == 0
    site.start()  # it goes on
    later = site.submit(*URGENT, "--array", "0")
    counts = compared(site, 2)
    assert (counts["tasks"], counts["same_priority"]) == (2, 0)
    assert counts["lower_priority"] == counts["differing"] == 2  # without the deadline
    [newest, first] = site.json("policy", "shadow")["differences"]
    assert (first["job"], first["task"]) == (int(job), None)
    assert (newest["job"], newest["task"]) == (int(later), 0)
    assert newest["priority"] < newest["live_priority"]
    assert newest["cluster"] == newest["live_cluster"]
    assert "with a deadline" in site.run("policy", "shadow").stdout
    rows = site.until_ended(job, later)
    assert {row["state"] for row in rows} == {"completed"}
    assert site.json("policy", "show")["version"] == 1

    site.run("policy", "activate", "candidate.toml")
    shown = site.json("policy", "shadow")
    assert shown["end"] == "in force as policy version 2"
    assert shown["all"]["tasks"] == 2
    kinds = [row["kind"] for row in site.json("events") if row["kind"].startswith("shadow")]
    assert kinds == ["shadow_started", "shadow_ended", "shadow_started"]
    assert site.stop() == 0
    assert {row["ok"] for row in site.json("db", "check")} == {True}
