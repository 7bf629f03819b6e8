"""A daemon that queries licence servers, as users and admins see it.

The real `lmutil` is proprietary; a script that prints a file replaces it.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import TWO_LOCAL, Site

HEAD = """\
License server status: 27000@lic1
lic1: license server UP (MASTER) v11.19.0
Vendor daemon status (on lic1):
  orbitd: UP v11.19.0
Feature usage info:
"""


class Server:
    """Set the output of the licence server."""

    def __init__(self, folder: Path) -> None:
        self.answer, self.query_log = folder / "answer", folder / "asked"
        self.program = folder / "lmutil"
        self.program.write_text(f"#!/bin/sh\necho >> {self.query_log}\ncat {self.answer}\n")
        self.program.chmod(0o755)

    def says(self, *features: str) -> None:
        new = self.answer.with_suffix(".new")
        new.write_text(HEAD + "".join(features))
        new.rename(self.answer)

    @property
    def times(self) -> int:
        """Return the number of queries."""
        return len(self.query_log.read_text()) if self.query_log.exists() else 0


def feature(name: str, issued: int, *users: tuple[str, str, int]) -> str:
    used = sum(count for _, _, count in users)
    lines = [
        f"Users of {name}:  (Total of {issued} licenses issued;  Total of {used} licenses in use)"
    ]
    start = f"{datetime.now(UTC):%a %-m/%-d %H:%M}"
    lines += [
        f"    {user} {host} tty (v1.0) (lic1/27000 101), start {start}, {count} licenses"
        for user, host, count in users
    ]
    return "\n".join([*lines, "", ""])


def licence(site: Site, name: str) -> dict[str, Any]:
    return next(row for row in site.json("licences") if row["licence"] == name)


def finding(site: Site, check: str) -> dict[str, Any]:
    """Return the result of one check of doctor, which exits with 0 or 1."""
    for code in (0, 1):
        try:
            checks = json.loads(site.run("doctor", "--json", code=code).stdout)
        except AssertionError:
            continue
        return next(row for row in checks if row["check"] == check)
    raise AssertionError(check)


@pytest.mark.slow("a licence server is asked each second, eight times")
def test_counted_tokens_are_leased_and_no_token_counts_twice(site: Site) -> None:
    server = Server(site.folder)
    user, host = pwd.getpwuid(os.geteuid()).pw_name, socket.gethostname()
    server.says(feature("MATLAB", 4, ("eve", "ws7", 1)), feature("other", 9))
    tables = f"""
[[licence_server]]
name = "main"
kind = "flexlm"
servers = "27000@lic1"
lmutil = "{server.program}"
interval = "1s"
features = {{ matlab = "MATLAB" }}
"""
    for name in ("matlab", "other", "absent"):
        tables += (
            f'[[licence]]\nname = "{name}"\nserver = "main"\nstale_after = "1h"\nlinger = "1h"\n'
        )
    site.configure(TWO_LOCAL, tables)
    begun = time.monotonic()
    site.start()
    site.until(lambda: licence(site, "matlab")["free"] == 3)
    row = licence(site, "matlab")
    assert (row["total"], row["ours"], row["outside"]) == (4, 0, 1)
    assert licence(site, "absent")["state"].startswith("unknown: ")

    job = site.submit(
        "-L", "matlab:2", "--wrap", f"while [ ! -e {site.folder}/go ]; do sleep 0.1; done"
    )
    site.until(lambda: site.row(job)["state"] == "running")
    server.says(feature("MATLAB", 4, ("eve", "ws7", 1), (user, host, 2)), feature("other", 9))
    probes = server.times
    site.until(lambda: server.times > probes + 1)
    row = licence(site, "matlab")
    assert (row["ours"], row["outside"], row["free"]) == (2, 1, 1)

    second = site.submit("-L", "matlab:2", "--wrap", "true")
    site.until(lambda: site.row(second)["reason"] == "licence_busy")
    (site.folder / "go").touch()
    site.until_ended(job)
    # the server still reports the token: it is not free, although its lease has ended
    probes = server.times
    site.until(lambda: server.times > probes + 1)
    assert (licence(site, "matlab")["outside"], licence(site, "matlab")["free"]) == (3, 1)
    assert site.row(second)["reason"] == "licence_busy"
    server.says(feature("MATLAB", 4, ("eve", "ws7", 1)), feature("other", 9))
    assert [r["state"] for r in site.until_ended(second)] == ["completed"]

    # three licences, one query per interval; doctor would make one of its own
    assert server.times <= time.monotonic() - begun + 1
    check = finding(site, "licence server main")
    assert not check["ok"]
    assert "absent: it has no absent" in check["text"]


@pytest.mark.slow("an answer of a licence server is stale after twelve seconds")
def test_unusable_output_counts_no_free_token(site: Site) -> None:
    answer = site.folder / "answer"

    def says(text: str) -> None:
        new = answer.with_suffix(".new")
        new.write_text(text)
        new.rename(answer)

    good = json.dumps({"licences": [{"name": "matlab", "total": 2, "used": 0, "uses": []}]})
    says(good)
    site.configure(
        TWO_LOCAL,
        f"""
[[licence_server]]
name = "main"
kind = "command"
command = ["/bin/cat", "{answer}"]
interval = "1s"
timeout = "1s"
[[licence]]
name = "matlab"
server = "main"
stale_after = "12s"
""",
    )
    site.start()
    site.until(lambda: licence(site, "matlab")["free"] == 2)
    says("4 Lizenzen")
    site.until(lambda: licence(site, "matlab")["free"] is None)
    assert "has not answered" in licence(site, "matlab")["state"]
    job = site.submit("-L", "matlab", "--wrap", "true")
    site.until(lambda: site.row(job)["reason"] == "licence_unknown")
    check = finding(site, "licence server main")
    assert not check["ok"]
    assert "cannot be read" in check["text"]
    assert "licence_server_silent" in site.log.read_text()
    says(good)
    assert [row["state"] for row in site.until_ended(job)] == ["completed"]
