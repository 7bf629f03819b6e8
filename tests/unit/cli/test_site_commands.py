"""Commands on clusters, licences and reservations."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.unit.cli.fake_daemon import FakeDaemon, Run


def test_licences_with_reservations(daemon: FakeDaemon, run: Run) -> None:
    start, end = "2090-01-31T10:00:00+00:00", "2090-01-31T11:00:00+00:00"
    row = {"licence": "matlab", "total": 4, "ours": 1, "outside": 0, "free": 3, "waiting": 0}
    row |= {"rho": 0.0, "state": "ok", "reserved": 0, "windows": [], "holders": []}
    row |= {"more_holders": 0}
    daemon.answer("/licences", [row])
    assert "RESERVATION" not in run("licences").out
    window = {"reservation": 7, "count": 2, "start": start, "end": end}
    daemon.answer("/licences", [row | {"windows": [window]}])
    assert run("licences").out.splitlines()[-1].split()[:3] == ["7", "matlab", "2"]


def test_limits_and_their_use(daemon: FakeDaemon, run: Run) -> None:
    row = {"scope": "user", "name": "ada", "limit": "running", "used": 3, "maximum": 4}
    total = {"scope": "all", "name": None, "limit": "open_tasks", "used": 7, "maximum": 9}
    daemon.answer("/limits", [total, row])
    lines = [line.split() for line in run("limits").out.splitlines()]
    assert lines == [
        ["SCOPE", "NAME", "LIMIT", "USED", "MAXIMUM"],
        ["all", "open_tasks", "7", "9"],
        ["user", "ada", "running", "3", "4"],
    ]
    assert json.loads(run("limits", "--user", "ada", "--json").out) == [total, row]


def test_shares_and_standings(daemon: FakeDaemon, run: Run) -> None:
    account = {"account": "physics", "user": None, "parent": None, "weight": 60.0, "share": 0.75}
    account |= {"used": 7200.0, "used_share": 1 / 3, "place": None}
    user = {"account": "physics", "user": "ada", "parent": None, "weight": 1.0, "share": 0.5}
    user |= {"used": 360.0, "used_share": 0.02, "place": 2}
    daemon.answer("/shares", [account, user])
    lines = [line.split() for line in run("shares").out.splitlines()]
    assert lines[1:] == [
        ["physics", "60", "75.0%", "2.0", "33.3%"],
        ["physics", "ada", "1", "50.0%", "0.1", "2.0%", "2"],
    ]
    assert json.loads(run("shares", "--user", "ada", "--json").out) == [account, user]
    daemon.answer("/shares", [])
    assert run("shares").out.startswith("No fair share is configured")


def test_a_reservation_for_another_user(daemon: FakeDaemon, run: Run) -> None:
    times = {"start": "2090-01-31T10:00:00+00:00", "end": "2090-01-31T11:00:00+00:00"}
    where = {"cluster": "alpha", "nodes": 1, "processors": None, "starts": []}
    offer: dict[str, Any] = where | times
    daemon.answer("/reservations", {"offers": [offer]})
    arguments = ("reserve", "-n", "1", "--duration", "1h", "--dry-run")
    assert run(*arguments).code == 0
    assert run(*arguments, "--user", "ada").code == 0
    requests = [body for _, path, _, body in daemon.requests if path == "/reservations"]
    assert [body.get("user") for body in requests] == [None, "ada"]


def test_reservations_on_a_terminal_are_shown_over_time(
    daemon: FakeDaemon, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    reservation = {
        "reservation": 7,
        "user": "ada",
        "cluster": "alpha",
        "size": 4,
        "state": "bound",
        "start": "2090-01-31T10:00:00+00:00",
        "end": "2090-01-31T11:00:00+00:00",
        "nodes": ["n1"],
        "cause": "asked for",
        "licences": {},
    }
    daemon.answer("/reservations", [reservation])
    assert "7 alpha 4 ada" not in run("reservations").out
    daemon.answer("/reservations", [reservation | {"licences": {"matlab": 2, "ansys": 1}}])
    assert "matlab:2,ansys:1" in run("reservations").out
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output = run("reservations").out
    assert "7 alpha 4 ada ......" in output
    assert "2090-01-31" in output.splitlines()[-1]


def test_clusters(daemon: FakeDaemon, run: Run) -> None:
    rows = [
        {
            "cluster": "left",
            "adapter": "slurm",
            "access": "commands",
            "state": "up",
            "cpus": 8,
            "used": 3,
            "pending": 2,
            "load": [1234.5678, 0.0],
            "count": [4, 0],
        }
    ]
    daemon.answer("/clusters", rows)
    fields = run("clusters").out.splitlines()[1].split()
    assert fields == ["left", "slurm", "by", "commands", "up", "8", "3", "2", "1235", "4"]
    assert json.loads(run("clusters", "--json").out) == rows
