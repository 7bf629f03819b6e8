"""Limits of the site, by the command line of two accounts; the daemon is killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite, running_site
from tests.harness.accounts import OPERATOR, A, B

pytestmark = pytest.mark.root

TABLES = """
[[cluster]]
name = "left"
adapter = "local"
cpus = 4
poll_interval = 0.2
[limits]
open_tasks = 100
[limits.each_user]
open_tasks = 3
running = 1
processors = 2
[limits.classes.regular]
stored_bytes = 100_000
"""
SLEEP = ("-t", "60", "-o", "/dev/null", "--wrap", "sleep 600")


@pytest.fixture
def limited(common_folder: Path) -> Iterator[MultiUserSite]:
    with running_site(common_folder / "limits", TABLES, f"[cluster.left]\n{SUPERVISE}") as site:
        yield site


def used(site: MultiUserSite, *options: str) -> dict[tuple[str, str | None, str], tuple[int, int]]:
    rows: list[dict[str, Any]] = site.json("limits", *options)
    return {
        (row["scope"], row["name"], row["limit"]): (row["used"], row["maximum"]) for row in rows
    }


@pytest.mark.slow("40 commands of three accounts; the daemon is killed")
def test_two_users_above_and_below_their_limits(limited: MultiUserSite) -> None:
    a, b, operator = limited.by(A), limited.by(B), limited.by(OPERATOR)
    first, second = a.submit(*SLEEP), a.submit(*SLEEP)
    a.until(lambda: a.row(first)["state"] == "running")
    waiting = a.row(second)
    assert (waiting["state"], waiting["reason"]) == ("queued", "limit_user")
    explanation = a.json("explain", str(second))
    assert explanation["reason"] == "limit_user"
    assert f"limit of user {A}: 1 of 1 tasks that may run, 1 wanted" in explanation["text"]
    other = b.submit(*SLEEP)
    b.until(lambda: b.row(other)["state"] == "running")

    refusal = a.error("submit", "--array", "1-2", *SLEEP, code=3)
    assert refusal.startswith(f"limit of user {A}: 2 of 3 open tasks, 2 wanted; ")
    refusal = a.error("submit", "-n", "3", *SLEEP, code=3)
    assert refusal.startswith(f"limit of user {A}: 2 processors, 3 wanted; ")
    assert {row["job"] for row in a.rows()} == {first, second}

    # script, arguments and environment of the jobs of both users
    class_bytes = ("class", "regular", "stored_bytes")
    before, maximum = used(a)[class_bytes]
    assert 0 < before < maximum == 100_000
    long_script = limited.folder / "long.sh"
    long_script.write_text(f"#!/bin/sh\n: {'x' * 100_000}\n")
    long_script.chmod(0o644)
    refusal = b.error("submit", "-t", "60", "-o", "/dev/null", str(long_script), code=3)
    assert refusal.startswith(f"limit of class regular: {before} of 100000 bytes stored for open ")
    assert used(b)[class_bytes] == (before, maximum)

    own = {
        class_bytes: (before, maximum),
        ("all", None, "open_tasks"): (3, 100),
        ("user", A, "open_tasks"): (2, 3),
        ("user", A, "running"): (1, 1),
        ("user", A, "processors"): (1, 2),
    }
    assert used(a) == own
    assert used(operator, "--user", A) == own
    assert used(operator).keys() > own.keys() | {("user", B, "running")}
    assert A in b.error("limits", "--user", A, code=3)

    limited.stop(signal.SIGKILL)
    limited.start()
    assert used(a) == own
    a.run("cancel", str(first))
    a.until(lambda: a.row(second)["state"] == "running")
    assert used(a)["user", A, "open_tasks"] == (1, 3)
    assert used(a)[class_bytes][0] < before
    a.submit("--array", "1-2", *SLEEP)
    assert "3 of 3 open tasks, 1 wanted" in a.error("requeue", str(first), code=3)
    limited.stop()
    limited.replayed()
