"""Self-optimisation in a real daemon: its changes are explained, and survive kills and replays."""

from __future__ import annotations

import signal

import pytest

from tests.e2e.conftest import Site

POLICY = "[self_optimising.base]\nhistory = 10\n"


def submit(site: Site, margin: int) -> int:
    """Submit a held job with a margin in minutes; return its id."""
    limit = 10
    deadline = f"+{limit + margin}m"
    return site.submit("--hold", "-t", str(limit), "--deadline", deadline, "--wrap", "true")


@pytest.mark.slow("a dozen commands, and two starts of the daemon")
def test_changes_are_explained_and_survive_a_kill(site: Site) -> None:
    (site.folder / "policy.toml").write_text(POLICY)
    site.configure(extra='[policy]\nfile = "policy.toml"\n')
    site.start()
    jobs = [submit(site, margin) for margin in [1, 1000] * 5]  # half are urgent, half are not
    assert [site.json("explain", str(job))["tuning"] for job in (jobs[0], jobs[-1])] == [[], []]
    after = submit(site, 1000)
    [change] = site.json("explain", str(after))["tuning"]
    assert change["parameter"] == "base"
    assert change["before"] == [2.0]
    assert change["expected"] < change["distance"] > 0.25
    values = f"base: 2 -> {change['after'][0]:.4g}"
    assert any(
        line.startswith(values) for line in site.run("explain", str(after)).stdout.split("\n")
    )
    site.stop(signal.SIGKILL)
    site.start()
    [tuning, *_] = site.json("explain", str(submit(site, 1)))["tuning"]
    assert tuning["after"] != [2.0]
    site.run("db", "check")
    # without the key the configured base holds again
    (site.folder / "policy.toml").write_text("")
    site.stop()
    site.start()
    [ended] = site.json("explain", str(submit(site, 1)))["tuning"]
    assert (ended["after"], ended["distance"]) == ([], None)
    site.run("db", "check")
